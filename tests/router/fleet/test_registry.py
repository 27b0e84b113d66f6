"""Slots, views and the block-size alarm."""

from __future__ import annotations

import logging

import pytest

from router.fleet.registry import Fleet
from router.model import WorkerSpec


def spec(name: str, ranks: int | None = None) -> WorkerSpec:
    return WorkerSpec(url=f"http://{name}:1", id=name, ranks=ranks)


def test_each_rank_of_a_worker_gets_a_slot_and_a_row() -> None:
    fleet = Fleet()
    fleet.add(spec("a", 2))
    fleet.add(spec("b"))
    assert fleet.view.workers == ("a", "a", "b")
    assert fleet.view.ranks == (0, 1, 0)
    assert fleet.view.slots.tolist() == [0, 1, 2]


def test_slots_are_used_again_only_once_they_are_freed() -> None:
    fleet = Fleet()
    first = fleet.add(spec("a"))
    fleet.remove("a")
    second = fleet.add(spec("b"))
    assert second.slots != first.slots
    fleet.free_slots(first.slots)
    assert fleet.add(spec("c")).slots == first.slots


def test_an_id_cannot_be_registered_twice() -> None:
    fleet = Fleet()
    fleet.add(spec("a"))
    with pytest.raises(ValueError, match="'a' is registered already"):
        fleet.add(spec("a"))


def test_a_worker_whose_block_size_differs_is_named_loudly(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet()
    for name, size in (("a", 16), ("b", 16), ("c", 32)):
        worker = fleet.add(spec(name))
        worker.models, worker.block_size = ("m",), size
    with caplog.at_level(logging.WARNING):
        fleet.check_block_sizes()
    assert "block_size" in fleet.workers["c"].warnings
    assert "block_size" not in fleet.workers["a"].warnings
    assert any("c" in record.message and "32" in record.message for record in caplog.records)
    assert fleet.view.differs.tolist() == [0, 0, 1]


def test_the_alarm_ends_when_the_block_sizes_agree() -> None:
    fleet = Fleet()
    for name, size in (("a", 16), ("b", 16), ("c", 32)):
        worker = fleet.add(spec(name))
        worker.models, worker.block_size = ("m",), size
    fleet.check_block_sizes()
    fleet.workers["c"].block_size = 16
    fleet.check_block_sizes()
    assert not fleet.workers["c"].warnings


def test_registration_is_logged_as_people_grep_for_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Fleet().add(spec("a"))
    assert "Worker registered: a" in caplog.text
