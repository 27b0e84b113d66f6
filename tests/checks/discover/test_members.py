"""A pod as a member."""

from __future__ import annotations

from typing import Any

import pytest

from checks.discover.members import epoch, member_of, quantity
from checks.discover.owners import Owners
from checks.discover.roles import Chosen
from checks.snapshot import LastExit, Member, Role
from tests.checks.discover.pods import container, pod


def member(spec: dict[str, Any] | None = None, owners: Owners | None = None, **more: Any) -> Member:
    one = spec or container()
    return member_of(Chosen(pod("w-0", one, **more), Role.WORKER, one, None, "label"), {}, owners or Owners())


def state(**status: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "other", "restartCount": 9}, {"name": "vllm", **status}]}


def test_a_running_container() -> None:
    running = {"running": {"startedAt": "2026-08-01T10:00:00Z"}}
    found = member(status=state(state=running, restartCount=2, ready=True)).container
    assert (found.state, found.started_at, found.restarts, found.ready) == ("running", 1785578400.0, 2, True)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"waiting": {"reason": "CrashLoopBackOff"}}, "waiting:CrashLoopBackOff"),
        ({"terminated": {"reason": "OOMKilled"}}, "terminated:OOMKilled"),
        ({}, "unknown"),
    ],
)
def test_other_states(told: dict[str, Any], expected: str) -> None:
    assert member(status=state(state=told)).container.state == expected


def test_how_the_last_instance_ended() -> None:
    ended = {"terminated": {"reason": "OOMKilled", "exitCode": 137, "finishedAt": "2026-08-01T10:00:00Z"}}
    assert member(status=state(lastState=ended)).container.last_exit == LastExit("OOMKilled", 137, 1785578400.0)


def test_a_pod_that_is_being_deleted_is_not_ready() -> None:
    conditions = {"conditions": [{"type": "Ready", "status": "True"}]}
    assert member(status=conditions).ready
    assert not member(status=conditions, metadata={"deletionTimestamp": "2026-08-01T10:00:00Z"}).ready


def test_all_addresses() -> None:
    assert member(status={"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}).ips == (
        "10.0.0.1",
        "fd00::1",
    )


def test_one_address_of_an_older_api() -> None:
    assert member(status={"podIP": "10.0.0.1"}).ips == ("10.0.0.1",)


def test_host_network() -> None:
    assert member(spec=None, status={}).host_network is False
    assert member_of(
        Chosen(pod("w", spec={"hostNetwork": True}), Role.WORKER, container(), None, "label"), {}, Owners()
    ).host_network


def test_the_deployment_above_the_replica_set_that_was_listed() -> None:
    replicaset = {
        "metadata": {
            "name": "rs",
            "namespace": "prod",
            "ownerReferences": [{"kind": "Deployment", "name": "d", "controller": True}],
        }
    }
    metadata = {"ownerReferences": [{"kind": "ReplicaSet", "name": "rs", "controller": True}]}
    assert member(owners=Owners([replicaset]), metadata=metadata).owner == "Deployment/d"
    assert member(metadata=metadata).owner == "ReplicaSet/rs"


def test_the_deployment_told_by_the_template_hash() -> None:
    metadata = {"ownerReferences": [{"kind": "ReplicaSet", "name": "d-7f9", "controller": True}]}
    assert member(metadata=metadata, labels={"pod-template-hash": "7f9"}).owner == "Deployment/d"


def test_volumes_by_mount_path() -> None:
    one = container(volumeMounts=[{"name": "shm", "mountPath": "/dev/shm"}, {"name": "m", "mountPath": "/models"}])
    volumes = [
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        {"name": "m", "persistentVolumeClaim": {"claimName": "c"}},
    ]
    found = member_of(Chosen(pod("w", one, spec={"volumes": volumes}), Role.WORKER, one, None, "label"), {}, Owners())
    assert found.container.volume_mounts == {"/dev/shm": "emptyDir", "/models": "persistentVolumeClaim"}


def test_named_and_unnamed_ports() -> None:
    one = container(ports=[{"name": "http", "containerPort": 8000}, {"containerPort": 9001}])
    assert member(one).container.ports == {"http": 8000, "9001": 9001}


def test_memory_limit_in_bytes() -> None:
    assert member(container(resources={"limits": {"memory": "2Gi"}})).container.memory_limit == 2 * 1024**3


@pytest.mark.parametrize(
    ("text", "value"), [("512Mi", 536870912.0), ("2G", 2e9), ("500m", 0.5), ("1e9", 1e9), ("x", None), (None, None)]
)
def test_quantities(text: str | None, value: float | None) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize("text", ["", None, "yesterday", 7])
def test_a_time_that_is_none(text: Any) -> None:
    assert epoch(text) is None


@pytest.mark.parametrize(
    ("args", "model"),
    [
        (["--model", "a/b", "--served-model-name", "nice", "other"], "nice"),
        (["vllm", "serve", "a/b", "--port", "1"], "a/b"),
        (["--model-path=a/b"], "a/b"),
        (["--port", "1"], "label"),
    ],
)
def test_the_served_model(args: list[str], model: str) -> None:
    assert member(container(args=args), labels={"model": "label"}).model == model


def test_a_strange_pod_raises_nothing() -> None:
    one: dict[str, Any] = {"name": "c", "env": None, "args": None, "ports": None, "resources": None}
    strange = {"metadata": {"name": "w"}, "spec": {"containers": [one]}, "status": None}
    found = member_of(Chosen(strange, Role.WORKER, one, None, "label"), {}, Owners())
    assert (found.phase, found.ready, found.ips) == ("Unknown", False, ())


def test_why_a_pod_failed() -> None:
    told = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."}
    assert member(status=told).why == "Evicted: The node was low on resource: ephemeral-storage."
