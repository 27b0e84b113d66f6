"""The dispatcher after a stream broke: who goes on with it, with what request, what is booked, counted and kept."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from router.admission import AdmissionSettings
from router.core import CoreSettings, RoutingCore
from router.dispatch import RequestDispatcher
from router.fleet.monitor import FleetMonitor
from router.fleet.worker import Health
from router.legs import RoutedLeg
from router.metrics import RouterStats
from router.migration_settings import MigrationSettings
from router.model import WorkerSpec
from router.model_tokens import ModelTokens
from router.proxy.interface import Answer, Inbound, Outcome
from router.reading import DispatchSettings
from router.records import DecisionLog, summary
from router.retry import RetrySettings
from router.tokens.body import Body, Kind

PROMPT = list(range(40))


class Desk:
    """A dispatcher with three workers that are up."""

    def __init__(
        self,
        limit: int = 1,
        *,
        mode: str = "kv",
        buffer: int = 1 << 20,
        texts: dict[int, str] | None = None,
        **retry: Any,
    ) -> None:
        self.now = 100.0
        self.core = RoutingCore(CoreSettings(seed=1))
        for number in range(3):
            worker = self.core.fleet.add(WorkerSpec(url=f"http://w{number}:1", id=f"w{number}", model="m"))
            worker.health, worker.capacity_blocks, worker.block_size = Health.UP, 1000, 16
            worker.max_model_len = 4096
            self.core.add_slots()
        self.core.fleet.changed()
        settings = DispatchSettings(
            mode=mode,
            admission=AdmissionSettings(0, 5.0),
            retry=replace(RetrySettings(), **retry),
            migration=MigrationSettings(limit, buffer),
        )
        monitor = FleetMonitor(self.core.fleet, None)  # type: ignore[arg-type]
        monitor.connection_failed = lambda worker, why: None  # type: ignore[method-assign]
        monitor.suspect = lambda worker: None  # type: ignore[method-assign]
        tokens = ModelTokens(self.core.fleet, None)
        tokens.text = lambda model, ids: (texts or {}).get(len(ids))  # type: ignore[method-assign]
        self.stats = RouterStats()
        self.dispatcher = RequestDispatcher(
            self.core, monitor, tokens, DecisionLog(), self.stats, settings, lambda: self.now
        )
        assert self.dispatcher.migrations is not None
        self.migrations = self.dispatcher.migrations

    def ask(self, *headers: tuple[bytes, bytes], **fields: Any) -> tuple[Inbound, RoutedLeg]:
        body = json.dumps({"model": "m", "prompt": PROMPT, "stream": True, "max_tokens": 50} | fields).encode()
        path = "/v1/completions"
        inbound = Inbound("POST", path.encode() + b"?a=1", path, list(headers), body, True, 0.0)
        leg = self.dispatcher.dispatch(inbound)
        assert isinstance(leg, RoutedLeg), leg
        return inbound, leg

    def broken(self, inbound: Inbound, leg: RoutedLeg, outcome: Outcome = Outcome.CUT) -> Any:
        leg.end(outcome, 200)
        return self.dispatcher.go_on(inbound, leg, outcome)


def saw(inbound: Inbound, *tokens: tuple[str, list[int]], prompt: list[int] | None = None) -> None:
    """Events of an engine."""
    assert inbound.carry is not None
    for index, (text, ids) in enumerate(tokens):
        told = PROMPT if prompt is None else prompt
        choice = {"text": text, "token_ids": ids, "prompt_token_ids": None if index else told}
        event = {"id": "a", "created": 1, "model": "m", "choices": [choice]}
        inbound.carry.wire([b"data: %b\n\n" % json.dumps(event).encode()], False)


def test_a_broken_stream_goes_on_at_another_worker_with_all_its_tokens() -> None:
    desk = Desk()
    inbound, leg = desk.ask()
    saw(inbound, (" a", [7]), (" b", [8]))
    other = desk.broken(inbound, leg)
    assert isinstance(other, RoutedLeg)
    assert other.worker is not leg.worker
    body = json.loads(inbound.body)
    assert body["prompt"] == [*PROMPT, 7, 8]
    assert body["max_tokens"] == 48
    assert inbound.target == b"/v1/completions?a=1"


def test_the_decision_says_where_the_stream_comes_from_and_the_old_one_where_it_went() -> None:
    desk = Desk()
    inbound, leg = desk.ask()
    saw(inbound, (" a", [7]), (" b", [8]))
    other = desk.broken(inbound, leg)
    assert summary(other.decision)["migration"] == {
        "from": leg.worker.id,
        "decision": leg.decision.id,
        "cause": "cut",
        "carried_tokens": 2,
        "went_on": None,
    }
    assert summary(leg.decision)["migration"] == {"went_on": other.decision.id}
    assert other.decision.request_id == leg.decision.request_id


def test_a_decision_without_a_broken_stream_says_nothing_of_it() -> None:
    _inbound, leg = Desk().ask()
    assert summary(leg.decision)["migration"] is None


def test_the_extended_prompt_is_what_is_looked_up_and_booked() -> None:
    desk = Desk()
    inbound, leg = desk.ask()
    saw(inbound, *((f" {number}", [number]) for number in range(30)))
    other = desk.broken(inbound, leg)
    assert other.decision.prompt_tokens == 70
    assert [len(keys) for keys in other.request.keys.values()] == [70 // 16]
    assert other.booking.prompt_tokens == 70
    assert desk.core.loads.open_bookings == 1
    other.end(Outcome.OK, 200)
    assert desk.core.loads.open_bookings == 0


def test_blocks_of_the_extended_prompt_draw_the_stream_to_their_worker() -> None:
    desk = Desk()
    inbound, leg = desk.ask()
    saw(inbound, *((f" {number}", [number]) for number in range(30)))
    ids = [*PROMPT, *range(30)]
    away = next(w for w in ("w2", "w1") if w != leg.worker.id)
    keys = desk.core.keys_for(Body(Kind.COMPLETIONS, "m", 0, ids=np.array(ids, np.uint32)).ids)[16]
    slot = desk.core.fleet.workers[away].slots[0]
    desk.core.predictions.add(slot, keys, desk.now, ttl=60.0)
    other = desk.broken(inbound, leg)
    assert other.worker.id == away
    assert other.decision.predicted_cached_tokens == 64


def test_a_mode_without_tokens_goes_on_without_them() -> None:
    desk = Desk(mode="round-robin")
    inbound, leg = desk.ask(prompt="text")
    saw(inbound, (" a", [7]))
    other = desk.broken(inbound, leg)
    assert other.worker is not leg.worker
    assert (other.decision.prompt_tokens, other.request.keys) == (0, {})


def test_the_time_to_the_first_token_is_that_of_the_first_leg_and_counted_once() -> None:
    desk = Desk()
    inbound, leg = desk.ask()
    desk.now += 1.0
    leg.first_token()
    saw(inbound, (" a", [7]))
    desk.now += 5.0
    other = desk.broken(inbound, leg)
    desk.now += 1.0
    other.first_token()
    assert other.first_at == 101.0
    assert sum(desk.stats.ttft.counts) == 1


def test_a_stream_of_which_nothing_was_sent_is_asked_for_again_as_it_was() -> None:
    desk = Desk()
    inbound, leg = desk.ask()
    before = inbound.body, inbound.target
    other = desk.broken(inbound, leg)
    assert other.worker is not leg.worker
    assert (inbound.body, inbound.target) == before
    assert dict(desk.migrations.outcomes) == {"restarted": 1}


def test_a_leg_that_never_began_is_placed_again_and_costs_no_second_move() -> None:
    desk = Desk(limit=1)
    inbound, leg = desk.ask()
    saw(inbound, (" a", [7]))
    second = desk.broken(inbound, leg)
    body = inbound.body
    third = desk.broken(inbound, second, Outcome.CONNECT_FAILED)
    assert {leg.worker.id, second.worker.id, third.worker.id} == {"w0", "w1", "w2"}
    assert inbound.body == body


def why(desk: Desk, answer: object) -> list[str]:
    assert isinstance(answer, Answer)
    assert desk.core.loads.open_bookings == 0
    return list(desk.migrations.outcomes)


def test_the_limit_is_how_often_one_stream_goes_on() -> None:
    desk = Desk(limit=1)
    inbound, leg = desk.ask()
    saw(inbound, (" a", [7]))
    second = desk.broken(inbound, leg)
    saw(inbound, (" b", [8]))
    assert why(desk, desk.broken(inbound, second)) == ["moved", "limit"]


def test_where_all_workers_have_failed_it_ends() -> None:
    desk = Desk(limit=9)
    inbound, leg = desk.ask()
    for token in (7, 8, 9):
        saw(inbound, (" a", [token]))
        leg = desk.broken(inbound, leg)
    assert why(desk, leg) == ["moved", "no_worker"]


def test_the_retry_budget_holds_for_it() -> None:
    desk = Desk(share=0.0, floor=0.0)
    inbound, leg = desk.ask()
    saw(inbound, (" a", [7]))
    assert why(desk, desk.broken(inbound, leg)) == ["retry_budget"]


def test_past_the_buffer_it_ends() -> None:
    desk = Desk(buffer=100)
    inbound, leg = desk.ask()
    saw(inbound, (" a", [7]))
    assert why(desk, desk.broken(inbound, leg)) == ["buffer"]


def test_an_engine_that_tells_no_ids_leaves_nothing_to_go_on_with() -> None:
    desk = Desk()
    inbound, leg = desk.ask()
    saw(inbound, (" a", []))
    assert why(desk, desk.broken(inbound, leg)) == ["no_token_ids"]


def test_where_nothing_is_left_to_generate_it_ends() -> None:
    desk = Desk()
    inbound, leg = desk.ask(max_tokens=1)
    saw(inbound, (" a", [7]))
    assert why(desk, desk.broken(inbound, leg)) == ["nothing_left"]


@pytest.mark.parametrize(("fields", "reason"), [({"n": 2}, "choices"), ({"echo": True}, "echo")])
def test_a_stream_that_is_not_followed_is_counted_and_again_if_it_breaks(fields: dict[str, Any], reason: str) -> None:
    desk = Desk()
    inbound, leg = desk.ask(**fields)
    assert inbound.carry is None
    assert b"return_token_ids" not in inbound.body
    assert dict(desk.migrations.unfollowed) == {reason: 1}
    leg.end(Outcome.CUT, 200)
    assert dict(desk.migrations.outcomes) == {reason: 1}


def test_a_pinned_stream_is_not_followed() -> None:
    desk = Desk()
    inbound, _leg = desk.ask((b"x-kvctl-worker", b"w1"))
    assert inbound.carry is None
    assert dict(desk.migrations.unfollowed) == {"pinned": 1}


def test_an_answer_that_is_no_stream_is_left_alone() -> None:
    desk = Desk()
    inbound, _leg = desk.ask(stream=False)
    assert inbound.carry is None
    assert not desk.migrations.unfollowed and b"return_token_ids" not in inbound.body


async def settled(answer: Any) -> Any:
    return await asyncio.wait_for(answer, 10.0)


async def test_several_tokens_in_one_event_are_cut_back_to_a_whole_character() -> None:
    desk = Desk(texts={3: "ab\ufffd", 2: "ab"})
    inbound, leg = desk.ask()
    saw(inbound, ("ab", [7, 8, 9]))
    other = await settled(desk.broken(inbound, leg))
    assert isinstance(other, RoutedLeg)
    assert json.loads(inbound.body)["prompt"] == [*PROMPT, 7, 8]


async def test_without_anybody_who_knows_the_text_it_ends() -> None:
    desk = Desk()
    inbound, leg = desk.ask()
    saw(inbound, ("ab", [7, 8, 9]))
    assert why(desk, await settled(desk.broken(inbound, leg))) == ["no_detokenizer"]


async def test_with_stop_strings_it_goes_on_behind_the_text_that_was_kept_back() -> None:
    desk = Desk(texts={2: " ab"})
    inbound, leg = desk.ask(stop=["STOP"])
    saw(inbound, (" a", [7]), ("", [8]))
    other = await settled(desk.broken(inbound, leg))
    assert isinstance(other, RoutedLeg)
    assert json.loads(inbound.body)["prompt"] == [*PROMPT, 7, 8]
