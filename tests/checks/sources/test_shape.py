"""Objects lose what is not of the type that Kubernetes gives it, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from checks.sources.shape import Fitting

POD: dict[str, Any] = {
    "metadata": {"name": "w-0", "namespace": "prod", "labels": {"a": "b"}},
    "spec": {
        "containers": [
            {
                "name": "vllm",
                "args": ["--port", "8000"],
                "env": [{"name": "A", "value": "1"}],
                "resources": {"limits": {"memory": "1Gi", "nvidia.com/gpu": 1}},
            }
        ],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    },
    "status": {"containerStatuses": [{"name": "vllm", "restartCount": 1, "state": {"running": {"startedAt": "x"}}}]},
}


def fitted(plural: str, value: Any) -> tuple[dict[str, Any] | None, str]:
    fitting = Fitting(plural)
    return fitting.one(value), fitting.odd.text


def test_a_good_pod_stays_as_it_is() -> None:
    assert fitted("pods", POD) == (POD, "")


@pytest.mark.parametrize("odd", [7, "x", True, [7]])
def test_a_field_of_another_type_is_left_out_and_named(odd: Any) -> None:
    got, told = fitted("pods", {"metadata": {"name": "w-0"}, "spec": odd})
    assert got == {"metadata": {"name": "w-0"}}
    assert told == "spec not of the type that Kubernetes gives it"


def test_an_item_of_another_type_is_left_out_of_its_list() -> None:
    containers = [{"name": "a"}, 7, {"name": "b", "args": ["x", 7]}]
    got, told = fitted("pods", {"spec": {"containers": containers}})
    assert got == {"spec": {"containers": [{"name": "a"}, {"name": "b", "args": ["x"]}]}}
    assert told == "2 fields, the first spec.containers[1], not of the type that Kubernetes gives it"


def test_null_is_as_good_as_absent() -> None:
    assert fitted("pods", {"spec": None, "status": {"podIPs": None, "podIP": "10.0.0.1"}}) == (
        {"status": {"podIP": "10.0.0.1"}},
        "",
    )


def test_a_whole_number_beyond_64_bits_is_left_out() -> None:
    status = {"containerStatuses": [{"name": "a", "restartCount": 1 << 63}]}
    assert fitted("pods", {"status": status})[0] == {"status": {"containerStatuses": [{"name": "a"}]}}


def test_a_boolean_is_no_number() -> None:
    assert fitted("deployments", {"spec": {"replicas": True}})[0] == {"spec": {}}


def test_fields_that_are_not_listed_stay() -> None:
    custom = {"metadata": {"name": "m"}, "spec": {"metrics": [1], "kvCacheSpec": 7}}
    assert fitted("inferenceendpointconfigs", custom) == (custom, "")


@pytest.mark.parametrize("items", [None, []])
def test_a_list_may_be_empty(items: Any) -> None:
    fitting = Fitting("pods")
    assert fitting.each(items) == []
    assert fitting.odd.text == ""


def test_objects_of_a_list_that_are_none_are_named_by_their_place() -> None:
    fitting = Fitting("services")
    assert fitting.each([{"spec": {}}, "x"]) == [{"spec": {}}]
    assert fitting.odd.text == "items[1] not of the type that Kubernetes gives it"
