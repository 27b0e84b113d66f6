"""power-of-two: draw two distinct rows, take the one with fewer requests in flight; the first drawn wins a tie. O(n).

Source: Mitzenmacher, "The power of two choices in randomized load balancing" (2001).
"""

from __future__ import annotations

import random

from router.model import Candidates, Decision, Need, Reason, RouteRequest
from router.policies.choice import by_active_requests, eligible_rows


class PowerOfTwo:
    name = "power-of-two"
    needs = frozenset({Need.LOAD})

    def decide(self, request: RouteRequest, candidates: Candidates, rng: random.Random) -> Decision:
        rows = eligible_rows(candidates.eligible)
        if len(rows) == 1:
            return by_active_requests(self.name, int(rows[0]), Reason.ONLY_CANDIDATE, candidates)
        first = rng.randrange(len(rows))
        second = rng.randrange(len(rows) - 1)
        second += second >= first
        one, other = int(rows[first]), int(rows[second])
        load = candidates.active_requests
        winner = other if load[other] < load[one] else one
        return by_active_requests(self.name, winner, Reason.POWER_OF_TWO, candidates)
