"""KV110 to KV115."""

from __future__ import annotations

from typing import Any

import pytest

from checks.model import Reason, Stack, Status
from checks.snapshot import Member, Resources, Snapshot
from tests.checks.build import findings, only, router, snapshot, statuses, worker

CONNECTOR = ("--kv-transfer-config", '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}')
KVAWARE = ("--routing-logic", "kvaware")
REDIS = "redis://redis.prod.svc.cluster.local:6379"


def resource(name: str = "m", *, routing: dict[str, Any] | None = None, **cache: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"kvCacheSpec": cache}
    if routing is not None:
        spec["intelligentRoutingSpec"] = routing
    return {"kind": "InferenceEndpointConfig", "metadata": {"name": name, "namespace": "prod"}, "spec": spec}


def hyperpod(*members: Member, resources: tuple[dict[str, Any], ...] = (), **others: Any) -> Snapshot:
    by_plural = {"inferenceendpointconfigs": resources, **{name: tuple(rows) for name, rows in others.items()}}
    return snapshot(*members, stack=Stack.HYPERPOD, resources=Resources(by_plural))


def engine(*, kvaware: bool = True, **more: Any) -> Snapshot:
    more.setdefault("args", CONNECTOR)
    strategy = KVAWARE if kvaware else ("--routing-logic", "session")
    return snapshot(worker(**more), router(args=strategy))


def configuration(text: str) -> str:
    return f"[2026-08-01 10:00:01,000] LMCache INFO: LMCache Configuration: {text} (config.py:1:lmcache.v1.config)"


# KV110


def test_the_cpu_buffer_is_on_by_default() -> None:
    assert only("KV110", engine()).status is Status.PASS


def test_kvaware_without_cpu_buffer_and_disk_fails() -> None:
    assert only("KV110", engine(env={"LMCACHE_LOCAL_CPU": "False"})).status is Status.FAIL


def test_kvaware_without_cpu_buffer_but_with_a_disk_passes() -> None:
    env = {"LMCACHE_LOCAL_CPU": "False", "LMCACHE_LOCAL_DISK": "file:///cache"}
    assert only("KV110", engine(env=env)).status is Status.PASS


def test_other_strategies_without_cpu_buffer_warn() -> None:
    assert only("KV110", engine(kvaware=False, env={"LMCACHE_LOCAL_CPU": "0"})).status is Status.WARN


def test_a_cpu_buffer_of_no_size_warns() -> None:
    assert only("KV110", engine(env={"LMCACHE_MAX_LOCAL_CPU_SIZE": "0"})).status is Status.WARN


STORED = (
    "[2026-08-01 10:02:00,100] LMCache INFO: [req_id=cmpl-1] Stored 512 out of total 713 tokens. size: 0.0625 GB, cost "
    "12.3 ms, throughput: 5.1 GB/s (cache_engine.py:553:lmcache.v1.cache_engine)"
)


def test_a_cpu_buffer_below_two_chunks_by_the_size_of_a_store_warns() -> None:
    # 512 tokens took 0.0625 GB: two chunks of 256 take as much.
    assert only("KV110", engine(log=STORED, env={"LMCACHE_MAX_LOCAL_CPU_SIZE": "0.06"})).status is Status.WARN
    assert only("KV110", engine(log=STORED, env={"LMCACHE_MAX_LOCAL_CPU_SIZE": "0.07"})).status is Status.PASS


def test_what_lmcache_printed_counts() -> None:
    assert only("KV110", engine(log=configuration("{'local_cpu': False}"))).status is Status.FAIL


def test_the_environment_beats_what_the_resource_says() -> None:
    on = worker(args=CONNECTOR, env={"LMCACHE_LOCAL_CPU": "True"})
    routing = {"enabled": True, "routingStrategy": "kvaware"}
    found = only("KV110", hyperpod(on, resources=(resource(enableL1Cache=False, routing=routing),)))
    assert found.status is Status.PASS
    assert "although the resource switches it off" in found.message


def test_the_resource_counts_where_the_worker_says_nothing() -> None:
    routing = {"enabled": True, "routingStrategy": "kvaware"}
    of = hyperpod(worker(args=CONNECTOR), resources=(resource(enableL1Cache=False, routing=routing),))
    assert only("KV110", of).status is Status.FAIL


