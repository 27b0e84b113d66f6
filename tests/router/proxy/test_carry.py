"""A followed stream, event by event: what the client gets of it, whole or broken at any byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.proxy.heads import read_response
from router.proxy.interface import Outcome
from router.proxy.migration import Carry
from tests.router.proxy.streams import ANSWER, COUNT, PROMPT, behind_the_role, content, events, stream


def carry(chat: bool = False, **fields: Any) -> Carry:
    return Carry(**{"raw": b"{}", "chat": chat, "strip": True, "limit_bytes": 1 << 16, "include_usage": True} | fields)


def completion(text: str = "", ids: list[int] | None = None, **fields: Any) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": None, "token_ids": ids} | fields
    return b"data: %b\n\n" % json.dumps({"id": "a", "created": 1, "model": "m", "choices": [choice]}).encode()


# A stream that does not break.


@pytest.mark.parametrize("chat", [False, True])
def test_the_client_gets_the_bytes_of_an_engine_that_was_not_asked_for_ids(chat: bool) -> None:
    assert carry(chat).wire(stream(chat), False) == b"".join(stream(chat, told=False))


def test_a_client_that_asked_for_ids_gets_every_byte() -> None:
    assert carry(strip=False).wire(stream(False), False) == b"".join(stream(False))


@given(st.data(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_splits_change_nothing_and_only_whole_events_go_out(data: Any, chat: bool) -> None:
    whole = b"".join(stream(chat))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    followed, out = carry(chat), b""
    for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        out += followed.wire([whole[begin:end]], False)
        assert not out or out.endswith(b"\n\n")
    assert out == b"".join(stream(chat, told=False))


def test_events_may_end_in_crlf_and_comments_pass() -> None:
    data = b"".join(stream(False, told=False)).replace(b"\n\n", b"\r\n\r\n")
    assert carry().wire([b": ping\n\n" + data], False) == b": ping\n\n" + data


def test_text_that_looks_like_ids_is_left_alone() -> None:
    event = completion('"token_ids":[1,2] and \\"token_ids\\":[3]', [1], prompt_token_ids=[1])
    (shown,) = events(carry().wire([event], False))
    assert shown["choices"][0]["text"] == '"token_ids":[1,2] and \\"token_ids\\":[3]'
    assert shown["choices"][0]["token_ids"] is None


def test_what_goes_out_is_one_chunk() -> None:
    first = stream(False, told=False)[0]
    assert carry().wire([first], True) == b"%x\r\n%b\r\n" % (len(first), first)
    assert carry().wire([first[:-1]], True) == b""


# A stream that breaks and goes on.


def going_on(chat: bool, at: int) -> bytes:
    """What the client has in the end if the first engine's stream is cut behind the byte `at`."""
    followed = carry(chat)
    whole = b"".join(stream(chat))
    out = followed.wire([whole[:at]], False)
    ended = followed.finish(False)
    if ended is not None:
        return out + ended
    begun = followed.begun
    sent = followed.clean if begun else 0
    assert followed.prompt is None or followed.prompt.tolist() == PROMPT.tolist()
    followed.move()
    rest = stream(chat, sent, name="y-2") if sent else (stream(chat) if not begun else behind_the_role())
    return out + followed.wire(rest, False) + (followed.end(False) or b"")


@pytest.mark.parametrize("chat", [False, True])
def test_cut_at_any_byte_and_gone_on_the_stream_is_the_unbroken_one(chat: bool) -> None:
    unbroken = events(b"".join(stream(chat, told=False)))
    for at in range(len(b"".join(stream(chat))) + 1):
        out = going_on(chat, at)
        shown = events(out)
        cached = [event["usage"].pop("prompt_tokens_details") for event in shown if event.get("usage")]
        expected = json.loads(json.dumps(unbroken))
        for event in expected:
            if event.get("usage"):
                event["usage"].pop("prompt_tokens_details")
        assert shown == expected, at
        assert len(cached) == 1
        assert out.count(b"data: [DONE]\n\n") == 1 and out.endswith(b"data: [DONE]\n\n")


def test_it_may_go_on_twice() -> None:
    followed = carry()
    out = followed.wire(stream(False)[:3], False)
    followed.move()
    out += followed.wire(stream(False, 3)[:2], False)
    assert followed.clean == 5
    followed.move()
    out += followed.wire(stream(False, 5), False)
    assert [e["choices"] for e in events(out)] == [e["choices"] for e in events(b"".join(stream(False, told=False)))]
    assert events(out)[-1]["usage"]["completion_tokens"] == COUNT


