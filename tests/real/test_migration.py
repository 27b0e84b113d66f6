"""One of two engines is killed with -9 while it streams: the streams go on at the other."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from .engines import MODELS, Engine
from .router_process import Router, serve

FLEET = "pair"
TOKENS = 120
STREAMS = 6
BEGUN = 15
"""Events that every stream has when the engine is killed."""


@dataclass(slots=True)
class Told:
    """A stream as a client that asked for token ids saw it."""

    chat: bool
    worker: str = ""
    text: str = ""
    ids: list[int] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    names: set[tuple[str, int, str]] = field(default_factory=set)
    roles: int = 0
    finishes: list[str] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    ends: int = 0


def body(number: int, chat: bool) -> dict[str, Any]:
    what: dict[str, Any] = {"prompt": f"story number {number}: once upon a time"}
    if chat:
        what = {"messages": [{"role": "user", "content": f"question number {number}?"}]}
    greedy = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
    return (
        {"model": "tiny", "stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
        | what
        | greedy
    )


def follow(url: str, number: int, chat: bool, begun: threading.Barrier | None = None) -> Told:
    told = Told(chat)
    path = "/v1/chat/completions" if chat else "/v1/completions"
    events = 0
    with httpx.stream("POST", url + path, json=body(number, chat), timeout=300.0) as answer:
        assert answer.status_code == 200
        told.worker = answer.headers.get("x-kvctl-worker", "")
        for line in answer.iter_lines():
            if not line:
                continue
            events += 1
            if events == BEGUN and begun is not None:
                begun.wait(120.0)
            if line == "data: [DONE]":
                told.ends += 1
                continue
            take(told, json.loads(line.removeprefix("data: ")))
    return told


def take(told: Told, event: dict[str, Any]) -> None:
    told.names.add((event["id"], event["created"], event["model"]))
    told.usage = event.get("usage") or told.usage
    for choice in event["choices"]:
        delta = choice.get("delta") or {}
        told.roles += "role" in delta
        told.text += choice.get("text") or delta.get("content") or ""
        told.ids += choice.get("token_ids") or []
        told.prompt += choice.get("prompt_token_ids") or []
        told.finishes += [choice["finish_reason"]] if choice.get("finish_reason") else []
    told.prompt += event.get("prompt_token_ids") or []


@dataclass(slots=True)
class Story:
    unbroken: list[Told]
    told: list[Told]
    killed: str
    outcomes: str


@pytest.fixture(scope="module")
def story(engines: Sequence[Engine]) -> Iterator[Story]:
    asked = [(number, chat) for number in range(STREAMS // 2) for chat in (False, True)]
    with serve("router-migration", *(engine.url for engine in engines), options=("--migration-limit", "1")) as router:
        router.wait_up([engine.url for engine in engines])
        with ThreadPoolExecutor(STREAMS) as pool:
            unbroken = list(pool.map(lambda one: follow(engines[0].url, *one), asked))
            begun = threading.Barrier(STREAMS + 1)
            streams = [pool.submit(follow, router.url, *one, begun) for one in asked]
            begun.wait(120.0)
            victim = _busiest(router, engines)
            victim.kill()
            told = [stream.result(300.0) for stream in streams]
        killed = router.workers()[victim.url]["id"]
        outcomes = "\n".join(
            line for line in httpx.get(f"{router.admin}/metrics").text.splitlines() if "kvctl_migration" in line
        )
    yield Story(unbroken, told, killed, outcomes)
    victim.start()
    victim.wait_ready()


def _busiest(router: Router, engines: Sequence[Engine]) -> Engine:
    """The engine with the most streams: at least half of them."""
    metrics = [httpx.get(f"{engine.url}/metrics").text for engine in engines]
    running = [
        next(float(line.split()[-1]) for line in text.splitlines() if line.startswith("vllm:num_requests_running"))
        for text in metrics
    ]
    return engines[running.index(max(running))]


def test_some_streams_were_broken_and_all_have_all_their_tokens(story: Story) -> None:
    assert any(told.worker == story.killed for told in story.told)
    assert [len(told.ids) for told in story.told] == [TOKENS] * STREAMS, story.outcomes


def test_the_text_is_that_of_the_tokens_nothing_twice_and_nothing_lost(story: Story) -> None:
    tokenizer = Tokenizer.from_file(str(MODELS / "tiny" / "tokenizer.json"))
    for told in story.told:
        stream = DecodeStream(ids=told.prompt, skip_special_tokens=True)
        text = "".join(stream.step(tokenizer, token) or "" for token in told.ids)
        assert told.text.rstrip("\ufffd") == text.rstrip("\ufffd")


def test_the_answer_is_that_of_an_engine_that_lives(story: Story) -> None:
    """Greedy decoding: the same tokens, but for ties that a prefill and a decoding may resolve differently."""
    equal = [told.ids == whole.ids for told, whole in zip(story.told, story.unbroken, strict=True)]
    print(f"equal to the unbroken answer: {sum(equal)} of {len(equal)}; {story.outcomes}")
    for told, whole, same in zip(story.told, story.unbroken, equal, strict=True):
        if same:
            assert told.text == whole.text
        assert told.prompt == whole.prompt
    assert any(equal)


def test_each_stream_has_one_identity_one_role_one_finish_and_one_end(story: Story) -> None:
    for told in story.told:
        assert len(told.names) == 1
        assert told.roles == told.chat
        assert told.finishes == ["length"]
        assert told.ends == 1


def test_the_usage_is_that_of_the_whole_answer(story: Story) -> None:
    for told in story.told:
        assert told.usage["completion_tokens"] == TOKENS
        assert told.usage["prompt_tokens"] == len(told.prompt)
        assert told.usage["total_tokens"] == TOKENS + len(told.prompt)
