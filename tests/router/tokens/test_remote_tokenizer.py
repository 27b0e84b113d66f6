"""The engine's `/tokenize` as a source of ids: what is asked, what is cached, and that no failure gets out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from router.tokens.body import Body, parse
from router.tokens.engine_http import EngineHttp, EngineUnreachable
from router.tokens.remote import RemoteTokenizer, fetch, question

Start = Callable[..., Awaitable[Any]]
NOBODY = "http://127.0.0.1:9"


def ok(asked: dict[str, Any]) -> tuple[int, Any]:
    return 200, {"count": 3, "max_model_len": 4096, "tokens": [1, 2, 4294967295]}


def text(prompt: str, **fields: Any) -> Body:
    return parse("/v1/completions", json.dumps({"model": "m", "prompt": prompt, **fields}).encode())


def chat(**fields: Any) -> Body:
    messages = [{"role": "user", "content": "Hi"}]
    return parse("/v1/chat/completions", json.dumps({"model": "m", "messages": messages, **fields}).encode())


async def ids(remote: RemoteTokenizer, body: Body) -> list[int] | None:
    asked = remote.prepare(body)
    assert asked is not None
    found = await remote.ask(asked)
    return None if found is None else found.tolist()


def test_a_text_is_asked_as_a_prompt() -> None:
    assert question(text("x", add_special_tokens=False)) == {"model": "m", "prompt": "x", "add_special_tokens": False}


def test_a_chat_is_asked_with_what_its_template_sees() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    asked = question(chat(tools=tools, reasoning_effort="low", chat_template_kwargs={"a": 1}, documents=[{"t": "d"}]))
    assert asked is not None
    assert asked["tools"] == tools
    assert asked["chat_template_kwargs"] == {
        "a": 1,
        "enable_thinking": True,
        "reasoning_effort": "low",
        "documents": [{"t": "d"}],
    }
    assert (asked["add_generation_prompt"], asked["continue_final_message"]) == (True, False)


def test_a_clients_template_is_passed_on() -> None:
    asked = question(chat(chat_template="{{ 1 }}"))
    assert asked is not None
    assert asked["chat_template"] == "{{ 1 }}"


def test_a_stored_conversation_is_not_asked() -> None:
    assert question(parse("/v1/responses", b'{"input": "x", "previous_response_id": "r"}')) is None


@pytest.mark.parametrize("chunked", [False, True])
async def test_ids_come_from_the_engine(start_engine: Start, engine_http: EngineHttp, chunked: bool) -> None:
    engine = await start_engine(ok)
    engine.chunked = chunked
    assert await ids(RemoteTokenizer(lambda: [engine.url], engine_http), text("x")) == [1, 2, 4294967295]
    assert engine.asked == [{"model": "m", "prompt": "x", "add_special_tokens": True}]


async def test_a_base_url_keeps_its_path(start_engine: Start, engine_http: EngineHttp) -> None:
    engine = await start_engine(ok)
    await ids(RemoteTokenizer(lambda: [engine.url + "/pod/"], engine_http), text("x"))
    assert engine.paths == ["/pod/tokenize"]


async def test_the_same_question_is_asked_once(start_engine: Start, engine_http: EngineHttp) -> None:
    engine = await start_engine(ok)
    remote = RemoteTokenizer(lambda: [engine.url], engine_http)
    await ids(remote, text("x"))
    asked = remote.prepare(text("x", temperature=1.0, stream=True))
    assert asked is not None
    cached = remote.cached(asked)
    assert cached is not None
    assert cached.tolist() == [1, 2, 4294967295]
    other = remote.prepare(text("y"))
    assert other is not None
    assert remote.cached(other) is None


async def test_connections_are_kept_alive(start_engine: Start, engine_http: EngineHttp) -> None:
    engine = await start_engine(ok)
    remote = RemoteTokenizer(lambda: [engine.url], engine_http)
    for number in range(5):
        await ids(remote, text(str(number)))
    assert engine.connections == 1


async def test_a_connection_that_was_closed_meanwhile_is_replaced(start_engine: Start, engine_http: EngineHttp) -> None:
    engine = await start_engine(ok)
    engine.close_after = True
    remote = RemoteTokenizer(lambda: [engine.url], engine_http)
    for number in range(4):
        assert await ids(remote, text(str(number))) is not None
    assert remote.stats.failures == {}


async def test_an_engine_that_restarts_is_found_again(start_engine: Start, engine_http: EngineHttp) -> None:
    engine = await start_engine(ok)
    remote = RemoteTokenizer(lambda: [engine.url], engine_http)
    await ids(remote, text("a"))
    await engine.stop()
    again = await start_engine(ok, int(engine.url.rsplit(":", 1)[1]))
    assert await ids(remote, text("b")) is not None
    assert again.connections == 1


async def test_the_next_engine_is_asked_when_one_is_dead(start_engine: Start, engine_http: EngineHttp) -> None:
    engine = await start_engine(ok)
    remote = RemoteTokenizer(lambda: [NOBODY, engine.url], engine_http)
    assert [await ids(remote, text(str(number))) for number in range(2)] == [[1, 2, 4294967295]] * 2


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (lambda asked: (500, {}), "status_500"),
        (lambda asked: (404, {"detail": "Not Found"}), "status_404"),
        (lambda asked: (400, {"error": "roles must alternate"}), "status_400"),
        (lambda asked: (200, {"count": 3}), "status_200"),
        (lambda asked: (200, {"tokens": [-1]}), "status_200"),
        (lambda asked: (200, b"no json"), "status_200"),
        (lambda asked: None, "no_answer"),
    ],
)
async def test_a_failure_is_counted_and_gives_no_ids(
    start_engine: Start, engine_http: EngineHttp, answer: Any, cause: str
) -> None:
    engine = await start_engine(answer)
    remote = RemoteTokenizer(lambda: [engine.url], engine_http)
    assert await ids(remote, text("x")) is None
    assert remote.stats.failures == {cause: 1}


async def test_a_silent_engine_costs_the_timeout_and_no_more(start_engine: Start, engine_http: EngineHttp) -> None:
    engine = await start_engine(ok)
    engine.delay = 60.0
    remote = RemoteTokenizer(lambda: [engine.url], engine_http, timeout=0.1)
    async with asyncio.timeout(20):
        assert await ids(remote, text("x")) is None


async def test_after_failures_in_a_row_nobody_is_asked_for_a_while(engine_http: EngineHttp) -> None:
    now = [100.0]
    remote = RemoteTokenizer(lambda: [NOBODY], engine_http, clock=lambda: now[0])
    for _ in range(3):
        assert remote.available
        await ids(remote, text("x"))
    assert not remote.available
    assert await ids(remote, text("x")) is None
    assert remote.stats.calls == 3
    now[0] += 1.01
    assert remote.available


async def test_an_answer_ends_the_row_of_failures(start_engine: Start, engine_http: EngineHttp) -> None:
    good = await start_engine(ok)
    engines = [NOBODY]
    remote = RemoteTokenizer(lambda: engines, engine_http)
    for base in (NOBODY, NOBODY, good.url, NOBODY, NOBODY):
        engines[:] = [base]
        await ids(remote, text(base + str(len(remote.stats.failures))))
    assert remote.available


async def test_a_refused_prompt_does_not_stop_the_asking(start_engine: Start, engine_http: EngineHttp) -> None:
    engine = await start_engine(lambda asked: (400, {"error": "roles must alternate"}))
    remote = RemoteTokenizer(lambda: [engine.url], engine_http)
    for number in range(6):
        await ids(remote, text(str(number)))
    assert remote.available


async def test_calls_at_once_are_bounded(start_engine: Start, engine_http: EngineHttp) -> None:
    engine = await start_engine(ok)
    engine.delay = 0.02
    remote = RemoteTokenizer(lambda: [engine.url], engine_http, concurrency=2, timeout=30)
    found = await asyncio.gather(*(ids(remote, text(str(number))) for number in range(8)))
    assert None not in found
    assert engine.most_running <= 2


async def test_waiting_for_a_free_slot_is_bounded_too(start_engine: Start, engine_http: EngineHttp) -> None:
    engine = await start_engine(ok)
    engine.delay = 60.0
    remote = RemoteTokenizer(lambda: [engine.url], engine_http, concurrency=1, timeout=0.1)
    async with asyncio.timeout(20), remote._slots:
        await ids(remote, text("b"))
    assert remote.stats.failures["queue_timeout"] == 1


async def test_a_cancelled_call_gives_its_slot_back(start_engine: Start, engine_http: EngineHttp) -> None:
    engine = await start_engine(ok)
    engine.delay = 60.0
    remote = RemoteTokenizer(lambda: [engine.url], engine_http, concurrency=1, timeout=60)
    task = asyncio.create_task(ids(remote, text("a")))
    while not engine.asked:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    engine.delay = 0.0
    async with asyncio.timeout(20):
        assert await ids(remote, text("b")) is not None


async def test_a_question_above_the_limit_is_not_asked(engine_http: EngineHttp) -> None:
    remote = RemoteTokenizer(lambda: [NOBODY], engine_http, max_bytes=100)
    assert remote.prepare(text("x" * 200)) is None
    assert remote.stats.skipped == 1


async def test_nobody_to_ask_is_no_failure(engine_http: EngineHttp) -> None:
    remote = RemoteTokenizer(list, engine_http)
    assert not remote.available
    assert await ids(remote, text("x")) is None
    assert remote.stats.failures == {}


async def test_the_engines_longest_prompt_is_reported(start_engine: Start, engine_http: EngineHttp) -> None:
    engine = await start_engine(ok)
    assert (await fetch(engine_http, engine.url, b"{}", 20.0)).max_model_len == 4096


async def test_something_that_speaks_no_http_is_unreachable(engine_http: EngineHttp) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello\r\n\r\n")

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with server:
        with pytest.raises(EngineUnreachable):
            await engine_http.post(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "/tokenize", b"{}")
