"""The numbers that checks compare with, all from data/thresholds.yaml: engineering choices, kept in one place."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import msgspec
import yaml


class Thresholds(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Every limit of a check; data/thresholds.yaml says why each has its value. Shares are 0..1, times seconds."""

    kv_routed_share: float
    routed_requests_min: int
    routed_requests_sure: int
    miss_share_warn: float
    misses_sure: int
    prefix_hit_ratio_warn: float
    lookup_hit_ratio_warn: float
    hit_ratio_repeats: float
    traffic_tokens_min: int
    traffic_requests_min: int
    lookup_tokens_sure: int
    store_ratio_warn: float
    store_chunks_sure: int
    zero_hit_share_warn: float
    hit_ratio_spread_warn: float
    spread_queries_min: int
    skew_times_median: float
    kv_usage_warn: float
    kv_usage_share_of_window: float
    young_pod_s: float
    restarts_warn: int
    restarts_window_s: float
    recent_crash_s: float
    register_ack_s: float
    flapping_pairs: int
    flapping_window_s: float
    heartbeat_failures_fail: int
    l2_failures_fail: int
    eviction_failures_per_minute: float
    index_empty_s: float
    head_complete_s: float
    clock_tolerance_s: float
    sample_age_intervals: float
    affinity_cached_share: float
    predicted_error_warn: float
    failed_legs_share_warn: float
    degraded_share_warn: float

    @staticmethod
    def load() -> Thresholds:
        return _load()


@cache
def _load() -> Thresholds:
    text = files("checks").joinpath("data/thresholds.yaml").read_text(encoding="utf-8")
    return msgspec.convert({key: row["value"] for key, row in yaml.safe_load(text).items()}, Thresholds)
