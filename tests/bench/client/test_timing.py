"""The measurement contract on scripted bytes with scripted times: every number is the one worked out by hand."""

from __future__ import annotations

import json
import math

import pytest

from bench.client.timing import Timing

SSE = {"content-type": "text/event-stream; charset=utf-8"}


def event(data: object) -> bytes:
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def text(content: str, **more: object) -> bytes:
    return event({"choices": [{"index": 0, "text": content, "finish_reason": None}], **more})


def delta(finish: str | None = None, **fields: object) -> bytes:
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]})


def usage(prompt: int, completion: int, cached: int | None = None) -> bytes:
    details = {"prompt_tokens_details": {"cached_tokens": cached}} if cached is not None else {}
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion, **details}})


FINISH = event({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
DONE = event(b"[DONE]")


def played(*reads: tuple[float, bytes], end: float = 9.0, sched: float = 1.0, send: float = 1.1) -> Timing:
    timing = Timing(sched)
    timing.sent(send)
    timing.header(1.2, 200, SSE)
    for now, data in reads:
        timing.data(now, data)
    timing.end(end)
    return timing


def test_every_metric_of_a_plain_answer() -> None:
    timing = played(
        (2.0, text("a")),
        (2.5, text("b")),
        (4.0, text("c")),
        (4.1, FINISH),
        (4.2, usage(100, 3, 64)),
        (4.3, DONE),
        end=4.4,
    )
    assert timing.ok
    assert timing.ttft == pytest.approx(1.0)
    assert timing.ttft_send == pytest.approx(0.9)
    assert timing.sched_lag == pytest.approx(0.1)
    assert timing.itl == pytest.approx((4.0 - 2.0) / 2)
    assert timing.gaps == pytest.approx([0.5, 1.5])
    assert timing.stall == pytest.approx(1.5)
    assert timing.e2e == pytest.approx(3.0)
    assert timing.drain == pytest.approx(0.4)
    assert (timing.n_out, timing.n_out_source) == (3, "usage")
    assert (timing.prompt_tokens, timing.cached_tokens) == (100, 64)
    assert (timing.events.content, timing.events.finish, timing.events.usage, timing.events.done) == (3, 1, 1, 1)


def test_ttft_counts_from_the_schedule_not_from_the_send() -> None:
    late = played((3.0, text("a")), (3.0, DONE), sched=1.0, send=2.5)
    assert late.ttft == pytest.approx(2.0)
    assert late.ttft_send == pytest.approx(0.5)


def test_a_role_only_chunk_is_not_the_first_token() -> None:
    timing = played(
        (1.5, delta(role="assistant", content="")), (2.0, delta(content="a")), (2.1, delta("stop")), (2.2, DONE)
    )
    assert timing.t_first == 2.0
    assert timing.events.role == 1


def test_an_empty_delta_moves_neither_first_nor_last() -> None:
    timing = played((1.5, delta(content="")), (2.0, delta(content="a")), (3.0, delta(content="")), (3.1, DONE))
    assert (timing.t_first, timing.t_last) == (2.0, 2.0)
    assert timing.events.empty == 2


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_counts_as_content(field: str) -> None:
    timing = played((1.5, delta(**{field: "hm"})), (2.0, delta(content="a")), (2.1, DONE))
    assert timing.t_first == 1.5
    assert timing.events.content == 2


def test_tool_call_arguments_count_as_content_and_a_bare_name_does_not() -> None:
    named = delta(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": ""}}])
    argued = delta(tool_calls=[{"index": 0, "function": {"arguments": "{"}}])
    timing = played((1.5, named), (2.0, argued), (2.1, DONE))
    assert timing.t_first == 2.0
    assert timing.events.empty == 1


def test_a_finish_only_chunk_is_no_token() -> None:
    timing = played((2.0, text("a")), (2.5, text("b")), (5.0, FINISH), (5.1, DONE))
    assert timing.t_last == 2.5
    assert timing.gaps == pytest.approx([0.5])


def test_a_chunk_with_text_and_finish_reason_is_content() -> None:
    last = event({"choices": [{"text": "b", "finish_reason": "length"}]})
    timing = played((2.0, text("a")), (3.0, last))
    assert timing.ok
    assert timing.t_last == 3.0
    assert timing.events.finish == 0


def test_a_finish_chunk_that_carries_the_whole_usage_is_no_token() -> None:
    last = event(
        {"choices": [{"text": "", "finish_reason": "length"}], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}
    )
    timing = played((2.0, text("a")), (2.5, text("b")), (6.0, last), (6.1, DONE))
    assert timing.t_last == 2.5
    assert timing.n_out == 2


def test_comments_move_nothing() -> None:
    timing = played((1.4, b": ping\n\n"), (2.0, text("a")), (7.0, b": ping\n\n"), (7.1, DONE))
    assert (timing.t_first, timing.t_last) == (2.0, 2.0)
    assert timing.events.comment == 2


def test_events_in_one_read_share_its_time_and_are_flagged() -> None:
    timing = played((2.0, text("a") + text("b") + text("c")), (4.0, text("d")), (4.1, DONE))
    assert timing.gaps == pytest.approx([0.0, 0.0, 2.0])
    assert timing.coalesced == 2


def test_an_event_cut_in_two_has_the_time_of_its_second_half() -> None:
    whole = text("a")
    timing = played((2.0, whole[:9]), (3.0, whole[9:]), (3.1, DONE))
    assert timing.t_first == 3.0


def test_tokens_are_taken_from_usage_not_from_chunks() -> None:
    timing = played((2.0, text("ab")), (4.0, text("cdef")), (4.1, usage(10, 9)), (4.2, DONE))
    assert timing.itl == pytest.approx(2.0 / 8)


def test_tokens_of_the_first_chunk_are_left_out_where_they_are_known() -> None:
    first = text("abc", usage={"prompt_tokens": 4, "completion_tokens": 3})
    last = text("de", usage={"prompt_tokens": 4, "completion_tokens": 5})
    timing = played((2.0, first), (4.0, last), (4.1, DONE))
    assert timing.n_first == 3
    assert timing.itl == pytest.approx(2.0 / 2)


def test_text_held_back_by_the_detokeniser_counts_when_usage_grows() -> None:
    held = text("", usage={"prompt_tokens": 4, "completion_tokens": 1})
    shown = text("é", usage={"prompt_tokens": 4, "completion_tokens": 2})
    timing = played((2.0, held), (3.0, shown), (3.1, DONE))
    assert timing.t_first == 2.0


def test_token_ids_count_as_content() -> None:
    chunk = event({"choices": [{"text": "", "finish_reason": None, "token_ids": [7, 8]}]})
    timing = played((2.0, chunk), (3.0, text("x")), (3.1, DONE))
    assert timing.t_first == 2.0
    assert timing.n_first == 2


def test_without_usage_chunks_are_counted_and_the_source_says_so() -> None:
    timing = played((2.0, text("a")), (3.0, text("b")), (3.1, DONE))
    assert (timing.n_out, timing.n_out_source) == (2, "chunks")


def test_one_token_has_a_ttft_and_no_itl() -> None:
    timing = played((2.0, text("a")), (2.1, usage(10, 1)), (2.2, DONE))
    assert timing.ttft == pytest.approx(1.0)
    assert timing.itl is None
    assert timing.stall is None


def test_a_stream_without_done_is_whole_if_it_had_a_finish_reason() -> None:
    assert played((2.0, text("a")), (2.1, FINISH)).ok


def test_a_done_without_its_blank_line_counts() -> None:
    assert played((2.0, text("a")), (2.1, b"data: [DONE]")).ok


def failures() -> list[tuple[str, Timing]]:
    cut = played((2.0, text("a")))
    empty = played((2.0, FINISH), (2.1, usage(10, 0)), (2.2, DONE))
    broken = played((2.0, text("a")), (2.1, b"data: {nonsense\n\n"))
    said = played((2.0, text("a")), (2.1, event({"error": {"message": "out of memory"}})))
    refused = Timing(1.0)
    refused.sent(1.0)
    refused.header(1.1, 503, {"content-type": "application/json"})
    refused.data(1.1, b'{"error": {"message": "busy"}}')
    refused.end(1.2)
    plain = Timing(1.0)
    plain.sent(1.0)
    plain.header(1.1, 200, {"content-type": "application/json"})
    plain.data(1.1, b'{"choices": []}')
    plain.end(1.2)
    late = Timing(1.0)
    late.sent(1.0)
    late.fail(60.0, "timeout")
    return [
        ("cut", cut), ("no_content", empty), ("bad_event", broken), ("error_in_stream", said),
        ("http_503", refused), ("not_a_stream", plain), ("timeout", late),
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "timing"), failures())
def test_a_failure_is_infinite_in_every_latency_and_named(kind: str, timing: Timing) -> None:
    assert timing.error == kind
    assert not timing.ok
    assert timing.ttft == timing.itl == timing.e2e == timing.stall == timing.ttft_send == math.inf


def test_what_the_server_said_is_kept() -> None:
    assert {kind: timing.detail for kind, timing in failures()}["http_503"] == '{"error": {"message": "busy"}}'


def test_a_request_that_is_over_is_not_failed_again() -> None:
    timing = played((2.0, text("a")), (2.1, DONE))
    timing.fail(3.0, "timeout")
    assert timing.ok


def test_the_routers_headers_are_kept() -> None:
    timing = Timing(0.0)
    timing.header(0.1, 200, SSE | {"x-kvctl-worker": "w1", "x-kvctl-decision": "d-7"})
    assert (timing.worker, timing.decision) == ("w1", "d-7")
