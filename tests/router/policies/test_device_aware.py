"""device-aware-weighted: the integer budget of CPU workers, worked out by hand."""

from __future__ import annotations

from router.model import DeviceClass
from router.policies.device_aware import DeviceAwareWeighted
from tests.router.policies.build import fleet, request, rng

CUDA, CPU, UNKNOWN = int(DeviceClass.CUDA), int(DeviceClass.CPU), int(DeviceClass.UNKNOWN)


def winner(ratio: int, devices: list[int], active: list[int], eligible: list[int] | None = None) -> str:
    rows = fleet(len(devices), device_class=devices, active_requests=active, eligible=eligible or [1] * len(devices))
    return DeviceAwareWeighted(ratio).decide(request(), rows, rng()).worker


def test_an_idle_fleet_starts_on_the_device() -> None:
    assert winner(8, [CPU, CUDA], [0, 0]) == "w1"


def test_the_cpu_gets_one_request_for_each_ratio_on_the_device() -> None:
    assert winner(8, [CPU, CUDA], [0, 7]) == "w1"
    assert winner(8, [CPU, CUDA], [0, 8]) == "w0"
    assert winner(8, [CPU, CUDA], [1, 8]) == "w1"
    assert winner(8, [CPU, CUDA], [1, 16]) == "w0"


def test_the_budget_counts_the_workers_of_each_class() -> None:
    """allowed = 12 * 2 // (4 * 3) = 2: with one in flight on the CPUs there is room, with two there is none."""
    assert winner(4, [CPU, CPU, CUDA, CUDA, CUDA], [0, 1, 4, 4, 4]) == "w0"
    assert winner(4, [CPU, CPU, CUDA, CUDA, CUDA], [1, 1, 5, 4, 3]) == "w4"


def test_an_unknown_device_is_no_cpu() -> None:
    assert winner(8, [CPU, UNKNOWN], [0, 8]) == "w0"
    assert winner(8, [UNKNOWN, CUDA], [3, 2]) == "w1"


def test_a_class_of_which_nobody_is_eligible_leaves_the_other() -> None:
    assert winner(8, [CPU, CUDA], [9, 0], eligible=[1, 0]) == "w0"
