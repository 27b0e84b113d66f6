"""KV110 to KV115: LMCache's tiers as configured and as effective: CPU buffer, second tier, its URL and transport.

Pure functions of a snapshot. What a worker's environment or log says beats what a custom resource asks for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from checks.evidence import lmcache_setting
from checks.hyperpod import L2_BACKENDS, Endpoint, endpoint_of, endpoints, workers_of
from checks.lmcache import each_worker, number, remote_url, scheme
from checks.model import Check, Evidence, Finding, Group, Reason, Stack, Status, Target, failed, passed, skipped, warned
from checks.network import internal, place, service, service_name, services_known
from checks.serving import chunk_tokens, config_unread, switched_on
from checks.sharing import kvaware
from checks.snapshot import Member, Snapshot

DEFAULT_CPU_GB = 5.0
"""LMCache's max_local_cpu_size."""

REDIS_SCHEMES = frozenset({"redis", "rediss", "redis-sentinel", "redis-cluster", "valkey", "resp"})
_ENCRYPTED = frozenset({"rediss"})
_TIERED_SCHEME = "sagemaker-hyperpod"
_SIZE = re.compile(r"size: (?P<gb>[\d.]+) gb", re.I)


def first_tier(snapshot: Snapshot) -> Iterator[Finding]:
    if not snapshot.workers and any(endpoint.caches for endpoint in endpoints(snapshot)):
        for endpoint in endpoints(snapshot):
            yield _first_tier_asked(snapshot, endpoint)
        return
    yield from each_worker(snapshot, _first_tier_of)


def _first_tier_asked(snapshot: Snapshot, endpoint: Endpoint) -> Finding:
    """No worker shows what is effective: the resource alone."""
    evidence = endpoint.shows("spec.kvCacheSpec.enableL1Cache")
    if endpoint.level1 is None:
        return skipped(Reason.NOT_APPLICABLE, "the resource has no kvCacheSpec", endpoint.target)
    if endpoint.level1:
        return passed("the resource asks for it", endpoint.target, evidence)
    if endpoint.strategy == "kvaware":
        message = "kvaware without LMCache's CPU buffer: workers have nothing to tell the router"
        return failed(message, endpoint.target, evidence)
    return warned("the resource switches LMCache's CPU buffer off", endpoint.target, evidence)


def _first_tier_of(snapshot: Snapshot, worker: Member) -> Iterator[Finding]:
    config, target = snapshot.lmcache_config(worker), worker.target
    endpoint = endpoint_of(snapshot, worker)
    evidence = [lmcache_setting(worker, name, config) for name in ("local_cpu", "max_local_cpu_size")]
    if endpoint is not None and endpoint.caches:
        evidence.append(endpoint.shows("spec.kvCacheSpec.enableL1Cache"))
    if any(config_unread(worker, config, name) for name in ("local_cpu", "max_local_cpu_size")):
        message = "LMCache's configuration stands where it was not read"
        yield skipped(Reason.NO_DATA, message, target, *evidence)
        return
    asked = endpoint.level1 if endpoint is not None else None
    on = switched_on(config, "local_cpu", True if asked is None else asked)
    if not on and not config.get("local_disk"):
        if kvaware(snapshot):
            message = "kvaware without LMCache's CPU buffer or disk: it has nothing to tell the router"
            yield failed(message, target, *evidence)
        else:
            yield warned("LMCache's CPU buffer is off", target, *evidence)
        return
    size = number(config.get("max_local_cpu_size", DEFAULT_CPU_GB))
    needed = _two_chunks_gb(worker, chunk_tokens(config))
    if on and size is not None and (size <= 0 or (needed is not None and size < needed)):
        message = "the CPU buffer holds nothing" if size <= 0 else "the CPU buffer holds less than two chunks"
        yield warned(message, target, *evidence)
        return
    where = "LMCache's CPU buffer is on" if on else "the CPU buffer is off, the local disk tier is on"
    although = " although the resource switches it off" if asked is False and on else ""
    yield passed(where + although, target, *evidence)


