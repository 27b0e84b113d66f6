"""What the policies can be told; one object for all, so that a mode can be made from its name."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from router.policies.kv import KvWeights

FALLBACKS = ("session", "round-robin", "least-loaded", "power-of-two", "random", "kv")


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """Settings of all modes.

    `kv_cost`: the unit kv counts in, blocks or time. `load_bound`: in kv mode no worker gets more than this multiple of
    the mean of requests in flight, 0 is no bound. `cuda_to_cpu_ratio`: how many requests a CUDA worker takes for one on
    a CPU worker. `balance_factor`: the same bound for session and prefixaware. `prefix_limit`: blocks that prefixaware
    remembers, the least recently used go first. `min_match_tokens`: a shorter known prefix is not followed.
    `kvaware_threshold`: prompt tokens that may be missing from a hit. `kvaware_fallback`: the mode for a request
    without one.
    """

    weights: KvWeights = field(default_factory=KvWeights)
    kv_cost: str = "blocks"
    load_bound: float = 1.25
    cuda_to_cpu_ratio: int = 8
    balance_factor: float = 1.25
    prefix_limit: int = 1_000_000
    min_match_tokens: int = 0
    kvaware_threshold: int = 2000
    kvaware_fallback: str = "session"

    def __post_init__(self) -> None:
        if self.kv_cost not in ("blocks", "time"):
            raise ValueError(f"kv-cost must be blocks or time, not '{self.kv_cost}'")
        if self.load_bound != 0 and not 1 <= self.load_bound < math.inf:
            raise ValueError(f"load-bound must be 1 or more, or 0 for none, not {self.load_bound}")
        if self.cuda_to_cpu_ratio < 1:
            raise ValueError(f"cuda-to-cpu-ratio must be 1 or more, not {self.cuda_to_cpu_ratio}")
        if not math.isfinite(self.balance_factor) or self.balance_factor < 1:
            raise ValueError(f"balance-factor must be 1 or more, not {self.balance_factor}")
        if self.prefix_limit < 1 or self.min_match_tokens < 0 or self.kvaware_threshold < 0:
            raise ValueError("prefix-limit must be positive, min-match-tokens and kvaware-threshold not negative")
        if self.kvaware_fallback not in FALLBACKS:
            raise ValueError(f"kvaware-fallback must be one of {', '.join(FALLBACKS)}, not '{self.kvaware_fallback}'")
