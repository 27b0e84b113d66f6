"""random: any eligible row, each as likely as the next. O(n), no signal."""

from __future__ import annotations

import random

from router.model import Candidates, Decision, Need, Reason, RouteRequest
from router.policies.choice import blind, eligible_rows


class RandomChoice:
    name = "random"
    needs: frozenset[Need] = frozenset()

    def decide(self, request: RouteRequest, candidates: Candidates, rng: random.Random) -> Decision:
        rows = eligible_rows(candidates.eligible)
        return blind(self.name, int(rows[rng.randrange(len(rows))]), Reason.RANDOM, candidates)
