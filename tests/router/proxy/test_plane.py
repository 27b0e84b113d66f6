"""Starting, stopping, draining, and forgetting a worker."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from router.proxy.interface import Answer, Endpoint, Inbound, Limits, Outcome, PlaneStats, Timeouts
from router.proxy.plane import DataPlane
from tests.router.proxy.scripted import OK, PATIENT, Placing, Wire, engine_script, get, post, serving, stage, until


async def test_port_in_use_is_an_oserror() -> None:
    async with stage() as scene:
        other = DataPlane(Placing(), Timeouts(), Limits(), PlaneStats())
        with pytest.raises(OSError, match="in use"):
            await other.start("127.0.0.1", scene.port)


async def test_start_returns_the_address_taken() -> None:
    plane = DataPlane(Placing(), Timeouts(), Limits(), PlaneStats())
    host, port = await plane.start("127.0.0.1", 0)
    _, writer = await asyncio.open_connection(host, port)
    writer.close()
    await plane.stop(0)


async def test_stopping_twice_is_harmless() -> None:
    async with stage() as scene:
        await scene.plane.stop(0)
        await scene.plane.stop(0)


async def test_stopped_plane_takes_no_connections() -> None:
    async with stage() as scene:
        await scene.plane.stop(0)
        with pytest.raises(ConnectionRefusedError):
            await scene.client()


def held(go: asyncio.Event, asked: asyncio.Event) -> object:
    async def script(wire: Wire) -> None:
        while True:
            await wire.message()
            await wire.send(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n")
            await wire.send(b"ha")
            asked.set()
            await go.wait()
            await wire.send(b"lf")

    return script


async def test_stop_lets_a_running_request_end() -> None:
    go, asked = asyncio.Event(), asyncio.Event()
    async with stage(engine_script(held(go, asked))) as scene:  # type: ignore[arg-type]
        wire = await scene.client()
        await wire.send(post())
        await asked.wait()
        stopping = asyncio.ensure_future(scene.plane.stop(20))
        await asyncio.sleep(0)
        go.set()
        assert (await wire.message()).body == b"half"
        assert await wire.gone()
        await stopping
        assert await scene.ends() == [(Outcome.OK, 200)]


async def test_stop_cuts_what_is_running_when_the_drain_is_over() -> None:
    go, asked = asyncio.Event(), asyncio.Event()
    async with stage(engine_script(held(go, asked))) as scene:  # type: ignore[arg-type]
        wire = await scene.client()
        await wire.send(post())
        await asked.wait()
        await scene.plane.stop(0.02)
        assert await scene.ends() == [(Outcome.CUT, 200)]
        assert (scene.stats.open_requests, scene.stats.connections) == (0, 0)


async def test_stop_cancels_a_dispatch_that_waits() -> None:
    async with stage() as scene:

        async def waits(inbound: Inbound) -> Answer:
            await asyncio.Event().wait()
            raise AssertionError

        scene.placing.choose = waits
        wire = await scene.client()
        await wire.send(post())
        await until(lambda: scene.placing.inbounds)
        await scene.plane.stop(0.02)
        assert await wire.gone()
        assert scene.stats.open_requests == 0


async def test_stop_closes_idle_connections_at_once() -> None:
    async with stage(serving(OK)) as scene:
        wire = await scene.client()
        await wire.ask(post())
        await scene.plane.stop(20)
        assert await wire.rest() == b""


async def test_request_that_is_incomplete_when_the_stop_begins_is_refused() -> None:
    async with stage() as scene:
        wire = await scene.client()
        await wire.send(b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        await wire.reader.readuntil(b"\r\n\r\n")
        await scene.plane.stop(20)
        answer = await wire.message()
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (503, "shutting_down")


async def test_answer_given_while_draining_closes_the_connection() -> None:
    go = asyncio.Event()

    async def waits(inbound: Inbound) -> Answer:
        await go.wait()
        return Answer(200, b"{}")

    async with stage() as scene:
        scene.placing.choose = waits
        wire = await scene.client()
        await wire.send(get() * 2)
        await until(lambda: scene.placing.inbounds)
        stopping = asyncio.ensure_future(scene.plane.stop(20))
        await asyncio.sleep(0)
        go.set()
        assert (await wire.message()).one(b"connection") == b"close"
        assert await wire.rest() == b""
        await stopping
        assert len(scene.placing.inbounds) == 1


async def test_forgotten_worker_loses_its_idle_connections() -> None:
    closed = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.message()
        await wire.send(OK)
        await wire.gone()
        closed.set()

    async with stage(engine_script(script)) as scene:
        await scene.ask(post())
        scene.plane.forget(scene.placing.endpoints[0])
        await closed.wait()


async def test_connection_in_use_when_its_worker_is_forgotten_is_closed_after_its_request() -> None:
    go, asked, closed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.message()
        asked.set()
        await go.wait()
        await wire.send(OK)
        await wire.gone()
        closed.set()

    async with stage(engine_script(script)) as scene:
        wire = await scene.client()
        await wire.send(post())
        await asked.wait()
        scene.plane.forget(scene.placing.endpoints[0])
        go.set()
        assert (await wire.message()).body == b"ok"
        await closed.wait()


async def test_forgetting_an_unknown_worker_is_harmless() -> None:
    async with stage() as scene:
        scene.plane.forget(Endpoint("nowhere", 1))


async def test_idle_upstream_connections_are_bounded() -> None:
    go = asyncio.Event()

    async def script(wire: Wire) -> None:
        while True:
            await wire.message()
            await go.wait()
            await wire.send(OK)

    async with stage(engine_script(script), limits=Limits(idle_per_endpoint=2)) as scene:
        wires = [await scene.client() for _ in range(5)]
        for wire in wires:
            await wire.send(post())
        await until(lambda: len(scene.placing.tickets) == 5)
        go.set()
        for wire in wires:
            await wire.message()
        assert scene.plane.pool(scene.placing.endpoints[0]).idle == 2


async def test_idle_upstream_connection_is_closed_after_a_while() -> None:
    async with stage(serving(OK), timeouts=replace(PATIENT, pool_idle=0.05)) as scene:
        await scene.ask(post())
        pool = scene.plane.pool(scene.placing.endpoints[0])
        await until(lambda: not pool.idle)


async def test_connection_used_last_is_used_next() -> None:
    numbers: list[int] = []
    count = 0

    async def script(wire: Wire) -> None:
        nonlocal count
        count += 1
        number = count
        while True:
            await wire.message()
            numbers.append(number)
            await wire.send(OK)

    async with stage(engine_script(script)) as scene:
        first, second = await scene.client(), await scene.client()
        await first.send(post())
        await second.send(post())
        await first.message()
        await second.message()
        last = numbers[-1]
        for _ in range(3):
            await first.ask(post())
        assert len(set(numbers[2:])) == 1
        assert numbers[2] in (1, 2) and last in (1, 2)


async def test_connection_that_an_engine_closes_while_idle_is_not_used() -> None:
    async def script(wire: Wire) -> None:
        await wire.message()
        await wire.send(OK)

    async with stage(engine_script(script)) as scene:
        wire = await scene.client()
        pool = scene.plane.pool(scene.placing.endpoints[0])
        for _ in range(3):
            assert (await wire.ask(post())).body == b"ok"
            await until(lambda: not pool.idle)
        assert (scene.stats.upstream_opened, scene.stats.upstream_reused) == (3, 0)


async def test_gauges_return_to_zero() -> None:
    async with stage(serving(OK)) as scene:
        for _ in range(3):
            wire = await scene.client()
            await wire.ask(post())
            wire.close()
        await until(lambda: not scene.stats.connections)
        assert (scene.stats.requests, scene.stats.open_requests) == (3, 0)
        assert scene.stats.outcomes == {"ok": 3}
