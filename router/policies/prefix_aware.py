"""prefixaware: a request follows the longest known beginning of its prompt to where that was sent before.

Remembers where prompts went, in blocks of tokens (without a tokenizer, of pseudo tokens of four bytes each). Among the
workers with the longest known prefix the least busy serves; one whose requests in flight exceed balance_factor times
the mean is passed over, so that one common system prompt cannot sink one worker. Nothing known: the least loaded.

Rule of the name: SageMaker HyperPod and the vLLM production stack, whose trees neither forget nor look at load. Here
the least recently used blocks go first (about 80 bytes a block). O(blocks of the prompt) to look up and to remember.
"""

from __future__ import annotations

import random

import numpy as np

from router.model import Candidates, Decision, IntArray, Need, Reason, RouteRequest, Term
from router.policies.choice import LoadBound, by_active_requests, eligible_rows, lowest
from router.prefix.predict import Predictions

_REMEMBERED_S = 1e6


class PrefixAware:
    name = "prefixaware"
    needs = frozenset({Need.LOAD, Need.BLOCKS})

    def __init__(self, limit: int = 1_000_000, balance_factor: float = 1.25, min_match_tokens: int = 0) -> None:
        self.bound = LoadBound(balance_factor, floor=1)
        self.min_match_tokens = min_match_tokens
        self._known = Predictions(ttl=_REMEMBERED_S, limit=limit)

    @property
    def bytes(self) -> int:
        return self._known.bytes

    def decide(self, request: RouteRequest, candidates: Candidates, rng: random.Random) -> Decision:
        rows = eligible_rows(candidates.eligible)
        depth = self._depths(request, candidates)
        deep = depth[rows]
        tokens = deep * np.maximum(candidates.block_size[rows], 1)
        worth = (deep > 0) & (tokens >= self.min_match_tokens) & self.bound.below(candidates)[rows]
        if worth.any():
            best = deep[worth].max()
            winner, _tied = lowest(candidates.active_requests, rows[worth & (deep == best)], rng)
            reason = Reason.KNOWN_PREFIX
        else:
            winner, _tied = lowest(candidates.active_requests, rows, rng)
            reason = Reason.LEAST_LOADED
        decision = by_active_requests(self.name, winner, reason, candidates)
        decision.terms = (Term("known_prefix", "blocks", depth.astype(np.float64)), *decision.terms)
        return decision

    def placed(self, request: RouteRequest, decision: Decision) -> None:
        rows = decision.candidates
        slot = int(rows.slots[decision.winner])
        self._known.ensure_slots(int(rows.slots.max()) + 1)
        for keys in request.keys.values():
            self._known.add(slot, keys, request.now)

    def dropped(self, worker: str, slots: tuple[int, ...]) -> None:
        for slot in slots:
            self._known.drop(slot)

    def _depths(self, request: RouteRequest, candidates: Candidates) -> IntArray:
        """Known blocks of each row, int64."""
        depth: IntArray = np.zeros(len(candidates), np.int64)
        self._known.ensure_slots(int(candidates.slots.max()) + 1)
        for block_size, keys in request.keys.items():
            found = self._known.match(keys, request.now)[candidates.slots]
            if len(request.keys) == 1:
                return found
            depth = np.where(candidates.block_size == block_size, found, depth)
        return depth
