"""The alarm rings after its time, once, and can be taken back."""

from __future__ import annotations

import asyncio
import time

import pytest

from bench.sim.alarm import LoopAlarm, make_alarm


@pytest.fixture(params=["best", "loop"])
def make(request: pytest.FixtureRequest):
    return make_alarm if request.param == "best" else LoopAlarm


async def test_it_never_rings_early(make) -> None:
    rang: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    alarm = make(asyncio.get_running_loop(), lambda: rang.set_result(time.monotonic()))
    due = time.monotonic() + 0.0153
    alarm.set(due)
    # asyncio's own timers may round down by the clock's resolution
    assert await asyncio.wait_for(rang, 10) >= due - time.get_clock_info("monotonic").resolution - 1e-3
    alarm.close()


async def test_a_time_that_has_passed_rings_in_the_next_turn(make) -> None:
    rang: list[int] = []
    alarm = make(asyncio.get_running_loop(), lambda: rang.append(1))
    alarm.set(time.monotonic() - 1)
    assert rang == []
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert rang == [1]
    alarm.close()


async def test_setting_it_anew_replaces_the_first_time(make) -> None:
    rang: list[float] = []
    alarm = make(asyncio.get_running_loop(), lambda: rang.append(time.monotonic()))
    alarm.set(time.monotonic() + 0.01)
    alarm.set(time.monotonic() - 1)
    alarm.set(time.monotonic() + 0.05)
    await asyncio.sleep(0.2)
    assert len(rang) == 1
    alarm.close()


async def test_a_cancelled_alarm_stays_silent(make) -> None:
    rang: list[int] = []
    alarm = make(asyncio.get_running_loop(), lambda: rang.append(1))
    alarm.set(time.monotonic() + 0.01)
    alarm.cancel()
    alarm.set(time.monotonic() - 1)
    alarm.close()
    await asyncio.sleep(0.1)
    assert rang == []
