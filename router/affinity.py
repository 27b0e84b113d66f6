"""Session affinity: a session stays where its first request went, in any mode, for as long as it goes on.

A binding is made when a request is placed, lives while requests of the session run, and ends `ttl` seconds after the
last one. *hard* is a pin: a worker that is only busy refuses, one that can no longer serve loses the binding. *soft* is
a preference: a busy worker is passed over and the session moves. Names and rules: Dynamo's session affinity.
Bounded: at the limit the session that was idle longest is forgotten. O(1).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum

from router.model import AllBusy, Candidates, Decision, RouteRequest, WhyNot


class AffinityMode(StrEnum):
    HARD = "hard"
    SOFT = "soft"


@dataclass(frozen=True, slots=True)
class AffinitySettings:
    """`ttl`: seconds of idleness after which a session is forgotten, 1 to 31,536,000; `limit`: sessions at most."""

    ttl: float
    mode: AffinityMode = AffinityMode.HARD
    limit: int = 100_000

    def __post_init__(self) -> None:
        if not 1 <= self.ttl <= 31_536_000:
            raise ValueError(f"session-affinity-ttl must be between 1 and 31536000 seconds, not {self.ttl:g}")


@dataclass(slots=True)
class Binding:
    worker: str
    rank: int
    active: int = 0
    idle_since: float = 0.0


class SessionAffinity:
    def __init__(self, settings: AffinitySettings) -> None:
        self.settings = settings
        self._bound: OrderedDict[str, Binding] = OrderedDict()

    def __len__(self) -> int:
        return len(self._bound)

    def target(self, session: str, now: float) -> Binding | None:
        """Where the session is bound; None if it is not, or was idle for too long."""
        found = self._bound.get(session)
        if found is not None and not found.active and now - found.idle_since >= self.settings.ttl:
            del self._bound[session]
            return None
        return found

    def placed(self, session: str, worker: str, rank: int, now: float) -> None:
        """A request of the session was placed: bind it there, and count it as running."""
        found = self._bound.pop(session, None)
        binding = found if found is not None and (found.worker, found.rank) == (worker, rank) else Binding(worker, rank)
        if found is not None and binding is not found:
            binding.active = found.active
        binding.active += 1
        binding.idle_since = now
        self._bound[session] = binding
        self._tidy(now)

    def ended(self, session: str, now: float) -> None:
        found = self._bound.get(session)
        if found is not None and found.active:
            found.active -= 1
            found.idle_since = now
            self._bound.move_to_end(session)

    def unbind(self, session: str) -> None:
        self._bound.pop(session, None)

    def row(self, request: RouteRequest, candidates: Candidates) -> int | None:
        """The row that the request's session is bound to, if that may serve.

        Raises:
            AllBusy: it is bound hard, and the worker is only busy.
        """
        session = _session(request)
        bound = None if session is None else self.target(session, request.now)
        if session is None or bound is None:
            return None
        places = zip(candidates.workers, candidates.ranks, strict=True)
        row = next((row for row, place in enumerate(places) if place == (bound.worker, bound.rank)), None)
        if row is not None and candidates.eligible[row]:
            return row
        if row is not None and candidates.why_not[row] == WhyNot.BUSY:
            if self.settings.mode is AffinityMode.HARD:
                raise AllBusy(f"the session is bound to worker '{bound.worker}', which is busy")
            return None
        self.unbind(session)
        return None

    def home(self, request: RouteRequest, now: float) -> tuple[str, int] | None:
        """The only (worker, dp rank) that may serve the request because its session is bound there, if it is."""
        session = _session(request)
        if session is None or self.settings.mode is not AffinityMode.HARD:
            return None
        bound = self.target(session, now)
        return None if bound is None else (bound.worker, bound.rank)

    def request_placed(self, request: RouteRequest, decision: Decision, now: float) -> None:
        session = _session(request)
        if session is not None:
            self.placed(session, decision.worker, decision.rank, now)

    def request_ended(self, request: RouteRequest, now: float) -> None:
        session = _session(request)
        if session is not None:
            self.ended(session, now)

    def _tidy(self, now: float) -> None:
        """Drops what is over at the old end; above the limit the oldest goes, running or not."""
        while self._bound:
            session, oldest = next(iter(self._bound.items()))
            over = not oldest.active and now - oldest.idle_since >= self.settings.ttl
            if not over and len(self._bound) <= self.settings.limit:
                return
            del self._bound[session]


def _session(request: RouteRequest) -> str | None:
    """The session that counts here: a pin stands above it."""
    return request.hints.session if request.pin_worker is None else None
