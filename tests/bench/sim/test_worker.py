"""Imitated workers over HTTP: their logs, metrics and behaviour, healthy and with each fault."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

STYLES = ("lmcache-0.3.14", "lmcache-0.4.3", "lmcache-0.5.6", "hyperpod")
PROMPT = list(range(3, 603))
OTHER = list(range(700, 1300))

REQUEST = re.compile(
    r"Reqid: (?P<rid>\S+), Total tokens (?P<tot>\d+), Inference Engine computed tokens: (?P<eng>\d+),"
    r" LMCache hit tokens: (?P<hit>\d+), need to load: (?P<load>\d+)"
)
STORED = re.compile(r"(?:\[req_id=(?P<rid>[^\]]+)\] )?Stored (?P<n>\d+) out of total (?P<tot>\d+) tokens")
RETRIEVED = re.compile(
    r"(?:\[req_id=(?P<rid>[^\]]+)\] )?Retrieved (?P<n>\d+) out of (?P<req>\d+) required tokens"
    r" \(from (?P<tot>\d+) total tokens\)"
)

HEALTHY_LINES = (
    "LMCache Configuration: {'chunk_size': 256",
    "Creating LMCacheEngine instance",
    "Creating LMCacheEngine with config",
    "Initialized NONE_HASH=",
    "Using hash algorithm: builtin",
    "Could not load 'builtin' from vLLM. Using builtin hash.",
    "Reply socket established at *:8001",
    "Registering lmcache instance-worker: ('",
    "Received heartbeat_url from controller: tcp://",
    "Starting lmcache worker 0for instance ",
    "LMCache initialized for role KVConnectorRole.WORKER with version ",
    "LMCache initialized for role KVConnectorRole.SCHEDULER with version ",
    "Registering KV caches",
    "Post initializing LMCacheEngine",
    "Connected to remote storage at redis://",
    "Health monitor initialized and started",
    "Creating v1 connector with name: LMCacheConnectorV1",
    "Initializing latest dev LMCache connector",
    "Application startup complete.",
)
BROKEN_WORDS = (
    "Failed",
    "degraded",
    "ERROR",
    "failed",
    "Skipping",
    "unhealthy",
)


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (the condition is what another task writes)
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("style", STYLES)
async def test_a_healthy_start_has_every_line_of_its_release_and_none_of_trouble(
    start_workers: Any, style: str
) -> None:
    log = (await start_workers(style)).log()
    assert [line for line in HEALTHY_LINES if line not in log] == []
    assert [word for word in BROKEN_WORDS if word in log] == []


@pytest.mark.parametrize(
    ("style", "versions"),
    [
        ("lmcache-0.3.14", "with version 0.3.14-gf7b040e8a, vllm version 0.14.1,"),
        ("lmcache-0.4.3", "with version 0.4.3-g7f326118a, vllm version 0.19.1,"),
        ("lmcache-0.5.6", "with version 0.5.6-g3e11e108, vllm version 0.32.0,"),
        ("hyperpod", "with version 0.4.3-g7f326118a, vllm version 0.19.1,"),
    ],
)
async def test_both_roles_tell_the_versions(start_workers: Any, style: str, versions: str) -> None:
    assert (await start_workers(style)).log().count(versions) == 2


@pytest.mark.parametrize("style", STYLES)
async def test_only_hyperpod_has_the_success_line_of_aws_in_its_plain_form(start_workers: Any, style: str) -> None:
    lines = (await start_workers(style)).raw("sim-0").splitlines()
    assert ("INFO: LMCacheManager initialized successfully" in lines) is (style == "hyperpod")


@pytest.mark.parametrize("style", STYLES)
async def test_the_health_monitor_names_the_role_before_0_4_3_only(start_workers: Any, style: str) -> None:
    log = (await start_workers(style)).log()
    assert ("started at manager level (role=worker)" in log) is (style == "lmcache-0.3.14")


@pytest.mark.parametrize("style", STYLES)
async def test_the_request_is_named_in_store_and_retrieve_after_0_3_14(start_workers: Any, style: str) -> None:
    workers = await start_workers(style)
    await workers.complete(0, PROMPT)
    await workers.forget(0)
    await workers.complete(0, PROMPT)
    log = workers.log()
    (stored,), (retrieved,) = list(STORED.finditer(log)), list(RETRIEVED.finditer(log))
    assert (stored["rid"] is not None) is (retrieved["rid"] is not None) is (style != "lmcache-0.3.14")


@pytest.mark.parametrize(
    ("style", "prefix"),
    [("lmcache-0.3.14", r"\(EngineCore_DP0 pid=\d+\) "), ("lmcache-0.5.6", "")],
)
async def test_lines_of_lmcache_have_the_process_before_them_in_older_releases(
    start_workers: Any, style: str, prefix: str
) -> None:
    log = (await start_workers(style)).log()
    lines = [line for line in log.splitlines() if "LMCache INFO:" in line]
    assert len(lines) > 10
    assert [line for line in lines if not re.match(prefix + r"\[\d{4}-", line)] == []


@pytest.mark.parametrize("style", STYLES)
async def test_the_lines_of_a_request_are_what_the_engine_reports(start_workers: Any, style: str) -> None:
    workers = await start_workers(style, count=2)
    usages = [await workers.complete(0, PROMPT, "kvctl-1"), await workers.complete(0, PROMPT, "kvctl-2")]
    await workers.forget(0)
    usages.append(await workers.complete(0, PROMPT, "kvctl-3"))
    told = [match.groupdict() for match in REQUEST.finditer(workers.log())]
    assert [re.fullmatch(r"cmpl-(kvctl-\d)-0-\w{8}", row["rid"])[1] for row in told] == [
        "kvctl-1",
        "kvctl-2",
        "kvctl-3",
    ]
    assert [int(row["tot"]) for row in told] == [usage["prompt_tokens"] for usage in usages]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert cached == [0, 592, 512]
    assert [int(row["eng"]) + int(row["load"]) for row in told] == cached


@pytest.mark.parametrize("style", STYLES)
async def test_counters_are_the_sums_of_the_lines(start_workers: Any, style: str) -> None:
    workers = await start_workers(style, count=2)
    for engine, prompt in ((0, PROMPT), (0, PROMPT), (0, OTHER), (1, PROMPT), (1, OTHER), (1, PROMPT[:100])):
        await workers.complete(engine, prompt)
    for engine in (0, 1):
        log, samples = workers.log(f"sim-{engine}"), await workers.samples(engine)
        requests = list(REQUEST.finditer(log))
        assert samples["lmcache:num_lookup_requests_total"] == len(requests) == 3
        assert samples["lmcache:num_lookup_tokens_total"] == sum(int(row["tot"]) for row in requests)
        assert samples["lmcache:num_lookup_hits_total"] == sum(int(row["hit"]) for row in requests)
        assert samples["lmcache:num_vllm_hit_tokens_total"] == sum(int(row["eng"]) for row in requests)
        assert samples["lmcache:lookup_0_hit_requests_total"] == sum(row["hit"] == "0" for row in requests)
        assert samples["lmcache:request_cache_hit_rate_count"] == sum(row["hit"] != "0" for row in requests)
        assert samples["lmcache:num_stored_tokens_total"] == sum(int(row["n"]) for row in STORED.finditer(log))
        assert samples["lmcache:num_hit_tokens_total"] == sum(int(row["n"]) for row in RETRIEVED.finditer(log))
        assert samples["vllm:external_prefix_cache_hits_total"] == sum(int(row["load"]) for row in requests)
        asked = sum(int(row["tot"]) - int(row["eng"]) for row in requests)
        assert samples["vllm:external_prefix_cache_queries_total"] == asked


async def test_a_worker_loads_what_another_one_stored(start_workers: Any) -> None:
    workers = await start_workers("lmcache-0.5.6", count=2)
    await workers.complete(0, PROMPT)
    assert (await workers.complete(1, PROMPT))["prompt_tokens_details"] == {"cached_tokens": 512}
    samples = await workers.samples(1)
    assert samples["lmcache:num_remote_read_requests_total"] == 2
    assert samples["lmcache:num_remote_read_bytes_total"] == 2 * 32 * 1024 * 1024
    assert samples["lmcache:local_cache_usage"] == 2 * 32 * 1024 * 1024


async def test_prompt_tokens_by_source_add_up_in_the_releases_that_have_them(start_workers: Any) -> None:
    workers = await start_workers("lmcache-0.4.3", count=2)
    await workers.complete(0, PROMPT)
    await workers.complete(1, PROMPT)
    await workers.complete(1, PROMPT)
    samples = await workers.samples(1)
    sources = {key.partition("/")[2]: value for key, value in samples.items() if "prompt_tokens_by_source" in key}
    assert sources == {"local_compute": 88 + 8, "local_cache_hit": 592, "external_kv_transfer": 512}
    assert sum(sources.values()) == samples["vllm:prompt_tokens_total"]


async def test_prompt_tokens_by_source_are_absent_in_the_release_without(start_workers: Any) -> None:
    samples = await (await start_workers("lmcache-0.3.14")).samples(0)
    assert [name for name in samples if "by_source" in name] == []


@pytest.mark.parametrize(
    ("style", "name"), [("lmcache-0.3.14", "interval_get_blocking"), ("lmcache-0.4.3", "get_blocking")]
)
async def test_a_family_has_the_name_of_its_release(start_workers: Any, style: str, name: str) -> None:
    samples = await (await start_workers(style)).samples(0)
    found = [sample for sample in samples if sample.endswith("get_blocking_failed_count")]
    assert found == [f"lmcache:{name}_failed_count"]


async def test_every_family_of_lmcache_has_its_four_labels(start_workers: Any) -> None:
    workers = await start_workers("lmcache-0.5.6")
    text = (await workers.engines[0].client.get("/metrics")).text
    labels = 'model_name="sim",role="worker",served_model_name="sim",worker_id="0"}'
    lines = [line for line in text.splitlines() if line.startswith("lmcache:")]
    assert len(lines) > 40
    assert [line for line in lines if labels not in line] == []


async def test_a_chat_is_named_after_its_request_too(start_workers: Any) -> None:
    workers = await start_workers("lmcache-0.5.6")
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
    await workers.engines[0].client.post("/v1/chat/completions", json=body, headers={"x-request-id": "c-1"})
    assert re.search(r"Reqid: chatcmpl-c-1-\w{8}, ", workers.log())


async def test_requests_with_one_id_may_run_at_once(start_workers: Any) -> None:
    workers = await start_workers("lmcache-0.5.6")
    await asyncio.gather(*(workers.complete(0, PROMPT, "same") for _ in range(4)))
    assert len({match["rid"] for match in REQUEST.finditer(workers.log())}) == 4


async def test_the_periodic_line_tells_the_rates_of_the_engine(start_workers: Any) -> None:
    workers = await start_workers("lmcache-0.5.6")
    await workers.complete(0, PROMPT)
    await workers.complete(0, PROMPT)
    host = workers.engines[0].host
    host.worker._periodic(host.live)
    line = workers.log().splitlines()[-1]
    assert "Avg prompt throughput: 60.8 tokens/s, Avg generation throughput: 0.2 tokens/s, Running: 0 reqs" in line
    assert "Prefix cache hit rate: 49.3%, External prefix cache hit rate: 0.0%" in line


async def test_the_controller_registers_every_worker_and_has_their_none_hash(start_workers: Any) -> None:
    workers = await start_workers("lmcache-0.4.3", count=2)
    log = workers.log("controller")
    assert "Registered instance-worker ('sim-0', 0) with URL 127.0.0.1:8001" in log
    assert "Registered instance-worker ('sim-1', 0) with URL 127.0.0.1:8002" in log
    hashes = set(re.findall(r"NONE_HASH=(-?\d+) ", log + workers.log() + workers.log("sim-1")))
    assert len(hashes) == 1


async def test_heartbeats_keep_a_worker_registered(start_workers: Any) -> None:
    workers = await start_workers("lmcache-0.5.6", heartbeat=0.2)
    await until(lambda: workers.log().count("Received heartbeat response with 2 frames") >= 5)
    assert "Start heartbeat in sim-0 : 0, delay time: 0.2s, heartbeat time: 0.2s" in workers.log()
    assert (await workers.lmcache(0))["registered"] is True


async def test_a_lost_heartbeat_fails_again_and_again_and_the_controller_drops_the_worker(start_workers: Any) -> None:
    workers = await start_workers("lmcache-0.4.3", "heartbeat-lost@0", count=2, heartbeat=0.2)
    await until(lambda: workers.log().count("Heartbeat timeout occurred, recreating socket.") >= 2)
    await until(lambda: "Deregistered instance-worker ('sim-0', 0)" in workers.log("controller"))
    assert re.search(
        r"Worker sim-0_0 last heartbeat time: \S+, current time: \S+, more than 0.6 seconds", workers.log("controller")
    )
    assert "Received heartbeat response" not in workers.log()
    assert (await workers.lmcache(0))["registered"] is False
    assert "Heartbeat timeout" not in workers.log("sim-1")


async def test_a_failed_registration_is_told_and_the_controller_never_knows_the_worker(start_workers: Any) -> None:
    workers = await start_workers("lmcache-0.5.6", "registration-failed", heartbeat=0.05)
    failed = "Failed to register with controller: Resource temporarily unavailable"
    await until(lambda: failed in workers.log())
    log = workers.log()
    assert "Instance sim-0, worker 0 error: Resource temporarily unavailable" in log
    assert "Received heartbeat_url" not in log and "Start heartbeat" not in log
    assert "instance-worker" not in workers.log("controller")
    assert (await workers.lmcache(0))["registered"] is False
    assert (await workers.complete(0, PROMPT))["prompt_tokens"] == 600


async def test_an_init_failure_of_0_3_14_is_one_line_with_an_empty_reason(start_workers: Any) -> None:
    workers = await start_workers("lmcache-0.3.14", "init-failure")
    lines = [line for line in workers.log().splitlines() if "Failed to initialize" in line]
    assert len(lines) == 1
    assert "components: . System will operate in degraded mode (recompute). (manager.py:" in lines[0]


@pytest.mark.parametrize(
    ("style", "error"),
    [("lmcache-0.4.3", "AssertionError"), ("lmcache-0.5.6", "RuntimeError: No supported cpu connector found.")],
)
async def test_an_init_failure_of_later_releases_is_a_traceback(start_workers: Any, style: str, error: str) -> None:
    workers = await start_workers(style, "init-failure")
    log = re.sub(r"(?m)^\(EngineCore_DP0 pid=\d+\) ", "", workers.log())
    record = log[log.index("Failed to initialize LMCacheManager components: ") :]
    first, *rest = record.splitlines()
    assert first.endswith("Traceback (most recent call last):")
    end = next(number for number, line in enumerate(rest) if not line.startswith("  "))
    assert rest[end] == error
    assert rest[end + 1].startswith(". System will operate in degraded mode (recompute). (manager.py:")


@pytest.mark.parametrize("style", STYLES)
async def test_after_an_init_failure_nothing_is_looked_up_and_requests_succeed(start_workers: Any, style: str) -> None:
    workers = await start_workers(style, "init-failure@0", count=2)
    await workers.complete(1, PROMPT)
    assert (await workers.complete(0, PROMPT))["prompt_tokens_details"] == {"cached_tokens": 0}
    await workers.forget(0)
    assert (await workers.complete(0, PROMPT))["prompt_tokens_details"] == {"cached_tokens": 0}
    log, samples = workers.log(), await workers.samples(0)
    assert [match["hit"] for match in REQUEST.finditer(log)] == ["0", "0"]
    assert "Skipping post_init due to previous initialization failure" in log
    assert log.count("LMCache initialized for role") == 2
    missing = ("Registering lmcache instance-worker", "Health monitor", "Stored", "Post initializing", "successfully")
    assert [word for word in missing if word in log] == []
    assert samples["lmcache:num_lookup_requests_total"] == samples["lmcache:num_stored_tokens_total"] == 0
    assert samples["vllm:external_prefix_cache_hits_total"] == 0
    assert samples["vllm:external_prefix_cache_queries_total"] == 1200
    assert samples["lmcache:lmcache_is_healthy"] == 0
    assert (await workers.samples(1))["lmcache:lmcache_is_healthy"] == 1
    assert (await workers.lmcache(0))["registered"] is False


@pytest.mark.parametrize("style", STYLES)
async def test_a_dead_l2_fails_lookups_puts_and_pings(start_workers: Any, style: str) -> None:
    workers = await start_workers(style, "l2-down")
    for start in (3, 700, 1400):
        await workers.complete(0, list(range(start, start + 300)))
    log, samples = workers.log(), await workers.samples(0)
    assert log.count("Remote connection failed in contains: ") == 3
    assert log.count("Put task failed for key ") == (0 if style == "lmcache-0.3.14" else 3)
    assert "Ping error: " in log
    assert "Health check failed: RemoteBackendHealthCheck(redis://" in log
    assert "Connected to remote storage" in log
    assert samples["lmcache:remote_ping_error_code"] == -2
    assert samples["lmcache:remote_ping_errors_total"] == 1
    assert samples["lmcache:num_remote_write_requests_total"] == 0
    assert samples["lmcache:num_stored_tokens_total"] == 3 * 256


async def test_with_a_dead_l2_a_worker_finds_its_own_chunks_only(start_workers: Any) -> None:
    workers = await start_workers("lmcache-0.5.6", "l2-down@1", count=2)
    await workers.complete(0, PROMPT)
    assert (await workers.complete(1, PROMPT))["prompt_tokens_details"] == {"cached_tokens": 0}
    await workers.forget(1)
    assert (await workers.complete(1, PROMPT))["prompt_tokens_details"] == {"cached_tokens": 512}


async def test_a_healthy_l2_is_pinged_without_a_word(start_workers: Any) -> None:
    workers = await start_workers("lmcache-0.5.6")
    samples = await workers.samples(0)
    assert (samples["lmcache:remote_ping_successes_total"], samples["lmcache:remote_ping_error_code"]) == (1, 0)


async def test_where_none_hash_differs_neither_finds_the_others_chunks(start_workers: Any) -> None:
    workers = await start_workers("lmcache-0.5.6", "none-hash-differs@1", count=3)
    await workers.complete(1, PROMPT)
    assert (await workers.complete(0, PROMPT))["prompt_tokens_details"] == {"cached_tokens": 0}
    assert (await workers.complete(2, PROMPT))["prompt_tokens_details"] == {"cached_tokens": 512}
    names = ("controller", "sim-0", "sim-1", "sim-2")
    hashes = [set(re.findall(r"NONE_HASH=(-?\d+) ", workers.log(name))) for name in names]
    assert [len(values) for values in hashes] == [1, 1, 1, 1]
    assert hashes[0] == hashes[1] == hashes[3] != hashes[2]


async def test_without_a_number_every_none_hash_is_another(start_workers: Any) -> None:
    workers = await start_workers("lmcache-0.5.6", "none-hash-differs", count=2)
    logs = [workers.log(name) for name in ("controller", "sim-0", "sim-1")]
    assert len({re.findall(r"NONE_HASH=(-?\d+) ", log)[0] for log in logs}) == 3


async def test_missing_metrics_leave_the_rest_as_it_is(start_workers: Any) -> None:
    workers = await start_workers("lmcache-0.4.3", "no-lmcache-metrics@0", count=2)
    await workers.complete(1, PROMPT)
    await workers.complete(0, PROMPT)
    samples = await workers.samples(0)
    assert [name for name in samples if name.startswith("lmcache:")] == []
    assert samples["vllm:external_prefix_cache_hits_total"] == 512
    assert len(RETRIEVED.findall(workers.log())) == 1
    assert "lmcache:num_lookup_tokens_total" in await workers.samples(1)


async def test_faults_of_several_kinds_show_together(start_workers: Any) -> None:
    workers = await start_workers("lmcache-0.4.3", "l2-down", "heartbeat-lost", "no-lmcache-metrics", heartbeat=0.05)
    await until(lambda: "Heartbeat timeout occurred" in workers.log())
    assert "Ping error" in workers.log()
    assert not any(name.startswith("lmcache:") for name in await workers.samples(0))


async def test_hyperpod_registers_in_aws_words_too(start_workers: Any) -> None:
    workers = await start_workers("hyperpod")
    instance = re.search(
        r"Registering lmcache instance-worker: \('(lmcacheengineconfig_[0-9a-f]{16})', 0\)", workers.log()
    )
    assert instance is not None
    assert f"INFO: Worker registered: {instance[1]}" in workers.raw("controller").splitlines()


async def test_an_engine_without_a_style_has_nothing_of_it(start_engine: Any, capfd: Any) -> None:
    engine = await start_engine()
    await engine.client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 1})
    metrics = (await engine.client.get("/metrics")).text
    assert "lmcache" not in metrics and "by_source" not in metrics
    assert "vllm:external_prefix_cache_queries_total" in metrics
    assert set((await engine.client.get("/sim/stats")).json()) == {"lag", "state", "counters", "events"}
    assert (engine.address.instance, engine.address.log, engine.host.worker) == (None, None, None)
    assert capfd.readouterr() == ("", "")
