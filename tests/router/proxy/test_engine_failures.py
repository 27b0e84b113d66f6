"""When the engine fails: what the client hears, how the leg ends, who is asked next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from router.proxy.interface import Answer, Endpoint, Inbound, Leg, Outcome
from router.proxy.relay import MAX_LEGS
from tests.router.proxy.scripted import (
    OK,
    PATIENT,
    Bind,
    Script,
    Wire,
    code,
    deaf_endpoint,
    engine_script,
    free_endpoint,
    get,
    post,
    serving,
    stage,
)

PARTIAL = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf"
PARTIAL_CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhe"
PARTIAL_UNFRAMED = b"HTTP/1.1 200 OK\r\n\r\nhalf"


async def resets(wire: Wire) -> None:
    await wire.message()
    wire.reset()


async def hangs_up(wire: Wire) -> None:
    await wire.message()


async def hangs(wire: Wire) -> None:
    await wire.message()
    await wire.gone()


# Before the first byte.


async def test_refused_connection_is_retried_on_the_next_worker() -> None:
    async with stage(free_endpoint(), serving(OK)) as scene:
        assert (await scene.ask(post())).body == b"ok"
        assert await scene.ends() == [(Outcome.CONNECT_FAILED, 0), (Outcome.OK, 200)]
        assert scene.stats.retries == 1


@pytest.mark.parametrize("script", [resets, hangs_up])
async def test_connection_lost_before_the_first_byte_is_retried(script: Script) -> None:
    async with stage(engine_script(script), serving(OK)) as scene:
        assert (await scene.ask(post(b"precious"))).body == b"ok"
        assert await scene.ends() == [(Outcome.RESET, 0), (Outcome.OK, 200)]
        assert scene.placing.retries == [Outcome.RESET]
        assert (scene.stats.upstream_opened, scene.stats.upstream_refreshed) == (2, 0)


HEAD_ALONE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("how", [Wire.reset, Wire.close])
async def test_an_engine_that_dies_after_the_head_of_a_stream_has_not_begun_and_is_retried(
    how: Callable[[Wire], None],
) -> None:
    async def dies_while_computing(wire: Wire) -> None:
        await wire.message()
        await wire.send(HEAD_ALONE)
        await asyncio.sleep(0.05)
        how(wire)

    async with stage(engine_script(dies_while_computing), serving(OK)) as scene:
        assert (await scene.ask(post())).body == b"ok"
        assert await scene.ends() == [(Outcome.RESET, 0), (Outcome.OK, 200)]


async def test_a_head_whose_body_never_begins_is_a_first_byte_timeout() -> None:
    async def only_a_head(wire: Wire) -> None:
        await wire.message()
        await wire.send(HEAD_ALONE)
        await wire.gone()

    async with stage(engine_script(only_a_head), timeouts=replace(PATIENT, first_byte=0.3)) as scene:
        answer = await scene.ask(post())
        assert (answer.status, code(answer)) == (504, "engine_timeout")
        assert await scene.ends() == [(Outcome.FIRST_BYTE_TIMEOUT, 0)]


async def test_an_unframed_answer_without_a_body_is_whole_when_the_engine_closes() -> None:
    async def bare(wire: Wire) -> None:
        await wire.message()
        await wire.send(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.sleep(0.05)
        wire.close()

    async with stage(engine_script(bare)) as scene:
        answer = await scene.ask(post())
        assert (answer.status, answer.body) == (200, b"")
        assert await scene.ends() == [(Outcome.OK, 200)]


async def test_host_that_does_not_resolve_is_a_failed_connect() -> None:
    async with stage(Endpoint("no-such-host.invalid", 80)) as scene:
        assert (await scene.ask(post())).status == 502
        assert await scene.ends() == [(Outcome.CONNECT_FAILED, 0)]


async def test_answer_of_retry_is_what_the_client_hears() -> None:
    async with stage(free_endpoint()) as scene:
        answer = await scene.ask(post())
        assert (answer.status, code(answer), answer.one(b"x-kvctl-worker")) == (502, "engine_unreachable", b"w1")


async def test_legs_of_one_request_are_bounded() -> None:
    async with stage(*[free_endpoint()] * (MAX_LEGS + 5)) as scene:
        answer = await scene.ask(post())
        assert (answer.status, code(answer)) == (502, "engine_unreachable")
        assert await scene.ends() == [(Outcome.CONNECT_FAILED, 0)] * MAX_LEGS


async def test_retry_that_raises_is_answered_with_500() -> None:
    async with stage(free_endpoint()) as scene:

        def broken(inbound: Inbound, failed: Leg, outcome: Outcome) -> Answer:
            raise RuntimeError("no idea")

        scene.placing.retry = broken  # type: ignore[method-assign]
        answer = await scene.ask(post())
        assert (answer.status, code(answer)) == (500, "internal_error")
        assert await scene.ends() == [(Outcome.CONNECT_FAILED, 0)]


async def test_connect_that_takes_too_long_is_retried() -> None:
    with deaf_endpoint() as deaf:
        async with stage(deaf, serving(OK), timeouts=replace(PATIENT, connect=0.4)) as scene:
            assert (await scene.ask(post())).body == b"ok"
            assert (await scene.ends())[0] == (Outcome.CONNECT_TIMEOUT, 0)


async def test_a_first_byte_that_does_not_come_in_time_is_asked_of_the_next_worker() -> None:
    async with stage(engine_script(hangs), serving(OK), timeouts=replace(PATIENT, first_byte=0.2)) as scene:
        assert (await scene.ask(post())).body == b"ok"
        assert await scene.ends() == [(Outcome.FIRST_BYTE_TIMEOUT, 0), (Outcome.OK, 200)]


async def test_error_after_a_leg_names_the_worker() -> None:
    async with stage(engine_script(hangs), timeouts=replace(PATIENT, first_byte=0.05)) as scene:
        assert (await scene.ask(post())).one(b"x-kvctl-worker") == b"w1"


async def test_connection_goes_on_after_a_gateway_error() -> None:
    async with stage(engine_script(hangs), timeouts=replace(PATIENT, first_byte=0.05)) as scene:
        wire = await scene.client()
        assert (await wire.ask(post())).status == 504
        assert (await wire.ask(post())).status == 504


# An idle connection that the engine has closed.


def stale(fresh_too: bool = False) -> Bind:
    """Answers the first request of the first connection, then resets whatever comes next there."""
    seen = 0

    async def script(wire: Wire) -> None:
        nonlocal seen
        seen += 1
        if seen == 1 or fresh_too:
            if seen == 1:
                await wire.message()
                await wire.send(OK)
            await wire.message()
            wire.reset()
            return
        while True:
            await wire.message()
            await wire.send(OK)

    return engine_script(script)


async def test_reused_connection_found_dead_is_replaced_without_ending_the_leg() -> None:
    async with stage(stale()) as scene:
        wire = await scene.client()
        assert (await wire.ask(post())).body == b"ok"
        assert (await wire.ask(post())).body == b"ok"
        assert await scene.ends() == [(Outcome.OK, 200)] * 2
        assert (scene.stats.upstream_refreshed, scene.stats.retries) == (1, 0)


async def test_fresh_connection_that_is_reset_too_ends_the_leg() -> None:
    async with stage(stale(fresh_too=True)) as scene:
        wire = await scene.client()
        await wire.ask(post())
        assert (await wire.ask(post())).status == 502
        assert await scene.ends() == [(Outcome.OK, 200), (Outcome.RESET, 0)]
        assert scene.stats.upstream_opened == 2


# After the first byte.


def breaks_off(answer: bytes, how: str = "close") -> Bind:
    async def script(wire: Wire) -> None:
        await wire.message()
        await wire.send(answer)
        if how == "reset":
            await asyncio.sleep(0.02)
            wire.reset()

    return engine_script(script)


async def test_answer_cut_short_of_its_length_ends_early_for_the_client() -> None:
    async with stage(breaks_off(PARTIAL), serving(OK)) as scene:
        wire = await scene.client()
        await wire.send(post())
        await wire.head()
        assert await wire.rest() == b"half"
        assert await scene.ends() == [(Outcome.CUT, 200)]
        assert scene.placing.retries == []


async def test_stream_cut_inside_a_chunk_ends_without_last_chunk() -> None:
    async with stage(breaks_off(PARTIAL_CHUNKED, "reset")) as scene:
        wire = await scene.client()
        await wire.send(post())
        await wire.head()
        assert await wire.rest() == b"5\r\nhe"
        assert await scene.ends() == [(Outcome.CUT, 200)]


async def test_unframed_answer_that_is_reset_reaches_the_client_as_a_reset() -> None:
    async with stage(breaks_off(PARTIAL_UNFRAMED, "reset")) as scene:
        wire = await scene.client()
        await wire.send(post())
        with pytest.raises(ConnectionResetError):
            await wire.message()
        assert await scene.ends() == [(Outcome.CUT, 200)]


async def test_http10_client_of_a_cut_stream_is_reset() -> None:
    async with stage(breaks_off(PARTIAL_CHUNKED)) as scene:
        wire = await scene.client()
        await wire.send(get(version=b"1.0"))
        with pytest.raises(ConnectionResetError):
            await wire.message()
        assert await scene.ends() == [(Outcome.CUT, 200)]


async def test_connection_lost_inside_the_head_is_502_and_not_retried() -> None:
    async with stage(breaks_off(b"HTTP/1.1 200 OK\r\nconte"), serving(OK)) as scene:
        answer = await scene.ask(post())
        assert (answer.status, code(answer)) == (502, "engine_cut")
        assert await scene.ends() == [(Outcome.CUT, 0)]


async def test_connection_lost_after_an_interim_response_is_not_retried() -> None:
    async with stage(breaks_off(b"HTTP/1.1 100 Continue\r\n\r\n"), serving(OK)) as scene:
        assert (await scene.ask(post())).status == 502
        assert await scene.ends() == [(Outcome.CUT, 0)]


async def test_stall_inside_a_stream_closes_both_sides() -> None:
    closed = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.message()
        await wire.send(PARTIAL)
        await wire.gone()
        closed.set()

    async with stage(engine_script(script), timeouts=replace(PATIENT, idle=0.05)) as scene:
        wire = await scene.client()
        await wire.send(post())
        await wire.head()
        assert await wire.rest() == b"half"
        await closed.wait()
        assert await scene.ends() == [(Outcome.IDLE_TIMEOUT, 200)]


async def test_stall_inside_the_head_is_504() -> None:
    async def script(wire: Wire) -> None:
        await wire.message()
        await wire.send(b"HTTP/1.1 20")
        await wire.gone()

    async with stage(engine_script(script), timeouts=replace(PATIENT, idle=0.05)) as scene:
        assert (await scene.ask(post())).status == 504
        assert await scene.ends() == [(Outcome.IDLE_TIMEOUT, 0)]


@pytest.mark.parametrize(
    "garbage",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x16\x03\x01\x02",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
        b"HTTP/1.1 20x OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nNo colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000,
    ],
)
async def test_garbage_instead_of_http_is_502(garbage: bytes) -> None:
    async def script(wire: Wire) -> None:
        await wire.message()
        await wire.send(garbage)
        await wire.gone()

    async with stage(engine_script(script)) as scene:
        answer = await scene.ask(post())
        assert (answer.status, code(answer)) == (502, "engine_bad_response")
        assert await scene.ends() == [(Outcome.BAD_RESPONSE, 0)]


async def test_broken_chunk_after_the_head_ends_the_stream_early() -> None:
    begun = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.message()
        await wire.send(PARTIAL_CHUNKED)
        await begun.wait()
        await wire.send(b"y\r\nnot hex\r\nmore")

    async with stage(engine_script(script)) as scene:
        wire = await scene.client()
        await wire.send(post())
        await wire.head()
        begun.set()
        assert await wire.rest() == b"5\r\nhe"
        assert await scene.ends() == [(Outcome.BAD_RESPONSE, 200)]


async def test_broken_chunk_in_the_first_packet_is_502() -> None:
    async with stage(breaks_off(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n")) as scene:
        assert (await scene.ask(post())).status == 502
        assert await scene.ends() == [(Outcome.BAD_RESPONSE, 0)]


async def test_bytes_behind_the_answer_are_not_passed_on_nor_the_connection_used_again() -> None:
    async with stage(serving(OK + b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison")) as scene:
        wire = await scene.client()
        assert (await wire.ask(post())).body == b"ok"
        assert (await wire.ask(post())).body == b"ok"
        assert scene.stats.upstream_opened == 2


async def test_engine_that_speaks_unasked_on_an_idle_connection_loses_it() -> None:
    answered, closed = asyncio.Event(), asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.message()
        await wire.send(OK)
        if not answered.is_set():
            await answered.wait()
            await wire.send(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison")
            await wire.gone()
            closed.set()

    async with stage(engine_script(script)) as scene:
        wire = await scene.client()
        assert (await wire.ask(post())).body == b"ok"
        answered.set()
        await closed.wait()
        assert (await wire.ask(post())).body == b"ok"


async def test_engine_that_answers_before_the_body_is_sent_is_heard() -> None:
    async def script(wire: Wire) -> None:
        await wire.head()
        await wire.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
        await wire.gone()

    async with stage(engine_script(script)) as scene:
        answer = await scene.ask(post(b"x" * 20_000_000))
        assert (answer.status, answer.body) == (413, b"no")
        assert await scene.ends() == [(Outcome.OK, 413)]
