"""The client on real sockets: what is sent, what ends a request, which connections are used again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from bench.client.connection import Pool, Target, clock
from bench.client.timing import Timing
from tests.bench.fakes import STREAM_HEAD, FakeEngine, chunk, plain, read_request, serving, stream_events

BODY = json.dumps({"model": "m", "prompt": [1] * 40, "max_tokens": 3, "stream": True}).encode()


async def request(pool: Pool, url: str) -> Timing:
    target = Target.parse(url)
    done: asyncio.Future[Timing] = asyncio.get_running_loop().create_future()
    finish: Callable[[Timing], None] = done.set_result
    pool.send(target, Timing(clock()), target.head("/v1/completions", len(BODY), "r1") + BODY, finish)
    return await done


async def test_a_streamed_answer_is_measured_to_its_end() -> None:
    pool = Pool()
    async with serving(FakeEngine()) as url:
        timing = await request(pool, url)
    assert timing.ok
    assert (timing.n_out, timing.prompt_tokens, timing.events.content) == (3, 40, 3)
    assert timing.t_sched <= timing.t_send <= timing.t_hdr <= timing.t_first <= timing.t_last <= timing.t_end


async def test_a_connection_is_used_again() -> None:
    pool = Pool()
    async with serving(FakeEngine()) as url:
        for _ in range(3):
            assert (await request(pool, url)).ok
    assert pool.opened == 1


async def test_parallel_requests_open_as_many_connections_as_they_need() -> None:
    pool = Pool()
    async with serving(FakeEngine(answer_delay=0.2)) as url:
        timings = await asyncio.gather(*(request(pool, url) for _ in range(120)))
    assert all(timing.ok for timing in timings)
    assert pool.opened == 120


async def test_bytes_one_by_one_give_the_same_answer() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        wire = STREAM_HEAD + b"\r\n" + b"".join(map(chunk, stream_events(2, 40, 32))) + b"0\r\n\r\n"
        for i in range(len(wire)):
            writer.write(wire[i : i + 1])
            await writer.drain()
            await asyncio.sleep(0)
        await reader.read()

    async with serving(slow) as url:
        timing = await request(Pool(), url)
    assert timing.ok
    assert (timing.n_out, timing.cached_tokens) == (2, 32)


async def test_events_of_several_http_chunks_in_one_read_are_flagged() -> None:
    async def burst(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(STREAM_HEAD + b"\r\n" + b"".join(map(chunk, stream_events(4, 40, None))) + b"0\r\n\r\n")
        await reader.read()

    async with serving(burst) as url:
        timing = await request(Pool(), url)
    assert timing.ok
    assert timing.coalesced == 3


async def test_a_stream_that_the_server_cuts_is_a_failure() -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(STREAM_HEAD + b"\r\n" + chunk(stream_events(4, 40, None)[0]))
        await writer.drain()

    async with serving(cut) as url:
        timing = await request(Pool(), url)
    assert timing.error == "cut"


async def test_a_body_that_ends_with_the_connection_is_whole() -> None:
    async def old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        writer.write(b"".join(stream_events(2, 40, None)))
        await writer.drain()

    async with serving(old) as url:
        timing = await request(Pool(), url)
    assert timing.error is None
    assert timing.ok


async def test_a_refusal_keeps_status_and_reason_and_the_connection() -> None:
    async def busy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(plain(503, {"error": {"message": "nobody"}}))

    pool = Pool()
    async with serving(busy) as url:
        first = await request(pool, url)
        await request(pool, url)
    assert (first.error, first.status) == ("http_503", 503)
    assert "nobody" in first.detail
    assert pool.opened == 1


async def test_an_idle_connection_that_the_server_closed_is_replaced_once() -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(STREAM_HEAD + b"\r\n" + b"".join(map(chunk, stream_events(2, 40, None))) + b"0\r\n\r\n")
        await writer.drain()
        await read_request(reader)

    pool = Pool()
    async with serving(once) as url:
        assert (await request(pool, url)).ok
        again = await request(pool, url)
    assert again.ok
    assert again.retried
    assert pool.retried == 1


async def test_a_new_connection_that_closes_without_an_answer_is_a_failure() -> None:
    async def shut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)

    async with serving(shut) as url:
        timing = await request(Pool(), url)
    assert timing.error == "reset"


async def test_an_address_where_nobody_listens_is_a_failure() -> None:
    async with serving(FakeEngine()) as url:
        pass
    timing = await request(Pool(), url)
    assert timing.error == "connect"


async def test_an_answer_that_is_not_http_is_a_failure() -> None:
    async def noise(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"hello\r\n\r\n")
        await reader.read()

    async with serving(noise) as url:
        timing = await request(Pool(), url)
    assert timing.error == "bad_response"


async def test_the_prefix_of_a_url_is_part_of_the_path() -> None:
    paths: list[str] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        paths.append((await read_request(reader))[1])
        writer.write(plain(404, {}))

    async with serving(note) as url:
        await request(Pool(), url + "/team/a/")
    assert paths == ["/team/a/v1/completions"]
