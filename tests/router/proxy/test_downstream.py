"""The client's side of a connection: framing, keep-alive, pipelining, limits, refusals."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from router.proxy.interface import Answer, Inbound, Leg, Limits, Outcome
from tests.router.proxy.scripted import (
    OK,
    PATIENT,
    Message,
    Wire,
    chunks,
    engine_script,
    get,
    post,
    serving,
    stage,
    until,
)


def echo(inbound: Inbound) -> Answer:
    """Answers with what was understood."""
    return Answer(200, b"%b %b %b" % (inbound.method.encode(), inbound.target, inbound.body))


def code(answer: Message) -> str:
    return str(json.loads(answer.body)["error"]["code"])


# Keep-alive.


async def test_http11_connection_is_kept() -> None:
    async with stage(serving(OK)) as scene:
        wire = await scene.client()
        for _ in range(3):
            assert (await wire.ask(post())).body == b"ok"
        assert scene.stats.upstream_opened == 1


async def test_connection_close_is_honoured() -> None:
    async with stage(serving(OK)) as scene:
        wire = await scene.client()
        answer = await wire.ask(post(b"{}", b"Connection: Close"))
        assert answer.one(b"connection") == b"close"
        assert await wire.gone()


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_router_answers_close_the_connection_where_asked(version: bytes) -> None:
    async with stage() as scene:
        scene.placing.choose = echo
        wire = await scene.client()
        answer = await wire.ask(get(b"/a", b"Connection: close", version=version))
        assert answer.one(b"connection") == b"close"
        assert await wire.gone()


async def test_http10_connection_is_closed() -> None:
    async with stage(serving(OK)) as scene:
        wire = await scene.client()
        answer = await wire.ask(get(version=b"1.0"))
        assert (answer.body, answer.one(b"connection")) == (b"ok", b"close")
        assert await wire.gone()


async def test_http10_keep_alive_is_honoured() -> None:
    async with stage(serving(OK)) as scene:
        wire = await scene.client()
        for _ in range(2):
            answer = await wire.ask(get(b"/a", b"Connection: keep-alive", version=b"1.0"))
            assert answer.one(b"connection") == b"keep-alive"


async def test_unused_connection_is_closed_without_a_word() -> None:
    async with stage(timeouts=replace(PATIENT, request=0.05)) as scene:
        wire = await scene.client()
        assert await wire.rest() == b""


async def test_kept_connection_is_closed_when_unused_for_long() -> None:
    async with stage(timeouts=replace(PATIENT, keepalive=0.05)) as scene:
        scene.placing.choose = echo
        wire = await scene.client()
        await wire.ask(get())
        assert await wire.rest() == b""


# Splits and pipelining.


@pytest.mark.parametrize(
    "request_",
    [
        post(b"hello"),
        b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks(b"hel", b"lo"),
        b"\r\n" + post(b"hello"),
    ],
)
async def test_request_that_comes_byte_by_byte_is_understood(request_: bytes) -> None:
    async with stage() as scene:
        scene.placing.choose = echo
        wire = await scene.client()
        await wire.trickle(request_)
        assert (await wire.message()).body.endswith(b" hello")


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with stage() as scene:
        scene.placing.choose = echo
        wire = await scene.client()
        await wire.send(b"".join(get(b"/%d" % index) for index in range(100)))
        for index in range(100):
            assert (await wire.message()).body == b"GET /%d " % index


async def test_pipelined_requests_wait_for_the_one_in_progress() -> None:
    running = most = 0

    async def slowly(inbound: Inbound) -> Answer:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return echo(inbound)

    async with stage() as scene:
        scene.placing.choose = slowly
        wire = await scene.client()
        await wire.send(b"".join(post(b"%d" % index, target=b"/") for index in range(20)))
        bodies = [(await wire.message()).body for _ in range(20)]
        assert (bodies, most) == ([b"POST / %d" % index for index in range(20)], 1)


async def test_flood_of_pipelined_requests_is_not_read_while_one_is_in_progress() -> None:
    go = asyncio.Event()

    async def waits(inbound: Inbound) -> Answer:
        await go.wait()
        return echo(inbound)

    async with stage() as scene:
        scene.placing.choose = waits
        wire = await scene.client()
        flood = get(b"/", b"X-Fill: " + b"x" * 1000) * 20_000
        sending = asyncio.ensure_future(wire.send(flood))
        _, pending = await asyncio.wait([sending], timeout=0.3)
        assert pending, "20 MB were taken without one answer"
        sending.cancel()
        wire.reset()
        go.set()


async def test_answers_that_are_not_read_hold_back_the_next_request() -> None:
    answered = 0

    def large(inbound: Inbound) -> Answer:
        nonlocal answered
        answered += 1
        return Answer(200, b"x" * 1_000_000)

    async with stage(limits=Limits(write_high_water=10_000)) as scene:
        scene.placing.choose = large
        wire = await scene.client()
        await wire.send(get() * 200)
        await asyncio.sleep(0.1)
        assert answered < 100
        for _ in range(200):
            assert len((await wire.message()).body) == 1_000_000


async def test_stream_that_is_not_read_is_not_read_from_the_engine_either() -> None:
    sent = 0

    async def script(wire: Wire) -> None:
        nonlocal sent
        await wire.message()
        await wire.send(b"HTTP/1.1 200 OK\r\ncontent-length: 60000000\r\n\r\n")
        for _ in range(600):
            await wire.send(b"x" * 100_000)
            sent += 1

    async with stage(engine_script(script), limits=Limits(write_high_water=64 * 1024)) as scene:
        wire = await scene.client()
        await wire.send(post())
        await asyncio.sleep(0.3)
        assert sent < 500
        assert len((await wire.message()).body) == 60_000_000
        assert await scene.ends() == [(Outcome.OK, 200)]


# What a request may ask.


async def test_expectation_is_met_before_the_body_is_sent() -> None:
    async with stage() as scene:
        scene.placing.choose = echo
        wire = await scene.client()
        await wire.send(b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert await wire.reader.readexactly(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert (await wire.ask(b"hi")).body == b"POST / hi"


async def test_expectation_with_the_body_already_there_gets_no_interim_answer() -> None:
    async with stage() as scene:
        scene.placing.choose = echo
        assert (await scene.ask(post(b"hi", b"Expect: 100-continue", target=b"/"))).body == b"POST / hi"


async def test_body_too_large_for_the_limit_is_refused_before_it_is_sent() -> None:
    async with stage(limits=Limits(max_body=10)) as scene:
        wire = await scene.client()
        answer = await wire.ask(b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 11\r\n\r\n")
        assert (answer.status, code(answer)) == (413, "body_too_large")
        assert await wire.gone()


async def test_head_request_answered_by_the_router_has_no_body() -> None:
    async with stage() as scene:
        scene.placing.choose = echo
        wire = await scene.client()
        answer = await wire.ask(get(method=b"HEAD"), bodiless=True)
        assert answer.one(b"content-length") == b"16"
        assert (await wire.ask(get())).body == b"GET /v1/models "


async def test_options_of_the_whole_server_is_dispatched() -> None:
    async with stage() as scene:
        scene.placing.choose = echo
        assert (await scene.ask(get(b"*", method=b"OPTIONS"))).body == b"OPTIONS * "


async def test_offer_of_another_protocol_is_not_taken() -> None:
    async with stage() as scene:
        scene.placing.choose = echo
        lines = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAM")
        wire = await scene.client()
        assert (await wire.ask(post(b"abc", *lines, target=b"/"))).body == b"POST / abc"
        assert (await wire.ask(post(b"def", target=b"/"))).body == b"POST / def"


async def test_inbound_tells_what_came() -> None:
    async with stage() as scene:
        scene.placing.choose = echo
        await scene.ask(post(b"{}", b"X-Two: 1", b"x-two:  2 ", target=b"http://h/a%20b?q=1"))
        (inbound,) = scene.placing.inbounds
        assert (inbound.method, inbound.target, inbound.path) == ("POST", b"/a%20b?q=1", "/a%20b")
        assert [pair for pair in inbound.headers if pair[0] == b"x-two"] == [(b"x-two", b"1"), (b"x-two", b"2 ")]
        assert (inbound.http11, inbound.client) == (True, "127.0.0.1")


# Refusals.


@pytest.mark.parametrize(
    ("request_", "status", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 70_000, 431, "head_too_large"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", 431, "head_too_large"),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 100 + b"\r\n", 431, "too_many_headers"),
        (post(b"x" * 1001), 413, "body_too_large"),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks(b"x" * 600, b"x" * 600),
            413,
            "body_too_large",
        ),
        (b"\x16\x03\x01\x02\x00", 400, "bad_request_head"),
        (b"GET / HTTP/1.1\nHost: a\n\n\r\n\r\n", 400, "bad_request_head"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5 \r\nhello\r\n", 400, "bad_chunk"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nExpect: cake\r\n\r\n", 417, "expectation_failed"),
    ],
)
async def test_refusal_is_answered_and_ends_the_connection(request_: bytes, status: int, reason: str) -> None:
    async with stage(limits=Limits(max_body=1000)) as scene:
        wire = await scene.client()
        answer = await wire.ask(request_)
        assert (answer.status, code(answer)) == (status, reason)
        assert answer.one(b"connection") == b"close"
        assert await wire.gone()
        assert (scene.stats.bad_requests, scene.stats.requests) == (1, 0)


async def test_refusal_is_heard_by_a_client_that_sends_all_before_it_listens() -> None:
    async with stage(limits=Limits(max_body=1000)) as scene:
        wire = await scene.client()
        wire.writer.transport.pause_reading()
        await wire.send(post(b"x" * 5_000_000))
        await until(lambda: wire.writer.transport.get_write_buffer_size() == 0)
        wire.writer.transport.resume_reading()
        assert (await wire.message()).status == 413


async def test_request_smuggled_behind_a_refused_one_is_not_read() -> None:
    async with stage() as scene:
        scene.placing.choose = echo
        wire = await scene.client()
        smuggled = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        await wire.send(smuggled + get(b"/admin"))
        assert (await wire.message()).status == 400
        assert await wire.gone()
        assert scene.placing.inbounds == []


async def test_good_request_before_a_bad_one_is_answered_first() -> None:
    async with stage() as scene:
        scene.placing.choose = echo
        wire = await scene.client()
        await wire.send(get(b"/good") + b"bad\r\n\r\n")
        assert (await wire.message()).body == b"GET /good "
        assert (await wire.message()).status == 400


@pytest.mark.parametrize(
    "begun",
    [
        b"GET / HT",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe",
    ],
)
async def test_request_that_stays_incomplete_is_408(begun: bytes) -> None:
    async with stage(timeouts=replace(PATIENT, request=0.05)) as scene:
        wire = await scene.client()
        answer = await wire.ask(begun)
        assert (answer.status, code(answer)) == (408, "request_timeout")
        assert await wire.gone()


async def test_head_begun_on_a_kept_connection_is_held_to_its_own_time() -> None:
    async with stage(timeouts=replace(PATIENT, request=0.3)) as scene:
        scene.placing.choose = echo
        wire = await scene.client()
        assert (await wire.ask(get())).status == 200
        assert (await wire.ask(b"GET / HT")).status == 408


async def test_one_byte_now_and_then_does_not_put_off_the_408() -> None:
    async with stage(timeouts=replace(PATIENT, request=0.1)) as scene:
        wire = await scene.client()
        await wire.send(b"GET / HTTP/1.1\r\nX: ")
        answer = asyncio.ensure_future(wire.message())
        while not answer.done():
            wire.writer.write(b"x")
            await asyncio.sleep(0.01)
        assert (await answer).status == 408


async def test_connection_past_the_limit_is_refused_with_503() -> None:
    async with stage(limits=Limits(max_connections=2)) as scene:
        scene.placing.choose = echo
        kept = [await scene.client() for _ in range(2)]
        for wire in kept:
            assert (await wire.ask(get())).status == 200
        answer = await scene.ask(get())
        assert (answer.status, code(answer), answer.one(b"retry-after")) == (503, "too_many_connections", b"1")
        assert (await kept[0].ask(get())).status == 200


async def test_connection_that_left_makes_room_for_another() -> None:
    async with stage(limits=Limits(max_connections=1)) as scene:
        scene.placing.choose = echo
        for _ in range(3):
            wire = await scene.client()
            assert (await wire.ask(get(b"/", b"Connection: close"))).status == 200
            await wire.gone()
            wire.close()
            await until(lambda: not scene.stats.connections)


async def test_client_that_leaves_inside_a_body_leaves_nothing_behind() -> None:
    async with stage() as scene:
        wire = await scene.client()
        await wire.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf")
        wire.close()
        await until(lambda: not scene.stats.connections)
        assert (scene.stats.requests, scene.placing.inbounds) == (0, [])


async def test_many_idle_streams_are_open_at_once() -> None:
    go = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.message()
        await wire.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n")
        await go.wait()
        await wire.send(b"0\r\n\r\n")
        await wire.gone()

    async with stage(engine_script(script)) as scene:

        async def leg(inbound: Inbound) -> Leg:
            return scene.placing.ticket(scene.placing.endpoints[0])

        scene.placing.choose = leg
        wires = [await scene.client() for _ in range(200)]
        for wire in wires:
            await wire.send(post())
            await wire.head()
        assert scene.stats.open_requests == 200
        go.set()
        for wire in wires:
            assert await wire.reader.readexactly(11) == b"1\r\nx\r\n0\r\n\r\n"
        assert await scene.ends() == [(Outcome.OK, 200)] * 200
