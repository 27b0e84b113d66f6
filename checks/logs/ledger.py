"""Who is registered, by a router's log: registrations and losses replayed, the last event counts.

Pure; costs a look at each match. Times are the kubelet's, seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from checks.logs.view import LogView, Match
from checks.model import Evidence

_UP = ("lmcache-registered", "aws-worker-registered", "lmcache-already-registered", "lmcache-reregister")
_DOWN = ("lmcache-deregistered", "lmcache-reaped")


@dataclass(frozen=True, slots=True)
class Registration:
    """One worker process as a router's log tells of it."""

    instance: str
    worker_id: int | None
    """Rank; None in AWS's line, which names the instance only."""
    alive: bool
    """Its last event is a registration. A duplicate counts as one: the router knows it."""
    last: Match
    evidence: Evidence
    """Its last event."""
    ip: str = ""
    """Of its last registration with an address; '' where none was read."""
    port: int | None = None
    reaped: bool = False
    """Lost because its heartbeats stayed away, not because it signed off."""
    times_up: tuple[float | None, ...] = ()
    """Of registrations of a worker that was not up before; None where a line has no kubelet timestamp."""
    times_lost: tuple[float | None, ...] = ()
    """Of losses that came after a registration, one for each pair."""

    @property
    def name(self) -> str:
        return self.instance if self.worker_id is None else f"{self.instance} worker {self.worker_id}"

    def most_losses(self, window_s: float) -> int:
        """The most losses within any `window_s` seconds; losses without a time count as if all were within."""
        times = sorted(time for time in self.times_lost if time is not None)
        untimed = len(self.times_lost) - len(times)
        most = start = 0
        for end, time in enumerate(times):
            while time - times[start] > window_s:
                start += 1
            most = max(most, end - start + 1)
        return most + untimed


@dataclass(frozen=True, slots=True)
class Ledger:
    """All registrations that one router's log tells of."""

    registrations: Mapping[tuple[str, int | None], Registration]
    """By instance and worker id, in the order of their first event."""
    complete: bool
    """The log's beginning was read: a worker that is not here never registered. Else it may be from before."""

    @property
    def alive(self) -> tuple[Registration, ...]:
        return tuple(one for one in self.registrations.values() if one.alive)

    @property
    def lost(self) -> tuple[Registration, ...]:
        return tuple(one for one in self.registrations.values() if not one.alive)

    def of_instance(self, instance: str) -> tuple[Registration, ...]:
        return tuple(one for one in self.registrations.values() if one.instance == instance)

    def at(self, ip: str) -> tuple[Registration, ...]:
        return tuple(one for one in self.registrations.values() if one.ip == ip)


def ledger(view: LogView) -> Ledger:
    """Replays a router's log.

    A router prints `Registered` for a re-registration too, and reaps a worker in two lines; neither counts twice. AWS's
    line without a worker id counts for those of its instance that upstream's lines name, and stands alone otherwise.
    """
    found: dict[tuple[str, int | None], Registration] = {}
    for match in view.all(*_UP, *_DOWN):
        instance, worker_id = match["inst"], int(match["wid"]) if match["wid"] else None
        keys: Sequence[tuple[str, int | None]] = [(instance, worker_id)]
        if worker_id is None:
            keys = [key for key in found if key[0] == instance] or keys
        elif (instance, None) in found:
            found[instance, worker_id] = replace(found.pop((instance, None)), worker_id=worker_id)
        for key in keys:
            found[key] = _after(found.get(key), key, match, view.evidence(match))
    return Ledger(found, view.head_complete and not any(view.dropped.get(one) for one in (*_UP, *_DOWN)))


def _after(before: Registration | None, key: tuple[str, int | None], match: Match, evidence: Evidence) -> Registration:
    """The state after one event."""
    up = match.pattern in _UP
    was_up = before is not None and before.alive
    one = before or Registration(*key, alive=False, last=match, evidence=evidence)
    if up and not was_up:
        one = replace(one, times_up=(*one.times_up, match.record.at))
    if not up and was_up:
        one = replace(one, times_lost=(*one.times_lost, match.record.at))
    if match["ip"]:
        one = replace(one, ip=match["ip"], port=int(match["port"]))
    reaped = match.pattern == "lmcache-reaped" or (not up and not was_up and one.reaped)
    return replace(one, alive=up, last=match, evidence=evidence, reaped=reaped)
