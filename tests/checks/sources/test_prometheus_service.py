"""Which Service of a cluster is taken for a Prometheus, and how it is asked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from checks.metrics.connection import PrometheusServer
from checks.model import Reason
from checks.request import CollectRequest, RequestError
from checks.sources.prometheus import Found, ServiceProxy, look_for, named
from checks.sources.tape import Answer


def service(name: str, *ports: tuple[str, int], labels: dict[str, str] | None = None) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "m", "labels": labels or {}},
        "spec": {"ports": [{"name": port, "port": number} for port, number in ports]},
    }


@pytest.mark.parametrize(
    "name",
    [
        "prometheus-operated",
        "prometheus",
        "rel-prometheus-server",
        "thanos-query",
        "prometheus-k8s",
        "kube-prometheus-stack-server",
    ],
)
def test_by_name(name: str) -> None:
    assert look_for([service("other", ("http", 80)), service(name, ("web", 9090))]) == Found("m", name, "9090")


@pytest.mark.parametrize("name", ["prometheus-adapter", "prometheus-node-exporter", "my-app", "alertmanager"])
def test_others_are_left_alone(name: str) -> None:
    assert look_for([service(name, ("http", 9090))]) is None


def test_a_label_beats_a_name() -> None:
    labelled = service("z", ("http", 80), labels={"app.kubernetes.io/name": "prometheus"})
    assert look_for([service("prometheus", ("web", 9090)), labelled]) == Found("m", "z", "80")


def test_without_a_port_that_speaks_http_there_is_none() -> None:
    assert look_for([service("prometheus", ("grpc", 1), ("x", 2))]) is None


class Api:
    """A cluster that gives one answer and remembers the question."""

    def __init__(self, answer: Answer) -> None:
        self.answer, self.asked = answer, []  # type: ignore[var-annotated]

    def service(self, *question: Any) -> Answer:
        self.asked.append(question)
        return self.answer


def test_a_query_gives_the_result_list() -> None:
    api = Api(Answer(200, json.dumps({"status": "success", "data": {"result": [1]}})))
    proxy = ServiceProxy(Found("m", "prometheus", "9090"), api)  # type: ignore[arg-type]
    assert proxy.query("up", at=5.0).text == "[1]"
    assert api.asked == [("m", "prometheus", "9090", "/api/v1/query", {"query": "up", "time": "5.000"})]


def test_something_else_behind_the_service() -> None:
    proxy = ServiceProxy(Found("m", "prometheus", "9090"), Api(Answer(200, "<html>")))  # type: ignore[arg-type]
    assert proxy.query("up").error is Reason.PARSE


def test_a_url_is_taken_as_it_is() -> None:
    server = named(CollectRequest(prometheus="http://p:9090"), replaying=False)
    assert isinstance(server, PrometheusServer)
    assert server.shown == "http://p:9090"


@pytest.mark.parametrize("text", ["auto", "none"])
def test_words_name_no_server(text: str) -> None:
    assert named(CollectRequest(prometheus=text), replaying=False) is None


def test_an_authentication_that_is_none_is_named() -> None:
    with pytest.raises(RequestError, match="--prometheus: 'magic'"):
        named(CollectRequest(prometheus="http://p:9090", prometheus_auth="magic"), replaying=False)


def test_a_replay_needs_no_authentication() -> None:
    assert named(CollectRequest(prometheus="http://p:9090", prometheus_auth="bearer"), replaying=True) is not None
