"""What the routing core can be told: limits, lifetimes, modes of what is approximate. Pure data."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from router.affinity import AffinitySettings
from router.eligibility import BusyThresholds
from router.engine_time import PrefillModel
from router.policies.settings import PolicySettings
from router.truth import TruthSettings

MIB = 1 << 20


class ApproximatePolicy(StrEnum):
    """What a worker without KV events is taken to hold: what was sent there lately, or as much as fits."""

    TTL = "ttl"
    LRU = "lru"


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """Limits in bytes, times in seconds. `predict_ttl`: how long the blocks of an ended request count as held while KV
    events have neither confirmed nor removed them; 0 switches predict-on-route off, for running requests as well.
    `slow_start`: how long a worker that has just come up gets less than its full share; 0 is not at all."""

    policies: PolicySettings = field(default_factory=PolicySettings)
    affinity: AffinitySettings | None = None
    prefill_model: PrefillModel = PrefillModel.NONE
    track_output: bool = False
    assume_kv_reuse: bool = True
    index_limit: int = 1024 * MIB
    predict_ttl: float = 5.0
    approximate_ttl: float = 120.0
    approximate_policy: ApproximatePolicy = ApproximatePolicy.TTL
    truth: TruthSettings | None = field(default_factory=TruthSettings)
    shared_cache: bool = False
    thresholds: BusyThresholds = field(default_factory=BusyThresholds)
    slow_start: float = 0.0
    seed: int | None = None

    @property
    def time_model(self) -> PrefillModel:
        """A cost in time needs a model; unless another is asked for it is fitted."""
        fitted = self.prefill_model is PrefillModel.NONE and self.policies.kv_cost == "time"
        return PrefillModel.FITTED if fitted else self.prefill_model
