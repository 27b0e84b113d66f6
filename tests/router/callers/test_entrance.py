"""What keys do to a request on its way: its tenant, its expected tokens, its charge and how that is settled."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace

import pytest

from router.callers.entrance import UNBOUNDED_OUTPUT, Entrance
from router.callers.gate import Gate
from router.callers.keys import Caller
from router.journal.journal import RequestJournal, _taken
from router.journal.record import RequestRecord
from router.legs import RoutedLeg
from router.model import Hints, RouteRequest
from router.proxy.interface import Answer, Inbound, Outcome, Usage
from router.tokens.body import Body, Kind
from tests.router.proxy.scripted import Stage, Wire, engine_script, free_endpoint, post, stage, until

KEY = b"kv-of-a"


def caller(**fields: object) -> Caller:
    return Caller("a", hashlib.sha256(KEY).digest(), "house", **fields)  # type: ignore[arg-type]


class Door:
    def __init__(self, *, tenants: bool = True, **limits: object) -> None:
        self.gate = Gate([caller(**limits)])
        self.entrance = Entrance(self.gate, tenants=tenants)
        self.inbound = Inbound(
            "POST", b"/v1/completions", "/v1/completions", [(b"x-api-key", KEY)], b"x" * 400, True, 1000.0
        )
        self.record = self.inbound.record = RequestRecord(0.0)
        self.entrance.enter(self.inbound)
        self.request = RouteRequest("r1", "m")

    def identify(self, **fields: object) -> None:
        body = Body(Kind.COMPLETIONS, "m", 400, **fields)  # type: ignore[arg-type]
        self.entrance.identify(self.inbound, self.request, "m", body)


def test_callers_tenant_takes_the_place_of_what_the_client_says() -> None:
    door = Door()
    door.request.hints = Hints(tenant="somebody-else", priority=3)
    door.identify()
    assert door.request.hints == Hints(tenant="house", priority=3)


def test_callers_tenant_is_put_where_the_client_says_nothing() -> None:
    door = Door()
    door.identify()
    assert door.request.hints.tenant == "house"


@pytest.mark.parametrize(
    ("fields", "osl", "expected"),
    [
        ({}, None, UNBOUNDED_OUTPUT),
        ({"max_tokens": 10}, None, 10),
        ({"max_tokens": 10, "n": 3}, None, 30),
        ({"max_tokens": 1000}, 50, 50),
        ({"max_tokens": 10}, 50, 10),
        ({"max_tokens": -1}, None, UNBOUNDED_OUTPUT),
    ],
)
def test_expected_output_is_the_least_of_what_bounds_it(
    fields: dict[str, object], osl: int | None, expected: int
) -> None:
    door = Door(tenants=False)
    door.request.hints = replace(door.request.hints, osl=osl)
    door.identify(**fields)
    assert door.record.expected_output == expected


def test_request_is_charged_once_however_often_it_is_placed() -> None:
    door = Door(tokens_per_minute=1000)
    door.identify(max_tokens=10)
    door.request.prompt_tokens = 90
    for _ in range(3):
        door.entrance.charge(door.inbound, door.request)
    (account,) = door.gate.accounts
    assert account.tokens.total == 100


def test_prompt_that_was_not_tokenised_is_charged_by_its_bytes() -> None:
    door = Door(tokens_per_minute=1000)
    door.identify(max_tokens=10)
    door.entrance.charge(door.inbound, door.request)
    (account,) = door.gate.accounts
    assert account.tokens.total == 100 + 10


def test_charge_of_a_request_that_no_engine_began_to_answer_is_given_back() -> None:
    door = Door(tokens_per_minute=1000)
    door.identify(max_tokens=10)
    door.inbound.arrived = 1000.0
    door.entrance.charge(door.inbound, door.request)
    door.record.answer = Answer(502, b"{}")
    RequestJournal().end(door.inbound, door.record)
    (account,) = door.gate.accounts
    assert (account.charged, account.open) == (0, 0)


def let_in(scene: Stage, gate: Gate) -> None:
    entrance = Entrance(gate, tenants=False)

    def choose(inbound: Inbound) -> object:
        entrance.enter(inbound)
        return scene.placing.ticket(scene.placing.endpoints[0])

    scene.placing.choose = choose  # type: ignore[assignment]


@pytest.mark.parametrize("behaviour", ["refused", "gone"])
async def test_open_request_is_closed_whatever_becomes_of_it(behaviour: str) -> None:
    gate = Gate([caller(concurrent_requests=1)])

    async def silent(wire: Wire) -> None:
        await asyncio.sleep(60)

    place = free_endpoint() if behaviour == "refused" else engine_script(silent)
    async with stage(place, journal=RequestJournal()) as scene:
        let_in(scene, gate)
        (account,) = gate.accounts
        if behaviour == "refused":
            assert (await scene.ask(post(b"{}", b"X-Api-Key: " + KEY))).status == 502
        else:
            wire = await scene.client()
            await wire.send(post(b"{}", b"X-Api-Key: " + KEY))
            await until(lambda: account.open == 1)
            wire.writer.transport.abort()
            await until(lambda: account.open == 0)
        assert account.open == 0
        assert account.served == 1


def test_usage_of_the_engine_is_what_counts_in_the_end() -> None:
    record = RequestRecord(0.0)
    record.charge, record.expected_output, record.began, record.outcome = (1000, 500), 400, 1.0, Outcome.OK
    leg = RoutedLeg.__new__(RoutedLeg)
    leg.reported = Usage(40, 7, 0)
    leg.request = RouteRequest("r1", "m")
    assert _taken(record, leg) == 47
