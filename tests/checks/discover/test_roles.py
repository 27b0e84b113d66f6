"""Which pods are routers, workers and cache servers, and which container is read."""

from __future__ import annotations

from typing import Any

import pytest

from checks.discover.owners import Owners
from checks.discover.roles import Hints, choose, container_of
from checks.snapshot import Role
from tests.checks.discover.pods import container, pod

ROUTER_ARGS = ["--routing-logic", "kvaware"]


def roles(*pods: dict[str, Any], hints: Hints | None = None) -> dict[str, tuple[str, str]]:
    return {
        str(one.pod["metadata"]["name"]): (one.role.value, one.why) for one in choose(pods, hints or Hints(), Owners())
    }


@pytest.mark.parametrize(
    ("labels", "role"),
    [
        ({"app.kubernetes.io/component": "router"}, "router"),
        ({"app.kubernetes.io/component": "serving-engine", "model": "m"}, "worker"),
        ({"app.kubernetes.io/name": "cache-server"}, "cache-server"),
        ({"nvidia.com/dynamo-component-type": "Frontend"}, "router"),
        ({"llm-d.ai/role": "decode"}, "worker"),
    ],
)
def test_labels_of_stacks(labels: dict[str, str], role: str) -> None:
    assert roles(pod("p", labels=labels)) == {"p": (role, "label")}


def test_what_a_container_runs_tells_where_labels_do_not() -> None:
    found = roles(
        pod("r", container("c", args=ROUTER_ARGS)),
        pod("w", container("c", command=["vllm", "serve", "m"])),
        pod("db", container("c", image="postgres:16")),
    )
    assert found == {"r": ("router", "program"), "w": ("worker", "program")}


def test_a_selector_beats_labels_and_excludes_other_pods_of_its_role() -> None:
    hints = Hints(routers=frozenset({("prod", "mine")}), router_selector=True)
    found = roles(pod("mine", container("c", image="mine:1")), pod("r", container("c", args=ROUTER_ARGS)), hints=hints)
    assert found == {"mine": ("router", "selector")}


def test_a_selector_of_routers_leaves_the_workers_to_discovery() -> None:
    hints = Hints(routers=frozenset({("prod", "mine")}), router_selector=True)
    found = roles(pod("mine"), pod("w", container("c", command=["vllm", "serve", "m"])), hints=hints)
    assert found["w"] == ("worker", "program")


def test_pods_of_a_hyperpod_deployment_are_workers() -> None:
    endpoint = {
        "metadata": {"name": "llama", "namespace": "prod"},
        "status": {"deploymentStatus": {"name": "llama-dep"}},
    }
    owned = pod(
        "w",
        container("c", image="private:1"),
        labels={"pod-template-hash": "abc"},
        metadata={"ownerReferences": [{"kind": "ReplicaSet", "name": "llama-dep-abc", "controller": True}]},
    )
    assert roles(owned, hints=Hints(resources={"inferenceendpointconfigs": [endpoint]})) == {
        "w": ("worker", "resource")
    }


def test_pods_of_the_operator_resources() -> None:
    resources = {
        "vllmrouters": [{"metadata": {"name": "r", "namespace": "prod"}}],
        "vllmruntimes": [{"metadata": {"name": "e", "namespace": "prod"}}],
    }
    found = roles(
        pod("a", container("c", image="x:1"), labels={"app": "r"}),
        pod("b", container("c", image="x:1"), labels={"app": "e"}),
        hints=Hints(resources=resources),
    )
    assert found == {"a": ("router", "resource"), "b": ("worker", "resource")}


def test_an_inference_pool_names_workers_and_its_pickers_service_the_router() -> None:
    resources = {
        "inferencepools": [
            {
                "metadata": {"name": "p", "namespace": "prod"},
                "spec": {"selector": {"matchLabels": {"app": "m"}}, "endpointPickerRef": {"name": "epp-svc"}},
            }
        ],
        "services": [{"metadata": {"name": "epp-svc", "namespace": "prod"}, "spec": {"selector": {"app": "picker"}}}],
    }
    found = roles(
        pod("a", container("c", image="x:1"), labels={"app": "picker"}),
        pod("b", container("c", image="x:1"), labels={"app": "m"}),
        hints=Hints(resources=resources),
    )
    assert found == {"a": ("router", "resource"), "b": ("worker", "resource")}


def test_a_name_counts_only_in_a_router_namespace_apart() -> None:
    plain = pod("kv-router-1", container("c", image="private:1"), metadata={"namespace": "system"})
    manager = pod("router-controller-manager-1", container("c", image="private:1"), metadata={"namespace": "system"})
    assert roles(plain) == {}
    assert roles(plain, manager, hints=Hints(router_namespace="system")) == {"kv-router-1": ("router", "name")}


def test_finished_pods_are_no_members() -> None:
    assert roles(pod("w", container("c", command=["vllm", "serve"]), status={"phase": "Succeeded"})) == {}


def test_a_pod_without_containers_is_no_member() -> None:
    assert roles({"metadata": {"name": "x", "labels": {"app.kubernetes.io/component": "router"}}, "spec": {}}) == {}


def chosen(role: Role, *containers: dict[str, Any], wanted: str = "", **more: Any) -> str:
    return str(container_of(pod("p", *containers, **more), role, wanted)["name"])


def test_the_container_asked_for_is_read() -> None:
    assert chosen(Role.WORKER, container("vllm"), container("mine"), wanted="mine") == "mine"


def test_a_sidecar_before_the_engine_is_not_read() -> None:
    assert chosen(Role.WORKER, container("istio-proxy"), container("vllm")) == "vllm"


def test_the_engine_is_found_by_what_it_runs() -> None:
    assert chosen(Role.WORKER, container("agent"), container("llm", command=["vllm", "serve", "m"])) == "llm"


def test_a_name_does_not_make_a_router_container_an_engine() -> None:
    engine = container("server", command=["vllm", "serve", "m"])
    assert chosen(Role.WORKER, container("main", args=ROUTER_ARGS), engine) == "server"


def test_the_container_with_a_gpu_is_read_when_nothing_else_tells() -> None:
    gpu = container("b", resources={"limits": {"nvidia.com/gpu": "1"}})
    assert chosen(Role.WORKER, container("a"), gpu) == "b"


def test_the_pods_default_container_comes_before_the_first() -> None:
    metadata = {"annotations": {"kubectl.kubernetes.io/default-container": "b"}}
    assert chosen(Role.WORKER, container("a"), container("b"), metadata=metadata) == "b"