@pytest.mark.parametrize(
    ("cache", "routing", "status"),
    [
        ({"enableL2Cache": True}, {"enabled": True}, Status.PASS),
        ({"enableL1Cache": False}, {"enabled": True, "routingStrategy": "kvaware"}, Status.FAIL),
        ({"enableL1Cache": False}, {"enabled": True}, Status.WARN),
    ],
)
def test_without_a_worker_the_resource_alone_is_judged(
    cache: dict[str, Any], routing: dict[str, Any], status: Status
) -> None:
    assert only("KV110", hyperpod(resources=(resource(routing=routing, **cache),))).status is status


@pytest.mark.parametrize(
    "env", [{"LMCACHE_LOCAL_CPU": "<from:secret/x>"}, {"LMCACHE_CONFIG_FILE": "/etc/lmcache.yaml"}]
)
def test_a_configuration_that_was_not_read_is_not_judged(env: dict[str, str]) -> None:
    assert only("KV110", engine(env=env)).reason is Reason.NO_DATA


def test_a_process_known_by_its_log_alone_is_not_judged_by_defaults() -> None:
    assert only("KV110", snapshot(worker(version_line="0.4.3"))).reason is Reason.NO_DATA


def test_a_configuration_file_that_was_printed_is_judged() -> None:
    log = configuration("{'local_cpu': False}")
    assert only("KV110", engine(log=log, env={"LMCACHE_CONFIG_FILE": "/etc/lmcache.yaml"})).status is Status.FAIL


def test_workers_without_lmcache_have_no_cpu_buffer_to_judge() -> None:
    assert only("KV110", engine(args=())).reason is Reason.NOT_APPLICABLE


# KV111


@pytest.mark.parametrize(
    ("cache", "status"),
    [
        ({"enableL2Cache": True, "l2CacheSpec": {"l2CacheBackend": "redis"}}, Status.PASS),
        ({}, Status.PASS),
        ({"enableL2Cache": True}, Status.WARN),
        ({"enableL2Cache": True, "cacheConfigFile": "/f"}, Status.PASS),
        ({"l2CacheSpec": {"l2CacheBackend": "redis"}}, Status.WARN),
    ],
)
def test_flag_and_spec_of_the_second_tier(cache: dict[str, Any], status: Status) -> None:
    assert only("KV111", hyperpod(resources=(resource(**cache),))).status is status


@pytest.mark.parametrize("check", ["KV111", "KV112", "KV113", "KV114"])
def test_resources_without_a_cache_part_are_not_judged(check: str) -> None:
    plain = {"metadata": {"name": "m", "namespace": "prod"}, "spec": {"modelName": "m"}}
    assert only(check, hyperpod(resources=(plain,))).reason is Reason.NOT_APPLICABLE


def test_jumpstart_models_are_judged_too() -> None:
    model = resource(enableL2Cache=True) | {"kind": "JumpStartModel"}
    of = snapshot(stack=Stack.HYPERPOD, resources=Resources({"jumpstartmodels": (model,)}))
    assert only("KV111", of).status is Status.WARN
    assert only("KV111", of).target.kind == "JumpStartModel"


# KV112


@pytest.mark.parametrize(
    ("backend", "status"),
    [
        ("redis", Status.PASS),
        ("TieredStorage", Status.PASS),
        ("memcached", Status.FAIL),
        ("redis/sagemaker", Status.FAIL),
        ("", Status.FAIL),
    ],
)
def test_backends(backend: str, status: Status) -> None:
    of = hyperpod(resources=(resource(enableL2Cache=True, l2CacheSpec={"l2CacheBackend": backend}),))
    assert only("KV112", of).status is status


# KV113


def url_status(backend: str, url: str | None, **others: Any) -> Status:
    spec = {"l2CacheBackend": backend} | ({} if url is None else {"l2CacheLocalUrl": url})
    return only("KV113", hyperpod(resources=(resource(enableL2Cache=True, l2CacheSpec=spec),), **others)).status


@pytest.mark.parametrize(
    "url",
    [
        REDIS,
        "rediss://10.0.0.5:6380",
        "redis-sentinel://a:26379,b:26379/main",
        "valkey://cache.example.com:6379",
        "redis://user:pw@redis.prod:6379/0",
    ],
)
def test_urls_of_redis_that_can_be_read(url: str) -> None:
    assert url_status("redis", url) is Status.PASS


