"""KV004: pods and how they end."""

from __future__ import annotations

from typing import Any

import pytest

from checks.model import Reason, Status
from checks.snapshot import LastExit, Member, Resources, Role, Snapshot
from tests.checks.build import NOW, only, snapshot, worker

CONNECTOR = ("--kv-transfer-config", '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}')


def with_resources(*members: Member, **by_plural: Any) -> Snapshot:
    return snapshot(*members, resources=Resources({name: tuple(rows) for name, rows in by_plural.items()}))


def health(**more: Any) -> Status:
    return only("KV004", snapshot(worker(**more))).status


def ended(reason: str, code: int, ago: float) -> LastExit:
    return LastExit(reason, code, NOW - ago)


def test_a_pod_that_runs_since_long_passes() -> None:
    assert health() is Status.PASS


@pytest.mark.parametrize("why", ["CrashLoopBackOff", "ImagePullBackOff", "CreateContainerConfigError"])
def test_a_container_that_does_not_start_fails(why: str) -> None:
    assert health(state=f"waiting:{why}", ready=False) is Status.FAIL


def test_an_out_of_memory_kill_within_the_hour_fails() -> None:
    assert health(last_exit=ended("OOMKilled", 137, 3500), restarts=1) is Status.FAIL


def test_an_out_of_memory_kill_of_yesterday_passes() -> None:
    assert health(last_exit=ended("OOMKilled", 137, 90_000), restarts=1) is Status.PASS


def test_an_out_of_memory_kill_names_lmcaches_buffer_and_the_limit() -> None:
    of = snapshot(
        worker(
            args=("--tensor-parallel-size", "2"),
            env={"LMCACHE_MAX_LOCAL_CPU_SIZE": "20"},
            last_exit=ended("OOMKilled", 137, 10),
            memory_limit=32 << 30,
        )
    )
    assert "40 GB of a limit of 32 GiB" in only("KV004", of).hint


def test_a_failed_pod_fails() -> None:
    assert health(phase="Failed", ready=False) is Status.FAIL


def test_a_crash_within_the_hour_warns() -> None:
    assert health(last_exit=ended("Error", 1, 60), restarts=1) is Status.WARN


def test_a_clean_end_within_the_hour_passes() -> None:
    assert health(last_exit=ended("Completed", 0, 60), restarts=1) is Status.PASS


def test_three_restarts_within_a_day_warn() -> None:
    assert health(last_exit=ended("Error", 1, 7200), restarts=3) is Status.WARN


def test_restarts_of_last_week_pass() -> None:
    assert health(last_exit=ended("Error", 1, 7 * 86_400), restarts=9) is Status.PASS


def test_a_pod_that_is_not_ready_warns() -> None:
    assert health(ready=False) is Status.WARN


def test_a_pod_younger_than_two_minutes_warns() -> None:
    assert health(started_at=NOW - 119) is Status.WARN
    assert health(started_at=NOW - 121) is Status.PASS


def test_events_and_the_last_words_of_the_previous_instance_are_evidence() -> None:
    event = {
        "type": "Warning",
        "reason": "BackOff",
        "message": "restarting failed container",
        "involvedObject": {"name": "w-0", "namespace": "prod"},
    }
    member = worker(state="waiting:CrashLoopBackOff", ready=False, previous="RuntimeError: no GPU")
    texts = [one.text for one in only("KV004", with_resources(member, events=[event])).evidence]
    assert "event BackOff: restarting failed container" in texts
    assert any("RuntimeError: no GPU" in text for text in texts)


def test_events_of_other_pods_are_no_evidence() -> None:
    event = {"type": "Warning", "reason": "X", "message": "other", "involvedObject": {"name": "w-1"}}
    found = only("KV004", with_resources(worker(ready=False), events=[event]))
    assert not [one for one in found.evidence if "other" in one.text]


def test_processes_without_pods_are_not_judged() -> None:
    process = Member(Role.WORKER, "w", kind="Process")
    assert only("KV004", snapshot(process, cluster=False)).reason is Reason.NOT_APPLICABLE


CUDA = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def test_an_engine_that_ran_out_of_gpu_memory_fails_with_its_own_words() -> None:
    found = only("KV004", snapshot(worker(last_exit=ended("Error", 1, 600), previous=CUDA)))
    assert (found.status, found.message) == (Status.FAIL, "it ran out of memory within the last hour, by its own words")
    assert found.evidence[0].text == CUDA


def test_an_engine_that_ran_out_of_gpu_memory_yesterday_passes() -> None:
    assert health(last_exit=ended("Error", 1, 90000), previous=CUDA) is Status.PASS


def test_a_failed_pod_tells_why() -> None:
    why = "Evicted: The node was low on resource: ephemeral-storage"
    found = only("KV004", snapshot(worker(phase="Failed", ready=False, why=why)))
    assert found.message == f"the pod has failed: {why}"
