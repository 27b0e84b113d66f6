"""Metrics of the LMCache controller, read when scraped."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router.lmcache.controller import LMCacheController
from router.lmcache.index import Tier
from router.lmcache.worker import State

_LABELS = ("instance", "lmcache_worker")


class LMCacheCollector(Collector):
    def __init__(self, controller: LMCacheController) -> None:
        self._controller = controller

    def collect(self) -> Iterable[Metric]:
        yield from self._workers()
        yield from self._whole()

    def _workers(self) -> Iterable[Metric]:
        self._controller.settle()
        state = GaugeMetricFamily(
            "kvctl_lmcache_worker_state", "1 for the state that an LMCache worker is in", labels=[*_LABELS, "state"]
        )
        bound = GaugeMetricFamily(
            "kvctl_lmcache_worker_bound", "1 where the registered worker is known", labels=[*_LABELS, "worker", "by"]
        )
        verified = GaugeMetricFamily(
            "kvctl_lmcache_hash_verified", "1 once its chunk keys were seen to be those we make", labels=_LABELS
        )
        keys = GaugeMetricFamily("kvctl_lmcache_keys", "Chunk keys that it holds", labels=[*_LABELS, "tier"])
        prompts = CounterMetricFamily(
            "kvctl_lmcache_prompts",
            "Prompts sent to it whose first chunk it was known to hold ten seconds later, or was not",
            labels=[*_LABELS, "matched"],
        )
        operations = CounterMetricFamily(
            "kvctl_lmcache_operations", "Admits and evicts it told", labels=[*_LABELS, "operation"]
        )
        gaps = CounterMetricFamily("kvctl_lmcache_sequence_gaps", "Gaps in its sequence numbers", labels=_LABELS)
        syncs = CounterMetricFamily("kvctl_lmcache_full_syncs", "Full syncs that it completed", labels=_LABELS)
        beats = CounterMetricFamily("kvctl_lmcache_heartbeats", "Heartbeats it sent", labels=_LABELS)
        for one in self._controller.instances.workers.values():
            labels = [one.instance, str(one.number)]
            for name in State:
                state.add_metric([*labels, name], float(one.state is name))
            to = self._controller.bound[one.instance]
            bound.add_metric([*labels, to.worker, to.how], float(bool(to.worker)))
            verified.add_metric(labels, float(one.hash_state == "verified"))
            for tier in Tier:
                keys.add_metric([*labels, tier.name.lower()], self._controller.index.count(one.bit, tier))
            prompts.add_metric([*labels, "yes"], one.matched)
            prompts.add_metric([*labels, "no"], one.unmatched)
            operations.add_metric([*labels, "admit"], one.admits)
            operations.add_metric([*labels, "evict"], one.evicts)
            gaps.add_metric(labels, one.gaps)
            syncs.add_metric(labels, one.syncs)
            beats.add_metric(labels, one.heartbeats)
        yield from (state, bound, verified, keys, prompts, operations, gaps, syncs, beats)

    def _whole(self) -> Iterable[Metric]:
        controller = self._controller
        index = controller.index
        yield GaugeMetricFamily("kvctl_lmcache_index_bytes", "Estimated memory of all chunk keys", index.bytes)
        yield GaugeMetricFamily("kvctl_lmcache_index_limit_bytes", "Its limit", index.limit)
        yield CounterMetricFamily("kvctl_lmcache_keys_refused", "Keys not kept for want of room", index.refused)
        messages = CounterMetricFamily(
            "kvctl_lmcache_messages", "Messages of workers by what became of them", labels=["outcome"]
        )
        for outcome, count in () if controller.sockets is None else controller.sockets.counts.items():
            messages.add_metric([outcome], count)
        events = CounterMetricFamily("kvctl_lmcache_events", "What happened in the controller", labels=["what"])
        for what, count in controller.instances.counts.items():
            events.add_metric([what], count)
        yield from (messages, events)
