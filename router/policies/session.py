"""session: the same session goes to the same worker, by a hash ring with bounded loads. O(log n) and a short walk.

A worker stands at 128 places of the ring, drawn from its id, so that one that comes or goes moves only its share of the
sessions. From the session's place the first eligible worker whose requests in flight stay below
ceil(balance_factor * (all in flight + 1) / eligible workers) takes the request; of several dp ranks the session's hash
picks one. Source of the bound: Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads", 2018.
Without a session the least loaded worker serves, and the decision says `no_session`.
"""

from __future__ import annotations

import random
from hashlib import blake2b

import numpy as np

from router.model import Candidates, Decision, Degraded, IntArray, Need, Reason, RouteRequest
from router.policies.choice import LoadBound, by_active_requests, eligible_rows, lowest

_PLACES = 128


class HashRing:
    """Places of rows on a circle of 64 bits; made anew when the fleet changes."""

    def __init__(self, workers: tuple[str, ...]) -> None:
        self.workers = workers
        names = list(dict.fromkeys(workers))
        self._names = names
        points = [_hash(f"{name}#{place}") for name in names for place in range(_PLACES)]
        order = np.argsort(np.array(points, np.uint64), kind="stable")
        self._points = np.array(points, np.uint64)[order]
        self._owner: IntArray = np.repeat(np.arange(len(names)), _PLACES)[order]
        numbers = {name: number for number, name in enumerate(names)}
        self.number: IntArray = np.array([numbers[worker] for worker in workers], np.int64)

    def walk(self, session: str) -> list[int]:
        """Worker numbers in the order in which the ring offers them to `session`, each once."""
        start = int(np.searchsorted(self._points, np.uint64(_hash(session)), side="right"))
        return list(dict.fromkeys(np.roll(self._owner, -start).tolist()))


class Session:
    name = "session"
    needs = frozenset({Need.LOAD})

    def __init__(self, balance_factor: float = 1.25) -> None:
        self.bound = LoadBound(balance_factor, floor=1)
        self._ring = HashRing(())

    def decide(self, request: RouteRequest, candidates: Candidates, rng: random.Random) -> Decision:
        rows = eligible_rows(candidates.eligible)
        session = request.hints.session
        if session is None:
            winner, _tied = lowest(candidates.active_requests, rows, rng)
            decision = by_active_requests(self.name, winner, Reason.LEAST_LOADED, candidates)
            decision.degraded = (Degraded.NO_SESSION,)
            return decision
        if self._ring.workers is not candidates.workers:
            self._ring = HashRing(candidates.workers)
        winner = self._on_ring(session, candidates, rows)
        return by_active_requests(self.name, winner, Reason.SESSION, candidates)

    def _on_ring(self, session: str, candidates: Candidates, rows: np.ndarray) -> int:
        numbers = self._ring.number[rows]
        active = np.bincount(numbers, weights=candidates.active_requests[rows])
        usable = set(numbers.tolist())
        most = self.bound.most(int(active.sum()), len(usable))
        for number in self._ring.walk(session):
            if number in usable and active[number] < most:
                mine = rows[numbers == number]
                return int(mine[_hash(f"rank {session}") % len(mine)])
        raise AssertionError("the bound is above the mean, so somebody is below it")


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())
