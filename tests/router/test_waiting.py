"""Waiting for a free worker: placed when load goes down, and no trace of those who leave."""

from __future__ import annotations

import asyncio
import time

import pytest

from router.admission import AdmissionSettings
from router.model import AllBusy, Hints, NoWorkers, RouteRequest, RoutingError
from router.proxy.errors import error_answer
from router.proxy.interface import Answer, Endpoint, Leg
from router.waiting import WaitingRoom, settled
from tests.router.proxy.scripted import Ticket


class Fleet:
    """Places while there is room."""

    def __init__(self, free: int = 0) -> None:
        self.free = free
        self.error: RoutingError | None = None
        self.order: list[str] = []
        self.room = WaitingRoom(AdmissionSettings(limit=10, timeout_s=5.0), time.monotonic, _refusal)

    def admit(self, name: str, **hints: object) -> Leg | asyncio.Future[Answer | Leg]:
        request = RouteRequest(id=name, model="m", hints=Hints(**hints))  # type: ignore[arg-type]

        def place() -> Leg:
            if self.error is not None:
                raise self.error
            if not self.free:
                raise AllBusy("busy")
            self.free -= 1
            self.order.append(name)
            return Ticket(Endpoint("e", 1))

        return self.room.admit(request, lambda: 10, time.monotonic(), place)

    def gives(self, count: int) -> None:
        self.free += count
        self.room.poke()


def _refusal(error: RoutingError) -> Answer:
    return error_answer(error.status, str(error), error.code, extra=error.extra)


def future(found: Leg | asyncio.Future[Answer | Leg]) -> asyncio.Future[Answer | Leg]:
    assert isinstance(found, asyncio.Future)
    return found


async def test_with_room_a_request_is_placed_at_once() -> None:
    assert isinstance(Fleet(free=1).admit("a"), Ticket)


async def test_without_a_queue_a_busy_fleet_refuses() -> None:
    fleet = Fleet()
    fleet.room = WaitingRoom(AdmissionSettings(limit=0), time.monotonic, _refusal)
    with pytest.raises(AllBusy):
        fleet.admit("a")


async def test_waiting_requests_are_placed_in_order_when_load_goes_down() -> None:
    fleet = Fleet()
    waits = [future(fleet.admit(name)) for name in ("a", "b", "c")]
    fleet.gives(2)
    await asyncio.wait_for(asyncio.gather(*waits[:2]), 2)
    assert (fleet.order, waits[2].done(), len(fleet.room.queue)) == (["a", "b"], False, 1)


async def test_a_newcomer_does_not_overtake_those_who_wait() -> None:
    fleet = Fleet()
    first = future(fleet.admit("first"))
    fleet.free = 1
    second = future(fleet.admit("second"))
    await asyncio.wait_for(first, 2)
    assert (fleet.order, second.done()) == (["first"], False)


async def test_a_client_that_leaves_leaves_no_trace() -> None:
    fleet = Fleet()
    waiting = future(fleet.admit("a", tenant="acme"))
    waiting.cancel()
    await asyncio.sleep(0)
    fleet.gives(1)
    await asyncio.sleep(0.01)
    assert (fleet.order, len(fleet.room.queue), len(fleet.room.tenants)) == ([], 0, 0)
    assert fleet.room.counts["cancelled"] == 1


async def test_a_task_cancelled_just_when_its_request_was_placed_ends_the_leg() -> None:
    fleet = Fleet()
    waiting = future(fleet.admit("a"))
    task = asyncio.ensure_future(settled(waiting))
    await asyncio.sleep(0)
    fleet.free = 1
    fleet.room._drain()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    leg = waiting.result()
    assert isinstance(leg, Ticket)
    assert [str(outcome) for outcome, _status in leg.ends] == ["client_gone"]


async def test_waiting_ends_at_the_queues_timeout() -> None:
    fleet = Fleet()
    fleet.room = WaitingRoom(AdmissionSettings(limit=10, timeout_s=0.02), time.monotonic, _refusal)
    answer = await asyncio.wait_for(future(fleet.admit("a")), 2)
    assert isinstance(answer, Answer)
    assert (answer.status, b"queue-timeout" in answer.body) == (529, True)
    assert ("retry-after", "1") in answer.headers
    await asyncio.sleep(0)
    assert len(fleet.room.queue) == 0


async def test_waiting_ends_at_the_requests_own_deadline() -> None:
    answer = await asyncio.wait_for(future(Fleet().admit("a", deadline_s=0.02)), 2)
    assert isinstance(answer, Answer)
    assert (answer.status, b"deadline of 20 ms" in answer.body) == (504, True)


async def test_a_request_that_can_never_be_served_is_told_so() -> None:
    fleet = Fleet()
    waiting = future(fleet.admit("a"))
    fleet.error = NoWorkers("all gone")
    fleet.room.poke()
    answer = await asyncio.wait_for(waiting, 2)
    assert isinstance(answer, Answer)
    assert (answer.status, b"all gone" in answer.body) == (503, True)
