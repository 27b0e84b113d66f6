"""KV130 to KV132."""

from __future__ import annotations

from typing import Any

import pytest

from checks.model import Reason, Stack, Status
from checks.snapshot import Resources, Snapshot
from tests.checks.build import only, snapshot


def of(
    metrics: dict[str, Any] | None = None, port: int | None = 8000, status: dict[str, Any] | None = None
) -> Snapshot:
    spec: dict[str, Any] = {}
    if metrics is not None:
        spec["metrics"] = metrics
    if port is not None:
        spec["worker"] = {"modelInvocationPort": {"containerPort": port, "name": "http"}}
    made = {
        "kind": "InferenceEndpointConfig",
        "metadata": {"name": "m", "namespace": "prod"},
        "spec": spec,
        "status": {} if status is None else {"metricsStatus": status},
    }
    return snapshot(stack=Stack.HYPERPOD, resources=Resources({"inferenceendpointconfigs": (made,)}))


@pytest.mark.parametrize("metrics", [None, {}, {"enabled": True}])
def test_metrics_are_on_by_default(metrics: dict[str, Any] | None) -> None:
    assert only("KV130", of(metrics)).status is Status.PASS


def test_metrics_that_are_off_warn() -> None:
    assert only("KV130", of({"enabled": False})).status is Status.WARN


@pytest.mark.parametrize("check", ["KV131", "KV132"])
def test_metrics_that_are_off_disable_the_rest(check: str) -> None:
    assert only(check, of({"enabled": False})).reason is Reason.DISABLED


@pytest.mark.parametrize("check", ["KV130", "KV131", "KV132"])
def test_without_a_resource_nothing_is_judged(check: str) -> None:
    assert only(check, snapshot(stack=Stack.HYPERPOD)).reason is Reason.NOT_APPLICABLE


def test_equal_ports_pass() -> None:
    assert only("KV131", of({"modelMetrics": {"port": 8000}})).status is Status.PASS


def test_different_ports_fail() -> None:
    assert only("KV131", of({"modelMetrics": {"port": 8080}})).status is Status.FAIL


def test_the_default_metrics_port_8080_is_filled_in() -> None:
    assert only("KV131", of(None, port=8000)).status is Status.FAIL
    assert only("KV131", of(None, port=8080)).status is Status.PASS


def test_a_resource_without_a_container_port_is_not_judged() -> None:
    assert only("KV131", of(None, port=None)).reason is Reason.NO_DATA


def test_a_reported_state_without_error_passes() -> None:
    assert only("KV132", of(status={"enabled": True, "state": "Running"})).status is Status.PASS


def test_a_reported_error_warns_and_is_named() -> None:
    found = only("KV132", of(status={"errorMessage": "port is taken"}))
    assert found.status is Status.WARN
    assert "port is taken" in found.message


def test_a_failed_state_without_a_message_warns() -> None:
    assert only("KV132", of(status={"state": "MetricsFailed"})).status is Status.WARN


def test_another_path_warns() -> None:
    assert (
        only("KV132", of({"modelMetrics": {"path": "/prometheus"}}, status={"state": "Running"})).status is Status.WARN
    )


def test_no_reported_state_is_not_judged() -> None:
    assert only("KV132", of()).reason is Reason.NO_DATA
