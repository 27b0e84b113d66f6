"""Deadlines are found without a timer each."""

from __future__ import annotations

import asyncio

from router.proxy.sweeper import NEVER, Sweeper


class Item:
    def __init__(self, deadline: float, fails: bool = False) -> None:
        self.deadline = deadline
        self.group = 0
        self.fails = fails
        self.fired = asyncio.Event()

    def expired(self, now: float) -> None:
        assert now >= self.deadline
        self.deadline = NEVER
        self.fired.set()
        if self.fails:
            raise RuntimeError("on purpose")


async def test_late_items_are_told_and_others_are_not() -> None:
    loop = asyncio.get_running_loop()
    sweeper = Sweeper(loop, 0.04)
    late, later = [Item(loop.time()) for _ in range(20)], [Item(NEVER) for _ in range(20)]
    for item in late + later:
        sweeper.add(item)
    for item in late:
        await item.fired.wait()
    sweeper.stop()
    assert not any(item.fired.is_set() for item in later)


async def test_deadline_may_move_without_telling_the_sweeper() -> None:
    loop = asyncio.get_running_loop()
    sweeper = Sweeper(loop, 0.04)
    item = Item(NEVER)
    sweeper.add(item)
    await asyncio.sleep(0.05)
    item.deadline = loop.time()
    await item.fired.wait()
    sweeper.stop()


async def test_discarded_item_is_not_told() -> None:
    loop = asyncio.get_running_loop()
    sweeper = Sweeper(loop, 0.04)
    gone, kept = Item(loop.time()), Item(loop.time())
    for item in (gone, kept):
        sweeper.add(item)
    sweeper.discard(gone)
    await kept.fired.wait()
    await asyncio.sleep(0.06)
    sweeper.stop()
    assert not gone.fired.is_set()


async def test_item_that_raises_does_not_stop_the_sweep() -> None:
    loop = asyncio.get_running_loop()
    sweeper = Sweeper(loop, 0.04)
    bad = Item(loop.time(), fails=True)
    sweeper.add(bad)
    await bad.fired.wait()
    good = Item(loop.time())
    sweeper.add(good)
    await good.fired.wait()
    sweeper.stop()
