"""Metrics of the shared store (L2). Read when scraped."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from router.shared.blocks import SharedBlocks
from router.shared.lookup import RedisLookup

OUTCOMES = ("hit", "miss", "late", "failed", "skipped")


class SharedCacheCollector(Collector):
    def __init__(self, blocks: SharedBlocks, lookup: RedisLookup | None) -> None:
        self._blocks = blocks
        self._lookup = lookup

    def collect(self) -> Iterable[Metric]:
        index = self._blocks.index
        yield GaugeMetricFamily("kvctl_shared_cache_told_blocks", "Shared blocks that events told of", index.nodes)
        yield GaugeMetricFamily("kvctl_shared_cache_index_bytes", "Memory of their index", index.bytes)
        yield GaugeMetricFamily("kvctl_shared_cache_index_limit_bytes", "Its limit", index.limit)
        events = CounterMetricFamily("kvctl_shared_cache_events", "What events of shared blocks did", labels=["what"])
        counters = index.counters
        events.add_metric(["stored"], counters.stored)
        events.add_metric(["removed"], counters.removed)
        events.add_metric(["orphan_stores"], counters.orphan_stores)
        events.add_metric(["evicted"], counters.evicted)
        events.add_metric(["not_kept"], self._blocks.not_kept)
        yield events
        if self._lookup is not None:
            yield from self._asked(self._lookup)

    @staticmethod
    def _asked(lookup: RedisLookup) -> Iterable[Metric]:
        yield GaugeMetricFamily("kvctl_shared_cache_up", "1 if the Redis answered in time last", float(lookup.up))
        outcomes = CounterMetricFamily(
            "kvctl_shared_cache_lookups", "Prompts asked of the Redis, by outcome", labels=["outcome"]
        )
        for outcome in OUTCOMES:
            outcomes.add_metric([outcome], lookup.outcomes[outcome])
        yield outcomes
        blocks = CounterMetricFamily("kvctl_shared_cache_blocks", "Blocks of those prompts", labels=["what"])
        for what in ("asked", "found", "believed"):
            blocks.add_metric([what], lookup.blocks[what])
        yield blocks
        seconds = SummaryMetricFamily("kvctl_shared_cache_lookup_seconds", "Seconds that requests waited for it")
        seconds.add_metric([], lookup.outcomes.total(), lookup.seconds)
        yield seconds