def _two_chunks_gb(worker: Member, chunk: int) -> float | None:
    """Size of two chunks, from what the worker said of one store: tokens and gigabytes."""
    if worker.log is None:
        return None
    for match in worker.log.all("lmcache-stored"):
        size, tokens = _SIZE.search(match.record.message), number(match["tokens"])
        if size is not None and tokens and (gigabytes := number(size["gb"])):
            return 2 * chunk * gigabytes / tokens
    return None


def _cached(snapshot: Snapshot) -> Iterator[Endpoint]:
    """Resources with a kvCacheSpec."""
    return (endpoint for endpoint in endpoints(snapshot) if endpoint.caches)


_NO_CACHE_SPEC = "no resource has a kvCacheSpec"


def second_tier_flag(snapshot: Snapshot) -> Iterator[Finding]:
    found = False
    for endpoint in _cached(snapshot):
        found = True
        evidence = (
            endpoint.shows("spec.kvCacheSpec.enableL2Cache"),
            endpoint.shows("spec.kvCacheSpec.l2CacheSpec.l2CacheBackend"),
        )
        if endpoint.level2 and not endpoint.level2_spec and not endpoint.cache_config_file:
            yield warned("the second tier is enabled but l2CacheSpec is missing", endpoint.target, *evidence)
        elif endpoint.level2_spec and not endpoint.level2:
            yield warned("l2CacheSpec is given but enableL2Cache is not true", endpoint.target, *evidence)
        else:
            state = "on" if endpoint.level2 else "off"
            yield passed(f"the second tier is {state}, flag and spec agree", endpoint.target, *evidence)
    if not found:
        yield skipped(Reason.NOT_APPLICABLE, _NO_CACHE_SPEC)


def _second_tiers(snapshot: Snapshot) -> Iterator[Endpoint]:
    """Resources that configure a second tier, whether or not the flag is set."""
    return (endpoint for endpoint in _cached(snapshot) if endpoint.level2 or endpoint.level2_spec)


_NO_SECOND_TIER = "no resource configures a second tier"


def second_tier_backend(snapshot: Snapshot) -> Iterator[Finding]:
    found = False
    for endpoint in _second_tiers(snapshot):
        if not endpoint.level2_spec:
            continue
        found = True
        evidence = endpoint.shows("spec.kvCacheSpec.l2CacheSpec.l2CacheBackend")
        if endpoint.level2_backend.lower() in L2_BACKENDS:
            yield passed("the backend is known", endpoint.target, evidence)
        elif endpoint.level2_backend:
            yield failed("the backend is neither redis nor tieredstorage", endpoint.target, evidence)
        else:
            yield failed("l2CacheSpec names no backend", endpoint.target, evidence)
    if not found:
        yield skipped(Reason.NOT_APPLICABLE, _NO_SECOND_TIER)


def second_tier_url(snapshot: Snapshot) -> Iterator[Finding]:
    found = False
    for endpoint in _second_tiers(snapshot):
        if endpoint.level2_backend.lower() not in L2_BACKENDS:
            continue
        found = True
        yield _judge_url(snapshot, endpoint)
    if not found:
        yield skipped(Reason.NOT_APPLICABLE, _NO_SECOND_TIER)


def _judge_url(snapshot: Snapshot, endpoint: Endpoint) -> Finding:
    url, target = endpoint.level2_url, endpoint.target
    evidence = endpoint.shows("spec.kvCacheSpec.l2CacheSpec.l2CacheLocalUrl")
    if endpoint.level2_backend.lower() == "tieredstorage":
        if url:
            return warned("tieredstorage ignores l2CacheLocalUrl", target, evidence)
        return passed("tieredstorage needs no URL", target, evidence)
    if not url:
        return failed("redis needs l2CacheLocalUrl", target, evidence)
    if scheme(url) not in REDIS_SCHEMES:
        return failed("the URL's scheme is not one of redis's", target, evidence)
    listed = url.partition("://")[2].partition("/")[0].split(",")
    places = [place(one) for one in listed]
    if any(one is None for one in places):
        return failed("the URL is not scheme://host:port", target, evidence)
    for one in places:
        meant = service_name(one.host, endpoint.namespace) if one is not None else None
        if meant is not None and services_known(snapshot, meant[0]) and service(snapshot, *meant) is None:
            return failed("the URL names a Service that does not exist", target, evidence)
    return passed("the URL can be read; whether it answers is KV311's question", target, evidence)


