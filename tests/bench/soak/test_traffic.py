"""The soak's client: how it judges what a server does to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from bench.soak.traffic import End, Kind, Traffic, TrafficSettings

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
DONE = b"data: {}\n\ndata: [DONE]\n\n"


async def end_of(kind: Kind, script: Script, **settings: object) -> tuple[End, str]:
    """How a request of a kind ends at a server that does `script` once the request has come."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
        await reader.readexactly(int(length.split(b":")[1]))
        try:
            await script(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    traffic = Traffic(f"http://127.0.0.1:{port}", TrafficSettings(**settings))  # type: ignore[arg-type]
    traffic._chance.choices = lambda *_all, **_named: [kind]  # type: ignore[method-assign]
    async with asyncio.timeout(30), server:
        await traffic._one()
    ((found, times),) = traffic.tally.ends.items()
    assert (found[0], times, traffic.tally.open) == (kind, 1, 0)
    return End(found[1]), (traffic.tally.wrong or [""])[0]


def says(data: bytes) -> Script:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return script


def framed(body: bytes, status: int = 200) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


def chunked(body: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n%b" % (len(body), body, end)


async def test_a_whole_stream_is_ok() -> None:
    assert await end_of(Kind.STREAM, says(chunked(DONE))) == (End.OK, "")


async def test_a_stream_that_ends_properly_but_without_its_last_event_is_wrong() -> None:
    end, words = await end_of(Kind.STREAM, says(chunked(b"data: {}\n\n")))
    assert end is End.WRONG
    assert "without its end" in words


async def test_a_stream_that_breaks_off_is_cut() -> None:
    assert (await end_of(Kind.STREAM, says(chunked(DONE, end=b""))))[0] is End.CUT


async def test_a_body_shorter_than_its_length_is_cut() -> None:
    assert (await end_of(Kind.WHOLE, says(framed(b"{}" * 10)[:-3])))[0] is End.CUT


@pytest.mark.parametrize("status", [500, 502, 503, 504, 529, 404])
async def test_an_error_before_the_answer_has_begun_is_wrong(status: int) -> None:
    end, words = await end_of(Kind.STREAM, says(framed(b"sorry", status)))
    assert end is End.WRONG
    assert str(status) in words


async def test_a_connection_that_ends_before_the_head_is_wrong() -> None:
    assert (await end_of(Kind.STREAM, says(b"HTTP/1.1 200")))[0] is End.WRONG


async def test_an_answer_that_never_comes_is_wrong() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    assert (await end_of(Kind.WHOLE, silent, patience=0.2))[0] is End.WRONG


async def test_a_body_that_stops_coming_is_stalled() -> None:
    async def stalls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(chunked(DONE, end=b""))
        await reader.read()

    assert (await end_of(Kind.STREAM, stalls, stall=0.2))[0] is End.STALLED


async def test_a_broken_body_that_is_not_refused_is_wrong() -> None:
    assert (await end_of(Kind.BAD, says(framed(b"{}"))))[0] is End.WRONG
    assert (await end_of(Kind.BAD, says(framed(b"{}", 400))))[0] is End.OK


async def test_an_answer_with_other_than_the_tokens_asked_for_is_wrong() -> None:
    body = json.dumps({"usage": {"completion_tokens": 10_000}}).encode()
    assert (await end_of(Kind.WHOLE, says(framed(body))))[0] is End.WRONG
