"""What goes through: bytes, heads, in both directions."""

from __future__ import annotations

import pytest

from router.proxy.interface import Answer, Outcome
from tests.router.proxy.scripted import (
    OK,
    Engine,
    Message,
    Script,
    Wire,
    chunks,
    engine_script,
    get,
    post,
    serving,
    stage,
)

SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENTS = (
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"Hel"}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"lo"}}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":4}}}\n\n',
    b"data: [DONE]\n\n",
)


async def test_engine_gets_the_body_as_it_came() -> None:
    body = bytes(range(256)) * 40
    engines: list[Engine] = []

    def bind(engine: Engine) -> Script:
        engines.append(engine)
        return serving(OK)(engine)

    async with stage(bind) as scene:
        await scene.ask(post(body))
        assert engines[0].requests[0].body == body


async def test_body_larger_than_all_buffers_arrives_whole() -> None:
    body = bytes(range(256)) * 4096 * 5
    async with stage(
        serving(lambda request: b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(request.body) + request.body)
    ) as scene:
        answer = await scene.ask(post(body))
        assert answer.body == body


async def seen_by_engine(request: bytes, **ticket: object) -> Message:
    engines: list[Engine] = []

    def bind(engine: Engine) -> Script:
        engines.append(engine)
        return serving(OK)(engine)

    async with stage(bind) as scene:
        scene.placing.choose = lambda inbound: scene.placing.ticket(scene.placing.endpoints[0], **ticket)
        answer = await scene.ask(request)
        assert answer.status == 200
        assert scene.placing.endpoints[0].port
        return engines[0].requests[0]


async def test_chunked_request_reaches_the_engine_with_a_length() -> None:
    request = b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks(b"abc", b"defg")
    seen = await seen_by_engine(request)
    assert (seen.body, seen.one(b"content-length"), seen.all(b"transfer-encoding")) == (b"abcdefg", b"7", [])


async def test_end_to_end_headers_reach_the_engine_untouched() -> None:
    seen = await seen_by_engine(
        post(b"{}", b"Authorization: Bearer  a b", b"X-Request-ID: id-1", b"X-Odd:\xff", b"X-Two: 1", b"X-Two: 2")
    )
    assert seen.one(b"authorization") == b"Bearer  a b"
    assert seen.one(b"x-request-id") == b"id-1"
    assert seen.one(b"x-odd") == b"\xff"
    assert seen.all(b"x-two") == [b"1", b"2"]


async def test_hop_by_hop_headers_do_not_reach_the_engine() -> None:
    lines = (
        b"Connection: keep-alive, X-Private",
        b"X-Private: secret",
        b"Keep-Alive: timeout=5",
        b"Proxy-Authorization: Basic x",
        b"Proxy-Whatever: x",
        b"TE: trailers",
        b"Trailer: X-Sum",
        b"Upgrade: h2c",
        b"Expect: 100-continue",
    )
    seen = await seen_by_engine(post(b"{}", *lines))
    assert {name for name, _ in seen.headers} == {b"host", b"content-length"}


async def test_host_is_the_engines_own() -> None:
    async with stage(
        serving(
            lambda request: (
                b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(request.one(b"host")), request.one(b"host"))
            )
        )
    ) as scene:
        answer = await scene.ask(post())
        assert answer.body == b"127.0.0.1:%d" % scene.placing.endpoints[0].port


async def test_lines_of_the_leg_are_added_to_the_engines_request() -> None:
    seen = await seen_by_engine(post(), upstream_lines=b"x-request-id: made-here\r\n")
    assert seen.one(b"x-request-id") == b"made-here"


async def test_prefix_of_the_endpoint_comes_before_the_path() -> None:
    engines: list[Engine] = []

    def bind(engine: Engine) -> Script:
        engines.append(engine)
        return serving(OK)(engine)

    async with stage(bind) as scene:
        endpoint = scene.placing.endpoints[0]._replace(prefix="/engine/a")
        scene.placing.choose = lambda inbound: scene.placing.ticket(endpoint)
        await scene.ask(post(target=b"/v1/completions?a=%20"))
        assert engines[0].requests[0].first == b"POST /engine/a/v1/completions?a=%20 HTTP/1.1"


