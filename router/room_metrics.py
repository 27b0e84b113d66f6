"""Metrics of the rooms that keep their own counters: tokens, KV-event sources, workers file, decision log.

Read when scraped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router.affinity import SessionAffinity
from router.feed import KvFeed
from router.fleet.breaker import Breaker
from router.fleet.monitor import FleetMonitor
from router.fleet.registry import Fleet
from router.fleet.worker import Circuit
from router.migration import Migrations
from router.model_tokens import ModelTokens
from router.proxy.interface import PlaneStats
from router.records import DecisionLog
from router.retry import RetryBudget
from router.shadow import Shadows
from router.truth import TruthLoop
from router.waiting import WaitingRoom

_STATES = {Circuit.CLOSED: 0.0, Circuit.HALF_OPEN: 1.0, Circuit.PROBING: 1.0, Circuit.OPEN: 2.0}
_EVENTS = ("frames", "blocks", "malformed", "gaps", "repaired", "frames_lost", "epochs", "reconnects", "resyncs")


class RoomCollector(Collector):
    def __init__(self, tokens: ModelTokens, feed: KvFeed, monitor: FleetMonitor, log: DecisionLog) -> None:
        self._tokens = tokens
        self._feed = feed
        self._monitor = monitor
        self._log = log

    def collect(self) -> Iterable[Metric]:
        yield from self._token_metrics()
        events = CounterMetricFamily(
            "kvctl_kv_events", "What came from a worker's KV-event sources", labels=["worker", "what"]
        )
        for worker in self._feed.followed():
            states = self._feed.states(worker)
            for what in _EVENTS:
                events.add_metric([worker, what], float(sum(state.get(what, 0) for state in states)))
        yield events
        ignored = CounterMetricFamily(
            "kvctl_kv_events_ignored", "KV events left out of the index", labels=["worker", "reason"]
        )
        for worker in self._feed.followed():
            counts: Counter[str] = Counter()
            for state in self._feed.states(worker):
                counts.update(state.get("ignored", {}))
            for reason, times in counts.items():
                ignored.add_metric([worker, reason], float(times))
        yield ignored
        yield CounterMetricFamily("kvctl_kv_events_not_applied", "Contradictory KV events", self._feed.not_applied)
        yield CounterMetricFamily(
            "kvctl_kv_events_other_blocks",
            "KV events left out: a cache behind the engine's own counts in blocks of another size",
            self._feed.other_blocks,
        )
        yield CounterMetricFamily(
            "kvctl_workers_file_errors", "Reads of the workers file that were not taken", self._monitor.file_errors
        )
        yield GaugeMetricFamily("kvctl_decision_log_bytes", "Estimated memory of the decision log", self._log.bytes)
        yield GaugeMetricFamily("kvctl_decision_log_limit_bytes", "Its limit", self._log.limit_bytes)

    def _token_metrics(self) -> Iterable[Metric]:
        services = self._tokens.services().values()
        prompts = CounterMetricFamily(
            "kvctl_tokenized_prompts", "Prompts by where their ids came from", labels=["source"]
        )
        stats = [service.stats for service in services]
        counts = {
            "given": sum(one.given for one in stats),
            "local": sum(one.local for one in stats),
            "engine": sum(one.engine for one in stats),
            "approximate": sum(one.approximate for one in stats),
        }
        for source, count in counts.items():
            prompts.add_metric([source], float(count))
        yield prompts
        size = GaugeMetricFamily("kvctl_token_cache_bytes", "Memory of the token caches", labels=["cache"])
        limit = GaugeMetricFamily("kvctl_token_cache_limit_bytes", "Their limits", labels=["cache"])
        for name, used, most in self._tokens.caches():
            size.add_metric([name], float(used))
            limit.add_metric([name], float(most))
        yield from (size, limit)


class TruthCollector(Collector):
    """How far each worker's index is believed."""

    def __init__(self, truth: TruthLoop, fleet: Fleet) -> None:
        self._truth = truth
        self._fleet = fleet

    def collect(self) -> Iterable[Metric]:
        confidence = GaugeMetricFamily(
            "kvctl_worker_index_confidence",
            "Mean share of the cached tokens its index promised that the engine reused (0..1)",
            labels=["worker"],
        )
        distrusted = GaugeMetricFamily(
            "kvctl_worker_index_distrusted", "1 while its overlap counts only times its confidence", labels=["worker"]
        )
        judged = CounterMetricFamily(
            "kvctl_worker_index_answers", "Answers held against the index's promise", labels=["worker", "kept"]
        )
        resyncs = CounterMetricFamily(
            "kvctl_worker_index_resyncs", "Times its index was learnt anew for broken promises", labels=["worker"]
        )
        for worker in self._fleet.workers.values():
            trust = self._truth.of(worker)
            confidence.add_metric([worker.id], trust.confidence)
            distrusted.add_metric([worker.id], float(trust.distrusted))
            judged.add_metric([worker.id, "yes"], trust.answers - trust.shortfalls)
            judged.add_metric([worker.id, "no"], trust.shortfalls)
            resyncs.add_metric([worker.id], trust.resyncs)
        yield from (confidence, distrusted, judged, resyncs)


