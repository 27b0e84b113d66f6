"""Counting on the request path, exposition only when scraped.

The request path adds to plain integers and lists here; `RouterCollector` turns them into Prometheus families when
`/metrics` is read, so a request never touches the client library. Nothing is counted per token.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from router.core import RoutingCore
from router.fleet.worker import Health, KvState
from router.model import Decision
from router.proxy.interface import Outcome, PlaneStats

TTFT_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
DECIDE_BUCKETS = (2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2)


class Histogram:
    """Fixed upper bounds in seconds; `observe` is one bisection."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    def family(self, name: str, text: str) -> HistogramMetricFamily:
        running, buckets = 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            running += count
            buckets.append((bound, float(running)))
        family = HistogramMetricFamily(name, text)
        family.add_metric([], buckets, self.total)
        return family


class RouterStats:
    """What the dispatcher counts. Keys are label values; all sets are bounded (workers, modes, closed enums)."""

    def __init__(self) -> None:
        self.decisions: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.degraded: defaultdict[str, int] = defaultdict(int)
        self.legs: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.refused: defaultdict[str, int] = defaultdict(int)
        self.ttft = Histogram(TTFT_BUCKETS)
        self.decide = Histogram(DECIDE_BUCKETS)
        self.tokenize = Histogram(DECIDE_BUCKETS)
        self.prompt_tokens = 0
        self.best_eligible_tokens = 0
        self.selected_tokens = 0
        self.joined_requests = 0
        self.predicted_joined_tokens = 0
        self.engine_reused_tokens = 0
        self.prediction_exact = 0

    def decided(self, decision: Decision, best_eligible_tokens: int) -> None:
        self.decisions[decision.mode, decision.reason] += 1
        for flag in decision.degraded:
            self.degraded[flag] += 1
        self.decide.observe(decision.decide_us * 1e-6)
        self.prompt_tokens += decision.prompt_tokens
        self.selected_tokens += decision.predicted_cached_tokens
        self.best_eligible_tokens += best_eligible_tokens

    def joined(self, predicted: int, reported: int) -> None:
        """An engine said how many tokens it found in its cache."""
        self.joined_requests += 1
        self.predicted_joined_tokens += predicted
        self.engine_reused_tokens += reported
        self.prediction_exact += predicted == reported

    def leg_ended(self, worker: str, outcome: Outcome) -> None:
        self.legs[worker, outcome] += 1

    def worker_removed(self, worker: str) -> None:
        for key in [key for key in self.legs if key[0] == worker]:
            del self.legs[key]


