"""Who is registered with LMCache's controllers, by what all routers logged, and which of it is about which worker.

A worker without an event is unknown. Pure; costs one replay of the routers' registration lines, so a check builds it
once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from checks.controller import instance_ids, lines_are_promised
from checks.logs.ledger import Ledger, Registration, ledger
from checks.model import Reason
from checks.snapshot import Member, Snapshot


@dataclass(frozen=True, slots=True)
class Registrations:
    """All registrations that routers told of."""

    entries: tuple[Registration, ...]
    """Router by router, in the order of their first event."""
    unknown: Reason | None
    """Why the absence of a worker says nothing; None where every router's log is complete."""
    by_ip: Mapping[str, tuple[Registration, ...]]
    by_instance: Mapping[str, tuple[Registration, ...]]
    shared_ips: frozenset[str]
    """Addresses of more than one worker."""

    @staticmethod
    def of(snapshot: Snapshot) -> Registrations:
        ledgers = {router.key: ledger(router.log) for router in snapshot.routers if router.log is not None}
        entries = tuple(one for book in ledgers.values() for one in book.registrations.values())
        ips = Counter(ip for worker in snapshot.workers for ip in set(worker.ips))
        by_ip: dict[str, list[Registration]] = {}
        by_instance: dict[str, list[Registration]] = {}
        for one in entries:
            by_instance.setdefault(one.instance, []).append(one)
            if one.ip:
                by_ip.setdefault(one.ip, []).append(one)
        return Registrations(
            entries,
            _why_unknown(snapshot, ledgers),
            {key: tuple(found) for key, found in by_ip.items()},
            {key: tuple(found) for key, found in by_instance.items()},
            frozenset(ip for ip, workers in ips.items() if workers > 1),
        )

    @property
    def alive(self) -> tuple[Registration, ...]:
        return tuple(one for one in self.entries if one.alive)

    def about(self, snapshot: Snapshot, worker: Member) -> tuple[Registration, ...]:
        """Those of one worker: by its address, or by its instance id where no address tells it apart."""
        ids = instance_ids(snapshot, worker)
        found = [
            one
            for ip in worker.ips
            for one in self.by_ip.get(ip, ())
            if ip not in self.shared_ips or one.instance in ids
        ]
        nameless = [one for name in ids for one in self.by_instance.get(name, ()) if not one.ip or not worker.ips]
        return tuple(found + nameless)


def _why_unknown(snapshot: Snapshot, ledgers: Mapping[str, Ledger]) -> Reason | None:
    if not snapshot.routers:
        return Reason.NO_DATA
    pattern = snapshot.patterns["lmcache-registered"]
    for router in snapshot.routers:
        if (why := router.why_absence_proves_nothing(pattern, None)) is not None:
            return why
        if router.log is None or router.log.unread_bytes or not ledgers[router.key].complete:
            return Reason.LOG_TRUNCATED
        if not lines_are_promised(snapshot, router):
            return Reason.NO_DATA
    return None
