"""From blocks held to tokens reused and loads: the arithmetic that decisions, records and tests share. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np

from router.model import Candidates, Decision, IntArray
from router.policies.kv import KvWeights


def reusable_tokens(blocks: int, prompt_tokens: int, block_size: int) -> int:
    """Cached tokens an engine will report for `blocks` held: whole blocks below the prompt's last token, which is
    always computed (seen in vLLM: 480 of a prompt of 500 in blocks of 32)."""
    if prompt_tokens <= 0:
        return 0
    return min(blocks, (prompt_tokens - 1) // block_size) * block_size


def best_cached_tokens(decision: Decision) -> int:
    """The most cached tokens that any eligible row had, counted like the winner's."""
    if decision.best_cached_tokens is None:
        decision.best_cached_tokens = _best(decision)
    return decision.best_cached_tokens


def _best(decision: Decision) -> int:
    rows = decision.candidates
    if not decision.prompt_tokens:
        return decision.predicted_cached_tokens
    held = (rows.device + rows.host + rows.disk + rows.shared) * rows.eligible
    if not held.any():
        return decision.predicted_cached_tokens
    most = np.minimum(held, (decision.prompt_tokens - 1) // rows.block_size) * rows.block_size
    return int(most.max())


def weighted_blocks(device: Any, host: Any, disk: Any, weights: KvWeights) -> Any:
    """Blocks of a prompt that need not be computed, a block of a slower tier by its weight; of one row or of all."""
    return device + weights.host_cache_hit_weight * host + weights.disk_cache_hit_weight * disk


def potential_loads(candidates: Candidates, prompt_tokens: int, weights: KvWeights) -> tuple[IntArray, IntArray]:
    """(prefill tokens, decode blocks) of each row as if the request were placed there, int64."""
    blocks = weighted_blocks(candidates.device, candidates.host, candidates.disk, weights)
    cached: IntArray = (blocks * candidates.block_size).astype(np.int64)
    prefill = candidates.prefill_tokens + np.maximum(prompt_tokens - cached, 0)
    return prefill, candidates.decode_blocks + candidates.new_blocks