class QueueCollector(Collector):
    """The queue in front of selection."""

    def __init__(self, waiting: WaitingRoom) -> None:
        self._waiting = waiting

    def collect(self) -> Iterable[Metric]:
        waiting = GaugeMetricFamily("kvctl_queue_requests", "Requests that wait for a free worker", labels=["class"])
        tokens = GaugeMetricFamily("kvctl_queue_tokens", "Their uncached prompt tokens", labels=["class"])
        for name, requests, cost in self._waiting.queue.depths():
            waiting.add_metric([name], requests)
            tokens.add_metric([name], cost)
        outcomes = CounterMetricFamily("kvctl_queue_outcomes", "How waiting ended", labels=["outcome"])
        for outcome, times in self._waiting.counts.items():
            outcomes.add_metric([outcome], times)
        yield from (waiting, tokens, outcomes)
        yield CounterMetricFamily(
            "kvctl_queue_wait_seconds", "Seconds that placed requests waited", self._waiting.waited_s
        )


class FailureCollector(Collector):
    """Circuits of workers, and the retry budget."""

    def __init__(self, fleet: Fleet, breaker: Breaker | None, budget: RetryBudget) -> None:
        self._fleet = fleet
        self._breaker = breaker
        self._budget = budget

    def collect(self) -> Iterable[Metric]:
        yield CounterMetricFamily(
            "kvctl_retry_budget_exhausted", "Retries that the budget did not allow", self._budget.exhausted
        )
        if self._breaker is None:
            return
        state = GaugeMetricFamily("kvctl_breaker_state", "0 closed, 1 half-open, 2 open", labels=["worker"])
        ejections = CounterMetricFamily("kvctl_ejections", "Times a circuit opened", labels=["worker", "cause"])
        spared = CounterMetricFamily(
            "kvctl_ejections_spared", "Times it did not, because too many others were out", labels=["worker"]
        )
        for worker in self._fleet.workers.values():
            state.add_metric([worker.id], _STATES[worker.circuit])
            record = self._breaker.records.get(worker.id)
            if record is not None:
                for cause, times in record.ejections.items():
                    ejections.add_metric([worker.id, cause], times)
                spared.add_metric([worker.id], record.spared)
        yield from (state, ejections, spared)


class MigrationCollector(Collector):
    """Streams that broke, and what became of them."""

    def __init__(self, migrations: Migrations, plane: PlaneStats) -> None:
        self._migrations = migrations
        self._plane = plane

    def collect(self) -> Iterable[Metric]:
        found = self._migrations
        ended = CounterMetricFamily(
            "kvctl_migrations", "Streams that broke, by what became of them", labels=["outcome"]
        )
        for outcome, count in {**found.outcomes, "completed": self._plane.completed}.items():
            ended.add_metric([outcome], count)
        other = CounterMetricFamily(
            "kvctl_migration_unfollowed", "Streams that could not go on elsewhere, by why", labels=["why"]
        )
        for why, count in found.unfollowed.items():
            other.add_metric([why], count)
        yield from (ended, other)
        yield CounterMetricFamily("kvctl_migration_followed", "Streams that are or were followed", found.followed)
        yield CounterMetricFamily(
            "kvctl_migration_carried_tokens", "Generated tokens that moved streams took along", found.carried_tokens
        )


class SessionCollector(Collector):
    """Sessions that are bound to a worker."""

    def __init__(self, affinity: SessionAffinity) -> None:
        self._affinity = affinity

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("kvctl_bound_sessions", "Sessions bound to a worker", len(self._affinity))
        yield GaugeMetricFamily(
            "kvctl_bound_sessions_limit", "Past it the one used longest ago is forgotten", self._affinity.settings.limit
        )


class ShadowCollector(Collector):
    """What the shadow policies would have done."""

    def __init__(self, shadows: Shadows) -> None:
        self._shadows = shadows

    def collect(self) -> Iterable[Metric]:
        decisions = CounterMetricFamily("kvctl_shadow_decisions", "Decisions a shadow policy made", labels=["mode"])
        agreed = CounterMetricFamily("kvctl_shadow_agreed", "Of those, the acting mode's winner", labels=["mode"])
        failed = CounterMetricFamily("kvctl_shadow_failed", "Requests it could not decide", labels=["mode"])
        cost = GaugeMetricFamily(
            "kvctl_shadow_cost_difference_blocks", "Sum over decisions: its winner's kv cost less ours", labels=["mode"]
        )
        cached = GaugeMetricFamily(
            "kvctl_shadow_cached_difference_tokens", "Sum of predicted cached tokens: its less ours", labels=["mode"]
        )
        for mode, counts in self._shadows.counts.items():
            decisions.add_metric([mode], counts.decisions)
            agreed.add_metric([mode], counts.agreed)
            failed.add_metric([mode], counts.failed)
            cost.add_metric([mode], counts.cost_difference)
            cached.add_metric([mode], counts.cached_difference)
        yield from (decisions, agreed, failed, cost, cached)
