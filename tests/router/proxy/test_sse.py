"""Watching an answer: the first token and the usage, whatever the split, the spelling and the size."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.proxy.interface import Endpoint, Usage
from router.proxy.sse import has_content, watch
from tests.router.proxy.scripted import Ticket

SSE = b"text/event-stream; charset=utf-8"
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}


def ticket() -> Ticket:
    return Ticket(Endpoint("e", 1))


def followed(stream: bytes, step: int = 1 << 30, kind: bytes = SSE, good: bool = True) -> Ticket:
    """What a leg hears of a stream that comes in pieces of `step` bytes."""
    leg = ticket()
    watcher = watch(leg, kind, encoded=False)
    for at in range(0, len(stream), step):
        watcher.feed(stream[at : at + step])
    watcher.end(good)
    return leg


def events(*documents: object, field: bytes = b"data: ", eol: bytes = b"\n") -> bytes:
    texts = [document if isinstance(document, str) else json.dumps(document) for document in documents]
    return b"".join(field + text.encode() + eol + eol for text in texts)


def chat(**delta: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": delta}]}


@pytest.mark.parametrize(
    "document",
    [
        chat(content="x"),
        chat(reasoning="x"),
        chat(reasoning_content="x"),
        chat(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": ""}}]),
        {"choices": [{"text": "x"}]},
        {"choices": [{"delta": {"content": ""}}, {"delta": {"content": "second"}}]},
        {"type": "response.output_text.delta", "delta": "x"},
        {"type": "response.reasoning_text.delta", "delta": "x"},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}},
    ],
    ids=str,
)
def test_event_with_content_is_the_first_token(document: object) -> None:
    assert has_content(json.dumps(document).encode())


@pytest.mark.parametrize(
    "document",
    [
        chat(role="assistant", content=""),
        chat(content=None),
        chat(tool_calls=[]),
        {"choices": []},
        {"choices": None},
        {"choices": [{"text": ""}]},
        {"type": "response.created", "response": {}},
        {"type": "message_start", "message": {}},
        {"type": "ping"},
        {"error": {"message": "delta"}},
        "[DONE]",
        "",
        "{broken",
        "[1, 2]",
    ],
    ids=str,
)
def test_event_without_content_is_not_the_first_token(document: object) -> None:
    text = document if isinstance(document, str) else json.dumps(document)
    assert not has_content(text.encode())


_STREAMS = {
    "space": events(chat(content=""), chat(content="a"), chat(content="b"), {"choices": [], "usage": USAGE}, "[DONE]"),
    "no space": events(chat(content="a"), {"choices": [], "usage": USAGE}, "[DONE]", field=b"data:"),
    "crlf": events(chat(content="a"), {"choices": [], "usage": USAGE}, "[DONE]", eol=b"\r\n"),
    "comments": b": hi\n\n" + events(chat(content="a")) + b":ping\n\n" + events({"usage": USAGE}) + b": bye\n",
    "named": b"event: x\nid: 1\n" + events(chat(content="a")) + b"event: y\n" + events({"usage": USAGE}),
    "no end": events(chat(content="a"), {"choices": [], "usage": USAGE})[:-2],
    "null before": events({**chat(content="a"), "usage": None}, {"choices": [], "usage": USAGE}),
    "null after": events(chat(content="a"), {"usage": USAGE}, {"usage": None}),
    "in every event": events(
        {**chat(content="a"), "usage": {"prompt_tokens": 7, "completion_tokens": 1}},
        {**chat(content="b"), "usage": USAGE},
    ),
    "a token of that name": events(
        chat(content='"usage": '), {"usage": USAGE}, {"choices": [{"logprobs": {"token": "usage"}, "text": "usage"}]}
    ),
}


@pytest.mark.parametrize("name", _STREAMS)
@pytest.mark.parametrize("step", [1, 2, 3, 5, 16, 61, 1 << 30])
def test_stream_is_followed_at_any_split(name: str, step: int) -> None:
    leg = followed(_STREAMS[name], step)
    assert (leg.tokens, leg.used) == (1, [Usage(7, 2, 4)])


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(_STREAMS)), st.lists(st.integers(0, 1000), max_size=20))
def test_first_token_is_reported_within_the_piece_that_completes_its_line(name: str, cuts: list[int]) -> None:
    stream = _STREAMS[name]
    first = min(at for at in range(len(stream)) if stream[:at].endswith(b"\n") and _plain_content(stream[:at]))
    leg = ticket()
    watcher = watch(leg, SSE, encoded=False)
    places = sorted({0, len(stream), *(cut % len(stream) for cut in cuts)})
    for start, stop in pairwise(places):
        watcher.feed(stream[start:stop])
        assert leg.tokens == (stop >= first)


def _plain_content(stream: bytes) -> bool:
    """The reference: look at all the lines so far, one by one."""
    for line in stream.splitlines():
        if line.startswith(b"data:"):
            try:
                document = json.loads(line[5:])
            except ValueError:
                continue
            for choice in document.get("choices") or ():
                if choice.get("text") or (choice.get("delta") or {}).get("content"):
                    return True
    return False


def test_anthropic_usage_is_put_together_from_its_two_reports() -> None:
    start = {"input_tokens": 3, "output_tokens": 1, "cache_read_input_tokens": 40, "cache_creation_input_tokens": 2}
    stream = events(
        {"type": "message_start", "message": {"usage": start}},
        {"type": "content_block_delta", "delta": {"text": "x"}},
        {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 9}},
    )
    leg = followed(stream, 7)
    assert (leg.tokens, leg.used) == (1, [Usage(45, 9, 40)])


def test_usage_of_the_responses_api_is_found_in_its_last_event() -> None:
    usage = {"input_tokens": 30, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 16}}
    stream = events(
        {"type": "response.created", "response": {"usage": None}},
        {"type": "response.output_text.delta", "delta": "x"},
        {"type": "response.completed", "response": {"output": [], "usage": usage}},
    )
    assert followed(stream, 11).used == [Usage(30, 5, 16)]


def test_broken_stream_reports_the_usage_it_had() -> None:
    stream = events({**chat(content="a"), "usage": {"prompt_tokens": 7, "completion_tokens": 1}}) + b"data: {"
    assert followed(stream, good=False).used == [Usage(7, 1, None)]


def test_stream_without_content_has_no_first_token() -> None:
    assert followed(events({"error": {"message": "no"}}, "[DONE]")).tokens == 0


def test_line_without_end_is_not_kept() -> None:
    leg = ticket()
    watcher = watch(leg, SSE, encoded=False)
    kept = 0
    for _ in range(100):
        watcher.feed(b"x" * 100_000)
        kept = max(kept, len(watcher._line))  # type: ignore[union-attr]
    watcher.feed(b"\n" + events(chat(content="a"), {"usage": USAGE}))
    watcher.end(True)
    assert kept <= 1024 * 1024
    assert watcher.complete is False
    assert (leg.tokens, leg.used) == (1, [Usage(7, 2, 4)])


def test_json_answer_is_decoded_at_its_end() -> None:
    leg = followed(json.dumps({"choices": [], "usage": USAGE}).encode(), 10, b"application/json")
    assert (leg.tokens, leg.used) == (1, [Usage(7, 2, 4)])


def test_json_answer_that_was_cut_reports_nothing() -> None:
    leg = followed(json.dumps({"usage": USAGE}).encode(), 10, b"application/json", good=False)
    assert (leg.tokens, leg.used) == (0, [])


def test_json_answer_too_large_to_decode_still_has_its_first_token() -> None:
    body = b'{"usage":{"prompt_tokens":1},"x":"' + b"x" * (9 * 1024 * 1024) + b'"}'
    leg = followed(body, 100_000, b"application/json")
    assert (leg.tokens, leg.used) == (1, [])


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b'{"usage":3}', b'{"usage":{"prompt_tokens":"x"}}', b"\xff"])
def test_json_answer_of_another_shape_reports_no_usage(body: bytes) -> None:
    assert followed(body, 100, b"application/json").used == []


def test_compressed_answer_has_its_first_token_at_its_first_byte() -> None:
    leg = ticket()
    watcher = watch(leg, SSE, encoded=True)
    watcher.feed(b"\x1f\x8b")
    watcher.feed(b"\x08")
    assert leg.tokens == 1


@pytest.mark.parametrize("eol", [b"\n", b"\r\n"])
@pytest.mark.parametrize("step", [1, 7, 64, 1 << 20])
def test_items_are_counted_from_the_first_content_on_at_any_split(step: int, eol: bytes) -> None:
    role, texts = chat(role="assistant", content=""), [chat(content=f"data: {n}\n") for n in range(5)]
    stream = b": note" + eol + eol + events(role, *texts, "[DONE]", eol=eol)
    leg = ticket()
    leg.counts = True
    watcher = watch(leg, SSE, encoded=False)
    for at in range(0, len(stream), step):
        watcher.feed(stream[at : at + step])
    watcher.end(True)
    assert (leg.items, leg.tokens) == (5, 1)


def test_nothing_is_counted_for_a_leg_that_does_not_ask() -> None:
    assert followed(events(chat(content="a"), chat(content="b"), "[DONE]")).items == 0
