"""least-loaded: the exact minimum of requests in flight, ties broken evenly. O(n).

Booked at decision time, so two requests decided one after the other never see the same load.
"""

from __future__ import annotations

import random

from router.model import Candidates, Decision, Need, Reason, RouteRequest
from router.policies.choice import by_active_requests, eligible_rows, lowest


class LeastLoaded:
    name = "least-loaded"
    needs = frozenset({Need.LOAD})

    def decide(self, request: RouteRequest, candidates: Candidates, rng: random.Random) -> Decision:
        rows = eligible_rows(candidates.eligible)
        winner, _tied = lowest(candidates.active_requests, rows, rng)
        return by_active_requests(self.name, winner, Reason.LEAST_LOADED, candidates)
