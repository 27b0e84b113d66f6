"""round-robin: one counter, each request takes the next of the eligible rows. O(n), no signal.

`eligible[counter mod len(eligible)]`, then the counter goes up: not a stable ring, a membership change shifts it.
"""

from __future__ import annotations

import random

from router.model import Candidates, Decision, Need, Reason, RouteRequest
from router.policies.choice import blind, eligible_rows

_ROUND_ROBIN = Reason.ROUND_ROBIN


class RoundRobin:
    name = "round-robin"
    needs: frozenset[Need] = frozenset()

    def __init__(self) -> None:
        self._counter = 0

    def decide(self, request: RouteRequest, candidates: Candidates, rng: random.Random) -> Decision:
        rows = eligible_rows(candidates.eligible)
        winner = int(rows[self._counter % len(rows)])
        self._counter += 1
        return blind(self.name, winner, _ROUND_ROBIN, candidates)
