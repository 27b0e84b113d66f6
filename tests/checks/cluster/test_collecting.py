"""A whole namespace, collected through the real client from the emulated API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checks.collect import CollectRequest, LogPart, Scrape, SourceError, collect
from checks.model import Reason, Stack
from checks.snapshot import Role, Snapshot
from checks.sources.tape import Tape
from tests.checks.cluster.emulated import Cluster

ROUTER_LOG = (
    "[2026-08-01 10:00:01,120] INFO: Initializing kvaware routing logic (routing_logic.py:1:vllm_router.routers)"
)
WORKER_LOG = "INFO 08-01 10:00:05 [api_server.py:1] vLLM API server version 0.19.1"
TYPES = "# TYPE vllm:prompt_tokens_total counter\n"


def page(tokens: int) -> str:
    return f'{TYPES}vllm:prompt_tokens_total{{model_name="m"}} {tokens}\n'


def fill(cluster: Cluster) -> None:
    """A router and two workers of the production stack."""
    cluster.pod(
        "router-0",
        container="router-container",
        image="lmcache/lmstack-router:v0.1.11",
        args=["--routing-logic", "kvaware"],
        labels={"app.kubernetes.io/component": "router"},
        ips=("10.0.0.9",),
        log=ROUTER_LOG,
        pages={
            8000: {"/metrics": "# TYPE x gauge\nx 1\n", "/version": {"version": "0.1.11"}, "/engines": {"data": []}}
        },
    )
    for number in range(2):
        cluster.pod(
            f"w-{number}",
            args=["--port", "8100", "--model", "m"],
            env={"LMCACHE_CHUNK_SIZE": "256"},
            labels={"app.kubernetes.io/component": "serving-engine"},
            ips=(f"10.0.0.{number}",),
            log=WORKER_LOG,
            pages={8100: {"/metrics": [page(100), page(160)], "/version": {"version": "0.19.1"}}},
        )


@pytest.fixture
def filled(cluster: Cluster) -> Iterator[Cluster]:
    fill(cluster)
    yield cluster


def take(cluster: Cluster, **more: Any) -> Snapshot:
    request = CollectRequest(
        **{"kubeconfig": str(cluster.kubeconfig), "scrape_interval_s": 0.01, "prometheus": "none", **more}
    )
    return collect(request, Tape.live())


def asked(cluster: Cluster, part: str) -> list[str]:
    return [one for one in cluster.requests if part in one]


def why(snapshot: Snapshot, part: str) -> list[Reason]:
    return [one.reason for one in snapshot.unread if part in one.what]


def test_members_stack_and_namespace(filled: Cluster) -> None:
    found = take(filled)
    assert [(one.role, one.key) for one in found.members] == [
        (Role.ROUTER, "prod/router-0"),
        (Role.WORKER, "prod/w-0"),
        (Role.WORKER, "prod/w-1"),
    ]
    assert (found.stack, found.namespace, found.context, found.cluster) == (
        Stack.PRODUCTION_STACK,
        "prod",
        "test",
        True,
    )
    assert (found.unread, found.cut_short, found.sampled) == ((), "", "")


def test_logs_are_read_and_complete(filled: Cluster) -> None:
    router, worker, _ = take(filled).members
    assert router.log is not None and router.log.has("router-logic-init") and router.log.head_complete
    assert worker.log is not None and worker.log.has("vllm-version")


def test_metrics_are_read_twice(filled: Cluster) -> None:
    metrics = take(filled).metrics
    assert {one.member: one.increase for one in metrics.find("prompt_tokens")} == {"prod/w-0": 60.0, "prod/w-1": 60.0}
    assert metrics.pages["prod/w-0"].url == "http://10.0.0.0:8100/metrics"


def test_small_answers_and_urls(filled: Cluster) -> None:
    router, worker, _ = take(filled).members
    assert router.answers == {"/version": {"version": "0.1.11"}, "/engines": {"data": []}}
    assert (worker.answers, worker.url) == ({"/version": {"version": "0.19.1"}}, "http://10.0.0.0:8100")


def test_a_recording_replays_to_an_equal_snapshot(filled: Cluster, tmp_path: Path) -> None:
    filled.add("services", {"metadata": {"name": "router"}, "spec": {"ports": [{"port": 80}]}})
    filled.pod("w-2", restarts=1, ready=False, log="new", previous="old", args=["--kv-transfer-config", "{}"])
    filled.deny("list", "events")
    request = CollectRequest(kubeconfig=str(filled.kubeconfig), scrape_interval_s=0.01)
    with Tape.record(tmp_path / "rec", options=request.options(), version="1") as tape:
        recorded = collect(request, tape)
    replay = Tape.replay(tmp_path / "rec")
    assert collect(CollectRequest.of_options(replay.options), replay) == recorded
    assert recorded.members[-1].previous is not None


def test_a_recorded_run_sees_what_a_live_one_sees(filled: Cluster, tmp_path: Path) -> None:
    request = CollectRequest(kubeconfig=str(filled.kubeconfig), scrape_interval_s=0.01, scrape=Scrape.NEVER)
    live = collect(request, Tape.live())
    with Tape.record(tmp_path / "rec", options=request.options(), version="1") as tape:
        recorded = collect(request, tape)
    assert recorded.members == live.members


def test_in_a_pod_the_service_account_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster().serving(tmp_path, tls=True) as cluster:
        fill(cluster)
        cluster.in_cluster(monkeypatch)
        found = collect(CollectRequest(scrape=Scrape.NEVER, prometheus="none"), Tape.live())
    assert (found.context, found.namespace, len(found.members)) == ("in-cluster", "prod", 3)
    assert set(cluster.tokens) == {"bearer pod-token"}


def test_in_cluster_outside_a_pod_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SourceError, match="--in-cluster works only in a pod"):
        collect(CollectRequest(in_cluster=True), Tape.live())


# -- permissions -------------------------------------------------------------------------------------------------


def test_permissions_are_asked_first(filled: Cluster) -> None:
    filled.deny("get", "pods/proxy")
    denied = [one for one in take(filled).access if not one.allowed]
    assert [(one.verb, one.resource, one.namespace, one.required) for one in denied] == [
        ("get", "pods/proxy", "prod", True)
    ]


def test_without_scraping_the_proxy_is_not_asked_for(filled: Cluster) -> None:
    found = take(filled, scrape=Scrape.NEVER)
    assert "pods/proxy" not in {one.resource for one in found.access}
    assert asked(filled, "/proxy") == []
    assert found.metrics.missing is Reason.DISABLED


def test_denied_pods_leave_an_empty_snapshot_that_says_why(filled: Cluster) -> None:
    filled.deny("list", "pods")
    found = take(filled)
    assert found.members == ()
    assert why(found, "pods in prod") == [Reason.RBAC]


def test_denied_logs_are_noted_once_and_for_each_member(filled: Cluster) -> None:
    filled.deny("get", "pods/log")
    found = take(filled)
    assert {one.log_missing for one in found.members} == {Reason.RBAC}
    assert [one.what for one in found.unread] == ["log of 3 members, the first prod/router-0"]


def test_denied_pages_leave_the_rest(filled: Cluster) -> None:
    filled.deny("get", "pods/proxy")
    found = take(filled)
    assert found.metrics.missing is Reason.RBAC
    assert why(found, "metrics") == [Reason.RBAC]
    assert all(one.log is not None for one in found.members)


def test_a_refused_token_is_said_in_one_line(filled: Cluster) -> None:
    filled.trouble("/apis", 401, message="Unauthorized")
    with pytest.raises(SourceError, match="does not accept the credentials") as caught:
        take(filled)
    assert caught.value.reason is Reason.RBAC


def test_something_else_at_the_address_is_said_in_one_line(filled: Cluster) -> None:
    filled.foreign = "<html>hello</html>"
    with pytest.raises(SourceError, match="is not Kubernetes"):
        take(filled)


def test_an_api_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    with Cluster().serving(tmp_path) as cluster:
        path = cluster.kubeconfig
    with pytest.raises(SourceError, match="cannot be reached: connection refused") as caught:
        collect(CollectRequest(kubeconfig=str(path)), Tape.live())
    assert caught.value.reason is Reason.UNREACHABLE
    assert "\n" not in str(caught.value)


# -- logs --------------------------------------------------------------------------------------------------------


def test_a_log_within_the_limit_is_read_in_one_call(filled: Cluster) -> None:
    take(filled)
    assert len(asked(filled, "/w-0/log")) == 1


def test_of_a_long_log_both_ends_are_read(cluster: Cluster) -> None:
    text = "\n".join(
        [WORKER_LOG, *(f"INFO 08-01 10:00:05 [x.py:1] filler {number}" for number in range(400)), WORKER_LOG]
    )
    cluster.pod("w-0", log=text, args=["--kv-transfer-config", "{}"])
    log = take(cluster, log_limit_bytes=4096).members[0].log
    assert log is not None
    assert log.count("vllm-version") == 2
    assert log.unread_bytes and log.head_complete


def test_a_container_that_did_not_restart_has_no_earlier_log(filled: Cluster) -> None:
    take(filled)
    assert asked(filled, "previous=true") == []


def test_the_earlier_log_of_a_container_that_restarted(cluster: Cluster) -> None:
    cluster.pod("w-0", restarts=2, log="new", previous=WORKER_LOG, args=["--kv-transfer-config", "{}"])
    previous = take(cluster).members[0].previous
    assert previous is not None and previous.has("vllm-version") and not previous.head_complete


def test_parts_of_the_log_can_be_left_out(cluster: Cluster) -> None:
    cluster.pod("w-0", restarts=2, log=WORKER_LOG, previous="old", args=["--kv-transfer-config", "{}"])
    found = take(cluster, logs=(LogPart.TAIL,)).members[0]
    assert found.log is not None and found.log.has("vllm-version") and not found.log.head_complete
    assert found.previous is None


def test_no_logs_at_all(filled: Cluster) -> None:
    found = take(filled, logs=())
    assert {one.log_missing for one in found.members} == {Reason.DISABLED}
    assert asked(filled, "/log?") == []


def test_a_log_that_starts_late_is_not_complete(cluster: Cluster) -> None:
    late = "2026-08-01T12:00:00Z INFO 08-01 12:00:00 [x.py:1] hello"
    cluster.pod("w-0", log=late, args=["--kv-transfer-config", "{}"])
    log = take(cluster).members[0].log
    assert log is not None and not log.head_complete


def test_a_sidecar_is_not_read(cluster: Cluster) -> None:
    cluster.pod(
        "w-0",
        log=WORKER_LOG,
        sidecars=[{"name": "istio-proxy", "image": "istio:1"}],
        args=["--kv-transfer-config", "{}"],
    )
    cluster.log("w-0", "istio-proxy", "noise")
    found = take(cluster).members[0]
    assert found.container.name == "vllm"
    assert asked(cluster, "container=istio-proxy") == []


def test_an_init_container_is_read_while_the_engine_waits(cluster: Cluster) -> None:
    cluster.pod(
        "w-0",
        ready=False,
        log=None,
        state={"waiting": {"reason": "PodInitializing"}},
        init_containers=[{"name": "download", "image": "x:1"}],
        args=["--kv-transfer-config", "{}"],
    )
    cluster.log("w-0", "download", "ERROR: disk full")
    log = take(cluster).members[0].log
    assert log is not None
    assert (log.where, log.records[0].message, log.head_complete) == ("prod/w-0/download", "disk full", False)


def test_init_containers_of_a_ready_pod_are_not_read(cluster: Cluster) -> None:
    cluster.pod(
        "w-0", log="", init_containers=[{"name": "download", "image": "x:1"}], args=["--kv-transfer-config", "{}"]
    )
    take(cluster)
    assert asked(cluster, "container=download") == []


def test_a_pod_that_vanishes_is_gone_and_the_rest_is_read(filled: Cluster) -> None:
    filled.vanish("w-1")
    found = take(filled)
    assert [one.log_missing for one in found.members] == [None, None, Reason.GONE]
    assert why(found, "log of prod/w-1") == [Reason.GONE]


# -- members -----------------------------------------------------------------------------------------------------


def test_values_from_configmaps(cluster: Cluster) -> None:
    cluster.add("configmaps", {"metadata": {"name": "lm"}, "data": {"chunk": "256", "unused": "x"}})
    entry = {"name": "LMCACHE_CHUNK_SIZE", "valueFrom": {"configMapKeyRef": {"name": "lm", "key": "chunk"}}}
    cluster.pod("w-0", env=[entry])
    found = take(cluster)
    assert found.members[0].env("LMCACHE_CHUNK_SIZE") == "256"
    assert [one["data"] for one in found.resources.all("configmaps")] == [{"chunk": "256"}]


def test_a_configmap_that_may_not_be_read(cluster: Cluster) -> None:
    cluster.deny("get", "configmaps")
    entry = {"name": "LMCACHE_CHUNK_SIZE", "valueFrom": {"configMapKeyRef": {"name": "lm", "key": "chunk"}}}
    cluster.pod("w-0", env=[entry])
    found = take(cluster)
    assert found.members[0].env("LMCACHE_CHUNK_SIZE") is None
    assert found.members[0].env_unread("LMCACHE_CHUNK_SIZE")
    assert why(found, "ConfigMap prod/lm") == [Reason.RBAC]


def test_secrets_are_never_asked_for(cluster: Cluster) -> None:
    entry = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}
    cluster.pod("w-0", env=[entry], args=["--kv-transfer-config", "{}"])
    found = take(cluster).members[0]
    assert found.container.env["HF_TOKEN"] == "<from:secret/hf>"
    assert asked(cluster, "secrets") == []


def test_literal_secrets_do_not_reach_the_snapshot(cluster: Cluster) -> None:
    cluster.pod("w-0", env={"VLLM_API_KEY": "abc123def456"}, args=["vllm", "serve", "m", "--api-key", "abc123def456"])
    found = take(cluster)
    assert "abc123def456" not in repr(found.members)


def test_ipv6_and_host_network(cluster: Cluster) -> None:
    cluster.pod("w-0", ips=("fd00::5",), args=["vllm", "serve", "m"], spec={"hostNetwork": True})
    found = take(cluster).members[0]
    assert (found.ips, found.host_network, found.url) == (("fd00::5",), True, "http://[fd00::5]:8000")


def test_routers_in_the_operators_namespace(cluster: Cluster) -> None:
    cluster.add(
        "inferenceendpointconfigs", {"metadata": {"name": "llama"}, "status": {"deploymentStatus": {"name": "dep"}}}
    )
    cluster.pod("w-0", image="private:1", owner=("ReplicaSet", "dep-7f"), labels={"pod-template-hash": "7f"})
    cluster.pod("kv-router-0", namespace="hyperpod-inference-system", image="private:2", log=ROUTER_LOG)
    found = take(cluster)
    assert [(one.role, one.key) for one in found.members] == [
        (Role.WORKER, "prod/w-0"),
        (Role.ROUTER, "hyperpod-inference-system/kv-router-0"),
    ]
    assert (found.stack, found.router_namespace) == (Stack.HYPERPOD, "hyperpod-inference-system")
    assert {one.namespace for one in found.access} == {"prod", "hyperpod-inference-system"}


def test_selectors_are_put_to_the_server(filled: Cluster) -> None:
    filled.pod("mine", image="private:1", labels={"app": "mine"})
    found = take(filled, router_selector="app.kubernetes.io/component=router", worker_selector="app=mine")
    assert [one.name for one in found.members] == ["router-0", "mine"]
    assert len(asked(filled, "labelSelector=")) == 2


def test_all_namespaces(filled: Cluster) -> None:
    filled.pod("w-9", namespace="other", args=["vllm", "serve", "m"])
    found = take(filled, all_namespaces=True)
    assert "other/w-9" in {one.key for one in found.members}
    assert found.namespace == ""
    assert asked(filled, "GET /api/v1/pods?") != []


def test_events_of_pods_in_trouble(filled: Cluster) -> None:
    filled.pod("w-2", ready=False, log=None, args=["vllm", "serve", "m"])
    for name in ("w-2", "w-0"):
        filled.add("events", {"metadata": {"name": f"e-{name}"}, "involvedObject": {"name": name}})
    assert [one["involvedObject"]["name"] for one in take(filled).resources.all("events")] == ["w-2"]


def test_an_empty_namespace(cluster: Cluster) -> None:
    found = take(cluster)
    assert (found.members, found.stack, found.unread) == ((), Stack.UNKNOWN, ())


# -- metrics -----------------------------------------------------------------------------------------------------


def test_other_ports_are_tried_when_nothing_tells(cluster: Cluster) -> None:
    cluster.pod("w-0", args=["vllm", "serve", "m"], pages={8080: {"/metrics": page(1)}})
    found = take(cluster)
    assert found.members[0].url == "http://10.0.0.1:8080"
    assert len(asked(cluster, ":8000/proxy/metrics")) == 1


def test_a_worker_without_metrics_is_noted(filled: Cluster) -> None:
    filled.pages["prod", "w-1", 8100] = {"/metrics": "<html>"}
    found = take(filled)
    assert found.metrics.pages["prod/w-1"].problem is Reason.PARSE
    assert why(found, "metrics of prod/w-1") == [Reason.PARSE]


def test_a_router_that_exports_no_metrics_is_no_trouble(filled: Cluster) -> None:
    del filled.pages["prod", "router-0", 8000]
    found = take(filled)
    assert found.metrics.pages["prod/router-0"].problem is Reason.UNREACHABLE
    assert why(found, "metrics") == []


def test_a_prometheus_service_is_found_and_asked_through_the_api(filled: Cluster) -> None:
    filled.add(
        "services",
        {"metadata": {"name": "prometheus-operated", "namespace": "monitoring"}, "spec": {"ports": [{"port": 9090}]}},
    )
    found = take(filled, prometheus="auto")
    assert asked(filled, "/services/prometheus-operated:9090/proxy/api/v1/query") != []
    assert why(found, "Prometheus") != []
    assert found.metrics.source == "scrape"


def test_lmcaches_own_server_is_asked_where_it_is_on(cluster: Cluster) -> None:
    cluster.pod(
        "w-0",
        args=["vllm", "serve", "m"],
        env={"LMCACHE_INTERNAL_API_SERVER_ENABLED": "true"},
        pages={8000: {"/metrics": page(1)}, 6999: {"/conf": {"chunk_size": 256, "remote_url": "redis://a:pw12@r"}}},
    )
    assert take(cluster).members[0].answers["/conf"] == {"chunk_size": 256, "remote_url": "redis://***@r"}


def test_kvctls_metrics_are_on_its_admin_port(cluster: Cluster) -> None:
    cluster.pod(
        "kvctl-0",
        container="kvctl",
        command=["kvctl", "serve"],
        pages={9090: {"/metrics": "# TYPE kvctl_x gauge\nkvctl_x 1\n", "/workers": {"workers": []}}},
    )
    found = take(cluster)
    assert found.stack is Stack.KVCTL
    assert found.metrics.pages["prod/kvctl-0"].families == {"kvctl_x"}
    assert found.members[0].answers["/workers"] == {"workers": []}


# -- size and time -----------------------------------------------------------------------------------------------


def test_of_many_workers_some_logs_and_all_metrics_are_read(cluster: Cluster) -> None:
    cluster.page_limit = 20
    for number in range(60):
        cluster.pod(f"w-{number}", args=["vllm", "serve", "m"], pages={8000: {"/metrics": page(number)}})
    found = take(cluster, max_log_pods=5)
    assert len(asked(cluster, "/log?")) == 5
    assert len(found.metrics.pages) == 60
    assert found.sampled == "5 of 60 worker logs"


def test_when_the_time_is_over_the_rest_is_not_asked(filled: Cluster) -> None:
    found = take(filled, scrape_interval_s=30.0, timeout_s=2.0)
    assert found.cut_short == "--timeout of 2 s was over"
    assert len(found.members) == 3
    assert found.members[0].log is not None
    assert {one.increase for one in found.metrics.find("prompt_tokens")} == {None}


def test_progress_names_the_stages(filled: Cluster) -> None:
    stages: list[str] = []

    def progress(stage: str, done: int, total: int) -> None:
        if stage not in stages:
            stages.append(stage)

    request = CollectRequest(kubeconfig=str(filled.kubeconfig), scrape_interval_s=0.01, prometheus="none")
    collect(request, Tape.live(), progress)
    expected = ["access", "resources", "metrics", "logs", "answers", "waiting for the metrics to move", "metrics again"]
    assert stages == expected


def test_nothing_is_ever_written(filled: Cluster) -> None:
    take(filled)
    reviews = {one for one in filled.requests if not one.startswith("GET ")}
    assert reviews == {"POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews"}


def test_a_recording_holds_no_secret(filled: Cluster, tmp_path: Path) -> None:
    filled.pod(
        "w-2",
        env={"HF_TOKEN": "hf_abcdefgh12345"},
        log="Authorization: Bearer abcdef123456",
        args=["vllm", "serve", "m"],
    )
    filled.add("configmaps", {"metadata": {"name": "other"}, "data": {"password": "zzz999"}})
    request = CollectRequest(kubeconfig=str(filled.kubeconfig), scrape_interval_s=0.01)
    with Tape.record(tmp_path / "rec", options=request.options(), version="1") as tape:
        collect(request, tape)
    text = "".join(path.read_text() for path in (tmp_path / "rec").rglob("*") if path.is_file())
    assert not [one for one in ("hf_abcdefgh12345", "abcdef123456", "zzz999", str(tmp_path)) if one in text]
    assert json.loads((tmp_path / "rec" / "manifest.json").read_text())["schema_version"] == 1


def test_requests_go_to_kvctls_data_port(cluster: Cluster) -> None:
    cluster.pod(
        "kvctl-0",
        container="kvctl",
        command=["kvctl", "serve", "--port", "8005"],
        pages={9090: {"/metrics": "# TYPE kvctl_x gauge\nkvctl_x 1\n"}, 8005: {"/version": {"router": "kvctl"}}},
    )
    found = take(cluster).members[0]
    assert found.url == "http://10.0.0.1:8005"
    assert found.answers["/version"] == {"router": "kvctl"}


def test_a_member_that_does_not_answer_keeps_its_likeliest_url(cluster: Cluster) -> None:
    cluster.pod("w-0", args=["vllm", "serve", "m", "--port", "8100"])
    assert take(cluster).members[0].url == "http://10.0.0.1:8100"
