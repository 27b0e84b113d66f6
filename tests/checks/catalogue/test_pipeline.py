"""KV701-KV706: can the metrics be trusted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checks.metrics.view import Metrics, Page, Sample, ScrapeTarget
from checks.model import Reason, Stack, Status
from checks.snapshot import Resources, Snapshot, Unread
from tests.checks.build import NOW, only, router, snapshot, statuses, worker

LMC = ("--kv-transfer-config", '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}')
MP = ("--kv-transfer-config", '{"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both"}')
FOLDER = {"PROMETHEUS_MULTIPROC_DIR": "/data/prom"}


def pages(**by_worker: Page) -> Metrics:
    """Pages of w_0, w_1, …"""
    found = {f"prod/{name.replace('_', '-')}": replace(page, member=f"prod/{name}") for name, page in by_worker.items()}
    return Metrics(pages=found, source="scrape", window="14s")


def page(*families: str, status: int = 200, problem: Reason | None = None, message: str = "") -> Page:
    return Page("", status, frozenset(families), problem, message, "http://10.0.0.1:8000/metrics")


# -- KV701 -----------------------------------------------------------------------------------------------------------


def test_kv701_passes_where_the_page_answers() -> None:
    found = only("KV701", snapshot(worker(), metrics=pages(w_0=page("vllm:a", "vllm:b"))))
    assert (found.status, found.message) == (Status.PASS, "/metrics answered with 2 families")


def test_kv701_warns_of_a_page_that_is_not_the_engines() -> None:
    sidecar = page("model_invocations_total", "model_latency_milliseconds")
    assert statuses("KV701", snapshot(worker(), metrics=pages(w_0=sidecar))) == {"w-0": Status.WARN}


def test_kv701_fails_another_status() -> None:
    found = only("KV701", snapshot(worker(), metrics=pages(w_0=page(status=404))))
    assert (found.status, found.message) == (Status.FAIL, "/metrics answered 404")


@pytest.mark.parametrize("problem", [Reason.UNREACHABLE, Reason.TIMEOUT])
def test_kv701_fails_where_nothing_answers(problem: Reason) -> None:
    unanswered = page(status=0, problem=problem, message="connection refused")
    found = only("KV701", snapshot(worker(), metrics=pages(w_0=unanswered)))
    assert (found.status, found.message) == (Status.FAIL, "/metrics did not answer: connection refused")


@pytest.mark.parametrize("text", [page(), page("x", problem=Reason.PARSE)])
def test_kv701_fails_what_is_no_prometheus_text(text: Page) -> None:
    assert statuses("KV701", snapshot(worker(), metrics=pages(w_0=text))) == {"w-0": Status.FAIL}


def test_kv701_is_an_error_where_access_is_denied() -> None:
    denied = page(status=403, problem=Reason.RBAC, message="pods/proxy is forbidden")
    found = only("KV701", snapshot(worker(), metrics=pages(w_0=denied)))
    assert (found.status, found.reason) == (Status.ERROR, Reason.RBAC)


def test_kv701_skips_a_pod_that_is_gone() -> None:
    gone = page(status=404, problem=Reason.GONE)
    assert only("KV701", snapshot(worker(), metrics=pages(w_0=gone))).reason is Reason.GONE


def test_kv701_skips_a_worker_that_is_not_ready() -> None:
    down = page(status=0, problem=Reason.UNREACHABLE)
    assert only("KV701", snapshot(worker(ready=False), metrics=pages(w_0=down))).reason is Reason.NO_DATA


def test_kv701_takes_prometheus_for_a_page() -> None:
    metrics = Metrics(source="prometheus", targets={"prod/w-0": ScrapeTarget("prod/w-0", 1.0, 5.0)})
    assert statuses("KV701", snapshot(worker(), metrics=metrics)) == {"w-0": Status.PASS}


def test_kv701_skips_where_no_page_was_asked_for() -> None:
    assert only("KV701", snapshot(worker("w-0"), worker("w-1"))).reason is Reason.NO_DATA


def test_kv701_says_that_metrics_are_turned_off() -> None:
    custom = {"metadata": {"name": "llama"}, "spec": {"metrics": {"enabled": False}}}
    of = snapshot(worker(), stack=Stack.HYPERPOD, resources=Resources({"inferenceendpointconfigs": (custom,)}))
    assert only("KV701", of).reason is Reason.DISABLED


@pytest.mark.parametrize("check", ["KV701", "KV703"])
def test_a_fleet_without_workers_has_no_data(check: str) -> None:
    assert only(check, snapshot(router())).reason is Reason.NO_DATA


# -- KV702 -----------------------------------------------------------------------------------------------------------


def test_kv702_passes_where_families_are_there() -> None:
    of = snapshot(worker(args=LMC), metrics=pages(w_0=page("vllm:a", "lmcache:num_lookup_tokens")))
    assert (only("KV702", of).status, only("KV702", of).message) == (Status.PASS, "1 families of LMCache")


def test_kv702_takes_names_that_an_exporter_changed() -> None:
    of = snapshot(worker(args=LMC), metrics=pages(w_0=page("lmcache_num_lookup_tokens")))
    assert statuses("KV702", of) == {"w-0": Status.PASS}


def test_kv702_warns_where_none_is_there() -> None:
    found = only("KV702", snapshot(worker(args=LMC), metrics=pages(w_0=page("vllm:a"))))
    assert found.status is Status.WARN
    assert found.message == "no metric of LMCache among 1 families: PROMETHEUS_MULTIPROC_DIR is not set"


def test_kv702_reads_the_names_of_prometheus_where_there_is_no_page() -> None:
    series = Sample("prompt_tokens", "prod/w-0", {}, 1.0, spelled="vllm:prompt_tokens_total")
    of = snapshot(worker(args=LMC), samples=[series])
    assert statuses("KV702", of) == {"w-0": Status.WARN}


def test_kv702_waits_for_a_young_worker() -> None:
    of = snapshot(worker(args=LMC, started_at=NOW - 60), metrics=pages(w_0=page("vllm:a")))
    assert only("KV702", of).reason is Reason.NO_DATA


def test_kv702_does_not_expect_them_of_a_server_beside_the_engine() -> None:
    of = snapshot(worker(args=MP), metrics=pages(w_0=page("vllm:a")))
    assert only("KV702", of).reason is Reason.NOT_APPLICABLE


def test_kv702_skips_without_metrics() -> None:
    assert only("KV702", snapshot(worker(args=LMC))).reason is Reason.NO_DATA


def test_kv702_is_not_asked_without_lmcache() -> None:
    assert only("KV702", snapshot(worker(), metrics=pages(w_0=page("vllm:a")))).reason is Reason.NOT_APPLICABLE


# -- KV703 -----------------------------------------------------------------------------------------------------------


def test_kv703_passes_where_the_folder_goes_with_the_container() -> None:
    of = snapshot(
        worker(env=FOLDER, volume_mounts={"/models": "persistentVolumeClaim", "/data/prometheus": "emptyDir"})
    )
    assert statuses("KV703", of) == {"w-0": Status.PASS}


@pytest.mark.parametrize("kind", ["emptyDir", "hostPath", "persistentVolumeClaim"])
def test_kv703_warns_of_a_volume_that_outlives_the_container(kind: str) -> None:
    found = only("KV703", snapshot(worker(env=FOLDER, volume_mounts={"/data": kind}, restarts=2)))
    assert found.status is Status.WARN
    assert found.message == (
        f"/data/prom is on a volume ({kind}) that outlives the container, and it restarted 2 times: "
        "counters survive restarts"
    )


def test_kv703_looks_at_the_innermost_mount() -> None:
    mounts = {"/data": "emptyDir", "/data/prom": "projected"}
    assert statuses("KV703", snapshot(worker(env=FOLDER, volume_mounts=mounts))) == {"w-0": Status.PASS}


def test_kv703_is_not_asked_where_it_is_not_set() -> None:
    assert only("KV703", snapshot(worker())).reason is Reason.NOT_APPLICABLE


def test_kv703_skips_what_was_not_read() -> None:
    hidden = {"PROMETHEUS_MULTIPROC_DIR": "<from:configmap/x>"}
    assert only("KV703", snapshot(worker(env=hidden))).reason is Reason.NO_DATA


def test_kv703_skips_where_only_a_line_says_that_it_was_set() -> None:
    text = "WARNING 08-01 10:00:01 [metrics.py:1] Found PROMETHEUS_MULTIPROC_DIR was set by user. It must be wiped"
    assert only("KV703", snapshot(worker(log=text))).reason is Reason.NO_DATA


def test_kv703_skips_processes_whose_environment_cannot_be_read() -> None:
    assert only("KV703", replace(snapshot(worker()), cluster=False)).reason is Reason.NO_DATA


# -- KV704 -----------------------------------------------------------------------------------------------------------


def scraped(up: float | None, age: float | None, interval: float | None = 15.0, **more: object) -> Snapshot:
    targets = {} if up is None and age is None else {"prod/w-0": ScrapeTarget("prod/w-0", up, age)}
    metrics = Metrics(source="prometheus", window="15m", targets=targets, scrape_interval_s=interval)
    return snapshot(worker(**more), metrics=metrics)  # type: ignore[arg-type]


def test_kv704_passes_at_three_intervals() -> None:
    assert statuses("KV704", scraped(1.0, 45.0)) == {"w-0": Status.PASS}


def test_kv704_warns_of_an_older_sample() -> None:
    found = only("KV704", scraped(1.0, 46.0))
    assert (found.status, found.message) == (Status.WARN, "newest sample 46 s old, at an interval of 15 s")


def test_kv704_fails_where_up_is_0() -> None:
    assert statuses("KV704", scraped(0.0, 5.0)) == {"w-0": Status.FAIL}


def test_kv704_warns_where_a_ready_worker_has_no_target() -> None:
    assert statuses("KV704", scraped(None, None)) == {"w-0": Status.WARN}


def test_kv704_expects_no_target_of_a_worker_that_is_not_ready() -> None:
    assert only("KV704", scraped(None, None, ready=False)).reason is Reason.NO_DATA


def test_kv704_does_not_judge_age_without_an_interval() -> None:
    assert statuses("KV704", scraped(None, 500.0, interval=None)) == {"w-0": Status.PASS}


def test_kv704_skips_where_series_have_no_pod() -> None:
    of = snapshot(worker(), metrics=Metrics(source="prometheus", by_member=False))
    assert only("KV704", of).reason is Reason.NO_DATA


def test_kv704_is_an_error_where_prometheus_could_not_be_read() -> None:
    unread = Unread("prometheus http://p:9090", Reason.UNREACHABLE, "connection refused")
    found = only("KV704", snapshot(worker(), unread=(unread,)))
    assert (found.status, found.reason) == (Status.ERROR, Reason.UNREACHABLE)


def test_kv704_is_an_error_where_prometheus_denied_all_queries() -> None:
    unread = Unread("9 of 9 Prometheus queries", Reason.RBAC, "HTTP 403")
    of = snapshot(worker(), metrics=Metrics(source="prometheus", missing=Reason.RBAC), unread=(unread,))
    assert (only("KV704", of).status, only("KV704", of).reason) == (Status.ERROR, Reason.RBAC)


def test_kv704_warns_where_prometheus_knows_no_worker_at_all() -> None:
    unread = Unread("Prometheus", Reason.NO_DATA, "it has no series of engines or routers")
    of = snapshot(worker(), metrics=Metrics(source="prometheus", missing=Reason.NO_DATA), unread=(unread,))
    assert statuses("KV704", of) == {"w-0": Status.WARN}


def test_kv704_is_not_asked_without_prometheus() -> None:
    assert only("KV704", snapshot(worker(), metrics=pages(w_0=page("vllm:a")))).reason is Reason.NOT_APPLICABLE


# -- KV705 -----------------------------------------------------------------------------------------------------------

OLD = page("vllm:gpu_cache_usage_perc", "vllm:gpu_prefix_cache_queries")
NEW = page("vllm:kv_cache_usage_perc", "vllm:prefix_cache_queries_total")
BOTH = page("vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (OLD, "old names of vLLM's cache metrics (up to 0.8)"),
        (BOTH, "both names of vLLM's cache metrics (0.9)"),
        (NEW, "new names"),
    ],
)
def test_kv705_passes_with_the_names_that_are_there(found: Page, words: str) -> None:
    told = only("KV705", snapshot(worker(), metrics=pages(w_0=found)))
    assert told.status is Status.PASS
    assert told.message.startswith(words)


def test_kv705_warns_where_workers_differ() -> None:
    of = snapshot(worker("w-0"), worker("w-1"), metrics=pages(w_0=OLD, w_1=NEW))
    found = only("KV705", of)
    assert found.status is Status.WARN
    assert found.message.startswith("workers name their metrics differently: 1 with new names, 1 with old names")


def test_kv705_skips_without_such_metrics() -> None:
    assert only("KV705", snapshot(worker(), metrics=pages(w_0=page("sglang:token_usage")))).reason is Reason.NO_DATA


# -- KV706 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "status"),
    [
        (("vllm:a", "lmcache:b"), Status.PASS),
        (("vllm_a", "lmcache_b"), Status.PASS),
        (("vllm:a", "lmcache_b"), Status.WARN),
        (("vllm:a", "lmcache_mp_timeouts"), Status.PASS),
    ],
)
def test_kv706_warns_only_where_both_spellings_are_there(names: tuple[str, ...], status: Status) -> None:
    assert only("KV706", snapshot(worker(), metrics=pages(w_0=page(*names)))).status is status


def test_kv706_says_that_an_exporter_changed_the_names() -> None:
    found = only("KV706", snapshot(worker(), metrics=pages(w_0=page("vllm_a"))))
    assert found.message.startswith("an exporter writes `_` for `:`")


def test_kv706_skips_without_such_metrics() -> None:
    assert only("KV706", snapshot(worker())).reason is Reason.NO_DATA
