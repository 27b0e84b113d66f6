"""When the client leaves or the dispatcher fails: who is let go, what the client hears."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from router.proxy.interface import Answer, Inbound, Leg, Limits, Outcome
from tests.router.proxy.scripted import (
    OK,
    PATIENT,
    Wire,
    code,
    deaf_endpoint,
    engine_script,
    post,
    serving,
    stage,
    until,
)

PARTIAL = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf"
PARTIAL_CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhe"
PARTIAL_UNFRAMED = b"HTTP/1.1 200 OK\r\n\r\nhalf"


# The client leaves.


def leaving(wire: Wire, how: str) -> None:
    if how == "reset":
        wire.reset()
    elif how == "half":
        wire.writer.write_eof()
    else:
        wire.close()


@pytest.mark.parametrize("how", ["close", "reset", "half"])
@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\ncon", PARTIAL, PARTIAL_CHUNKED])
async def test_client_that_leaves_takes_the_upstream_connection_along(how: str, sent: bytes) -> None:
    asked, closed = asyncio.Event(), asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.message()
        if sent:
            await wire.send(sent)
        asked.set()
        await wire.gone()
        closed.set()

    async with stage(engine_script(script), serving(OK)) as scene:
        wire = await scene.client()
        await wire.send(post())
        await asked.wait()
        if b"\r\n\r\n" in sent:
            await wire.head()
        leaving(wire, how)
        await closed.wait()
        assert [outcome for outcome, _ in await scene.ends()] == [Outcome.CLIENT_GONE]
        assert (scene.stats.open_requests, scene.placing.retries) == (0, [])


async def test_client_that_leaves_while_the_engine_is_connected_to_ends_the_leg() -> None:
    with deaf_endpoint() as deaf:
        async with stage(deaf) as scene:
            wire = await scene.client()
            await wire.send(post())
            await until(lambda: scene.placing.tickets)
            wire.close()
            assert await scene.ends() == [(Outcome.CLIENT_GONE, 0)]


async def test_client_that_leaves_cancels_a_waiting_dispatch() -> None:
    cancelled = asyncio.Event()

    async def waits() -> Answer:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        raise AssertionError

    async with stage() as scene:
        scene.placing.choose = lambda inbound: waits()
        wire = await scene.client()
        await wire.send(post())
        await until(lambda: scene.placing.inbounds)
        wire.close()
        await cancelled.wait()
        assert scene.stats.open_requests == 0


@pytest.mark.parametrize("how", ["close", "reset", "half"])
async def test_client_that_leaves_in_any_way_cancels_a_waiting_dispatch(how: str) -> None:
    ended = asyncio.Event()

    async def waits() -> Answer:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    async with stage() as scene:
        scene.placing.choose = lambda inbound: waits()
        wire = await scene.client()
        await wire.send(post())
        await until(lambda: scene.placing.inbounds)
        leaving(wire, how)
        await ended.wait()
        await until(lambda: scene.stats.open_requests == 0)


async def test_client_that_leaves_while_its_large_body_goes_to_the_engine_ends_the_leg() -> None:
    closed = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.head()
        await wire.gone()
        closed.set()

    async with stage(engine_script(script)) as scene:
        wire = await scene.client()
        await wire.send(post(b"x" * 30_000_000))
        await until(lambda: scene.placing.tickets)
        wire.reset()
        await closed.wait()
        assert [outcome for outcome, _ in await scene.ends()] == [Outcome.CLIENT_GONE]


async def test_client_that_leaves_with_requests_pipelined_leaves_none_behind() -> None:
    asked, closed = asyncio.Event(), asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.message()
        asked.set()
        await wire.gone()
        closed.set()

    async with stage(engine_script(script)) as scene:
        wire = await scene.client()
        await wire.send(post() * 5)
        await asked.wait()
        wire.close()
        await closed.wait()
        await until(lambda: not scene.stats.connections)
        assert (scene.stats.requests, scene.stats.open_requests) == (1, 0)


async def test_leg_that_a_dispatch_books_though_cancelled_is_ended() -> None:
    async with stage(serving(OK)) as scene:

        async def stubborn() -> Leg:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return scene.placing.ticket(scene.placing.endpoints[0])
            raise AssertionError

        scene.placing.choose = lambda inbound: stubborn()
        wire = await scene.client()
        await wire.send(post())
        await until(lambda: scene.placing.inbounds)
        wire.close()
        await until(lambda: scene.placing.tickets)
        assert await scene.ends() == [(Outcome.CLIENT_GONE, 0)]


async def test_client_that_takes_nothing_is_given_up() -> None:
    async def script(wire: Wire) -> None:
        await wire.message()
        await wire.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n")
        while True:
            await wire.send(b"x" * 100_000)

    limits = Limits(write_high_water=64 * 1024)
    async with stage(engine_script(script), timeouts=replace(PATIENT, idle=0.5), limits=limits) as scene:
        wire = await scene.client()
        await wire.send(post())
        assert await scene.ends() == [(Outcome.CLIENT_GONE, 200)]


# The dispatcher fails.


async def test_dispatch_that_raises_is_answered_with_500_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with stage() as scene:

        def broken(inbound: Inbound) -> Answer:
            raise RuntimeError("no idea")

        scene.placing.choose = broken
        with caplog.at_level(logging.ERROR):
            answer = await scene.ask(post())
        assert (answer.status, code(answer)) == (500, "internal_error")
        assert len(caplog.records) == 1
        assert scene.stats.faults == 1


async def test_awaited_dispatch_that_raises_is_answered_with_500() -> None:
    async with stage() as scene:

        async def broken() -> Answer:
            await asyncio.sleep(0)
            raise RuntimeError("no idea")

        scene.placing.choose = lambda inbound: broken()
        assert (await scene.ask(post())).status == 500
        assert scene.stats.open_requests == 0


async def test_awaited_dispatch_that_was_cancelled_is_answered_with_503() -> None:
    async with stage() as scene:

        async def gives_up() -> Answer:
            raise asyncio.CancelledError

        scene.placing.choose = lambda inbound: gives_up()
        answer = await scene.ask(post())
        assert (answer.status, answer.one(b"retry-after")) == (503, b"1")


async def test_awaited_leg_is_taken() -> None:
    async with stage(serving(OK)) as scene:

        async def later() -> Leg:
            await asyncio.sleep(0)
            return scene.placing.ticket(scene.placing.endpoints[0])

        scene.placing.choose = lambda inbound: later()
        assert (await scene.ask(post())).body == b"ok"