def second_tier_effective(snapshot: Snapshot) -> Iterator[Finding]:
    found = False
    for endpoint in _second_tiers(snapshot):
        wanted = endpoint.level2_backend.lower()
        if not endpoint.level2 or wanted not in L2_BACKENDS:
            continue
        for worker in workers_of(snapshot, endpoint):
            found = True
            yield _compare_tier(snapshot, endpoint, worker, wanted)
    if not found:
        yield skipped(Reason.NOT_APPLICABLE, "no worker belongs to a resource that enables a second tier")


def _compare_tier(snapshot: Snapshot, endpoint: Endpoint, worker: Member, wanted: str) -> Finding:
    asked = endpoint.shows("spec.kvCacheSpec.l2CacheSpec.l2CacheBackend")
    actual, evidence = _effective_tier(snapshot, worker)
    if actual == wanted:
        return passed("the worker uses the backend that the resource asks for", worker.target, asked, *evidence)
    if not actual:
        printed = worker.log is not None and worker.log.lmcache_config()
        if not printed or remote_url(snapshot, worker) == "":
            reason = (worker.log_missing or Reason.NO_DATA) if worker.log is None else Reason.NO_DATA
            return skipped(reason, "which second tier the worker uses is not known", worker.target, asked)
        message = "the resource asks for a second tier, the worker has none"
    else:
        message = f"the resource asks for {wanted}, the worker uses {actual}"
    if endpoint.cache_config_file:
        return warned(
            f"{message}; cacheConfigFile overrides the rest",
            worker.target,
            asked,
            *evidence,
            hint="make kvCacheSpec.cacheConfigFile and l2CacheSpec say the same, or drop one of them",
        )
    return failed(message, worker.target, asked, *evidence)


def _effective_tier(snapshot: Snapshot, worker: Member) -> tuple[str, tuple[Evidence, ...]]:
    """redis, tieredstorage, another scheme, or '' where nothing tells; the log beats the environment."""
    log = worker.log
    if log is not None and (match := log.last("lmcache-remote-connected", "hyperpod-connector")) is not None:
        hyperpod = match.pattern == "hyperpod-connector"
        return "tieredstorage" if hyperpod else _tier(match["url"]), (log.evidence(match),)
    if url := remote_url(snapshot, worker):
        return _tier(url), (lmcache_setting(worker, "remote_url", snapshot.lmcache_config(worker)),)
    if log is not None and (match := log.last("lmcache-creating-connector")) is not None:
        kind = match["kind"].lower()
        names = {"redis": "redis", "valkey": "redis", "sagemaker": "tieredstorage", "hyperpod": "tieredstorage"}
        return next((tier for name, tier in names.items() if name in kind), kind), (log.evidence(match),)
    return "", ()


def _tier(url: str) -> str:
    kind = scheme(url)
    return "redis" if kind in REDIS_SCHEMES else ("tieredstorage" if kind == _TIERED_SCHEME else kind)


def redis_transport(snapshot: Snapshot) -> Iterator[Finding]:
    found = False
    for endpoint in _second_tiers(snapshot):
        if endpoint.level2_backend.lower() == "redis" and endpoint.level2_url:
            found = True
            evidence = endpoint.shows("spec.kvCacheSpec.l2CacheSpec.l2CacheLocalUrl")
            yield _transport(snapshot, endpoint.level2_url, endpoint.namespace, evidence, endpoint.target)
    for worker in snapshot.workers:
        url = remote_url(snapshot, worker)
        if url and _tier(url) == "redis":
            found = True
            evidence = lmcache_setting(worker, "remote_url", snapshot.lmcache_config(worker))
            yield _transport(snapshot, url, worker.namespace, evidence, worker.target)
    if not found:
        yield skipped(Reason.NOT_APPLICABLE, "no Redis is configured as second tier")