async def test_absolute_form_target_reaches_the_engine_in_origin_form() -> None:
    seen = await seen_by_engine(post(target=b"http://elsewhere:99/v1/x?y=1"))
    assert seen.first == b"POST /v1/x?y=1 HTTP/1.1"


async def test_get_without_body_gets_no_content_length() -> None:
    assert (await seen_by_engine(get())).all(b"content-length") == []


async def answered(answer: bytes, request: bytes | None = None, bodiless: bool = False, **ticket: object) -> Message:
    async def script(wire: Wire) -> None:
        await wire.message()
        await wire.send(answer)
        wire.writer.write_eof()
        await wire.gone()

    async with stage(engine_script(script)) as scene:
        scene.placing.choose = lambda inbound: scene.placing.ticket(scene.placing.endpoints[0], **ticket)
        return await scene.ask(request or post(), bodiless)


async def test_response_head_is_passed_on_less_its_hop_by_hop_headers() -> None:
    answer = await answered(
        b"HTTP/1.1 201 Made It\r\nX-Engine: A  b\r\nConnection: X-Private, keep-alive\r\nX-Private: 1\r\n"
        b"Keep-Alive: timeout=5\r\nProxy-Authenticate: x\r\nUpgrade: h2c\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n"
        b"Content-Length: 2\r\n\r\nok"
    )
    assert answer.raw == (
        b"HTTP/1.1 201 Made It\r\nX-Engine: A  b\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nContent-Length: 2\r\n"
        b"x-kvctl-worker: w1\r\n\r\n"
    )


async def test_engines_request_id_is_kept_if_the_leg_has_none() -> None:
    answer = await answered(b"HTTP/1.1 200 OK\r\nX-Request-Id: engine\r\nContent-Length: 0\r\n\r\n")
    assert answer.all(b"x-request-id") == [b"engine"]


async def test_legs_request_id_replaces_the_engines() -> None:
    answer = await answered(
        b"HTTP/1.1 200 OK\r\nX-Request-Id: engine\r\nContent-Length: 0\r\n\r\n", head_lines=b"x-request-id: ours\r\n"
    )
    assert answer.all(b"x-request-id") == [b"ours"]


async def test_interim_responses_are_not_passed_on() -> None:
    answer = await answered(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK)
    assert (answer.status, answer.body) == (200, b"ok")


@pytest.mark.parametrize("status", [301, 404, 422, 500, 503])
async def test_any_status_of_the_engine_is_passed_on(status: int) -> None:
    answer = await answered(b"HTTP/1.1 %d Whatever\r\nContent-Length: 3\r\nLocation: /y\r\n\r\nerr" % status)
    assert (answer.status, answer.body, answer.one(b"location")) == (status, b"err", b"/y")


async def test_answer_to_head_has_a_length_and_no_body() -> None:
    async with stage(engine_script(_answers_head)) as scene:
        wire = await scene.client()
        answer = await wire.ask(get(method=b"HEAD"), bodiless=True)
        again = await wire.ask(get(method=b"HEAD"), bodiless=True)
        assert (answer.one(b"content-length"), again.status) == (b"1000", 200)


async def _answers_head(wire: Wire) -> None:
    while True:
        await wire.message()
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")


@pytest.mark.parametrize("status", [204, 304])
async def test_status_without_body_ends_with_its_head(status: int) -> None:
    async with stage(serving(b"HTTP/1.1 %d x\r\n\r\n" % status)) as scene:
        wire = await scene.client()
        assert (await wire.ask(post(), bodiless=True)).status == status
        assert (await wire.ask(post(), bodiless=True)).status == status
        assert scene.stats.upstream_opened == 1


def trickling(answer: bytes) -> Script:
    async def script(wire: Wire) -> None:
        await wire.message()
        await wire.trickle(answer)
        wire.writer.write_eof()
        await wire.gone()

    return script


async def test_stream_that_comes_byte_by_byte_is_passed_on_byte_for_byte() -> None:
    body = chunks(*EVENTS)
    async with stage(engine_script(trickling(SSE_HEAD + body))) as scene:
        wire = await scene.client()
        await wire.send(post(b"{}", b"Connection: close"))
        await wire.head()
        assert await wire.rest() == body


