"""kv with its cost in time: the row where the request costs the fleet the fewest expected milliseconds.

    uncached  = max(prompt_tokens - B * (C*device + Wh*host + Wd*disk + M*shared), 0)
    queue     = prefill already waiting there, less what is the request's own prefix
    prefill   = seconds that worker takes for the uncached tokens
    slow-down = (active_requests + 1) * output_tokens * growth of its decode step by this request
    cost      = queue + S * prefill + slow-down

The same weights as in blocks where they make sense; seconds come from `router.engine_time`, learned a worker at a time,
so that a slow worker, a long queue and a full batch are judged in one unit. One vectorised expression: about 30 us for
8 rows, 60 us for 1,000.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from router.model import Candidates, Decision, FloatArray, Need, RouteRequest, Term
from router.policies.choice import LoadBound, by_terms
from router.policies.kv import KvWeights, block_credit, taint_term


class KvTime:
    name = "kv"
    needs = frozenset({Need.BLOCKS, Need.LOAD, Need.TIMES})

    def __init__(self, weights: KvWeights | None = None, bound: LoadBound | None = None) -> None:
        self.weights = weights or KvWeights()
        self.bound = bound

    def decide(self, request: RouteRequest, candidates: Candidates, rng: random.Random) -> Decision:
        weights = replace(self.weights, **request.weights) if request.weights else self.weights
        terms = self.terms(request, candidates, weights)
        return by_terms(self.name, terms, candidates, self.bound, weights.router_temperature, rng)

    def terms(self, request: RouteRequest, candidates: Candidates, weights: KvWeights) -> tuple[Term, ...]:
        """queue, prefill, slow_down and, where it counts, preferred_taints: milliseconds, one value a row."""
        times = candidates.times
        assert times is not None, "the core gives times to a policy that needs them"
        block = candidates.block_size.astype(np.float64)
        uncached = np.maximum(request.prompt_tokens - block_credit(weights, request, candidates, block) * block, 0.0)
        strangers = 1.0 - candidates.own_prefill_tokens / np.maximum(candidates.prefill_tokens, 1)
        queue: FloatArray = times.queued_s * strangers * 1e3
        prefill: FloatArray = weights.prefill_load_scale * times.prefill_s(uncached) * 1e3
        steps = (candidates.active_requests + 1) * times.output_tokens
        slow_down: FloatArray = steps * times.step_growth_s(candidates.new_blocks) * 1e3
        terms = (Term("queue", "ms", queue), Term("prefill", "ms", prefill), Term("slow_down", "ms", slow_down))
        return terms if candidates.taint_factor is None else (*terms, taint_term(terms, candidates.taint_factor))
