"""Waiting for a free worker: placed when load goes down, and no trace of those who leave."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import pairwise

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
    fleet.room._drain(set())
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


async def test_an_error_in_the_router_ends_the_one_request_and_not_the_queue() -> None:
    fleet = Fleet()
    broken, next_one = future(fleet.admit("broken")), future(fleet.admit("next"))

    def fails() -> Leg:
        raise RuntimeError("a bug")

    head = fleet.room.queue.next(set())
    assert head is not None
    head.payload.place = fails
    fleet.gives(1)
    with pytest.raises(RuntimeError, match="a bug"):
        await asyncio.wait_for(broken, 2)
    await asyncio.wait_for(next_one, 2)
    assert (fleet.order, len(fleet.room.queue), fleet.room.counts["failed"]) == (["next"], 0, 1)


async def test_many_who_wait_for_a_busy_worker_hold_up_nobody_else() -> None:
    """Only pins to w0 are refused; 60 of them, each of a session of its own, wait before one who may go anywhere."""
    placed: list[str] = []
    busy = {"all": True}

    def placing(request: RouteRequest) -> Callable[[], Leg]:
        def place() -> Leg:
            if busy["all"] or request.pin_worker is not None:
                raise AllBusy("busy")
            placed.append(request.id)
            return Ticket(Endpoint("e", 1))

        return place

    room = WaitingRoom(AdmissionSettings(limit=100), time.monotonic, _refusal)
    for number in range(60):
        pinned = RouteRequest(id=f"p{number}", model="m", pin_worker="w0", hints=Hints(session=f"s{number}"))
        room.admit(pinned, lambda: 1, 0.0, placing(pinned))
    anywhere = RouteRequest(id="anywhere", model="m")
    last = future(room.admit(anywhere, lambda: 1, 1.0, placing(anywhere)))
    busy["all"] = False
    room.poke()
    await asyncio.wait_for(last, 2)
    assert placed == ["anywhere"]


async def test_sessions_that_are_bound_to_busy_workers_wait_in_lanes_of_their_own() -> None:
    """A session that was bound while its request waited is moved to its worker's lane; those behind it are served."""
    homes: dict[str | None, str] = {}
    placed: list[str] = []
    busy = {"all": True}

    def placing(request: RouteRequest) -> Callable[[], Leg]:
        def place() -> Leg:
            if busy["all"] or request.hints.session in homes:
                raise AllBusy("busy")
            placed.append(request.id)
            return Ticket(Endpoint("e", 1))

        return place

    room = WaitingRoom(
        AdmissionSettings(limit=10), time.monotonic, _refusal, lambda request: homes.get(request.hints.session)
    )
    bound, free = (RouteRequest(id=name, model="m", hints=Hints(session=name)) for name in ("bound", "free"))
    waits = [
        future(room.admit(request, lambda: 1, float(at), placing(request))) for at, request in enumerate((bound, free))
    ]
    await asyncio.sleep(0.01)
    homes["bound"] = "w0"
    busy["all"] = False
    room.poke()
    await asyncio.sleep(0.01)
    room.poke()
    await asyncio.wait_for(waits[1], 2)
    homes.clear()
    room.poke()
    await asyncio.wait_for(waits[0], 2)
    assert placed == ["free", "bound"]


async def test_a_long_queue_is_placed_in_several_turns_of_the_loop() -> None:
    fleet = Fleet()
    fleet.room = WaitingRoom(AdmissionSettings(limit=200), time.monotonic, _refusal)
    waits = [future(fleet.admit(str(number))) for number in range(100)]
    await asyncio.sleep(0)
    fleet.gives(100)
    placed = [0]
    while placed[-1] < 100:
        await asyncio.sleep(0)
        placed.append(len(fleet.order))
    assert max(after - before for before, after in pairwise(placed)) <= 32
    await asyncio.wait_for(asyncio.gather(*waits), 2)


async def test_a_cancelled_task_whose_placing_failed_is_cancelled() -> None:
    waiting: asyncio.Future[Answer | Leg] = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(settled(waiting))
    await asyncio.sleep(0)
    waiting.set_exception(RuntimeError("a bug"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