@pytest.mark.parametrize(
    "url",
    [None, "", "redis.prod:6379", "http://redis:6379", "redis://redis", "redis://redis:0", "redis:redisdefault:6379"],
)
def test_urls_of_redis_that_are_missing_or_cannot_be_read(url: str | None) -> None:
    assert url_status("redis", url) is Status.FAIL


def test_a_url_that_names_a_missing_service_fails() -> None:
    other = {"metadata": {"name": "other", "namespace": "prod"}, "spec": {}}
    there = {"metadata": {"name": "redis", "namespace": "prod"}, "spec": {}}
    assert url_status("redis", REDIS, services=[other]) is Status.FAIL
    assert url_status("redis", REDIS, services=[other, there]) is Status.PASS


def test_a_service_of_a_namespace_that_was_not_listed_is_not_missing() -> None:
    other = {"metadata": {"name": "other", "namespace": "prod"}, "spec": {}}
    assert url_status("redis", "redis://redis.elsewhere.svc:6379", services=[other]) is Status.PASS


def test_tiered_storage_needs_no_url_and_ignores_one() -> None:
    assert url_status("tieredstorage", None) is Status.PASS
    assert url_status("tieredstorage", REDIS) is Status.WARN


def test_the_password_of_a_url_is_not_shown() -> None:
    spec = {"l2CacheBackend": "redis", "l2CacheLocalUrl": "redis://me:hunter2@redis.prod:6379"}
    found = only("KV113", hyperpod(resources=(resource(enableL2Cache=True, l2CacheSpec=spec),)))
    assert not [one for one in found.evidence if "hunter2" in one.text]


# KV114


def effective(backend: str, *, cache_config_file: str = "", **more: Any) -> Snapshot:
    spec = {"l2CacheBackend": backend, "l2CacheLocalUrl": REDIS}
    of = resource(enableL2Cache=True, l2CacheSpec=spec, cacheConfigFile=cache_config_file)
    return hyperpod(worker(args=CONNECTOR, **more), resources=(of,))


def log_line(text: str) -> str:
    return f"[2026-08-01 10:00:01,350] LMCache INFO: {text} (a.py:1:lmcache.v1)"


REMOTE = {"LMCACHE_REMOTE_URL": REDIS}
TIERED = {"LMCACHE_REMOTE_URL": "sagemaker-hyperpod://localhost:9200"}
CONNECTED = log_line(f"Connected to remote storage at {REDIS}")
HYPERPOD_CONNECTOR = log_line("SageMaker HyperPod Connector initialized: url=http://localhost:9200, bucket=lmcache")


def test_a_worker_with_the_backend_that_is_asked_for_passes() -> None:
    assert only("KV114", effective("redis", env=REMOTE)).status is Status.PASS
    assert only("KV114", effective("TieredStorage", env=TIERED)).status is Status.PASS


def test_redis_replaced_by_tiered_storage_fails() -> None:
    assert only("KV114", effective("redis", env=TIERED)).status is Status.FAIL


def test_tiered_storage_replaced_by_redis_fails() -> None:
    assert only("KV114", effective("tieredstorage", env=REMOTE)).status is Status.FAIL


def test_the_log_beats_the_environment() -> None:
    assert only("KV114", effective("redis", env=TIERED, log=CONNECTED)).status is Status.PASS
    assert only("KV114", effective("redis", env=REMOTE, log=HYPERPOD_CONNECTOR)).status is Status.FAIL


def test_the_connectors_name_tells_where_no_url_does() -> None:
    log = log_line("Creating Redis connector for URL: x")
    assert only("KV114", effective("redis", log=log)).status is Status.PASS


def test_a_worker_that_printed_no_second_tier_fails() -> None:
    assert only("KV114", effective("redis", log=configuration("{'remote_url': None}"))).status is Status.FAIL


def test_with_a_cache_config_file_a_difference_only_warns() -> None:
    assert only("KV114", effective("redis", env=TIERED, cache_config_file="/f")).status is Status.WARN


def test_a_worker_that_tells_nothing_of_its_second_tier_is_not_judged() -> None:
    assert only("KV114", effective("redis")).reason is Reason.NO_DATA


