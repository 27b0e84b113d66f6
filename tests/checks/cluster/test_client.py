"""The real Kubernetes client on an emulated API: lists, logs, pods' pages, and what goes wrong."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

import pytest

from checks.model import Reason
from checks.sources.connection import SourceError, connect
from checks.sources.deadline import Deadline
from checks.sources.kubernetes import Cluster as Client
from checks.sources.pace import Pace
from tests.checks.cluster.emulated import Cluster

PODS = "/api/v1/namespaces/prod/pods"
LOG = "\n".join(f"line {number}" for number in range(100))


def names(text: str) -> list[str]:
    return [one["metadata"]["name"] for one in json.loads(text)["items"]]


def fill(cluster: Cluster, count: int) -> None:
    for number in range(count):
        cluster.pod(f"w-{number:04}")


def lines(text: str) -> list[str]:
    return [line.split(" ", 1)[1] for line in text.splitlines()]


def test_a_list_is_read_page_by_page(cluster: Cluster, client: Client) -> None:
    fill(cluster, 25)
    cluster.page_limit = 10
    assert names(client.objects(PODS).text) == [f"w-{number:04}" for number in range(25)]
    assert ["limit=500" in one for one in cluster.requests] == [True, True, True]


def test_the_first_page_may_be_stale_and_the_following_are_of_the_same_list(cluster: Cluster, client: Client) -> None:
    fill(cluster, 15)
    cluster.page_limit = 10
    client.objects(PODS)
    assert ["resourceVersion=0" in one for one in cluster.requests] == [True, False]


def test_a_list_whose_continue_token_expired_starts_again(cluster: Cluster, client: Client) -> None:
    fill(cluster, 25)
    cluster.page_limit = 10
    cluster.trouble("continue=", 410, message="the provided continue parameter is too old")
    answer = client.objects(PODS)
    assert len(names(answer.text)) == 25
    assert len(cluster.requests) == 5


def test_a_list_that_expires_again_and_again_is_given_up(cluster: Cluster, client: Client) -> None:
    fill(cluster, 25)
    cluster.page_limit = 10
    cluster.trouble("continue=", 410, times=99)
    answer = client.objects(PODS)
    assert (answer.status, answer.error) == (410, Reason.TIMEOUT)


def test_a_busy_server_is_asked_again_after_the_time_it_names(cluster: Cluster, client: Client) -> None:
    fill(cluster, 1)
    cluster.trouble(PODS, 429, times=2, headers={"Retry-After": "0.1"})
    assert names(client.objects(PODS).text) == ["w-0000"]
    assert len(cluster.requests) == 3


def test_a_server_that_stays_busy_is_given_up(cluster: Cluster, client: Client) -> None:
    cluster.trouble(PODS, 429, times=99, headers={"Retry-After": "0.1"})
    answer = client.objects(PODS)
    assert (answer.status, answer.error) == (429, Reason.TIMEOUT)
    assert len(cluster.requests) == 5


def test_a_selector_is_the_servers_business(cluster: Cluster, client: Client) -> None:
    cluster.pod("a", labels={"app": "x"})
    cluster.pod("b", labels={"app": "y"})
    assert names(client.objects(PODS, labels="app=y").text) == ["b"]


def test_a_denied_list_says_so(cluster: Cluster, client: Client) -> None:
    cluster.deny("list", "pods")
    answer = client.objects(PODS)
    assert answer.error is Reason.RBAC
    assert 'cannot list resource "pods"' in answer.message


def test_the_token_of_the_kubeconfig_is_sent(cluster: Cluster, client: Client) -> None:
    client.objects(PODS)
    assert cluster.tokens == ["Bearer my-token"]


def test_something_that_is_no_list(cluster: Cluster, client: Client) -> None:
    cluster.pod("w-0", pages={8000: {"/x": "[1, 2]"}})
    answer = client.objects(f"{PODS}/w-0:8000/proxy/x")
    assert answer.error is Reason.PARSE


# -- logs --------------------------------------------------------------------------------------------------------


def test_the_head_of_a_log_is_its_first_bytes(cluster: Cluster, client: Client) -> None:
    cluster.pod("w-0", log=LOG)
    answer = client.log("prod", "w-0", "vllm", limit_bytes=60)
    assert lines(answer.text)[0] == "line 0"
    assert len(answer.text) == 60


def test_every_line_has_the_kubelets_time(cluster: Cluster, client: Client) -> None:
    cluster.pod("w-0", log="hello")
    assert client.log("prod", "w-0", "vllm", limit_bytes=1000).text == "2026-08-01T10:00:00Z hello\n"


def test_the_tail_of_a_log_is_its_last_lines(cluster: Cluster, client: Client) -> None:
    cluster.pod("w-0", log=LOG)
    answer = client.log("prod", "w-0", "vllm", limit_bytes=10_000, tail_lines=3)
    assert lines(answer.text) == ["line 97", "line 98", "line 99"]


def test_of_a_long_tail_the_end_is_kept_from_a_lines_start(cluster: Cluster, client: Client) -> None:
    cluster.pod("w-0", log=LOG)
    answer = client.log("prod", "w-0", "vllm", limit_bytes=100, tail_lines=90)
    assert lines(answer.text) == ["line 98", "line 99"]
    assert "limitBytes" not in cluster.requests[-1]


def test_a_tail_can_be_limited_in_time(cluster: Cluster, client: Client) -> None:
    cluster.pod("w-0", log=LOG)
    cluster.now = 1785578400.0 + 100
    answer = client.log("prod", "w-0", "vllm", limit_bytes=10_000, tail_lines=50, since_s=2)
    assert lines(answer.text) == ["line 98", "line 99"]


def test_the_log_of_the_last_instance(cluster: Cluster, client: Client) -> None:
    cluster.pod("w-0", log="new", previous="old")
    assert lines(client.log("prod", "w-0", "vllm", limit_bytes=1000, tail_lines=9, previous=True).text) == ["old"]


def test_no_last_instance_is_no_data(cluster: Cluster, client: Client) -> None:
    cluster.pod("w-0", log="new")
    answer = client.log("prod", "w-0", "vllm", limit_bytes=1000, tail_lines=9, previous=True)
    assert answer.error is Reason.NO_DATA


def test_a_container_that_has_not_started_has_no_data(cluster: Cluster, client: Client) -> None:
    cluster.pod("w-0", log=None)
    assert client.log("prod", "w-0", "vllm", limit_bytes=1000).error is Reason.NO_DATA


def test_the_log_of_a_pod_that_vanished_is_gone(cluster: Cluster, client: Client) -> None:
    cluster.pod("w-0", log="x")
    cluster.vanish("w-0")
    assert client.log("prod", "w-0", "vllm", limit_bytes=1000).error is Reason.GONE


def test_a_server_that_ignores_the_limit_does_not_fill_the_memory(cluster: Cluster, client: Client) -> None:
    cluster.pod("w-0", log=LOG)
    cluster.pages["prod", "w-0", 1] = {}
    answer = client._call("GET", f"{PODS}/w-0/log", {"container": "vllm", "timestamps": "true"}, limit=50)
    assert (answer.text, answer.error) == ("", Reason.PARSE)


# -- pods' pages -------------------------------------------------------------------------------------------------


def test_a_pods_own_page(cluster: Cluster, client: Client) -> None:
    cluster.pod("w-0", pages={8000: {"/metrics": "a 1\n"}})
    assert client.page("prod", "w-0", 8000, "/metrics").text == "a 1\n"


def test_a_port_where_nobody_listens_is_unreachable(cluster: Cluster, client: Client) -> None:
    cluster.pod("w-0")
    answer = client.page("prod", "w-0", 8000, "/metrics")
    assert answer.error is Reason.UNREACHABLE
    assert "connection refused" in answer.message


def test_a_path_that_is_not_there_is_no_data(cluster: Cluster, client: Client) -> None:
    cluster.pod("w-0", pages={8000: {}})
    assert client.page("prod", "w-0", 8000, "/metrics").error is Reason.NO_DATA


def test_a_denied_page_says_so(cluster: Cluster, client: Client) -> None:
    cluster.pod("w-0", pages={8000: {"/metrics": "a 1\n"}})
    cluster.deny("get", "pods/proxy")
    assert client.page("prod", "w-0", 8000, "/metrics").error is Reason.RBAC


def test_a_tls_port_is_asked_with_tls(cluster: Cluster, client: Client) -> None:
    cluster.pod("w-0", pages={8000: {"/metrics": "a 1\n"}})
    assert client.page("prod", "w-0", 8000, "/metrics", https=True).ok
    assert "/pods/https:w-0:8000/proxy/metrics" in cluster.requests[-1]


def test_after_the_end_nothing_is_asked(cluster: Cluster) -> None:
    deadline = Deadline(60)
    connection = connect(kubeconfig=str(cluster.kubeconfig))
    late = Client(connection, Pace(concurrency=1, per_second=100, burst=10), deadline)
    deadline.stop("interrupted with Ctrl-C")
    answer = late.objects(PODS)
    assert (answer.error, answer.message) == (Reason.TIMEOUT, "not asked: interrupted with Ctrl-C")
    assert cluster.requests == []


def test_the_clock_is_the_servers(cluster: Cluster, client: Client) -> None:
    client.objects(PODS)
    assert abs(client.now() - time.time()) < 5


# -- no cluster --------------------------------------------------------------------------------------------------


def kubeconfig(folder: Path, server: str) -> str:
    path = folder / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "current-context": "c",
                "clusters": [{"name": "k", "cluster": {"server": server}}],
                "users": [{"name": "u", "user": {}}],
                "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            }
        )
    )
    return str(path)


def ask(server: str, folder: Path, timeout_s: float = 5) -> tuple[Reason | None, str]:
    connection = connect(kubeconfig=kubeconfig(folder, server))
    client = Client(connection, Pace(concurrency=1, per_second=100, burst=10), Deadline(60), timeout_s=timeout_s)
    answer = client.objects(PODS)
    client.close()
    return answer.error, answer.message


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_refused_connection(tmp_path: Path) -> None:
    server = f"http://127.0.0.1:{free_port()}"
    assert ask(server, tmp_path) == (
        Reason.UNREACHABLE,
        f"the API server {server} cannot be reached: connection refused",
    )


def test_a_name_that_is_not_known(tmp_path: Path) -> None:
    reason, message = ask("http://no-such-host.invalid:1", tmp_path)
    assert reason is Reason.UNREACHABLE
    assert "its name is not known" in message


def test_a_server_that_never_answers(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        reason, message = ask(f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path, timeout_s=0.3)
    assert reason is Reason.TIMEOUT
    assert "did not answer within 0.3 s" in message


def test_a_certificate_that_is_not_trusted(tmp_path: Path) -> None:
    with Cluster().serving(tmp_path, tls=True) as served:
        reason, message = ask(served.url, tmp_path)
    assert reason is Reason.UNREACHABLE
    assert "certificate is not trusted" in message


def test_a_context_that_is_not_there_is_named(cluster: Cluster) -> None:
    with pytest.raises(SourceError, match="has no context 'nowhere'; it has other, test"):
        connect(kubeconfig=str(cluster.kubeconfig), context="nowhere")


def test_a_context_is_chosen_by_name(cluster: Cluster) -> None:
    assert connect(kubeconfig=str(cluster.kubeconfig), context="other").context == "other"


def test_the_contexts_namespace_is_known(cluster: Cluster) -> None:
    assert connect(kubeconfig=str(cluster.kubeconfig)).namespace == "prod"


def test_a_kubeconfig_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad"
    path.write_text("{{{")
    with pytest.raises(SourceError, match="cannot use the kubeconfig"):
        connect(kubeconfig=str(path))


def test_a_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no kubeconfig at .*none"):
        connect(kubeconfig=str(tmp_path / "none"))


def test_neither_kubeconfig_nor_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(SourceError, match=r"no cluster to look at: .*--router URL"):
        connect()


def test_several_files_of_the_environment(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join([str(tmp_path / "none"), str(cluster.kubeconfig)]))
    assert connect().context == "test"


def test_a_kubeconfig_is_not_written_to(cluster: Cluster) -> None:
    before = cluster.kubeconfig.read_bytes()
    connect(kubeconfig=str(cluster.kubeconfig))
    assert cluster.kubeconfig.read_bytes() == before
