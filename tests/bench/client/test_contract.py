"""The measurement contract over real sockets with a scripted clock: each number is the one worked out by hand.

The request is scheduled for 1.0 and sent at 1.25; headers come at 1.5. Times are sums of halves and quarters, so that
equality is exact.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from bench.client.timing import Timing
from tests.bench.client.scripted_sse import (
    DONE,
    FINISH,
    Framing,
    Script,
    delta,
    event,
    play,
    text,
    usage,
)

PLAIN = [(2.0, text("a")), (2.5, text("b")), (4.0, text("c")), (4.25, FINISH), (4.5, usage(100, 3, 64)), (4.75, DONE)]


def check_plain(timing: Timing) -> None:
    """PLAIN by hand: first 2.0, last 4.0, three tokens, end of the body 5.0."""
    assert timing.error is None
    assert timing.t_hdr == 1.5
    assert timing.sched_lag == 0.25
    assert timing.ttft == 1.0
    assert timing.ttft_send == 0.75
    assert timing.itl == 1.0
    assert timing.gaps == [0.5, 1.5]
    assert timing.stall == 1.5
    assert timing.e2e == 3.0
    assert timing.drain == 1.0
    assert (timing.n_out, timing.n_out_source, timing.n_first) == (3, "usage", 1)
    assert (timing.prompt_tokens, timing.cached_tokens) == (100, 64)


@pytest.mark.parametrize("framing", [Framing.CHUNKED, Framing.CLOSE])
async def test_every_metric_of_a_plain_answer(framing: Framing) -> None:
    check_plain(await play(Script(PLAIN, framing, end=5.0)))


async def test_a_body_of_known_length_ends_with_its_last_byte() -> None:
    timing = await play(Script(PLAIN, Framing.LENGTH))
    assert timing.t_end == 4.75
    assert timing.drain == 0.75
    assert timing.e2e == 3.0


NOISE = {
    "role": (1.75, delta(role="assistant", content="")),
    "empty": (1.75, delta(content="")),
    "comment": (1.75, b": keep-alive\n\n"),
    "usage": (1.75, usage(100, 0)),
    "frame": (1.75, event({"type": "response.created", "response": {}})),
}


@pytest.mark.parametrize("kind", NOISE)
async def test_what_is_no_content_moves_neither_first_nor_last(kind: str) -> None:
    noise = NOISE[kind]
    timing = await play(Script([noise, *PLAIN, (4.75, noise[1])], end=5.0))
    assert (timing.t_first, timing.t_last) == (2.0, 4.0)
    counted = {name: getattr(timing.events, name) for name in NOISE}
    assert counted == {**dict.fromkeys(NOISE, 0), "usage": 1} | {kind: 2 + (kind == "usage")}


@pytest.mark.parametrize(
    "fields",
    [
        {"content": "a"},
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
    ],
)
async def test_content_reasoning_and_arguments_are_first_tokens(fields: dict[str, Any]) -> None:
    role = (1.75, delta(role="assistant", content=""))
    timing = await play(Script([role, (2.0, delta(**fields)), (3.0, delta(content="b")), (3.25, delta("stop"))]))
    assert (timing.ttft, timing.gaps, timing.events.content, timing.events.role) == (1.0, [1.0], 2, 1)


async def test_the_name_of_a_tool_alone_is_no_content() -> None:
    named = delta(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": ""}}])
    timing = await play(Script([(1.75, named), (2.0, delta(content="a")), (2.5, DONE)]))
    assert (timing.ttft, timing.events.empty) == (1.0, 1)


async def test_several_events_in_one_packet_share_its_time_and_are_flagged() -> None:
    timing = await play(Script([(2.0, text("a") + text("b") + text("c")), (4.0, text("d")), (4.25, DONE)]))
    assert timing.gaps == [0.0, 0.0, 2.0]
    assert timing.coalesced == 2
    assert timing.itl == 2.0 / 3


def forms() -> dict[str, bytes]:
    """The plain stream, all bytes, in the spellings that the standard allows and servers use."""
    whole = b"".join(data for _, data in PLAIN)
    return {
        "as it is": whole,
        "CRLF": whole.replace(b"\n", b"\r\n"),
        "CR": whole.replace(b"\n", b"\r"),
        "no space after data:": whole.replace(b"data: ", b"data:"),
        "data over several lines": whole.replace(b', "', b',\ndata: "'),
        "named events with ids": whole.replace(b"data: ", b"event: message\nid: 7\ndata: "),
        "no [DONE]": whole.removesuffix(DONE),
        "no blank line at the end": whole.removesuffix(b"\n\n"),
    }


@pytest.mark.parametrize("form", forms())
async def test_every_spelling_of_the_stream_gives_the_same_counts_split_at_every_byte(form: str) -> None:
    data = forms()[form]
    moments = [2.0 + i / 1024 for i in range(len(data))]
    timing = await play(Script([(moments[i], data[i : i + 1]) for i in range(len(data))]))
    assert timing.error is None
    assert (timing.events.content, timing.n_out, timing.cached_tokens, timing.coalesced) == (3, 3, 64, 0)
    assert timing.t_last - timing.t_first == sum(timing.gaps)


async def test_an_event_has_the_time_at_which_it_is_complete() -> None:
    data = text("a")
    timing = await play(Script([(2.0, data[:9]), (2.5, data[9:-1]), (3.0, data[-1:] + DONE)]))
    assert timing.t_first == 3.0


async def test_chunks_of_several_tokens_are_divided_by_the_engines_count() -> None:
    timing = await play(Script([(2.0, text("ab")), (4.0, text("cdef")), (4.25, usage(10, 9)), (4.5, DONE)]))
    assert timing.itl == 2.0 / 8
    assert timing.gaps == [2.0]


async def test_tokens_of_the_first_chunk_are_left_out_where_they_are_named() -> None:
    first = text("abc", usage={"prompt_tokens": 4, "completion_tokens": 3})
    last = text("de", "length", usage={"prompt_tokens": 4, "completion_tokens": 5})
    timing = await play(Script([(2.0, first), (4.0, last)]))
    assert (timing.n_first, timing.itl) == (3, 1.0)


async def test_one_token_has_a_ttft_and_neither_itl_nor_gaps() -> None:
    timing = await play(Script([(2.0, text("a", "length")), (2.5, usage(10, 1)), (2.75, DONE)]))
    assert (timing.ttft, timing.itl, timing.stall, timing.gaps) == (1.0, None, None, [])
    assert timing.e2e == 1.0


async def test_a_responses_stream_is_measured_like_the_others() -> None:
    counts = {"input_tokens": 100, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 64}}
    reads = [
        (1.75, event({"type": "response.created", "response": {"usage": None}})),
        (2.0, event({"type": "response.reasoning_text.delta", "delta": "a"})),
        (2.5, event({"type": "response.output_text.delta", "delta": "b"})),
        (4.0, event({"type": "response.function_call_arguments.delta", "delta": "c"})),
        (4.25, event({"type": "response.output_text.done", "text": "b"})),
        (4.5, event({"type": "response.completed", "response": {"usage": counts}})),
    ]
    timing = await play(Script(reads, end=5.0))
    check_plain(timing)
    assert (timing.events.frame, timing.events.finish) == (2, 1)


FAILURES = {
    "http_503": Script([(2.0, b'{"error":{"message":"busy"}}')], status=503, headers=b"retry-after: 7\r\n"),
    "error_in_stream": Script([(2.0, text("a")), (2.5, event({"error": {"message": "out of memory"}}))]),
    "bad_event": Script([(2.0, text("a")), (2.5, b"data: {nonsense\n\n")]),
    "no_content": Script([(2.0, FINISH), (2.25, usage(10, 0)), (2.5, DONE)]),
    "not_a_stream": Script([(2.0, b'{"choices":[]}')], headers=b"content-type: application/json\r\n"),
    "cut": Script([(2.0, text("a")), (2.5, text("b"))], Framing.CHUNKED, cut=True),
    "cut of known length": Script([(2.0, text("a")), (2.5, text("b"))], Framing.LENGTH, cut=True),
    "cut before a finish": Script([(2.0, text("a")), (2.5, text("b"))], Framing.CLOSE),
    "error of responses": Script(
        [(2.0, event({"type": "response.failed", "response": {"error": {"message": "no"}}}))], Framing.CLOSE
    ),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_a_failure_is_infinite_in_every_latency_whatever_came_before_it(name: str) -> None:
    timing = await play(FAILURES[name])
    wanted = {"cut of known length": "cut", "cut before a finish": "cut", "error of responses": "error_in_stream"}
    assert timing.error == wanted.get(name, name)
    assert {timing.ttft, timing.ttft_send, timing.itl, timing.e2e, timing.drain, timing.stall} == {math.inf}


async def test_what_a_refusal_says_is_kept() -> None:
    timing = await play(FAILURES["http_503"])
    assert (timing.status, timing.retry_after) == (503, 7.0)
    assert "busy" in timing.detail


async def test_an_aborted_request_has_a_ttft_and_is_no_failure() -> None:
    timing = await play(Script(PLAIN[:2], cut=True), abort_after=2)
    assert (timing.ok, timing.aborted, timing.ttft, timing.t_end) == (True, True, 1.0, 2.5)
    assert (timing.itl, timing.e2e, timing.drain, timing.stall) == (None, None, None, None)


async def test_an_answer_shorter_than_its_abort_is_whole() -> None:
    timing = await play(Script(PLAIN, end=5.0), abort_after=9)
    assert not timing.aborted
    check_plain(timing)
