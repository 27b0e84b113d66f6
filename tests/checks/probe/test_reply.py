"""What is kept of an answer: numbers and names, never text; and what is wrong with one that is not good."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from checks.model import Reason
from checks.probe.reply import Clock, Reply, read

USAGE = {"prompt_tokens": 700, "prompt_tokens_details": {"cached_tokens": 640}}


def answer(
    value: Any, status: int = 200, headers: dict[str, str] | None = None, *, stream: bool = False, timeout_s: float = 9
) -> Reply:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return chunked([data], status, headers, stream=stream, timeout_s=timeout_s)


def chunked(
    chunks: Iterable[bytes],
    status: int = 200,
    headers: dict[str, str] | None = None,
    *,
    stream: bool = False,
    timeout_s: float = 9,
) -> Reply:
    kind = "text/event-stream" if stream else "application/json"
    return read(status, {"Content-Type": kind, **(headers or {})}, chunks, stream=stream, clock=Clock(timeout_s))


def test_tokens_are_taken_from_usage() -> None:
    found = answer({"usage": USAGE})
    assert (found.ok, found.prompt_tokens, found.cached_tokens) == (True, 700, 640)


@pytest.mark.parametrize(
    "usage",
    [{"prompt_tokens": 700}, {"prompt_tokens_details": None}, {"prompt_tokens_details": {}}, {}, None, [], "x"],
)
def test_a_usage_that_does_not_say_is_unknown(usage: Any) -> None:
    assert answer({"usage": usage}).cached_tokens is None


@pytest.mark.parametrize("odd", [-1, True, "5", 1.5, 1 << 50])
def test_odd_numbers_are_unknown(odd: Any) -> None:
    assert answer({"usage": {"prompt_tokens": odd}}).prompt_tokens is None


def test_headers_that_name_a_worker_are_kept_and_no_others() -> None:
    found = answer({}, headers={"X-Kvctl-Worker": "w1", "Set-Cookie": "secret", "Server": "x"})
    assert found.headers == {"x-kvctl-worker": "w1"}
    assert found.worker_header == ("x-kvctl-worker", "w1")


def test_terminal_escapes_in_a_header_are_taken_out() -> None:
    assert answer({}, headers={"target-pod": "10.0.0.1\x1b[31m:8000"}).worker_header[1] == "10.0.0.1:8000"


@pytest.mark.parametrize(
    ("told", "expected"),
    [({"prefill_worker_id": 7, "decode_worker_id": 8}, "7"), (12, "12"), ("w", "w"), (None, ""), ([], "")],
)
def test_dynamos_worker_stands_in_the_answer(told: Any, expected: str) -> None:
    assert answer({"nvext": {"worker_id": told}}).worker == expected


@pytest.mark.parametrize(
    ("value", "status", "reason", "text"),
    [
        ({"error": {"message": "no such model"}}, 404, Reason.UNREACHABLE, "HTTP 404: no such model"),
        ({"detail": "Not Found"}, 404, Reason.UNREACHABLE, "HTTP 404: Not Found"),
        (b"<html>\nBad Gateway", 502, Reason.UNREACHABLE, "HTTP 502: <html>"),
        (b"", 500, Reason.UNREACHABLE, "HTTP 500: no body"),
        ({"error": "who are you"}, 401, Reason.RBAC, "HTTP 401: who are you"),
        ({"error": {"message": "overloaded"}}, 200, Reason.UNREACHABLE, "overloaded"),
        (b"not json", 200, Reason.PARSE, "OpenAI-compatible"),
        ([1], 200, Reason.PARSE, "OpenAI-compatible"),
    ],
)
def test_what_went_wrong_is_told_in_one_line(value: Any, status: int, reason: Reason, text: str) -> None:
    found = answer(value, status)
    assert not found.ok
    assert found.reason is reason
    assert text in found.error
    assert "\n" not in found.error


def test_an_answer_without_end_is_cut_off() -> None:
    found = chunked(b"x" * 65536 for _ in range(1000))
    assert found.reason is Reason.PARSE
    assert "1 MiB" in found.error


def test_an_answer_that_drips_is_given_up() -> None:
    assert chunked([b"{", b"}"], timeout_s=0).reason is Reason.TIMEOUT


def events(*values: Any, done: bool = True) -> bytes:
    return b"".join(b"data: %s\n\n" % json.dumps(one).encode() for one in values) + (
        b"data: [DONE]\n\n" if done else b""
    )


TEXT = {"choices": [{"text": "x"}]}


def test_a_stream_gives_usage_and_the_time_of_its_first_text() -> None:
    found = answer(events({"choices": [{"text": ""}]}, TEXT, {"choices": [], "usage": USAGE}), stream=True)
    assert found.ok
    assert found.cached_tokens == 640
    assert found.ttft_s is not None
    assert found.ttft_s <= found.total_s


def test_events_split_at_any_byte_are_read() -> None:
    data = events(TEXT, {"choices": [], "usage": USAGE}).replace(b"\n", b"\r\n")
    found = chunked((data[at : at + 1] for at in range(len(data))), stream=True)
    assert (found.ok, found.prompt_tokens) == (True, 700)


@pytest.mark.parametrize(
    ("event", "counts"),
    [
        ({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, False),
        ({"choices": [{"delta": {"content": "x"}}]}, True),
        ({"choices": [{"delta": {"reasoning_content": "x"}}]}, True),
        ({"choices": []}, False),
    ],
    ids=["a role is no text", "content", "reasoning", "no choice"],
)
def test_only_text_is_a_first_token(event: Any, counts: bool) -> None:
    assert (answer(events(event), stream=True).ttft_s is not None) is counts


def test_a_stream_that_stops_before_its_end_is_a_failure() -> None:
    assert answer(events(TEXT, done=False), stream=True).reason is Reason.PARSE


def test_an_error_inside_a_stream_is_a_failure() -> None:
    found = answer(events(TEXT, {"error": {"message": "died"}}, done=False), stream=True)
    assert "died" in found.error


def test_no_text_of_an_answer_is_kept() -> None:
    found = answer({"choices": [{"text": "tell nobody"}], "usage": USAGE})
    assert "nobody" not in repr(found)
