"""The metrics that an imitated worker adds to its engine's: LMCache's families, and vLLM's of what was loaded.

Names, types and labels are those of the imitated release. All samples are of one process, so that the gauges which a
real engine computes at the scrape (`lmcache_is_healthy` and others, without a sample when several processes share a
directory) have values here, and counters are exact at each scrape, not up to ten seconds old. Cost: only at a scrape.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from bench.sim.histogram import Histogram
from bench.sim.lmcache import TOKEN_BYTES
from bench.sim.styles import CHUNK
from bench.sim.worker import SimWorker

_LABELS = ("model_name", "worker_id", "role", "served_model_name")
_CHUNK_BYTES = CHUNK * TOKEN_BYTES


def lmcache_families(worker: SimWorker) -> Iterable[Metric]:
    """LMCache's families; none where its metrics do not reach the engine's `/metrics`."""
    if not worker.exports_metrics:
        return
    labels = (worker.model, "0", "worker", worker.model)
    for name, text, count in _counters(worker):
        counter = CounterMetricFamily(f"lmcache:{name}", text, labels=_LABELS)
        counter.add_metric(labels, count)
        yield counter
    for name, text, value in _gauges(worker):
        gauge = GaugeMetricFamily(f"lmcache:{name}", text, labels=_LABELS)
        gauge.add_metric(labels, value)
        yield gauge
    for name, text, histogram in _histograms(worker):
        family = HistogramMetricFamily(f"lmcache:{name}", text, labels=_LABELS)
        family.add_metric(labels, histogram.buckets(), histogram.total)
        yield family


def prompt_source_families(worker: SimWorker) -> Iterable[Metric]:
    """Where the prompt tokens came from, in the releases of vLLM that tell."""
    if not worker.style.prompt_tokens_by_source:
        return
    counters = worker.cache.counters
    sources = {
        "local_compute": counters.queries - counters.hits,
        "local_cache_hit": counters.local_hits,
        "external_kv_transfer": counters.hits,
    }
    labels = ("model_name", "engine")
    by_source = CounterMetricFamily(
        "vllm:prompt_tokens_by_source", "Prompt tokens by source.", labels=(*labels, "source")
    )
    for source, tokens in sources.items():
        by_source.add_metric((worker.model, "0", source), tokens)
    yield by_source
    cached = CounterMetricFamily("vllm:prompt_tokens_cached", "Prompt tokens that were not computed.", labels=labels)
    cached.add_metric((worker.model, "0"), counters.local_hits + counters.hits)
    yield cached


def _counters(worker: SimWorker) -> Sequence[tuple[str, str, int]]:
    counters = worker.cache.counters
    return (
        ("num_retrieve_requests", "Retrieve requests.", counters.retrieve_requests),
        ("num_store_requests", "Store requests.", counters.store_requests),
        ("num_lookup_requests", "Lookup requests.", counters.lookup_requests),
        ("num_requested_tokens", "Tokens asked of retrieve.", counters.requested_tokens),
        ("num_hit_tokens", "Tokens that retrieve delivered.", counters.hit_tokens),
        ("num_stored_tokens", "Tokens stored, with those evicted since.", counters.stored_tokens),
        ("num_lookup_tokens", "Tokens looked up.", counters.lookup_tokens),
        ("num_lookup_hits", "Tokens that lookups found.", counters.lookup_hits),
        ("num_vllm_hit_tokens", "Tokens that vLLM's own cache had.", counters.vllm_hit_tokens),
        ("num_prompt_tokens", "Prompt tokens.", counters.prompt_tokens),
        ("num_remote_read_requests", "Chunks read from the remote store.", counters.remote_reads),
        ("num_remote_read_bytes", "Bytes read from the remote store.", counters.remote_reads * _CHUNK_BYTES),
        ("num_remote_write_requests", "Chunks written to the remote store.", counters.remote_writes),
        ("num_remote_write_bytes", "Bytes written to the remote store.", counters.remote_writes * _CHUNK_BYTES),
        ("local_cpu_evict_count", "Evictions from host memory.", counters.evictions),
        ("local_cpu_evict_keys_count", "Chunks evicted from host memory.", counters.evictions),
        ("local_cpu_evict_failed_count", "Evictions that found nothing to evict.", 0),
        ("forced_unpin_count", "Chunks unpinned after a timeout.", 0),
        ("lookup_0_hit_requests", "Lookups that found nothing.", counters.lookup_0_hit_requests),
        ("num_slow_retrieval_by_time", "Retrieves above the time threshold.", 0),
        ("num_slow_retrieval_by_speed", "Retrieves below the speed threshold.", 0),
        ("remote_ping_errors", "Pings of the remote store that failed.", counters.ping_errors),
        ("remote_ping_successes", "Pings of the remote store that it answered.", counters.pings),
    )


def _gauges(worker: SimWorker) -> Sequence[tuple[str, str, float]]:
    cache, statistics = worker.cache, worker.statistics
    failed_reads = "get_blocking_failed_count"
    gauges: list[tuple[str, str, float]] = [
        ("retrieve_hit_rate", "Share of retrieves' tokens in the last interval.", statistics.retrieve_hit_rate),
        ("lookup_hit_rate", "Share of lookups' tokens in the last interval.", statistics.lookup_hit_rate),
        ("local_cache_usage", "Bytes in host memory.", cache.local_bytes),
        ("remote_cache_usage", "Bytes in the remote store, which LMCache does not count.", 0),
        ("local_storage_usage", "Bytes on the local disk.", 0),
        ("active_memory_objs_count", "Memory objects in use.", len(cache.local)),
        ("pinned_memory_objs_count", "Memory objects pinned.", 0),
        ("remote_ping_latency", "Milliseconds of the last ping.", 0),
        ("remote_ping_error_code", "Result of the last ping: 0 good, -1 timeout, -2 error.", cache.counters.ping_code),
        ("local_cpu_hot_cache_count", "Chunks in host memory.", len(cache.local)),
        ("lmcache_is_healthy", "1 healthy, 0 not.", cache.active),
    ]
    if worker.style.counts_failed_puts:
        gauges.append(("put_failed_count", "Puts to the remote store that failed.", cache.counters.puts_failed))
    else:
        failed_reads = f"interval_{failed_reads}"
    gauges.append((failed_reads, "Reads from the remote store that failed.", 0))
    return gauges


def _histograms(worker: SimWorker) -> Sequence[tuple[str, str, Histogram]]:
    histograms = worker.cache.histograms
    return (
        ("time_to_retrieve", "Seconds of a retrieve.", histograms.time_to_retrieve),
        ("time_to_store", "Seconds of a store.", histograms.time_to_store),
        ("retrieve_speed", "Tokens a second of a retrieve.", histograms.retrieve_speed),
        ("store_speed", "Tokens a second of a store.", histograms.store_speed),
        ("request_cache_hit_rate", "Share of a request's tokens found; none of requests without.", histograms.hit_rate),
    )
