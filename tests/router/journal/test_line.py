"""Lines of the access log: one line each, whatever a client sends."""

from __future__ import annotations

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from router.journal.line import AccessLine, as_json, as_text, clean, stamp


def line(**fields: object) -> AccessLine:
    usual: dict[str, object] = {
        "time": "2026-12-01T01:48:46.123Z",
        "request_id": "r-1",
        "decision_id": "d-1",
        "client": "127.0.0.1",
        "caller": None,
        "tenant": None,
        "method": "POST",
        "path": "/v1/completions",
        "model": "m",
        "worker": "w1",
        "status": 200,
        "outcome": "ok",
        "code": None,
        "bytes_in": 1,
        "bytes_out": 2,
        "total_ms": 3.5,
        "ttft_ms": None,
        "queue_ms": 0.0,
        "tokenise_ms": None,
        "decide_ms": 0.1,
        "prompt_tokens": 7,
        "cached_tokens": None,
        "output_tokens": 2,
        "retries": 0,
    }
    return msgspec.convert(usual | fields, AccessLine)


def test_text_has_every_field_in_order() -> None:
    assert as_text(line()).decode() == (
        "time=2026-12-01T01:48:46.123Z request_id=r-1 decision_id=d-1 client=127.0.0.1 caller=- tenant=- method=POST "
        "path=/v1/completions model=m worker=w1 status=200 outcome=ok code=- bytes_in=1 bytes_out=2 total_ms=3.5 "
        "ttft_ms=- queue_ms=0.0 tokenise_ms=- decide_ms=0.1 prompt_tokens=7 cached_tokens=- output_tokens=2 retries=0\n"
    )


def test_json_is_one_object_a_line() -> None:
    found = json.loads(as_json(line()))
    assert found["worker"] == "w1"
    assert found["ttft_ms"] is None


@given(st.text(max_size=300))
def test_no_text_of_a_client_makes_another_line_or_reaches_a_terminal(text: str) -> None:
    for written in (as_text(line(path=clean(text))), as_json(line(path=clean(text)))):
        plain = written.decode()
        assert plain.endswith("\n")
        assert all(one.isprintable() for one in plain[:-1])


def test_text_that_would_pass_for_another_field_is_quoted() -> None:
    assert b'path="/v1/x status=200" model' in as_text(line(path=clean("/v1/x status=200")))
    assert b"""path="/v1/x' status='200" model""" in as_text(line(path=clean('/v1/x" status="200')))


def test_escape_sequences_are_written_out() -> None:
    assert clean("a\x1b[31mb\r\nc\x7f\u2028\\") == "a\\x1b[31mb\\x0d\\x0ac\\x7f\\u2028\\x5c"


def test_long_text_is_cut() -> None:
    assert len(clean("x" * 10_000)) == 256


def test_time_has_milliseconds_and_is_utc() -> None:
    assert stamp(1796093326.1239) == "2026-12-01T02:48:46.123Z"
