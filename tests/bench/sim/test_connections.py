"""The engine's HTTP connections: keep-alive, pipelining, bodies, what is not HTTP."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any
from urllib.parse import urlsplit

import pytest

from bench.sim.http import Connection, Exchange, Server
from tests.bench.sim.test_http import IDS, connect, events, raw_post


class QuietTransport(asyncio.Transport):
    """Takes what is written."""

    def write(self, data: bytes | bytearray | memoryview) -> None: ...

    def resume_reading(self) -> None: ...


async def answered(reader: asyncio.StreamReader) -> Any:
    """The body of the next whole answer."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return json.loads(await asyncio.wait_for(reader.readexactly(length), 10))


async def test_one_connection_serves_many_requests_even_pipelined(start_engine: Any) -> None:
    engine = await start_engine()
    reader, writer = await connect(engine)
    bodies = [{"prompt": IDS, "max_tokens": count} for count in (1, 2, 3)]
    writer.write(b"".join(raw_post("/v1/completions", body) for body in bodies))
    counts = [(await answered(reader))["usage"]["completion_tokens"] for _ in bodies]
    writer.close()
    assert counts == [1, 2, 3]


async def test_a_connection_that_idles_after_an_answer_is_closed(start_engine: Any) -> None:
    reader, writer = await connect(await start_engine(keep_alive=0.05))
    writer.write(raw_post("/v1/completions", {"prompt": IDS, "max_tokens": 1}))
    await answered(reader)
    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()


async def test_a_connection_that_waits_for_its_answer_is_not_idle(start_engine: Any) -> None:
    reader, writer = await connect(await start_engine(keep_alive=0.05, decode_ms=20))
    writer.write(raw_post("/v1/completions", {"prompt": IDS, "max_tokens": 10}))
    assert (await answered(reader))["usage"]["completion_tokens"] == 10
    writer.close()


async def test_a_connection_is_idle_from_its_reply_to_the_next_data() -> None:
    exchanges: list[Exchange] = []
    connection = Connection(exchanges.append, set())
    connection.connection_made(QuietTransport())
    idle = [connection.idle_since]
    for _ in range(2):
        connection.data_received(b"GET / HTTP/1.1\r\n\r\n")
        idle.append(connection.idle_since)
        exchanges.pop().json({})
        idle.append(connection.idle_since)
    assert [math.isfinite(since) for since in idle] == [False, False, True, False, True]


async def test_without_a_keep_alive_timeout_an_idle_connection_stays(start_engine: Any) -> None:
    reader, writer = await connect(await start_engine(keep_alive=0))
    for _ in range(2):
        writer.write(raw_post("/v1/completions", {"prompt": IDS, "max_tokens": 1}))
        await answered(reader)
        await asyncio.sleep(0.2)
    assert not reader.at_eof()
    writer.close()


async def test_a_chunked_request_body_is_read(start_engine: Any) -> None:
    engine = await start_engine()

    async def parts() -> Any:
        yield b'{"prompt": "x", '
        yield b'"max_tokens": 2}'

    answer = await engine.client.post("/v1/completions", content=parts())
    assert answer.json()["usage"]["completion_tokens"] == 2


async def test_an_old_client_gets_an_unchunked_stream_and_a_closed_connection(start_engine: Any) -> None:
    engine = await start_engine()
    reader, writer = await connect(engine)
    writer.write(raw_post("/v1/completions", {"prompt": IDS, "max_tokens": 2, "stream": True}, "1.0"))
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert len(events(body.decode())) == 3


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"NONSENSE\r\n\r\n", b" 400 "),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 70_000 + b"\r\n\r\n", b" 431 "),
    ],
)
async def test_what_is_not_http_is_refused_and_closed(start_engine: Any, data: bytes, status: bytes) -> None:
    reader, writer = await connect(await start_engine())
    writer.write(data)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    assert status in answer.split(b"\r\n")[0]


async def test_a_taken_port_is_named(start_engine: Any) -> None:
    engine = await start_engine()
    port = urlsplit(engine.address.url).port
    with pytest.raises(OSError):
        await Server(lambda exchange: None).listen("127.0.0.1", port)