def _transport(snapshot: Snapshot, url: str, namespace: str, evidence: Evidence, target: Target) -> Finding:
    if scheme(url) in _ENCRYPTED:
        return passed("the transport is encrypted", target, evidence)
    listed = url.partition("://")[2].partition("/")[0].split(",")
    hosts = [found.host for one in listed if (found := place(one)) is not None]
    if not hosts:
        return skipped(Reason.PARSE, "the URL is not scheme://host:port", target, evidence)
    if all(internal(snapshot, host, namespace) for host in hosts):
        return passed("not encrypted, but inside the cluster or on a private address", target, evidence)
    return warned(
        "encryption in transit is not guaranteed: Redis is outside and the URL is not rediss://", target, evidence
    )


_HYPERPOD = frozenset({Stack.HYPERPOD})

CHECKS: tuple[Check, ...] = (
    Check(
        id="KV110",
        title="LMCache's CPU buffer",
        group=Group.CONFIGURATION,
        worst=Status.FAIL,
        reads="LMCACHE_LOCAL_CPU, LMCACHE_MAX_LOCAL_CPU_SIZE, LMCache's printed configuration, "
        "spec.kvCacheSpec.enableL1Cache",
        rule="Environment and printed configuration beat the resource; defaults are on and 5 GB. Fails for kvaware "
        "with neither CPU buffer nor local disk: only these tell the router's controller which chunks they hold. "
        "Warns where the buffer is off otherwise, or smaller than two chunks (by a store that the log shows).",
        hint="set enableL1Cache: true or LMCACHE_LOCAL_CPU=True, and LMCACHE_MAX_LOCAL_CPU_SIZE in GB",
        run=first_tier,
    ),
    Check(
        id="KV111",
        title="Second tier: flag and spec agree",
        group=Group.CONFIGURATION,
        worst=Status.WARN,
        reads="spec.kvCacheSpec.enableL2Cache (default false), l2CacheSpec",
        rule="Warns where the flag is true without l2CacheSpec, and where l2CacheSpec is given with the flag false.",
        hint="set enableL2Cache: true and l2CacheSpec together",
        run=second_tier_flag,
        stacks=_HYPERPOD,
    ),
    Check(
        id="KV112",
        title="Second tier: known backend",
        group=Group.CONFIGURATION,
        worst=Status.FAIL,
        reads="spec.kvCacheSpec.l2CacheSpec.l2CacheBackend",
        rule="Fails unless it is redis or tieredstorage, in any case.",
        hint="set l2CacheBackend to redis or tieredstorage",
        run=second_tier_backend,
        stacks=_HYPERPOD,
    ),
    Check(
        id="KV113",
        title="Second tier: URL",
        group=Group.CONFIGURATION,
        worst=Status.FAIL,
        reads="spec.kvCacheSpec.l2CacheSpec.l2CacheLocalUrl, Services",
        rule="For redis it must be scheme://host:port with a scheme of redis's, and a cluster name must be a "
        "Service that exists; fails otherwise. For tieredstorage it is ignored: warns where it is set. Whether the "
        "server answers is KV311's question.",
        hint="for example redis://redis.NAMESPACE.svc.cluster.local:6379",
        run=second_tier_url,
        stacks=_HYPERPOD,
    ),
    Check(
        id="KV114",
        title="Second tier: effective as asked for",
        group=Group.CONFIGURATION,
        worst=Status.FAIL,
        reads="l2CacheBackend; LMCACHE_REMOTE_URL, LMCache's printed configuration and connector lines",
        rule="Fails where the resource asks for one backend and the worker uses another or none; warns instead "
        "where cacheConfigFile is set, which overrides everything else.",
        hint="upgrade operator 3.2.0, which replaces redis by tiered storage (sagemaker-hyperpod-cli#431), or set "
        "LMCACHE_REMOTE_URL on the Deployment",
        run=second_tier_effective,
        stacks=_HYPERPOD,
    ),
    Check(
        id="KV115",
        title="Redis transport",
        group=Group.CONFIGURATION,
        worst=Status.WARN,
        reads="l2CacheLocalUrl, LMCache's remote_url, Services and EndpointSlices",
        rule="Warns where the URL is not rediss:// and its host is neither a Service that stays inside the cluster "
        "nor a private address.",
        hint="keep Redis in the cluster's own network, or use rediss:// where the LMCache version supports it "
        "(LMCache#929)",
        run=redis_transport,
    ),
)
