"""Actions on the fleet: done at their time, never two starts at once, and the fleet is whole again after the block."""

from __future__ import annotations

import asyncio
import threading

import pytest

from bench.control import Unreachable
from bench.outages import Outages
from bench.sim.fleet import FleetError
from bench.workload.model import Deed, FleetAction


class Engines:
    """A fleet on paper. `gate` holds a start back until it is set; `fails`: every start fails."""

    def __init__(self, *, fails: bool = False) -> None:
        self.calls: list[str] = []
        self.down: set[int] = set()
        self.gate = threading.Event()
        self.gate.set()
        self._fails = fails

    def kill(self, index: int) -> None:
        self.calls.append(f"kill {index}")
        self.down.add(index)

    def start_again(self, index: int) -> None:
        self.calls.append(f"start {index}")
        self.gate.wait(5)
        if self._fails:
            raise FleetError("its port was taken")
        self.down.discard(index)

    def alive(self, index: int) -> bool:
        return index not in self.down


def kill(at: float) -> FleetAction:
    return FleetAction(at, Deed.KILL, 1)


def start(at: float) -> FleetAction:
    return FleetAction(at, Deed.START, 1)


async def until_called(fleet: Engines, calls: int) -> None:
    async with asyncio.timeout(5):
        while len(fleet.calls) < calls:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_actions_are_done_in_the_order_of_time() -> None:
    fleet = Engines()
    outages = Outages(fleet, [start(0.02), kill(0.0)])
    outages.begin()
    await until_called(fleet, 2)
    await outages.end()
    assert fleet.calls == ["kill 1", "start 1"]
    assert not fleet.down


async def test_what_is_not_due_is_left_out_and_what_is_down_is_started() -> None:
    fleet = Engines()
    outages = Outages(fleet, [kill(0.0), start(60.0)])
    outages.begin()
    await until_called(fleet, 1)
    await outages.end()
    assert fleet.calls == ["kill 1", "start 1"]
    assert [deed for _, deed, _ in outages.done] == [Deed.KILL]


async def test_a_start_under_way_at_the_end_is_waited_for_and_not_made_twice() -> None:
    fleet = Engines()
    fleet.gate.clear()
    outages = Outages(fleet, [kill(0.0), start(0.0)])
    outages.begin()
    await until_called(fleet, 2)
    asyncio.get_running_loop().call_later(0.05, fleet.gate.set)
    await outages.end()
    assert fleet.calls == ["kill 1", "start 1"]


async def test_an_engine_that_does_not_come_back_ends_the_run() -> None:
    fleet = Engines(fails=True)
    outages = Outages(fleet, [kill(0.0), start(0.0)])
    outages.begin()
    await until_called(fleet, 2)
    with pytest.raises(Unreachable, match="did not come back: its port was taken"):
        await outages.end()


async def test_each_block_has_the_actions_anew() -> None:
    fleet = Engines()
    outages = Outages(fleet, [kill(0.0)])
    for _ in range(2):
        outages.begin()
        await until_called(fleet, len(fleet.calls) + 1)
        await outages.end()
    assert fleet.calls == ["kill 1", "start 1"] * 2
