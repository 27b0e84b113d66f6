"""Whose logs are read when there are many."""

from __future__ import annotations

from dataclasses import replace

from checks.discover.sampling import outlier, sample
from checks.metrics.view import Metrics, Sample
from checks.snapshot import Container, Member, Role


def worker(number: int, *, ready: bool = True, restarts: int = 0) -> Member:
    return Member(Role.WORKER, f"w-{number}", uid=f"u{number}", ready=ready, container=Container(restarts=restarts))


def ratios(**found: float) -> Metrics:
    """Hit ratios by worker, with `_` for `-`."""
    names = {name.replace("_", "-"): value for name, value in found.items()}
    return Metrics(
        {
            "prefix_cache_queries": tuple(Sample("prefix_cache_queries", name, {}, 100.0) for name in names),
            "prefix_cache_hits": tuple(Sample("prefix_cache_hits", name, {}, 100 * names[name]) for name in names),
        }
    )


FLEET = [worker(number) for number in range(100)]


def test_all_are_read_when_they_are_few() -> None:
    found = sample(FLEET[:3], Metrics(), 50)
    assert found.keys == {"w-0", "w-1", "w-2"}
    assert found.text == ""


def test_of_many_healthy_ones_a_sample_is_read_and_said_so() -> None:
    found = sample(FLEET, Metrics(), 10)
    assert len(found.keys) == 10
    assert found.text == "10 of 100 worker logs"


def test_the_same_ones_are_read_again() -> None:
    assert sample(FLEET, Metrics(), 10).keys == sample(list(reversed(FLEET)), Metrics(), 10).keys


def test_the_sample_does_not_follow_the_names() -> None:
    assert sample(FLEET, Metrics(), 10).keys != {f"w-{number}" for number in range(10)}


def test_all_in_trouble_are_read() -> None:
    fleet = [worker(number, ready=number != 5, restarts=int(number == 6)) for number in range(100)]
    assert {"w-5", "w-6"} <= sample(fleet, Metrics(), 1).keys


def test_all_routers_are_read() -> None:
    routers = [replace(worker(number), role=Role.ROUTER, name=f"r-{number}") for number in range(5)]
    assert {f"r-{number}" for number in range(5)} <= sample([*FLEET, *routers], Metrics(), 1).keys


def test_trouble_without_end_is_limited() -> None:
    fleet = [worker(number, ready=False) for number in range(100)]
    assert len(sample(fleet, Metrics(), 5).keys) == 20


def test_the_worker_with_the_oddest_hit_ratio_is_added() -> None:
    left_out = next(one.name for one in FLEET if one.key not in sample(FLEET, Metrics(), 2).keys)
    values = {one.name.replace("-", "_"): 0.5 for one in FLEET} | {left_out.replace("-", "_"): 0.01}
    found = sample(FLEET, ratios(**values), 2)
    assert left_out in found.keys
    assert len(found.keys) == 3


def test_two_workers_have_no_odd_one() -> None:
    assert outlier(ratios(w_0=0.1, w_1=0.9), FLEET[:2]) is None
