"""Requests that wait for answers, hang up by plan, or carry headers; and what a next turn says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from bench.client.bodies import Api, BodyStyle
from bench.client.connection import Target
from bench.client.load import BlockRun, LoadGenerator
from bench.workload.model import Request, Role, WorkloadError
from bench.workload.tokens import Piece, PieceText, Vocabulary
from tests.bench.client.scripted_sse import DONE, delta, text
from tests.bench.fakes import STREAM_HEAD, FakeEngine, Handler, chunk, read_request, serving

TEXT = PieceText(Vocabulary())


def turn(name: str, session: str = "s", after: str | None = None, **more: Any) -> Request:
    return Request(name, session, 0, "g", 0, 0.0, 2, (Piece(1, 40),), after=after, **more)


async def run(url: str, requests: Sequence[Request], **style: Any) -> BlockRun:
    generator = LoadGenerator(TEXT, timeout=10)
    try:
        style = {"model": "m"} | style
        return await generator.run(requests, Target.parse(url), BodyStyle(**style), label="b0")
    finally:
        generator.pool.close()


def answering(events: list[bytes], seen: list[dict[str, Any]] | None = None) -> Handler:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            _, _, body = await read_request(reader)
            if seen is not None:
                seen.append(json.loads(body))
            writer.write(STREAM_HEAD + b"\r\n" + b"".join(map(chunk, events)) + b"0\r\n\r\n")

    return handler


async def test_a_turn_is_due_a_think_time_after_the_end_of_the_answer_before_it() -> None:
    requests = [turn("a"), turn("b", after="a", think=0.05), turn("c", after="b", think=0.02)]
    async with serving(FakeEngine(answer_delay=0.03)) as url:
        block = await run(url, requests)
    a, b, c = block.timings
    assert b.t_sched == a.t_end + 0.05
    assert c.t_sched == b.t_end + 0.02
    assert b.sched_lag >= 0
    assert all(timing.ok for timing in block.timings)


async def test_the_turns_after_a_failed_one_are_not_sent_and_count_as_failed() -> None:
    engine = FakeEngine(fail_every=2)
    requests = [turn("a"), turn("b", after="a"), turn("c", after="b"), turn("d", after="c")]
    async with serving(engine) as url:
        block = await run(url, requests)
    assert [timing.error for timing in block.timings] == [None, "http_500", "previous_failed", "previous_failed"]
    assert len(engine.seen) == 2


async def test_another_session_of_the_same_user_goes_on_after_a_failure() -> None:
    async with serving(FakeEngine(fail_every=2)) as url:
        block = await run(url, [turn("a"), turn("b", after="a"), turn("c", "other", after="b")])
    assert [timing.error for timing in block.timings] == [None, "http_500", None]


async def test_a_closed_loop_of_two_users_has_two_requests_in_flight_at_most() -> None:
    now, most = 0, 0

    async def busy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal now, most
        while True:
            await read_request(reader)
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.005)
            now -= 1
            writer.write(STREAM_HEAD + b"\r\n" + chunk(text("a", "length") + DONE) + b"0\r\n\r\n")

    requests = [turn(f"r{i}", f"s{i}", after=f"r{i - 2}" if i > 1 else None) for i in range(20)]
    async with serving(busy) as url:
        block = await run(url, requests)
    assert all(timing.ok for timing in block.timings)
    assert most == 2


async def test_a_turn_that_waits_for_nobody_is_refused() -> None:
    with pytest.raises(WorkloadError, match="no earlier request"):
        await run("http://127.0.0.1:9", [turn("a", after="x")])


async def test_a_planned_abort_closes_the_connection_after_so_many_chunks() -> None:
    closed = asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(STREAM_HEAD + b"\r\n")
        for _ in range(3):
            writer.write(chunk(text("a")))
        await reader.read()
        closed.set()

    async with serving(endless) as url:
        block = await run(url, [turn("a", abort_after=3)])
        await asyncio.wait_for(closed.wait(), 10)
    timing = block.timings[0]
    assert (timing.ok, timing.aborted, timing.events.content) == (True, True, 3)


async def test_the_turn_after_an_aborted_one_is_sent() -> None:
    async with serving(answering([text("a"), text("b"), text("c", "length"), DONE])) as url:
        block = await run(url, [turn("a", abort_after=1), turn("b", after="a")])
    assert [timing.error for timing in block.timings] == [None, None]
    assert block.timings[0].aborted


async def test_session_priority_and_own_headers_are_sent() -> None:
    heads: list[str] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())

    async with serving(note) as url:
        await run(url, [turn("a", "s7", priority=5, headers=(("x-tenant-id", "t"),))])
    assert {"x-session-id: b0-s7", "x-kvctl-priority: 5", "x-tenant-id: t"} <= set(heads[0].split("\r\n"))


TALK = (Piece(1, 3), Piece(2, 3), Piece(3, 2), Piece(4, 3))
ROLES = (Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.USER)


def talk() -> list[Request]:
    first = Request("a", "s", 0, "g", 0, 0.0, 2, TALK[:2], roles=ROLES[:2])
    return [first, Request("b", "s", 1, "g", 0, 0.0, 2, TALK, after="a", roles=ROLES)]


@pytest.mark.parametrize(("api", "field"), [(Api.CHAT, "messages"), (Api.RESPONSES, "input")])
async def test_a_conversation_goes_out_as_messages_that_grow(api: Api, field: str) -> None:
    seen: list[dict[str, Any]] = []
    async with serving(answering([delta(content="hi"), delta("stop")], seen)) as url:
        await run(url, talk(), api=api)
    first, second = (body[field] for body in seen)
    assert [message["role"] for message in second] == ["system", "user", "assistant", "user"]
    assert second[:2] == first
    assert len(second[0]["content"].split()) == 3


async def test_real_answers_take_the_place_of_planned_ones() -> None:
    seen: list[dict[str, Any]] = []
    async with serving(answering([delta(content="good "), delta(content="day"), delta("stop")], seen)) as url:
        await run(url, talk(), api=Api.CHAT, real_answers=True)
    assert seen[1]["messages"][2] == {"role": "assistant", "content": "good day"}


async def test_the_nonce_stands_before_the_first_message() -> None:
    seen: list[dict[str, Any]] = []
    async with serving(answering([delta(content="a"), delta("stop")], seen)) as url:
        await run(url, talk(), api=Api.CHAT, lead=(Piece(9, 16),))
    words = seen[0]["messages"][0]["content"].split()
    assert len(words) == 16 + 3


async def test_words_share_what_ids_share() -> None:
    seen: list[dict[str, Any]] = []
    requests = [
        Request("a", "s", 0, "g", 0, 0.0, 2, (Piece(1, 5), Piece(2, 5))),
        Request("b", "t", 0, "g", 0, 0.0, 2, (Piece(1, 5), Piece(3, 5)), after="a"),
    ]
    async with serving(answering([text("a", "length")], seen)) as url:
        await run(url, requests, words=True)
    one, other = (body["prompt"].split() for body in seen)
    assert one[:5] == other[:5]
    assert one[5:] != other[5:]


async def test_a_text_of_its_own_is_sent_as_it_is() -> None:
    seen: list[dict[str, Any]] = []
    quoted = 'He said "no".\nThen é.'
    async with serving(answering([text("a", "length")], seen)) as url:
        await run(url, [Request("a", "s", 0, "g", 0, 0.0, 2, (Piece(1, 5, quoted),))])
    assert seen[0]["prompt"] == quoted


async def test_a_requests_own_body_goes_over_the_clients() -> None:
    seen: list[dict[str, Any]] = []
    async with serving(answering([text("a", "length")], seen)) as url:
        await run(url, [turn("a", body=b'{"temperature":0.7,"priority":-1}')])
    assert (seen[0]["temperature"], seen[0]["priority"], seen[0]["max_tokens"]) == (0.7, -1, 2)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"body": b"[1]"}, "not a JSON object"),
        ({"body": b'{"messages":[]}'}, "messages: set by the client"),
        ({"headers": (("x-a", "b\r\nx: y"),)}, "one line of printable text"),
        ({"headers": (("x a", "b"),)}, "header 'x a'"),
        ({"abort_after": 0}, "at least 1 chunk"),
        ({"roles": (Role.USER, Role.USER)}, "2 roles for 1 pieces"),
        ({"think": -1.0}, "seconds from 0"),
    ],
)
def test_a_request_that_cannot_be_sent_is_refused_when_it_is_made(more: dict[str, Any], said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        turn("a", **more)


async def test_three_thousand_streams_at_once() -> None:
    """All are open before the first one is answered: no limit of connections holds them back."""
    count = 3000
    waiting: list[asyncio.StreamWriter] = []

    async def gather(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        waiting.append(writer)
        if len(waiting) == count:
            for each in waiting:
                each.write(STREAM_HEAD + b"\r\n" + chunk(text("a", "length") + DONE) + b"0\r\n\r\n")
        await reader.read()

    requests = [Request(f"r{i}", "", 0, "g", 0, i / 3000, 1, (Piece(1, 4),)) for i in range(count)]
    async with serving(gather) as url:
        generator = LoadGenerator(TEXT, timeout=60)
        if generator.files is not None and generator.files < 2 * count + 200:
            pytest.skip(f"this system allows {generator.files} open files")
        block = await generator.run(requests, Target.parse(url), BodyStyle("m"), label="b0")
        generator.pool.close()
    assert sum(timing.ok for timing in block.timings) == count
    assert block.watch.peak == count
