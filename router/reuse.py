"""From blocks held to tokens reused and loads: the arithmetic that decisions, records and tests share. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np

from router.model import Candidates, IntArray
from router.policies.kv import KvWeights


def reusable_tokens(blocks: int, prompt_tokens: int, block_size: int) -> int:
    """Cached tokens an engine will report for `blocks` held: whole blocks below the prompt's last token, which is
    always computed (seen in vLLM: 480 of a prompt of 500 in blocks of 32)."""
    if prompt_tokens <= 0:
        return 0
    return min(blocks, (prompt_tokens - 1) // block_size) * block_size


def weighted_blocks(device: Any, host: Any, disk: Any, weights: KvWeights) -> Any:
    """Blocks of a prompt that need not be computed, a block of a slower tier by its weight; of one row or of all."""
    return device + weights.host_cache_hit_weight * host + weights.disk_cache_hit_weight * disk


def potential_loads(candidates: Candidates, prompt_tokens: int, weights: KvWeights) -> tuple[IntArray, IntArray]:
    """(prefill tokens, decode blocks) of each row as if the request were placed there, int64."""
    blocks = weighted_blocks(candidates.device, candidates.host, candidates.disk, weights)
    cached: IntArray = (blocks * candidates.block_size).astype(np.int64)
    prefill = candidates.prefill_tokens + np.maximum(prompt_tokens - cached, 0)
    return prefill, candidates.decode_blocks + candidates.new_blocks
