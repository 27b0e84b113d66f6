"""How long one connection of a client is used."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace

import pytest

from router.proxy.interface import Limits
from tests.router.proxy.scripted import OK, PATIENT, Wire, engine_script, get, post, serving, stage
from tests.router.proxy.test_downstream import echo


async def test_connection_ends_with_its_last_request() -> None:
    async with stage(serving(OK), limits=Limits(max_requests=3)) as scene:
        wire = await scene.client()
        closes = [(await wire.ask(post())).all(b"connection") for _ in range(3)]
        assert closes == [[], [], [b"close"]]
        assert await wire.gone()


async def test_connection_ends_with_its_last_answer_of_the_router() -> None:
    async with stage(limits=Limits(max_requests=2)) as scene:
        scene.placing.choose = echo
        wire = await scene.client()
        assert [(await wire.ask(get())).all(b"connection") for _ in range(2)] == [[], [b"close"]]
        assert await wire.gone()


async def test_requests_pipelined_behind_the_last_are_not_read() -> None:
    async with stage(serving(OK), limits=Limits(max_requests=2)) as scene:
        wire = await scene.client()
        await wire.send(post() * 5)
        await wire.message()
        assert (await wire.message()).one(b"connection") == b"close"
        assert await wire.gone()
        assert scene.stats.requests == 2


async def test_old_connection_ends_with_its_next_answer() -> None:
    async with stage(serving(OK), timeouts=replace(PATIENT, max_age=0.05)) as scene:
        wire = await scene.client()
        await asyncio.sleep(0.1)
        assert (await wire.ask(post())).one(b"connection") == b"close"
        assert await wire.gone()


async def test_running_stream_outlives_the_age() -> None:
    async def script(wire: Wire) -> None:
        await wire.message()
        await wire.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no")
        await asyncio.sleep(0.1)
        await wire.send(b"k")

    async with stage(engine_script(script), timeouts=replace(PATIENT, max_age=0.02)) as scene:
        assert (await scene.ask(post())).body == b"ok"


async def test_without_limits_a_connection_is_kept() -> None:
    async with stage(serving(OK)) as scene:
        wire = await scene.client()
        assert [(await wire.ask(post())).all(b"connection") for _ in range(20)] == [[]] * 20


# Slow ones.


@pytest.mark.parametrize("chunked", [False, True])
async def test_client_that_reads_next_to_nothing_holds_up_its_engine_and_little_memory(chunked: bool) -> None:
    """The engine could send only what the kernel's buffers and the router's own limit take, out of 200 MB."""
    sent = 0

    async def script(wire: Wire) -> None:
        nonlocal sent
        await wire.message()
        piece = b"x" * 65_536
        framing = b"transfer-encoding: chunked" if chunked else b"content-length: %d" % (3200 * len(piece))
        await wire.send(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % framing)
        for _ in range(3200):
            await wire.send(b"10000\r\n%b\r\n" % piece if chunked else piece)
            sent += len(piece)

    limit = 64 * 1024
    loop = asyncio.get_running_loop()
    async with stage(engine_script(script), limits=Limits(write_high_water=limit)) as scene:
        with socket.socket() as slow:
            slow.setblocking(False)
            await loop.sock_connect(slow, ("127.0.0.1", scene.port))
            await loop.sock_sendall(slow, post())
            before = [-1] * 10
            while sent == 0 or sent != before[0]:
                assert await loop.sock_recv(slow, 1)
                before = [*before[1:], sent]
                await asyncio.sleep(0.02)
            (client,) = scene.plane._clients
            assert client.transport is not None
            held = client.transport.get_write_buffer_size()
            assert 0 < held <= limit + 2 * 256 * 1024
            assert sent < 40_000_000


async def test_half_closed_client_that_does_not_take_its_answer_is_not_waited_for_without_end() -> None:
    async def script(wire: Wire) -> None:
        await wire.message()
        await wire.send(b"HTTP/1.1 200 OK\r\ncontent-length: 20000000\r\n\r\n" + b"x" * 20_000_000)

    timeouts = replace(PATIENT, idle=0.1)
    async with stage(engine_script(script), timeouts=timeouts, limits=Limits(write_high_water=50_000_000)) as scene:
        wire = await scene.client()
        wire.writer.transport.pause_reading()
        await wire.send(post())
        await scene.ends()
        wire.writer.write_eof()
        async with asyncio.timeout(20):
            while scene.stats.connections:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
