"""Engines whose cache holds 63 blocks: what they evict, the router stops counting on.

The model's tokenizer puts a BOS before plain prompts, and its chat template brings its own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from .engines import Engine
from .router_process import Router
from .traffic import SHAPES, Corpus, Exchange, Thread

if TYPE_CHECKING:
    from openai import OpenAI

FLEET = "small"


@pytest.fixture(scope="module")
def conversations(router: Router, engines: Sequence[Engine], client: OpenAI) -> list[list[Exchange]]:
    """Twelve conversations, three of them busy at any time, so that each is left alone until most of it is evicted."""
    threads = [
        Thread(shape, Corpus(300 + number), engines[0].model, Corpus(310 + number).slice(300, 500), (60, 200), (4, 40))
        for number, shape in enumerate(SHAPES * 2)
    ]
    done: list[list[Exchange]] = [[] for _ in threads]
    for step in range(2 * len(threads)):
        for number in (step, step + 1, step + 2):
            number %= len(threads)
            done[number].append(threads[number].turn(client, router))
    return done


@pytest.fixture(scope="module")
def exchanges(conversations: list[list[Exchange]]) -> list[Exchange]:
    return [exchange for conversation in conversations for exchange in conversation]


def test_evictions_happen(exchanges: list[Exchange], router: Router) -> None:
    """The engines gave up more blocks than both caches hold: what was held at the end is not what was held first."""
    removed = router.get("/index")["counters"]["removed"]
    print(f"\nblocks evicted by the engines: {removed} in {len(exchanges)} requests")
    assert removed > 2 * 63


def test_something_is_reused_all_the_same(exchanges: list[Exchange]) -> None:
    assert sum(exchange.told > 0 for exchange in exchanges) >= 5


def test_the_prediction_follows_evictions(exchanges: list[Exchange]) -> None:
    different = [exchange for exchange in exchanges if not exchange.equal]
    print(f"\nunder eviction: {len(exchanges) - len(different)} of {len(exchanges)} predictions equal the engine's")
    assert len(different) <= len(exchanges) // 100, different


def test_the_prediction_follows_evictions_within_seconds(
    engines: Sequence[Engine], client: OpenAI, router: Router
) -> None:
    """Ten conversations in random order: many lose their blocks within a second or two of their last turn."""

    def fresh(number: int) -> Thread:
        corpus = Corpus(1000 + number)
        return Thread(
            SHAPES[number % len(SHAPES)], corpus, engines[0].model, corpus.slice(300, 500), (30, 120), (4, 30)
        )

    rng = random.Random(1)
    threads = [fresh(number) for number in range(10)]
    exchanges = []
    for step in range(120):
        number = rng.randrange(len(threads))
        exchanges.append(threads[number].turn(client, router))
        if exchanges[-1].prompt_tokens > 750:
            threads[number] = fresh(100 + step)
    different = [exchange for exchange in exchanges if not exchange.equal]
    print(f"\nrandom order: {len(exchanges) - len(different)} of {len(exchanges)} predictions equal the engine's")
    assert len(different) <= len(exchanges) // 100, different


def test_the_index_holds_no_more_than_the_engines(exchanges: list[Exchange], router: Router) -> None:
    held = [worker["cached_blocks"] for worker in router.workers().values()]
    assert all(0 < blocks < 64 for blocks in held), held


def test_no_engine_is_distrusted_for_evicting(exchanges: list[Exchange], router: Router) -> None:
    """Events of evictions arrive a moment after the decisions they would have changed: that is no broken promise."""
    trusts = [worker["index_trust"] for worker in router.workers().values()]
    print(f"\nconfidence under eviction: {trusts}")
    assert sum(trust["answers"] for trust in trusts) >= 10
    assert not any(trust["distrusted"] or trust["resyncs"] for trust in trusts)
