"""The engine's metrics under vLLM's names, and the simulator's own lag under `kvctl_sim_`.

Counting on the token path is a list increment; the exposition text is made when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from bench.sim.histogram import Histogram
from bench.sim.l2 import RedisStore
from bench.sim.live import LiveEngine
from bench.sim.lmcache_metrics import lmcache_families, prompt_source_families
from bench.sim.tier_metrics import tier_families
from bench.sim.tiers import Tiers
from bench.sim.worker import SimWorker

TTFT_BUCKETS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
)
ITL_BUCKETS = (
    0.001,
    0.002,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
)
E2E_BUCKETS = (
    0.1,
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    240.0,
)


class RequestTimes:
    """Latencies as the engine's own front end sees them, in seconds."""

    def __init__(self) -> None:
        self.ttft = Histogram(TTFT_BUCKETS)
        self.itl = Histogram(ITL_BUCKETS)
        self.e2e = Histogram(E2E_BUCKETS)


class EngineCollector(Collector):
    def __init__(
        self,
        live: LiveEngine,
        times: RequestTimes,
        model: str,
        worker: SimWorker | None = None,
        tiers: Tiers | None = None,
        redis: RedisStore | None = None,
    ) -> None:
        self._live = live
        self._worker = worker
        self._tiers = tiers
        self._redis = redis
        self._times = times
        self._model = model

    def collect(self) -> Iterable[Metric]:
        engine = self._live.engine
        counters = engine.counters
        state = engine.snapshot()
        config = engine.config
        yield self._gauge("num_requests_running", "Requests in the running batch.", state.running)
        yield self._gauge("num_requests_waiting", "Requests that wait for a place.", state.waiting)
        yield self._gauge(
            "kv_cache_usage_perc",
            "Share of KV blocks in use, 1 is all.",
            state.used_blocks / state.num_blocks,
        )
        yield self._counter("prefix_cache_queries", "Tokens looked up in the prefix cache.", counters.cache_queries)
        yield self._counter("prefix_cache_hits", "Tokens found in the prefix cache.", counters.cache_hits)
        asked, found = self._external()
        yield self._counter("external_prefix_cache_queries", "Tokens asked of a cache beside the engine's.", asked)
        yield self._counter("external_prefix_cache_hits", "Tokens loaded from a cache beside the engine's.", found)
        yield self._counter("num_preemptions", "Sequences sent back to the queue.", counters.preemptions)
        yield self._counter("prompt_tokens", "Prompt tokens processed.", counters.prompt_tokens)
        yield self._counter("generation_tokens", "Tokens generated.", counters.generation_tokens)
        success = CounterMetricFamily(
            "vllm:request_success", "Finished requests.", labels=["model_name", "engine", "finished_reason"]
        )
        finished = {"stop": 0, "length": 0, **counters.finished, "abort": counters.aborted}
        for reason, count in finished.items():
            success.add_metric([self._model, "0", reason], count)
        yield success
        yield self._histogram("time_to_first_token_seconds", "Time to first token.", self._times.ttft)
        yield self._histogram("inter_token_latency_seconds", "Time between tokens.", self._times.itl)
        yield self._histogram("e2e_request_latency_seconds", "Time of a whole request.", self._times.e2e)
        info = {
            "block_size": str(config.block_size),
            "enable_prefix_caching": str(config.prefix_caching),
            "engine": "0",
            "num_gpu_blocks": str(config.num_blocks),
            "prefix_caching_hash_algo": "sim",
        }
        cache = GaugeMetricFamily("vllm:cache_config_info", "The cache's configuration.", labels=list(info))
        cache.add_metric(list(info.values()), 1)
        yield cache
        lag = SummaryMetricFamily(
            "kvctl_sim_lag_seconds",
            "How late the simulator released the outputs of a step.",
            labels=["model_name", "engine"],
        )
        lag.add_metric([self._model, "0"], self._live.lag.total_steps, self._live.lag.total_lag)
        yield lag
        if self._worker is not None:
            yield from prompt_source_families(self._worker)
            yield from lmcache_families(self._worker)
        if self._tiers is not None:
            yield from tier_families(self._tiers, self._redis)

    def _external(self) -> tuple[int, int]:
        """Tokens asked of the cache behind the engine's own, and found there."""
        if self._worker is not None:
            return self._worker.cache.counters.queries, self._worker.cache.counters.hits
        if self._tiers is not None:
            return self._tiers.counters.queries, self._tiers.counters.hits
        return 0, 0

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=["model_name", "engine"])
        family.add_metric([self._model, "0"], value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", text, labels=["model_name", "engine"])
        family.add_metric([self._model, "0"], value)
        return family

    def _histogram(self, name: str, text: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(f"vllm:{name}", text, labels=["model_name", "engine"])
        family.add_metric([self._model, "0"], histogram.buckets(), histogram.total)
        return family


def exposition(
    live: LiveEngine,
    times: RequestTimes,
    model: str,
    worker: SimWorker | None = None,
    tiers: Tiers | None = None,
    redis: RedisStore | None = None,
) -> bytes:
    """The text of `GET /metrics`; `worker` is what the engine imitates, `tiers` and `redis` are behind it."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(EngineCollector(live, times, model, worker, tiers, redis))
    return generate_latest(registry)
