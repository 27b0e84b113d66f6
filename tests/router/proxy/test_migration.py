"""Streams that break under the data plane and go on at another engine, over sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from router.proxy.bodies import ChunkScanner
from router.proxy.interface import Answer, Inbound, Leg, Outcome
from router.proxy.migration import Carry
from tests.router.proxy.scripted import (
    PATIENT,
    Bind,
    Stage,
    Wire,
    chunks,
    engine_script,
    free_endpoint,
    post,
    serving,
    stage,
    until,
)
from tests.router.proxy.streams import COUNT, behind_the_role, events, stream

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def followed(scene: Stage, chat: bool = False) -> None:
    """Every request is one whose stream may go on elsewhere."""

    def choose(inbound: Inbound) -> Leg:
        inbound.carry = Carry(raw=inbound.body, chat=chat, strip=True, limit_bytes=1 << 20, include_usage=True)
        return scene.placing.ticket(scene.placing.endpoints[0])

    scene.placing.choose = choose


async def resets(wire: Wire) -> None:
    await asyncio.sleep(0.02)
    wire.reset()


async def hangs_up(wire: Wire) -> None:
    wire.close()


async def breaks_its_chunks(wire: Wire) -> None:
    await asyncio.sleep(0.02)
    await wire.send(b"nonsense\r\n")


async def ends_too_early(wire: Wire) -> None:
    await wire.send(b"0\r\n\r\n")


async def cuts_an_event(wire: Wire) -> None:
    await wire.send(b'22\r\ndata: {"id":"x-1","object":"')
    wire.close()


async def says_it_is_dead(wire: Wire) -> None:
    await wire.send(chunk(b'data: {"error":{"message":"EngineCore died","code":500}}\n\n'))
    await wire.gone()


ENDS = [resets, hangs_up, breaks_its_chunks, ends_too_early, cuts_an_event, says_it_is_dead]


def breaking(chat: bool, tokens: int, how: Callable[[Wire], Awaitable[None]], trickle: bool = False) -> Bind:
    """An engine whose stream breaks behind so many tokens."""

    async def script(wire: Wire) -> None:
        await wire.message()
        sent = b"".join(chunk(event) for event in stream(chat)[: tokens + chat])
        await (wire.trickle(HEAD + sent) if trickle else wire.send(HEAD + sent))
        await how(wire)

    return engine_script(script)


def rest(chat: bool, tokens: int) -> bytes:
    found = stream(chat, tokens, name="y-2") if tokens or not chat else behind_the_role()
    return HEAD + chunks(*found)


def unbroken(chat: bool) -> list[dict[str, Any]]:
    return events(b"".join(stream(chat, told=False)))


def same(body: bytes, chat: bool) -> bool:
    """Whether it is the whole answer, each token once; what was cached may differ."""
    found, expected = events(body), unbroken(chat)
    for event in (found[-1], expected[-1]):
        event["usage"].pop("prompt_tokens_details")
    return found == expected and body.endswith(b"data: [DONE]\n\n") and body.count(b"[DONE]") == 1


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("tokens", range(1, COUNT))
@pytest.mark.parametrize("how", ENDS)
async def test_broken_behind_any_token_in_any_way_the_client_gets_the_unbroken_answer(
    chat: bool, tokens: int, how: Callable[[Wire], Awaitable[None]]
) -> None:
    async with stage(breaking(chat, tokens, how), serving(rest(chat, tokens))) as scene:
        followed(scene, chat)
        answer = await scene.ask(post())
        assert same(answer.body, chat)
        outcomes = [outcome for outcome, _status in await scene.ends()]
        assert outcomes[1:] == [Outcome.OK] and outcomes[0] is not Outcome.OK
        assert [ticket.tokens for ticket in scene.placing.tickets] == [1, 1]


@pytest.mark.parametrize("chat", [False, True])
async def test_split_at_every_byte_it_is_the_same(chat: bool) -> None:
    async with stage(breaking(chat, 3, hangs_up, trickle=True), serving(rest(chat, 3))) as scene:
        followed(scene, chat)
        assert same((await scene.ask(post())).body, chat)


async def test_a_chat_that_broke_behind_its_role_says_the_role_once() -> None:
    async with stage(breaking(True, 0, hangs_up), serving(rest(True, 0))) as scene:
        followed(scene, chat=True)
        assert same((await scene.ask(post())).body, True)


async def test_an_engine_that_falls_silent_is_left() -> None:
    async def hangs(wire: Wire) -> None:
        await wire.gone()

    engines = breaking(False, 3, hangs), serving(rest(False, 3))
    async with stage(*engines, timeouts=replace(PATIENT, idle=0.2)) as scene:
        followed(scene)
        assert same((await scene.ask(post())).body, False)
        assert scene.placing.retries == [Outcome.IDLE_TIMEOUT]


async def test_a_client_of_http_1_0_gets_it_unframed() -> None:
    async with stage(breaking(False, 3, hangs_up), serving(rest(False, 3))) as scene:
        followed(scene)
        request = post().replace(b"HTTP/1.1", b"HTTP/1.0")
        assert same((await scene.ask(request)).body, False)


async def test_the_connection_can_be_used_again() -> None:
    async with stage(breaking(False, 3, hangs_up), serving(rest(False, 3))) as scene:
        followed(scene)
        wire = await scene.client()
        assert same((await wire.ask(post())).body, False)
        scene.placing.choose = lambda inbound: Answer(200, b"second")
        assert (await wire.ask(post())).body == b"second"


async def test_the_head_names_the_first_worker_and_comes_once() -> None:
    async with stage(breaking(False, 3, hangs_up), serving(rest(False, 3))) as scene:
        followed(scene)
        wire = await scene.client()
        await wire.send(post())
        answer = await wire.message()
        assert answer.all(b"x-kvctl-worker") == [b"w1"]
        assert b"HTTP/1.1" not in answer.body


async def test_where_only_the_end_is_missing_nobody_else_is_asked() -> None:
    async with stage(breaking(False, COUNT, resets)) as scene:
        followed(scene)
        assert same((await scene.ask(post())).body, False)
        assert (scene.placing.retries, scene.stats.completed) == ([], 1)


async def test_where_nobody_goes_on_the_client_gets_whole_events_and_no_end() -> None:
    async with stage(breaking(False, 3, cuts_an_event)) as scene:
        followed(scene)
        wire = await scene.client()
        await wire.send(post())
        await wire.head()
        raw, payload = await wire.rest(), list[bytes]()
        scanner = ChunkScanner()
        assert scanner.feed(raw, payload) == len(raw)
        assert not scanner.done
        assert b"".join(payload) == b"".join(stream(False, told=False)[:3])


async def test_where_nobody_goes_on_an_engines_last_words_are_passed_on() -> None:
    async with stage(breaking(False, 3, says_it_is_dead)) as scene:
        followed(scene)
        answer = await scene.ask(post())
        assert events(answer.body)[-1]["error"]["message"] == "EngineCore died"
        assert answer.body.endswith(b"data: [DONE]\n\n")


async def test_an_engine_that_cannot_be_reached_is_not_the_last() -> None:
    async with stage(breaking(False, 3, hangs_up), free_endpoint(), serving(rest(False, 3))) as scene:
        followed(scene)
        assert same((await scene.ask(post())).body, False)
        assert scene.placing.retries == [Outcome.CUT, Outcome.CONNECT_FAILED]


@pytest.mark.parametrize("status", [b"400 Bad Request", b"500 Internal Server Error", b"503 Service Unavailable"])
async def test_what_is_no_stream_is_not_passed_on_in_the_middle_of_one(status: bytes) -> None:
    refusal = b"HTTP/1.1 " + status + b"\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    async with stage(breaking(False, 3, hangs_up), serving(refusal), serving(rest(False, 3))) as scene:
        followed(scene)
        assert same((await scene.ask(post())).body, False)


async def test_a_client_that_leaves_while_another_worker_is_sought_ends_the_search() -> None:
    async with stage(breaking(False, 3, hangs_up)) as scene:
        followed(scene)
        sought: asyncio.Future[Answer | Leg] = asyncio.get_running_loop().create_future()
        scene.placing.choose_again = lambda inbound: sought
        wire = await scene.client()
        await wire.send(post())
        await until(lambda: scene.placing.retries)
        wire.reset()
        await until(sought.cancelled)
        assert scene.stats.open_requests == 0


async def test_a_client_that_leaves_a_stream_that_went_on_closes_the_second_engine() -> None:
    left = asyncio.Event()

    async def waits(wire: Wire) -> None:
        await wire.message()
        await wire.send(HEAD + chunk(stream(False, 3)[0]))
        await wire.gone()
        left.set()

    async with stage(breaking(False, 3, hangs_up), engine_script(waits)) as scene:
        followed(scene)
        wire = await scene.client()
        await wire.send(post())
        await until(lambda: len(scene.placing.tickets) == 2 and scene.placing.tickets[1].tokens)
        wire.reset()
        await left.wait()
        assert [outcome for outcome, _ in await scene.ends()] == [Outcome.CUT, Outcome.CLIENT_GONE]


async def test_an_error_while_another_worker_is_sought_ends_the_stream_and_is_counted() -> None:
    async with stage(breaking(False, 3, hangs_up)) as scene:
        followed(scene)

        def fails(inbound: Inbound) -> Leg:
            raise RuntimeError("a fault")

        scene.placing.choose_again = fails
        wire = await scene.client()
        await wire.send(post())
        assert not (await wire.rest()).endswith(b"0\r\n\r\n")
        assert scene.stats.faults == 1


async def test_an_engine_that_goes_on_for_a_client_that_cannot_take_more_is_not_read() -> None:
    begun = asyncio.Event()

    async def goes_on(wire: Wire) -> None:
        await wire.message()
        await wire.send(HEAD + chunk(stream(False, 3)[0]))
        await begun.wait()
        await wire.send(chunks(*stream(False, 3)[1:]))
        await wire.gone()

    async def waits(wire: Wire) -> None:
        await wire.gone()

    async with stage(breaking(False, 3, waits), engine_script(goes_on)) as scene:
        followed(scene)
        wire = await scene.client()
        await wire.send(post())
        await until(lambda: scene.placing.tickets and scene.placing.tickets[0].tokens)
        (client,) = scene.plane._clients
        client.pause_writing()
        connection = client._exchange._connection  # type: ignore[union-attr]
        assert connection is not None
        connection.fail(Outcome.IDLE_TIMEOUT)
        await until(lambda: len(scene.placing.tickets) == 2 and scene.placing.tickets[1].tokens)
        begun.set()
        await asyncio.sleep(0.1)
        assert not scene.placing.tickets[1].ends
        client.resume_writing()
        assert same((await wire.message()).body, False)


async def test_a_router_that_is_told_to_stop_still_lets_a_stream_go_on() -> None:
    stopping = asyncio.Event()

    async def breaks_while_stopping(wire: Wire) -> None:
        await stopping.wait()
        wire.close()

    async with stage(breaking(False, 3, breaks_while_stopping), serving(rest(False, 3))) as scene:
        followed(scene)
        wire = await scene.client()
        await wire.send(post())
        await until(lambda: scene.placing.tickets and scene.placing.tickets[0].tokens)
        stop = asyncio.ensure_future(scene.plane.stop(20.0))
        await until(lambda: scene.plane.draining)
        stopping.set()
        assert same((await wire.message()).body, False)
        await stop


async def test_what_is_no_stream_is_passed_on_byte_for_byte() -> None:
    answer = (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 20\r\n\r\n" + b'{"token_ids":[1, 2]}'
    )
    async with stage(serving(answer)) as scene:
        followed(scene)
        assert json.loads((await scene.ask(post())).body) == {"token_ids": [1, 2]}