async def test_stream_that_comes_byte_by_byte_is_understood() -> None:
    async with stage(engine_script(trickling(SSE_HEAD + chunks(*EVENTS)))) as scene:
        await scene.ask(post())
        (usage,) = scene.ticket.used
        assert scene.ticket.tokens == 1
        assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (7, 2, 4)


async def test_chunk_boundaries_extensions_and_trailers_are_the_engines() -> None:
    body = b"3;a=b\r\nabc\r\n1\r\nd\r\n0\r\nX-Sum: 1\r\n\r\n"
    async with stage(engine_script(trickling(SSE_HEAD + body))) as scene:
        wire = await scene.client()
        await wire.send(post(b"{}", b"Connection: close"))
        await wire.head()
        assert await wire.rest() == body


async def test_an_event_is_passed_on_before_the_next_one_exists() -> None:
    async def script(wire: Wire) -> None:
        await wire.message()
        await wire.send(SSE_HEAD + b"5\r\nfirst\r\n")
        await wire.gone()

    async with stage(engine_script(script)) as scene:
        wire = await scene.client()
        await wire.send(post())
        await wire.head()
        assert await wire.reader.readexactly(10) == b"5\r\nfirst\r\n"


async def test_body_up_to_close_is_passed_on_and_ends_with_close() -> None:
    answer = await answered(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nall there is")
    assert (answer.one(b"connection"), answer.body) == (b"close", b"all there is")


async def test_http10_engine_is_answered_for_in_http11() -> None:
    answer = await answered(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok")
    assert (answer.first, answer.body) == (b"HTTP/1.1 200 OK", b"ok")


async def test_http10_client_gets_a_stream_without_chunks_up_to_close() -> None:
    async with stage(engine_script(trickling(SSE_HEAD + chunks(*EVENTS)))) as scene:
        wire = await scene.client()
        answer = await wire.ask(get(version=b"1.0"))
        assert answer.all(b"transfer-encoding") == []
        assert answer.body == b"".join(EVENTS)
        assert scene.ticket.tokens == 1


async def test_json_answer_reports_usage_and_first_token_at_its_end() -> None:
    body = b'{"choices":[{"text":"x"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with stage(serving(head + body)) as scene:
        await scene.ask(post())
        (usage,) = scene.ticket.used
        assert (scene.ticket.tokens, usage.prompt_tokens, usage.cached_tokens) == (1, 3, None)


async def test_leg_that_is_not_watched_hears_nothing_but_its_end() -> None:
    async with stage(engine_script(trickling(SSE_HEAD + chunks(*EVENTS)))) as scene:
        scene.placing.choose = lambda inbound: scene.placing.ticket(scene.placing.endpoints[0], watch=False)
        await scene.ask(post())
        assert (scene.ticket.tokens, scene.ticket.used, scene.ticket.ends) == (0, [], [(Outcome.OK, 200)])


async def test_error_of_the_engine_has_no_first_token() -> None:
    head = b"HTTP/1.1 500 x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    async with stage(serving(head)) as scene:
        await scene.ask(post())
        assert (scene.ticket.tokens, scene.ticket.ends) == (0, [(Outcome.ENGINE_ERROR, 500)])


async def test_answer_of_the_router_is_written_as_given() -> None:
    async with stage() as scene:
        scene.placing.choose = lambda inbound: Answer(404, b"{}", headers=(("x-request-id", "a"),))
        answer = await scene.ask(post())
        assert answer.raw == (
            b"HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: 2\r\nx-request-id: a\r\n\r\n"
        )
        assert answer.body == b"{}"


async def test_leg_that_raises_does_not_break_the_answer() -> None:
    async with stage(serving(OK)) as scene:

        class Broken:
            endpoint = scene.placing.endpoints[0]
            head_lines = upstream_lines = b""
            without = ()
            repeatable = True
            watch = True

            def first_token(self) -> None:
                raise RuntimeError("first")

            def usage(self, usage: object) -> None:
                raise RuntimeError("usage")

            def end(self, outcome: Outcome, status: int) -> None:
                raise RuntimeError("end")

        scene.placing.choose = lambda inbound: Broken()
        wire = await scene.client()
        assert (await wire.ask(post())).body == b"ok"
        assert (await wire.ask(post())).body == b"ok"
        assert scene.stats.faults == 4
