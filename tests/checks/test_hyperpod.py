"""HyperPod's resources with their defaults, whose workers are whose, and the operator's version."""

from __future__ import annotations

from typing import Any

from checks.hyperpod import Endpoint, endpoint_of, endpoints, operator
from checks.model import Stack
from checks.snapshot import Resources
from tests.checks.build import snapshot, worker


def made(name: str = "m", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "prod"}, "spec": spec}


def test_an_empty_resource_has_the_defaults_of_its_definition() -> None:
    one = Endpoint(made(), "InferenceEndpointConfig")
    assert (one.routed, one.strategy, one.invocation_path) == (False, "", "invocations")
    assert (one.metrics_enabled, one.metrics_port, one.metrics_path) == (True, 8080, "/metrics")
    assert (one.caches, one.level1, one.level2, one.invocation_port) == (False, None, None, None)


def test_a_cache_part_has_its_defaults_once_it_is_there() -> None:
    one = Endpoint(made(kvCacheSpec={}), "InferenceEndpointConfig")
    assert (one.level1, one.level2, one.level2_backend) == (True, False, "")


def test_fields_of_odd_types_count_as_absent() -> None:
    odd = made(kvCacheSpec="yes", metrics={"enabled": "no", "modelMetrics": {"port": "x"}}, worker=[1])
    one = Endpoint(odd, "InferenceEndpointConfig")
    assert (one.caches, one.metrics_enabled, one.metrics_port, one.invocation_port) == (False, True, 8080, None)


def test_both_kinds_are_listed() -> None:
    resources = Resources({"inferenceendpointconfigs": (made("a"),), "jumpstartmodels": (made("b"),)})
    found = endpoints(snapshot(stack=Stack.HYPERPOD, resources=resources))
    assert [str(one.target) for one in found] == ["InferenceEndpointConfig a.prod", "JumpStartModel b.prod"]


def test_the_only_resource_has_all_workers_of_its_namespace() -> None:
    of = snapshot(worker(), resources=Resources({"inferenceendpointconfigs": (made("a"),)}))
    found = endpoint_of(of, of.workers[0])
    assert found is not None
    assert found.name == "a"
    assert endpoint_of(of, worker(namespace="other")) is None


def test_of_several_resources_the_deployment_in_the_status_decides() -> None:
    first, second = made("a"), made("b") | {"status": {"deploymentStatus": {"name": "b-deployment"}}}
    of = snapshot(resources=Resources({"inferenceendpointconfigs": (first, second)}))
    found = endpoint_of(of, worker(owner="Deployment/b-deployment"))
    assert found is not None
    assert found.name == "b"
    assert endpoint_of(of, worker(owner="Deployment/else")) is None


def test_an_edit_counts_as_unprocessed_only_where_both_generations_are_known() -> None:
    edited = made() | {"metadata": {"name": "m", "generation": 2}, "status": {"observedGeneration": 1}}
    assert Endpoint(edited, "X").unprocessed
    assert not Endpoint(edited | {"status": {}}, "X").unprocessed


def test_a_digest_is_not_the_operators_version() -> None:
    image = "r.example/hyperpod-inference-operator@sha256:" + "1.2" * 8
    spec = {"template": {"spec": {"containers": [{"image": image}]}}}
    name = "hyperpod-inference-operator-controller-manager"
    of = snapshot(resources=Resources({"deployments": ({"metadata": {"name": name}, "spec": spec},)}))
    assert operator(of).version is None