class RouterCollector(Collector):
    def __init__(self, core: RoutingCore, stats: RouterStats, plane: PlaneStats) -> None:
        self.core = core
        self.stats = stats
        self.plane = plane

    def collect(self) -> Iterable[Metric]:
        yield from self._requests()
        yield from self._cache()
        yield from self._workers()

    def _requests(self) -> Iterable[Metric]:
        stats, plane = self.stats, self.plane
        yield _counter("kvctl_requests", "Requests read from clients", plane.requests)
        yield _gauge("kvctl_open_requests", "Requests being served", plane.open_requests)
        yield _gauge("kvctl_connections", "Open client connections", plane.connections)
        yield _counter("kvctl_bad_requests", "Requests refused by the HTTP parser", plane.bad_requests)
        yield _counter("kvctl_tls_accepted", "Client connections accepted for a TLS handshake", plane.tls_begun)
        yield _counter("kvctl_tls_handshakes", "TLS handshakes with clients that were completed", plane.tls_done)
        yield _counter("kvctl_faults", "Internal errors on the request path; the log has each", plane.faults)
        yield _counter("kvctl_unwatched_answers", "Answers that could not be followed to the end", plane.unwatched)
        yield _counter("kvctl_upstream_connections", "Connections opened to engines", plane.upstream_opened)
        yield _counter("kvctl_upstream_reused", "Requests sent on a kept connection", plane.upstream_reused)
        yield _counter("kvctl_retries", "Legs started after another leg failed", plane.retries)
        yield _labelled("kvctl_decisions", "Decisions", ("mode", "reason"), stats.decisions)
        yield _labelled(
            "kvctl_degraded_decisions", "Decisions that had to do without something", ("what",), stats.degraded
        )
        yield _labelled("kvctl_legs", "Ended attempts at a worker", ("worker", "outcome"), stats.legs)
        yield _labelled("kvctl_refused", "Requests answered with an error by the router", ("code",), stats.refused)
        yield stats.ttft.family("kvctl_time_to_first_token_seconds", "Request complete to first generated content")
        yield stats.decide.family("kvctl_decide_seconds", "Token ids to decision")
        yield stats.tokenize.family("kvctl_tokenize_seconds", "Request body to token ids")

    def _cache(self) -> Iterable[Metric]:
        stats, core = self.stats, self.core
        yield _counter("kvctl_prompt_tokens", "Prompt tokens of decided requests", stats.prompt_tokens)
        yield _counter(
            "kvctl_best_eligible_cached_tokens",
            "Most cached tokens any eligible worker had",
            stats.best_eligible_tokens,
        )
        yield _counter(
            "kvctl_selected_cached_tokens", "Cached tokens predicted on the chosen worker", stats.selected_tokens
        )
        yield _counter("kvctl_engine_reused_tokens", "Cached tokens the engines reported", stats.engine_reused_tokens)
        yield _counter("kvctl_joined_requests", "Answers that reported cached tokens", stats.joined_requests)
        yield _counter(
            "kvctl_joined_predicted_tokens", "Predicted cached tokens of those answers", stats.predicted_joined_tokens
        )
        yield _counter("kvctl_exact_predictions", "Of those, predicted exactly", stats.prediction_exact)
        yield _gauge("kvctl_index_bytes", "Memory of the block index", core.index.bytes)
        yield _gauge("kvctl_index_limit_bytes", "Its limit", core.index.limit)
        yield _gauge("kvctl_prediction_bytes", "Memory of predictions", core.predictions.bytes)
        counters = core.index.counters
        events = {(name,): getattr(counters, name) for name in counters.__dataclass_fields__}
        yield _labelled(
            "kvctl_index_events", "What happened to the index, in blocks (cleared: events)", ("what",), events
        )

    def _workers(self) -> Iterable[Metric]:
        core = self.core
        up = GaugeMetricFamily("kvctl_worker_up", "1 if the worker is reachable", labels=["worker"])
        live = GaugeMetricFamily(
            "kvctl_worker_kv_events_live", "1 if its KV events arrive in sequence", labels=["worker"]
        )
        active = GaugeMetricFamily("kvctl_worker_active_requests", "Requests booked", labels=["worker", "dp_rank"])
        prefill = GaugeMetricFamily(
            "kvctl_worker_prefill_tokens", "Prompt tokens not yet computed", labels=["worker", "dp_rank"]
        )
        decode = GaugeMetricFamily(
            "kvctl_worker_decode_blocks", "KV blocks of live requests", labels=["worker", "dp_rank"]
        )
        cached = GaugeMetricFamily("kvctl_worker_cached_blocks", "Blocks the index knows", labels=["worker", "dp_rank"])
        blocks = core.loads.decode_blocks(core.fleet.view.slots)
        for row, worker in enumerate(core.fleet.view.members):
            rank = core.fleet.view.ranks[row]
            slot = worker.slots[rank]
            label = [worker.id, str(rank)]
            if rank == 0:
                up.add_metric([worker.id], float(worker.health is Health.UP))
                live.add_metric([worker.id], float(worker.kv is KvState.LIVE))
            active.add_metric(label, float(core.loads.active_requests[slot]))
            prefill.add_metric(label, float(core.loads.prefill_tokens[slot]))
            decode.add_metric(label, float(blocks[row]))
            cached.add_metric(label, float(core.index.blocks(slot)))
        yield from (up, live, active, prefill, decode, cached)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _labelled(name: str, text: str, labels: tuple[str, ...], values: dict) -> Metric:  # type: ignore[type-arg]
    family = CounterMetricFamily(name, text, labels=list(labels))
    for key, value in sorted(values.items()):
        family.add_metric([key] if isinstance(key, str) else list(key), float(value))
    return family
