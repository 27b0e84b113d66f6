"""The dispatcher after a leg has failed: who gets the request next, when nobody does, and what is booked meanwhile."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from router.admission import AdmissionSettings
from router.core import CoreSettings, RoutingCore
from router.dispatch import RequestDispatcher
from router.eligibility import BusyThresholds
from router.fleet.breaker import Breaker, BreakerSettings
from router.fleet.monitor import FleetMonitor
from router.fleet.worker import Circuit, Health, Worker
from router.legs import RoutedLeg
from router.metrics import RouterStats
from router.model import WorkerSpec
from router.model_tokens import ModelTokens
from router.proxy.interface import Answer, Inbound, Outcome
from router.reading import DispatchSettings
from router.records import DecisionLog, record
from router.retry import RetrySettings


class Desk:
    """A dispatcher before workers that are all up, and a clock set by hand."""

    def __init__(
        self, count: int = 3, queue: int = 0, mode: str = "round-robin", slow_start: float = 0.0, **retry: object
    ) -> None:
        self.now = 100.0
        self.core = RoutingCore(CoreSettings(seed=1, slow_start=slow_start))
        for number in range(count):
            worker = self.core.fleet.add(WorkerSpec(url=f"http://w{number}:1", id=f"w{number}", model="m"))
            worker.health, worker.capacity_blocks, worker.block_size = Health.UP, 1000, 16
            self.core.add_slots()
        self.core.fleet.changed()
        self.breaker = Breaker(
            BreakerSettings(probes=1),
            self.core.fleet.workers.values,
            lambda _worker, _circuit, _why: self.core.fleet.circuits_changed(),
        )
        settings = DispatchSettings(
            mode=mode,
            admission=AdmissionSettings(queue, 5.0),
            retry=replace(RetrySettings(), **retry),  # type: ignore[arg-type]
        )
        monitor = FleetMonitor(self.core.fleet, None)  # type: ignore[arg-type]
        monitor.connection_failed = lambda worker, why: None  # type: ignore[method-assign]
        monitor.suspect = lambda worker: None  # type: ignore[method-assign]
        self.dispatcher = RequestDispatcher(
            self.core,
            monitor,
            ModelTokens(self.core.fleet, None),
            DecisionLog(),
            RouterStats(),
            settings,
            lambda: self.now,
            breaker=self.breaker,
        )

    def worker(self, number: int) -> Worker:
        return self.core.fleet.workers[f"w{number}"]

    def ask(self, path: str = "/v1/completions", *headers: tuple[bytes, bytes]) -> tuple[Inbound, RoutedLeg]:
        body = b'{"model":"m","prompt":[1,2]}'
        inbound = Inbound("POST", path.encode(), path, list(headers), body, True, 0.0)
        leg = self.dispatcher.dispatch(inbound)
        assert isinstance(leg, RoutedLeg), leg
        return inbound, leg

    def fail(self, inbound: Inbound, leg: RoutedLeg, outcome: Outcome) -> object:
        leg.end(outcome, 0)
        return self.dispatcher.retry(inbound, leg, outcome)


def refusal(answer: object) -> tuple[int, str, str]:
    assert isinstance(answer, Answer)
    error = json.loads(answer.body)["error"]
    return answer.status, str(error["code"]), str(error["message"])


async def test_a_failed_request_goes_to_a_worker_that_was_not_tried() -> None:
    desk = Desk()
    inbound, leg = desk.ask()
    tried = {leg.worker.id}
    for _ in range(2):
        leg = desk.fail(inbound, leg, Outcome.RESET)  # type: ignore[assignment]
        assert leg.worker.id not in tried
        tried.add(leg.worker.id)
    assert refusal(desk.fail(inbound, leg, Outcome.RESET))[:2] == (502, "engine_failed")
    assert desk.core.loads.open_bookings == 0


async def test_a_request_has_no_more_legs_than_its_attempts() -> None:
    desk = Desk(9, attempts=3)
    inbound, leg = desk.ask()
    leg = desk.fail(inbound, leg, Outcome.RESET)  # type: ignore[assignment]
    leg = desk.fail(inbound, leg, Outcome.CONNECT_TIMEOUT)  # type: ignore[assignment]
    assert "3 workers were tried" in refusal(desk.fail(inbound, leg, Outcome.RESET))[2]


async def test_a_request_that_waited_for_two_first_bytes_in_vain_is_a_504() -> None:
    desk = Desk(9)
    inbound, leg = desk.ask()
    leg = desk.fail(inbound, leg, Outcome.FIRST_BYTE_TIMEOUT)  # type: ignore[assignment]
    assert refusal(desk.fail(inbound, leg, Outcome.FIRST_BYTE_TIMEOUT))[:2] == (504, "engine_timeout")


async def test_an_empty_budget_is_a_502_that_names_it() -> None:
    desk = Desk(share=0.0, floor=0.0)
    inbound, leg = desk.ask()
    answer = desk.fail(inbound, leg, Outcome.RESET)
    status, code, message = refusal(answer)
    assert (status, code) == (502, "retry_budget")
    assert "--retry-budget 0 " in message
    assert isinstance(answer, Answer)
    error = json.loads(answer.body)["error"]
    assert (error["limit"], error["value"], error["current"]) == ("retry-budget", 0.0, 0.0)
    assert desk.dispatcher.budget.exhausted == 1


async def test_a_request_that_reached_nobody_is_retried_whatever_the_budget() -> None:
    desk = Desk(share=0.0, floor=0.0)
    inbound, leg = desk.ask()
    assert isinstance(desk.fail(inbound, leg, Outcome.CONNECT_FAILED), RoutedLeg)


async def test_a_request_with_effects_is_not_retried_once_it_was_sent() -> None:
    desk = Desk()
    inbound, leg = desk.ask("/v1/load_lora_adapter")
    assert not leg.repeatable
    status, code, message = refusal(desk.fail(inbound, leg, Outcome.RESET))
    assert (status, code) == (502, "engine_failed")
    assert "--retry-any" in message


async def test_a_request_with_effects_that_reached_nobody_is_retried() -> None:
    desk = Desk()
    inbound, leg = desk.ask("/v1/files")
    second = desk.fail(inbound, leg, Outcome.CONNECT_FAILED)
    assert isinstance(second, RoutedLeg)
    assert not second.repeatable


async def test_retry_any_retries_a_request_with_effects() -> None:
    desk = Desk(any=True)
    inbound, leg = desk.ask("/v1/files")
    assert isinstance(desk.fail(inbound, leg, Outcome.RESET), RoutedLeg)


async def test_a_pinned_request_is_not_retried_elsewhere() -> None:
    desk = Desk()
    inbound, leg = desk.ask("/v1/completions", (b"x-kvctl-worker", b"w1"))
    assert "pinned" in refusal(desk.fail(inbound, leg, Outcome.RESET))[2]


async def test_a_retry_waits_in_the_queue_where_the_others_are_busy() -> None:
    desk = Desk(2, queue=5)
    desk.core.thresholds = BusyThresholds(prefill_tokens=10)
    inbound, leg = desk.ask()
    other = next(worker for worker in desk.core.fleet.workers.values() if worker is not leg.worker)
    occupied = desk.core.loads.book(other.slots[0], 500, 0, None, 0, block_size=16)
    waiting = desk.fail(inbound, leg, Outcome.RESET)
    assert isinstance(waiting, asyncio.Future)
    await asyncio.sleep(0)
    assert not waiting.done()
    occupied.release()
    desk.dispatcher.waiting.poke()
    async with asyncio.timeout(10):
        placed = await waiting
    assert isinstance(placed, RoutedLeg)
    assert placed.worker is other
    placed.end(Outcome.OK, 200)
    assert desk.core.loads.open_bookings == 0


async def test_without_a_queue_a_retry_that_finds_the_others_busy_is_a_502() -> None:
    desk = Desk(2)
    desk.core.thresholds = BusyThresholds(prefill_tokens=10)
    inbound, leg = desk.ask()
    other = next(worker for worker in desk.core.fleet.workers.values() if worker is not leg.worker)
    desk.core.loads.book(other.slots[0], 500, 0, None, 0, block_size=16)
    assert refusal(desk.fail(inbound, leg, Outcome.RESET))[0] == 502


async def test_a_request_that_moves_is_booked_on_the_new_worker_and_not_tried_on_the_old_again() -> None:
    desk = Desk(2)
    inbound, leg = desk.ask()
    other = desk.dispatcher.elsewhere(inbound, leg)
    assert isinstance(other, RoutedLeg)
    assert other.worker is not leg.worker
    leg.end(Outcome.WORKER_DOWN, 0)
    assert desk.dispatcher.elsewhere(inbound, other) is None
    other.end(Outcome.OK, 200)
    assert desk.core.loads.open_bookings == 0


@pytest.mark.parametrize("path", ["/v1/files", "/v1/load_lora_adapter"])
async def test_a_request_with_effects_does_not_move(path: str) -> None:
    desk = Desk()
    inbound, leg = desk.ask(path)
    assert desk.dispatcher.elsewhere(inbound, leg) is None


async def test_a_request_does_not_move_on_an_empty_budget() -> None:
    desk = Desk(share=0.0, floor=0.0)
    inbound, leg = desk.ask()
    assert desk.dispatcher.elsewhere(inbound, leg) is None


async def test_a_worker_that_fails_time_and_again_gets_no_more_requests() -> None:
    desk = Desk(3)
    for _ in range(60):
        _inbound, leg = desk.ask()
        leg.end(Outcome.RESET if leg.worker.id == "w1" else Outcome.OK, 200)
    assert desk.worker(1).circuit is Circuit.OPEN
    chosen = []
    for _ in range(6):
        _inbound, leg = desk.ask()
        chosen.append(leg.worker.id)
        leg.end(Outcome.OK, 200)
    assert set(chosen) == {"w0", "w2"}
    shown = record(leg.decision, desk.core.settings.policies.weights)["candidates"]
    assert [row["why_not"] for row in shown] == [None, "circuit_open", None]


async def test_a_half_open_worker_gets_one_request_until_that_has_ended_well() -> None:
    desk = Desk(2)
    for _ in range(5):
        desk.breaker.ended(desk.worker(1), Outcome.RESET, desk.now, desk.now)
    desk.now += 5
    desk.breaker.tick(desk.now)
    legs = [desk.ask()[1] for _ in range(6)]
    tries = [leg for leg in legs if leg.worker.id == "w1"]
    assert len(tries) == 1
    tries[0].end(Outcome.OK, 200)
    assert desk.worker(1).circuit is Circuit.CLOSED


async def test_a_request_goes_to_an_open_circuit_rather_than_nowhere_and_says_so() -> None:
    desk = Desk(2)
    for _ in range(5):
        desk.breaker.ended(desk.worker(1), Outcome.RESET, desk.now, desk.now)
    desk.worker(0).health = Health.DOWN
    desk.core.fleet.changed()
    _inbound, leg = desk.ask()
    assert leg.worker.id == "w1"
    assert "last_resort" in leg.decision.degraded


@pytest.mark.parametrize("mode", ["least-loaded", "power-of-two", "round-robin", "random", "session", "kv"])
async def test_a_new_worker_gets_its_share_grow_with_time_in_every_mode(mode: str) -> None:
    desk = Desk(3, mode=mode, slow_start=100.0)
    slots = [desk.worker(number).slots[0] for number in range(3)]
    for slot in slots[:2]:
        for _ in range(20):
            desk.core.loads.book(slot, 16, 0, None, 0, block_size=16)
    desk.worker(2).warm_since = desk.now
    desk.core.fleet.changed()
    had = []
    for passed in (10.0, 50.0):
        desk.now = 100.0 + passed
        for _ in range(60):
            desk.ask()
        had.append(int(desk.core.loads.active_requests[slots[2]]))
    others = float(desk.core.loads.active_requests[slots[:2]].mean())
    assert 0 < had[0] < had[1] <= 0.5 * others + 1
