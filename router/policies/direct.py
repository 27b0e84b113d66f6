"""direct: the caller names the worker; there is no fallback. O(n).

The pin is enforced by eligibility, for every mode; this policy only refuses a request that has none. Of several dp
ranks of the named worker the least busy one serves.
"""

from __future__ import annotations

import random

from router.model import BadRequest, Candidates, Decision, Need, Reason, RouteRequest
from router.policies.choice import by_active_requests, eligible_rows, lowest


class Direct:
    name = "direct"
    needs: frozenset[Need] = frozenset()

    def decide(self, request: RouteRequest, candidates: Candidates, rng: random.Random) -> Decision:
        if request.pin_worker is None:
            raise BadRequest(
                "router mode 'direct' needs the worker's id in the header x-kvctl-worker; GET /workers on the admin "
                "port lists them",
                param="x-kvctl-worker",
            )
        winner, _tied = lowest(candidates.active_requests, eligible_rows(candidates.eligible), rng)
        return by_active_requests(self.name, winner, Reason.PINNED, candidates)
