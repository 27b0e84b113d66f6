"""The number that the router stands for: the cached tokens it predicts are those that the engine reports.

252 requests of every kind, four at a time, prefixes shared between conversations; once with the engine's own tokenizer,
asked over HTTP, and once with ours. The figures are printed and kept in `.real/prediction-*.json`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import httpx
import pytest

from .engines import LOGS, MODELS, Engine
from .router_process import Router, serve
from .traffic import SHAPES, Corpus, Exchange, Thread

if TYPE_CHECKING:
    from openai import OpenAI

FLEET = "pair"
REQUESTS = 252
AT_A_TIME = 4


@pytest.fixture(scope="module", params=["engine", "local"])
def tokenizer(request: pytest.FixtureRequest) -> str:
    """Whose tokenizer the router uses."""
    return str(request.param)


@pytest.fixture(scope="module")
def router(engines: Sequence[Engine], tokenizer: str) -> Iterator[Router]:
    for engine in engines:
        engine.reset_cache()
    options = ("--tokenizer", str(MODELS / engines[0].model)) if tokenizer == "local" else ()
    urls = [engine.url for engine in engines]
    with serve(f"router-prediction-{tokenizer}", *urls, options=options) as router:
        router.wait_up(urls)
        yield router


def test_predicted_cached_tokens_equal_the_engines(
    router: Router, engines: Sequence[Engine], client: OpenAI, tokenizer: str
) -> None:
    shared = [Corpus(seed).slice(700, 1500) for seed in range(3)]
    threads = [
        Thread(shape, Corpus(100 + number), engines[0].model, opening=shared[number % len(shared)])
        for number, shape in enumerate(SHAPES * 3)
    ]
    turns = REQUESTS // len(threads)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        done = list(pool.map(lambda thread: [thread.turn(client, router) for _ in range(turns)], threads))
    exchanges = [exchange for thread in done for exchange in thread]
    report = _report(exchanges)
    (LOGS.parent / f"prediction-{tokenizer}.json").write_text(json.dumps(report, indent=1) + "\n")
    print(f"\n{tokenizer} tokenizer: {report['equal']} of {report['requests']} equal ({report['share']:.2%})")
    assert report["requests"] >= 200
    assert report["cached_tokens"] > 0
    assert report["share"] >= 0.99, report


def test_what_the_router_joins_is_what_the_client_is_told(
    router: Router, engines: Sequence[Engine], client: OpenAI
) -> None:
    for number, shape in enumerate(SHAPES):
        corpus = Corpus(200 + number)
        thread = Thread(shape, corpus, engines[0].model, opening=corpus.slice(500, 600))
        for _ in range(2):
            exchange = thread.turn(client, router)
            assert exchange.joined == exchange.told, exchange


def test_a_stream_without_usage_has_nothing_to_join(router: Router, engines: Sequence[Engine]) -> None:
    body = {"model": engines[0].model, "prompt": "import sys\n" * 30, "max_tokens": 3, "stream": True}
    answer = httpx.post(f"{router.url}/v1/completions", json=body, timeout=60.0).raise_for_status()
    assert '"usage"' not in answer.text
    assert router.decision(answer.headers["x-kvctl-decision"])["engine_cached_tokens"] is None


def test_salted_and_plain_blocks_are_kept_apart(router: Router, engines: Sequence[Engine]) -> None:
    def ask(**more: str) -> tuple[int, int]:
        body = {"model": engines[0].model, "prompt": "import json\n" * 60, "max_tokens": 2, **more}
        answer = httpx.post(f"{router.url}/v1/completions", json=body, timeout=60.0).raise_for_status()
        found = router.joined(answer.headers["x-kvctl-decision"])
        return found["predicted_cached_tokens"], found["engine_cached_tokens"]

    for seen in (ask(cache_salt="one"), ask(), ask(cache_salt="one"), ask(), ask(cache_salt="two")):
        predicted, reported = seen
        assert predicted == reported


def _report(exchanges: list[Exchange]) -> dict[str, object]:
    equal = sum(exchange.equal for exchange in exchanges)
    return {
        "requests": len(exchanges),
        "equal": equal,
        "share": equal / len(exchanges),
        "prompt_tokens": sum(exchange.prompt_tokens for exchange in exchanges),
        "cached_tokens": sum(exchange.told for exchange in exchanges),
        "workers": Counter(exchange.worker for exchange in exchanges),
        "different": [
            {"shape": each.shape, "prompt": each.prompt_tokens, "predicted": each.predicted, "engine": each.told}
            for each in exchanges
            if not each.equal
        ],
    }
