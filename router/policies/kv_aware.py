"""kvaware: the worker that holds most of the prompt, if it holds nearly all of it; else a named other mode.

A hit counts if at most `threshold` tokens of the prompt are missing (2,000 in the production stack). Held is what KV
events or an LMCache controller told, in any tier; ties go to the least busy. Without a hit the fallback decides, and
its reason stands in the decision. Rule of the name: the vLLM production stack and SageMaker HyperPod, where it works
for completions only; here for every path that is routed by content. O(n).
"""

from __future__ import annotations

import logging
import random

import numpy as np

from router.model import Candidates, Decision, Need, Policy, Reason, RouteRequest, Term
from router.policies.choice import by_active_requests, eligible_rows, lowest

log = logging.getLogger("kvctl")


class KvAware:
    name = "kvaware"

    def __init__(self, fallback: Policy, threshold: int = 2000) -> None:
        self.threshold = threshold
        self.fallback = fallback
        self.needs = frozenset({Need.BLOCKS, Need.LOAD}) | fallback.needs

    def decide(self, request: RouteRequest, candidates: Candidates, rng: random.Random) -> Decision:
        rows = eligible_rows(candidates.eligible)
        blocks = candidates.device + candidates.host + candidates.disk + candidates.shared
        held = blocks * candidates.block_size
        term = Term("held", "tokens", held.astype(np.float64))
        most = int(held[rows].max())
        if most > 0 and most >= request.prompt_tokens - self.threshold:
            best = rows[held[rows] == most]
            winner, _tied = lowest(candidates.active_requests, best, rng)
            decision = by_active_requests(self.name, winner, Reason.KV_HIT, candidates)
        else:
            decision = self.fallback.decide(request, candidates, rng)
            decision.mode = self.name
        decision.terms = (term, *decision.terms)
        return decision


def announce(decision: Decision) -> None:
    """A placed decision of this mode, in the words that people grep for; a shadow's or an explained one is not."""
    if decision.reason is Reason.KV_HIT:
        log.info("Routing request to %s found by kvaware router", decision.worker)
    elif decision.reason is not Reason.AFFINITY:
        log.debug("Matched instance url None")
