"""Metrics of the tiers behind a simulated engine, under `kvctl_sim_`: vLLM has no such names. Read when scraped."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from bench.sim.l2 import RedisStore
from bench.sim.tiers import Tiers


def tier_families(tiers: Tiers, redis: RedisStore | None) -> Iterable[Metric]:
    counters = tiers.counters
    held = GaugeMetricFamily("kvctl_sim_tier_blocks", "Blocks in a tier of this engine.", labels=["medium"])
    for medium, blocks in tiers.held.items():
        held.add_metric([medium], blocks)
    stored = CounterMetricFamily("kvctl_sim_tier_stored_blocks", "Blocks put into a tier.", labels=["medium"])
    loaded = CounterMetricFamily("kvctl_sim_tier_loaded_blocks", "Blocks loaded from a tier.", labels=["medium"])
    for medium in counters.stored:
        stored.add_metric([medium], counters.stored[medium])
        loaded.add_metric([medium], counters.loaded[medium])
    yield from (held, stored, loaded)
    yield CounterMetricFamily("kvctl_sim_tier_lost_blocks", "Blocks the last local tier gave up.", counters.lost)
    yield CounterMetricFamily("kvctl_sim_tier_load_seconds", "Engine time of loading.", counters.load_seconds)
    if redis is not None:
        yield from _redis_families(redis)


def _redis_families(redis: RedisStore) -> Iterable[Metric]:
    counters = redis.counters
    yield GaugeMetricFamily("kvctl_sim_l2_up", "1 if Redis answered last time.", float(redis.up))
    calls = CounterMetricFamily("kvctl_sim_l2_calls", "What became of calls to Redis.", labels=["call", "outcome"])
    outcomes = {
        ("lookup", "ok"): counters.lookups - counters.lookup_errors,
        ("lookup", "error"): counters.lookup_errors,
        ("lookup", "skipped"): counters.skipped,
        ("write", "ok"): counters.writes - counters.write_errors,
        ("write", "error"): counters.write_errors,
        ("write", "dropped"): counters.dropped,
    }
    for labels, count in outcomes.items():
        calls.add_metric(labels, count)
    yield calls
    yield CounterMetricFamily("kvctl_sim_l2_written_blocks", "Blocks written to Redis.", counters.blocks_written)
