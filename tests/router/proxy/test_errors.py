"""The shape of error answers."""

from __future__ import annotations

import json

import pytest

from router.proxy.answers import answer_head
from router.proxy.errors import error_answer, error_body, gateway_answer
from router.proxy.interface import Answer, Outcome


def test_error_has_the_four_keys_of_openai() -> None:
    assert json.loads(error_body(400, "m", "c", "p")) == {
        "error": {"message": "m", "type": "invalid_request_error", "code": "c", "param": "p"}
    }


def test_error_names_what_else_it_is_given() -> None:
    error = json.loads(error_body(529, "m", "c", extra={"limit": "queue", "value": 3, "current": 4}))["error"]
    assert (error["limit"], error["value"], error["current"], error["param"]) == ("queue", 3, 4, None)


@pytest.mark.parametrize(
    ("status", "kind"), [(404, "not_found_error"), (429, "rate_limit_error"), (502, "server_error")]
)
def test_type_follows_the_status(status: int, kind: str) -> None:
    assert json.loads(error_body(status, "m", "c"))["error"]["type"] == kind


@pytest.mark.parametrize("status", [429, 503, 529])
def test_retry_after_is_named_where_trying_again_may_help(status: int) -> None:
    assert ("retry-after", "7") in error_answer(status, "m", "c", retry_after=7).headers


@pytest.mark.parametrize("status", [400, 404, 500, 502])
def test_retry_after_is_absent_elsewhere(status: int) -> None:
    assert error_answer(status, "m", "c").headers == ()


@pytest.mark.parametrize(
    "outcome",
    [outcome for outcome in Outcome if outcome not in (Outcome.OK, Outcome.ENGINE_ERROR, Outcome.CLIENT_GONE)],
)
def test_every_failure_of_an_engine_has_an_answer(outcome: Outcome) -> None:
    assert gateway_answer(outcome).status in (502, 504)


def test_answer_head_is_complete() -> None:
    answer = Answer(529, b"abc", content_type="text/plain", headers=(("x-a", "1"),))
    assert answer_head(answer, keep=False, http11=True, lines=b"x-b: 2\r\n") == (
        b"HTTP/1.1 529 Overloaded\r\ncontent-type: text/plain\r\ncontent-length: 3\r\nx-a: 1\r\n"
        b"connection: close\r\nx-b: 2\r\n\r\n"
    )


def test_answer_head_of_a_status_without_a_name_is_valid() -> None:
    assert answer_head(Answer(299, b""), keep=True, http11=True).startswith(b"HTTP/1.1 299 ")
