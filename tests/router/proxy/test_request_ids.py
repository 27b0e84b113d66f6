"""Request ids: whose is kept, and that every answer has one."""

from __future__ import annotations

import pytest

from router.proxy.interface import Answer, Limits
from router.proxy.request_ids import RequestIds, given
from tests.router.proxy.scripted import get, post, serving, stage


@pytest.mark.parametrize("text", ["a", "x" * 128, "a-b_c/1!~"])
def test_id_of_visible_ascii_is_kept(text: str) -> None:
    assert given([(b"x-request-id", text.encode())]) == text


@pytest.mark.parametrize("text", ["", "x" * 129, "a b", "a\tb", "a\x1b[31m", "é", "a\x7f"])
def test_id_that_a_log_cannot_carry_is_not_kept(text: str) -> None:
    assert given([(b"x-request-id", text.encode("latin-1"))]) == ""


def test_ids_differ_between_routers() -> None:
    assert RequestIds().new() != RequestIds().new()


async def test_answer_of_the_routers_own_has_the_callers_id() -> None:
    async with stage() as scene:
        scene.placing.choose = lambda inbound: Answer(404, b"{}")
        answer = await scene.ask(get(b"/v1/x", b"X-Request-Id: mine-1"))
    assert answer.one(b"x-request-id") == b"mine-1"


async def test_answer_of_the_routers_own_has_a_made_id_where_the_callers_is_unfit() -> None:
    async with stage() as scene:
        scene.placing.choose = lambda inbound: Answer(404, b"{}")
        answer = await scene.ask(get(b"/v1/x", b"X-Request-Id: " + b"x" * 129))
    assert answer.one(b"x-request-id").startswith(b"r-")


async def test_internal_error_has_an_id() -> None:
    def broken(inbound: object) -> Answer:
        raise RuntimeError

    async with stage() as scene:
        scene.placing.choose = broken
        answer = await scene.ask(post())
    assert answer.status == 500
    assert answer.one(b"x-request-id").startswith(b"r-")


async def test_request_that_is_no_http_is_answered_with_an_id() -> None:
    async with stage() as scene:
        answer = await scene.ask(b"nonsense\r\n\r\n")
    assert answer.status == 400
    assert answer.one(b"x-request-id").startswith(b"r-")


async def test_refusal_of_a_body_that_is_too_large_has_the_callers_id() -> None:
    async with stage(limits=Limits(max_body=10)) as scene:
        answer = await scene.ask(post(b"x" * 11, b"X-Request-Id: mine-2"))
    assert answer.status == 413
    assert answer.one(b"x-request-id") == b"mine-2"


async def test_headers_that_a_leg_leaves_out_do_not_reach_the_engine() -> None:
    ok = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    seen = []

    def answer(request: object) -> bytes:
        seen.append(request)
        return ok

    async with stage(serving(answer)) as scene:
        scene.placing.choose = lambda inbound: scene.placing.ticket(
            scene.placing.endpoints[0], without=(b"authorization", b"x-api-key"), upstream_lines=b"authorization: e\r\n"
        )
        await scene.ask(post(b"{}", b"Authorization: Bearer s3cret", b"X-API-Key: s3cret", b"X-Api-Key-Id: stays"))
    (request,) = seen
    assert request.all(b"authorization") == [b"e"]
    assert request.all(b"x-api-key") == []
    assert request.all(b"x-api-key-id") == [b"stays"]