def test_a_client_that_asked_for_ids_gets_those_of_all_engines_and_the_prompt_once() -> None:
    followed = carry(strip=False)
    out = followed.wire(stream(False)[:3], False)
    followed.move()
    out += followed.wire(stream(False, 3), False)
    choices = [event["choices"][0] for event in events(out) if event["choices"]]
    assert [token for choice in choices for token in choice["token_ids"]] == ANSWER[False].tolist()
    assert [choice["prompt_token_ids"] for choice in choices] == [PROMPT.tolist()] + [None] * (COUNT - 1)


def test_cached_tokens_are_at_most_the_clients_prompt() -> None:
    followed = carry()
    followed.wire(stream(False)[:3], False)
    followed.move()
    out = followed.wire(stream(False, 3), False)
    assert events(out)[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == min(16, len(PROMPT))


def test_only_the_end_is_missing_and_the_router_writes_it() -> None:
    followed = carry()
    followed.wire(stream(False)[:COUNT], False)
    assert followed.finish(True) is not None
    assert followed.finish(True) == followed.finish(True)
    end = followed.finish(False) or b""
    assert events(end)[0]["usage"]["total_tokens"] == len(PROMPT) + COUNT
    assert end.endswith(b"data: [DONE]\n\n")


def test_a_client_that_wants_no_usage_gets_none_at_the_end_that_the_router_writes() -> None:
    followed = carry(include_usage=False)
    followed.wire(stream(False)[:COUNT], False)
    assert followed.finish(False) == b"data: [DONE]\n\n"


def test_an_answer_that_ends_in_the_middle_is_no_end() -> None:
    followed = carry()
    followed.wire(stream(False)[:3], False)
    assert followed.end(True) is None


# Tokens whose text has not come yet.


def test_it_goes_on_behind_the_last_token_with_text() -> None:
    followed = carry()
    followed.wire([completion("a", [5], prompt_token_ids=[1]), completion("", [6]), completion("", [7])], False)
    assert (followed.clean, followed.needs_text) == (1, False)


def test_tokens_that_are_generated_anew_are_forgotten() -> None:
    followed = carry()
    followed.wire([completion("a", [5], prompt_token_ids=[1]), completion("", [6])], False)
    followed.move()
    followed.wire([completion("b", [7])], False)
    assert (followed.ids.tolist(), followed.clean) == ([5, 7], 2)


def test_an_event_of_several_tokens_may_end_inside_a_character() -> None:
    followed = carry()
    followed.wire([completion("ab", [5, 6, 7], prompt_token_ids=[1])], False)
    assert followed.needs_text
    assert not followed.settle(3, "ab\ufffd")
    assert followed.settle(2, "ab")
    assert followed.clean == 2


def test_a_single_token_with_text_behind_it_makes_the_place_sure_again() -> None:
    followed = carry()
    followed.wire([completion("ab", [5, 6], prompt_token_ids=[1]), completion("c", [7])], False)
    assert (followed.clean, followed.needs_text) == (3, False)


# Stop strings.


def stopping(include: bool = False) -> Carry:
    return carry(stops=("STOP",), include_stop=include)


def test_text_kept_back_for_a_stop_string_is_not_lost() -> None:
    followed = stopping()
    out = followed.wire([completion("he", [5], prompt_token_ids=[1]), completion("", [6])], False)
    assert followed.needs_text and followed.settle(2, "hello")
    followed.move()
    out += followed.wire([completion(" you there", [7])], False)
    assert content(out) == "hello you there"


def test_a_stop_string_across_the_seam_ends_the_answer_here() -> None:
    followed = stopping()
    out = followed.wire([completion("so ", [5], prompt_token_ids=[1]), completion("", [6])], False)
    assert followed.settle(2, "so ST")
    followed.move()
    out += followed.wire([completion("OP and more", [7])], False)
    assert content(out) == "so "
    assert followed.turn is Outcome.OK
    *_, last, usage = events(out)
    assert (last["choices"][0]["finish_reason"], last["choices"][0]["stop_reason"]) == ("stop", "STOP")
    assert usage["usage"]["completion_tokens"] == 3
    assert out.endswith(b"data: [DONE]\n\n")


def test_a_stop_string_that_is_shown_is_found_across_the_seam_too() -> None:
    followed = stopping(include=True)
    out = followed.wire([completion("so ST", [5], prompt_token_ids=[1])], False)
    assert not followed.needs_text
    followed.move()
    out += followed.wire([completion("OP and more", [7])], False)
    assert content(out) == "so STOP"


def test_text_that_does_not_fit_the_tokens_is_not_gone_on_with() -> None:
    followed = stopping()
    followed.wire([completion("he", [5], prompt_token_ids=[1])], False)
    assert not followed.settle(1, "she")
    assert followed.why == "text_differs"


# What cannot go on.


@pytest.mark.parametrize(
    ("chat", "event", "why"),
    [
        (False, completion("a", None), "no_token_ids"),
        (False, completion("a", [1]), "no_token_ids"),
        (False, completion("a", [1], prompt_token_ids=[1], index=1), "choices"),
        (False, completion("a", [-1], prompt_token_ids=[1]), "unknown_event"),
        (False, b"data: nothing\n\n", "unknown_event"),
        (False, b"event: x\ndata: {}\n\n", "unknown_event"),
        (False, b'data: {"error":{"message":"too long","code":400}}\n\n', "error_event"),
        (True, completion(delta={"reasoning": "hm"}, ids=[1]), "parsed"),
        (True, completion(delta={"tool_calls": [{"index": 0}]}, ids=[1]), "parsed"),
    ],
)
def test_why_a_stream_cannot_go_on(chat: bool, event: bytes, why: str) -> None:
    followed = carry(chat, strip=False)
    assert followed.wire([event], False) == event
    assert followed.why == why
    assert followed.end(False) == b""


def test_an_event_that_is_there_for_its_ids_alone_is_not_shown() -> None:
    followed = carry(chat=True)
    followed.wire([stream(True)[0]], False)
    assert followed.wire([completion(delta={}, ids=[1])], False) == b""
    assert followed.why == ""


def test_behind_a_token_that_a_parser_kept_back_the_text_is_compared() -> None:
    followed = carry(chat=True)
    role = stream(True)[0]
    followed.wire([role, completion(delta={}, ids=[1]), completion(delta={"content": "answer"}, ids=[2])], False)
    assert followed.needs_text and followed.compares
    assert not followed.settle(2, "<think>answer")
    assert followed.why == "text_differs"


def test_behind_a_character_in_two_tokens_a_chat_of_an_engine_with_a_parser_goes_on() -> None:
    followed = carry(chat=True)
    role = stream(True)[0]
    followed.wire([role, completion(delta={}, ids=[1]), completion(delta={"content": "\u00e9"}, ids=[2])], False)
    assert followed.settle(2, "\u00e9")
    assert followed.clean == 2


def test_past_the_buffer_it_is_let_go_and_passes_on() -> None:
    followed = carry(limit_bytes=40)
    out = followed.wire(stream(False), False)
    assert followed.why == "buffer"
    assert (followed.prompt, len(followed.ids)) == (None, 0)
    assert out == b"".join(stream(False, told=False))


def test_an_event_without_end_is_passed_on_in_the_end() -> None:
    followed = carry(limit_bytes=40)
    sent = sum(len(followed.wire([b"x" * 10_000], False)) for _ in range(20))
    assert followed.why == "buffer"
    assert sent == 200_000


def test_an_engine_that_reports_its_death_is_taken_at_its_word() -> None:
    followed = carry()
    followed.wire(stream(False)[:3], False)
    word = b'data: {"error":{"message":"engine dead","type":"InternalServerError","code":500}}\n\n'
    assert followed.wire([word, b"data: [DONE]\n\n"], False) == b""
    assert followed.turn is Outcome.ENGINE_ERROR
    assert followed.give_up(False) == word + b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("lines", "followed"),
    [
        (b"content-type: text/event-stream\r\ntransfer-encoding: chunked", True),
        (b"content-type: text/event-stream", False),
        (b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\ncontent-encoding: gzip", False),
        (b"content-type: application/json\r\ntransfer-encoding: chunked", False),
    ],
)
def test_only_a_plain_chunked_stream_is_followed(lines: bytes, followed: bool) -> None:
    assert Carry.follows(read_response(b"HTTP/1.1 200 OK\r\n" + lines + b"\r\n\r\n", False)) is followed