def test_a_worker_whose_log_may_not_be_read_says_so() -> None:
    found = only("KV114", effective("redis", log=None, log_missing=Reason.RBAC))
    assert (found.status, found.reason) == (Status.ERROR, Reason.RBAC)


def test_a_second_tier_that_is_off_is_not_compared() -> None:
    off = resource(enableL2Cache=False, l2CacheSpec={"l2CacheBackend": "redis"})
    assert only("KV114", hyperpod(worker(env=TIERED), resources=(off,))).reason is Reason.NOT_APPLICABLE


def test_workers_belong_to_the_resource_that_their_deployment_is_named_by() -> None:
    redis = resource("a", enableL2Cache=True, l2CacheSpec={"l2CacheBackend": "redis", "l2CacheLocalUrl": REDIS})
    tiered = resource("b", enableL2Cache=True, l2CacheSpec={"l2CacheBackend": "tieredstorage"})
    one = worker("a-0", args=CONNECTOR, env=REMOTE, owner="Deployment/a")
    two = worker("b-0", args=CONNECTOR, env=REMOTE, labels={"app": "b"})
    assert statuses("KV114", hyperpod(one, two, resources=(redis, tiered))) == {"a-0": Status.PASS, "b-0": Status.FAIL}


# KV115


def transport(url: str, **others: Any) -> Status:
    by_plural = {name: tuple(rows) for name, rows in others.items()}
    of = snapshot(worker(args=CONNECTOR, env={"LMCACHE_REMOTE_URL": url}), resources=Resources(by_plural))
    return only("KV115", of).status


@pytest.mark.parametrize(
    "url",
    [
        "rediss://cache.example.com:6379",
        "redis://10.1.2.3:6379",
        "redis://localhost:6379",
        "redis://redis:6379",
        REDIS,
        "redis-sentinel://10.0.0.1:26379,10.0.0.2:26379/main",
    ],
)
def test_redis_inside_or_encrypted_passes(url: str) -> None:
    assert transport(url) is Status.PASS


@pytest.mark.parametrize(
    "url",
    [
        "redis://cache.abc.0001.use1.cache.amazonaws.com:6379",
        "redis://52.1.2.3:6379",
        "redis-sentinel://10.0.0.1:26379,52.1.2.3:26379/main",
    ],
)
def test_redis_outside_and_not_encrypted_warns(url: str) -> None:
    assert transport(url) is Status.WARN


def test_a_service_that_leads_outside_warns() -> None:
    named = {"type": "ExternalName", "externalName": "cache.example.com"}
    service = {"metadata": {"name": "redis", "namespace": "prod"}, "spec": named}
    assert transport(REDIS, services=[service]) is Status.WARN


def test_a_service_with_addresses_outside_warns() -> None:
    service = {"metadata": {"name": "redis", "namespace": "prod"}, "spec": {}}
    labels = {"kubernetes.io/service-name": "redis"}
    outside = {"metadata": {"namespace": "prod", "labels": labels}, "endpoints": [{"addresses": ["52.1.2.3"]}]}
    inside = {"metadata": {"namespace": "prod", "labels": labels}, "endpoints": [{"addresses": ["10.0.0.7"]}]}
    assert transport(REDIS, services=[service], endpointslices=[outside]) is Status.WARN
    assert transport(REDIS, services=[service], endpointslices=[inside]) is Status.PASS


def test_the_resources_url_is_judged_too() -> None:
    spec = {"l2CacheBackend": "redis", "l2CacheLocalUrl": "redis://cache.example.com:6379"}
    found = findings("KV115", hyperpod(resources=(resource(enableL2Cache=True, l2CacheSpec=spec),)))
    assert [one.status for one in found] == [Status.WARN]


def test_a_url_that_cannot_be_read_is_an_error_of_parsing() -> None:
    of = snapshot(worker(args=CONNECTOR, env={"LMCACHE_REMOTE_URL": "redis://nowhere"}))
    assert only("KV115", of).reason is Reason.PARSE


@pytest.mark.parametrize("env", [{}, {"LMCACHE_REMOTE_URL": "lm://cache-server:8080"}])
def test_without_redis_there_is_no_transport_to_judge(env: dict[str, str]) -> None:
    assert only("KV115", snapshot(worker(args=CONNECTOR, env=env))).reason is Reason.NOT_APPLICABLE
