"""Names of faults, the engines they are for, and which cannot meet."""

from __future__ import annotations

import pytest

from bench.sim.faults import Fault, faults_of


def test_a_name_alone_is_for_every_engine() -> None:
    assert faults_of(["l2-down"], 3) == (frozenset({Fault.L2_DOWN}),) * 3


def test_a_number_limits_it_to_one_engine() -> None:
    assert faults_of(["l2-down@1"], 2) == (frozenset(), frozenset({Fault.L2_DOWN}))


def test_faults_add_up() -> None:
    both = frozenset({Fault.L2_DOWN, Fault.HEARTBEAT_LOST})
    assert faults_of(["l2-down", "heartbeat-lost@0", "l2-down@0"], 2) == (both, frozenset({Fault.L2_DOWN}))


def test_no_fault_is_a_healthy_fleet() -> None:
    assert faults_of([], 2) == (frozenset(), frozenset())


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(ValueError, match="no fault 'l2-dwn'") as caught:
        faults_of(["l2-dwn@0"], 1)
    for name in (
        "init-failure",
        "l2-down",
        "heartbeat-lost",
        "none-hash-differs",
        "registration-failed",
        "no-lmcache-metrics",
    ):
        assert name in str(caught.value)


@pytest.mark.parametrize("where", ["2", "-1", "", "x", "1.0", "²", "9" * 5000])
def test_an_engine_that_does_not_exist_is_refused(where: str) -> None:
    with pytest.raises(ValueError, match="number of an engine, 0 to 1"):
        faults_of([f"l2-down@{where}"], 2)


@pytest.mark.parametrize("other", ["l2-down", "heartbeat-lost", "none-hash-differs", "registration-failed"])
def test_a_worker_that_did_not_initialise_can_have_no_later_fault(other: str) -> None:
    with pytest.raises(ValueError, match=f"init-failure and {other} cannot meet in engine 0"):
        faults_of([other, "init-failure"], 1)


def test_a_worker_that_is_not_registered_can_lose_no_heartbeat() -> None:
    with pytest.raises(ValueError, match="cannot meet in engine 1"):
        faults_of(["heartbeat-lost", "registration-failed@1"], 2)


def test_faults_that_exclude_each_other_may_be_in_different_engines() -> None:
    assert faults_of(["init-failure@0", "l2-down@1"], 2) == (
        frozenset({Fault.INIT_FAILURE}),
        frozenset({Fault.L2_DOWN}),
    )


@pytest.mark.parametrize("fault", list(Fault))
def test_missing_metrics_can_meet_any_fault(fault: Fault) -> None:
    assert faults_of(["no-lmcache-metrics", fault], 1) == (frozenset({Fault.NO_LMCACHE_METRICS, fault}),)
