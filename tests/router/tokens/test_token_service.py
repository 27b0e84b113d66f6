"""Which way a body goes to its ids, what is answered at once, and what the result says of itself."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from router.model import Degraded
from router.tokens.approximate import approximate
from router.tokens.body import Body, parse
from router.tokens.engine_http import EngineHttp
from router.tokens.remote import RemoteTokenizer
from router.tokens.service import Cause, Source, TokenLimits, TokenResult, TokenService
from router.tokens.tokenizer import LocalTokenizer

Start = Callable[..., Awaitable[Any]]
HI = [{"role": "user", "content": "Hi"}]
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
APPROXIMATE = (Degraded.APPROXIMATE_TOKENS,)


def text(prompt: Any, **fields: Any) -> Body:
    return parse("/v1/completions", json.dumps({"prompt": prompt, **fields}).encode())


def chat(messages: Any = HI, **fields: Any) -> Body:
    return parse("/v1/chat/completions", json.dumps({"messages": messages, **fields}).encode())


def at_once(result: TokenResult | Awaitable[TokenResult]) -> TokenResult:
    assert isinstance(result, TokenResult), "expected an answer at once"
    return result


async def later(result: TokenResult | Awaitable[TokenResult]) -> TokenResult:
    assert not isinstance(result, TokenResult), "expected an awaitable"
    return await result


def engine_ids(asked: dict[str, Any]) -> tuple[int, Any]:
    return 200, {"tokens": [7, 7, 7]}


@pytest.fixture
def local(model_folder: Path) -> LocalTokenizer:
    return LocalTokenizer.load(model_folder)


@pytest.fixture
def service(local: LocalTokenizer) -> Iterator[TokenService]:
    made = TokenService(local)
    yield made
    made.close()


def test_given_ids_are_passed_on(service: TokenService) -> None:
    result = at_once(service.tokens(text([5, 6])))
    assert (result.ids.tolist(), result.source, result.degraded) == ([5, 6], Source.GIVEN, ())


def test_a_short_text_is_tokenised_at_once(service: TokenService, local: LocalTokenizer) -> None:
    result = at_once(service.tokens(text("Hello")))
    assert (result.source, result.degraded) == (Source.LOCAL, ())
    assert result.ids.tolist() == local.encode_text("Hello").tolist()


def test_a_short_chat_is_tokenised_at_once(service: TokenService, local: LocalTokenizer) -> None:
    result = at_once(service.tokens(chat()))
    assert local.decode(result.ids.tolist()) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


async def test_a_long_text_is_awaited_and_has_the_same_ids(service: TokenService, local: LocalTokenizer) -> None:
    prompt = "A long story. " * 2000
    result = await later(service.tokens(text(prompt)))
    assert result.ids.tolist() == local.encode_text(prompt).tolist()
    assert service.stats.in_threads == 1


async def test_a_chat_of_many_messages_is_awaited(service: TokenService, local: LocalTokenizer) -> None:
    body = chat(HI * 100)
    assert body.chat is not None
    result = await later(service.tokens(body))
    assert result.ids.tolist() == local.encode_chat(body.chat).tolist()


async def test_a_chat_that_has_grown_by_a_turn_is_answered_at_once(model_folder: Path) -> None:
    service = TokenService(LocalTokenizer.load(model_folder))
    long = [{"role": "system", "content": "Rules. " * 1000}, *HI]
    await later(service.tokens(chat(long)))
    grown = [*long, {"role": "assistant", "content": "Yo"}, {"role": "user", "content": "And now?"}]
    result = at_once(service.tokens(chat(grown)))
    fresh = LocalTokenizer.load(model_folder, cache_bytes=0)
    body = chat(grown)
    assert body.chat is not None
    assert result.ids.tolist() == fresh.encode_chat(body.chat).tolist()
    service.close()


async def test_a_long_text_is_tokenised_off_the_loop(local: LocalTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    service = TokenService(local)
    threads: list[int] = []
    finish = LocalTokenizer.finish

    def spy(self: LocalTokenizer, partial: Any, add_special_tokens: bool) -> Any:
        threads.append(threading.get_ident())
        return finish(self, partial, add_special_tokens)

    monkeypatch.setattr(LocalTokenizer, "finish", spy)
    await later(service.tokens(text("A long story. " * 2000)))
    assert threads
    assert threading.get_ident() not in threads
    service.close()


def test_an_embedded_prompt_has_no_tokens(service: TokenService) -> None:
    result = at_once(service.tokens(text(None, prompt_embeds="AAAA")))
    assert (len(result.ids), result.degraded) == (0, (Degraded.NO_TOKENS,))


def test_without_a_tokenizer_tokens_are_approximate_and_say_so() -> None:
    result = at_once(TokenService().tokens(text("Hello")))
    assert (result.source, result.degraded) == (Source.APPROXIMATE, APPROXIMATE)
    assert result.ids.tolist() == approximate(text("Hello")).tolist()


@pytest.mark.parametrize("body", [chat(IMAGE), chat(chat_template="{{ 1 }}")])
def test_what_cannot_be_rendered_here_is_approximate_without_an_engine(service: TokenService, body: Body) -> None:
    assert at_once(service.tokens(body)).degraded == APPROXIMATE


@pytest.mark.parametrize("body", [chat(IMAGE), chat(chat_template="{{ 1 }}")])
async def test_what_cannot_be_rendered_here_is_asked_of_the_engine(
    local: LocalTokenizer, start_engine: Start, engine_http: EngineHttp, body: Body
) -> None:
    engine = await start_engine(engine_ids)
    service = TokenService(local, RemoteTokenizer(lambda: [engine.url], engine_http))
    result = await later(service.tokens(body))
    assert (result.ids.tolist(), result.source, result.degraded) == ([7, 7, 7], Source.ENGINE, ())


async def test_the_engine_is_asked_when_there_is_no_tokenizer(start_engine: Start, engine_http: EngineHttp) -> None:
    engine = await start_engine(engine_ids)
    service = TokenService(remote=RemoteTokenizer(lambda: [engine.url], engine_http))
    assert (await later(service.tokens(chat()))).source is Source.ENGINE


async def test_an_engines_answer_is_given_at_once_the_second_time(start_engine: Start, engine_http: EngineHttp) -> None:
    engine = await start_engine(engine_ids)
    service = TokenService(remote=RemoteTokenizer(lambda: [engine.url], engine_http))
    await later(service.tokens(text("x")))
    assert at_once(service.tokens(text("x"))).ids.tolist() == [7, 7, 7]
    assert len(engine.asked) == 1


async def test_an_engine_that_fails_leaves_approximate_tokens(start_engine: Start, engine_http: EngineHttp) -> None:
    engine = await start_engine(lambda asked: (500, {}))
    service = TokenService(remote=RemoteTokenizer(lambda: [engine.url], engine_http))
    result = await later(service.tokens(text("x")))
    assert (result.source, result.degraded) == (Source.APPROXIMATE, APPROXIMATE)


async def test_an_engine_that_keeps_failing_is_not_waited_for(engine_http: EngineHttp) -> None:
    service = TokenService(remote=RemoteTokenizer(lambda: ["http://127.0.0.1:9"], engine_http))
    for _ in range(3):
        await later(service.tokens(text("x")))
    assert at_once(service.tokens(text("x"))).degraded == APPROXIMATE


def test_a_stored_conversation_is_approximate() -> None:
    body = parse("/v1/responses", b'{"input": "Hello", "previous_response_id": "r"}')
    assert at_once(TokenService().tokens(body)).degraded == APPROXIMATE


def test_a_chat_that_the_template_refuses_is_approximate(
    make_model: Callable[..., Path], tokenizers_by_kind: dict[str, str]
) -> None:
    folder = make_model(tokenizers_by_kind["chatml"], "{{ raise_exception('no') }}")
    service = TokenService(LocalTokenizer.load(folder))
    assert at_once(service.tokens(chat())).degraded == APPROXIMATE
    assert service.stats.rejected_by_template == 1
    service.close()


async def test_a_template_that_takes_too_long_leaves_approximate_tokens(
    make_model: Callable[..., Path], tokenizers_by_kind: dict[str, str]
) -> None:
    slow = "{{ messages[0].role }}"
    for name in "abc":
        slow = f"{{% for {name} in messages %}}{slow}{{% endfor %}}"
    limits = TokenLimits(render_seconds=0.01)
    service = TokenService(LocalTokenizer.load(make_model(tokenizers_by_kind["chatml"], slow)), limits=limits)
    assert (await later(service.tokens(chat(HI * 300)))).degraded == APPROXIMATE
    assert service.stats.template_too_long == 1
    service.close()


async def test_a_full_queue_is_not_joined(local: LocalTokenizer) -> None:
    gate = threading.Event()
    pool = ThreadPoolExecutor(1)
    pool.submit(gate.wait)
    service = TokenService(local, pool=pool, limits=TokenLimits(max_queued_chars=50_000))
    waiting = service.tokens(text("first " * 5_000))
    assert at_once(service.tokens(text("second " * 5_000))).degraded == APPROXIMATE
    assert service.stats.queue_full == 1
    gate.set()
    assert (await later(waiting)).source is Source.LOCAL
    assert (await later(service.tokens(text("third " * 5_000)))).source is Source.LOCAL
    pool.shutdown()


async def test_one_prompt_above_the_queues_limit_is_still_tokenised(local: LocalTokenizer) -> None:
    service = TokenService(local, limits=TokenLimits(max_queued_chars=10))
    assert (await later(service.tokens(text("word " * 5_000)))).source is Source.LOCAL
    service.close()


async def test_a_cancelled_request_leaves_no_trace_in_the_queue(local: LocalTokenizer) -> None:
    gate = threading.Event()
    pool = ThreadPoolExecutor(1)
    pool.submit(gate.wait)
    service = TokenService(local, pool=pool, limits=TokenLimits(max_queued_chars=50_000))
    waiting = service.tokens(text("first " * 5_000))
    assert inspect.isawaitable(waiting)
    task = asyncio.ensure_future(waiting)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    second = service.tokens(text("second " * 5_000))
    gate.set()
    assert (await later(second)).source is Source.LOCAL
    pool.shutdown()


async def test_after_distrust_the_engine_is_asked(
    local: LocalTokenizer, start_engine: Start, engine_http: EngineHttp
) -> None:
    engine = await start_engine(engine_ids)
    service = TokenService(local, RemoteTokenizer(lambda: [engine.url], engine_http))
    service.distrust(Cause.VOCABULARY)
    assert (await later(service.tokens(text("a")))).source is Source.ENGINE
    assert (await later(service.tokens(chat()))).source is Source.ENGINE
    service.trust()
    assert at_once(service.tokens(text("a"))).source is Source.LOCAL


async def test_distrust_of_the_template_leaves_texts_here(
    local: LocalTokenizer, start_engine: Start, engine_http: EngineHttp
) -> None:
    engine = await start_engine(engine_ids)
    service = TokenService(local, RemoteTokenizer(lambda: [engine.url], engine_http))
    service.distrust(Cause.TEMPLATE, text=False)
    assert at_once(service.tokens(text("a"))).source is Source.LOCAL
    assert (await later(service.tokens(chat()))).source is Source.ENGINE


def test_a_distrusted_tokenizer_without_an_engine_is_used_and_flagged(service: TokenService) -> None:
    service.distrust(Cause.BOS)
    result = at_once(service.tokens(text("a")))
    assert (result.source, result.degraded) == (Source.LOCAL, APPROXIMATE)


def test_results_are_counted_by_source(service: TokenService) -> None:
    for body in (text([1]), text("a"), text("b"), chat(IMAGE)):
        service.tokens(body)
    stats = service.stats
    assert (stats.given, stats.local, stats.approximate, stats.engine) == (1, 2, 1, 0)


@pytest.mark.parametrize(
    "path_and_body",
    [
        ("/v1/responses", {"input": "Hi"}),
        ("/v1/messages", {"messages": HI, "max_tokens": 1}),
        ("/v1/chat/completions", {"messages": HI}),
    ],
)
def test_the_same_text_through_any_api_has_the_same_ids(service: TokenService, path_and_body: tuple[str, Any]) -> None:
    path, fields = path_and_body
    result = at_once(service.tokens(parse(path, json.dumps(fields).encode())))
    assert result.ids.tolist() == at_once(service.tokens(chat())).ids.tolist()
