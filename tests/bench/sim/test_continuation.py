"""A prompt that ends within an answer gets the rest of it, as from a real model; token ids on request."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.sim.continuation import prefix_seeds
from bench.sim.text import TextModel
from router.prefix.hashing import chain

MODEL = TextModel()
PROMPT = MODEL.encode("a prompt of some words, not very long")
TOKENS = st.lists(st.integers(0, 2047), max_size=40).map(lambda ids: np.array(ids, np.uint32))


@given(TOKENS)
@settings(max_examples=50, deadline=None)
def test_the_seed_of_every_prefix_is_its_chain(tokens: Any) -> None:
    root = np.uint64(7)
    assert prefix_seeds(root, tokens).tolist() == [int(chain(root, tokens, 0, stop)) for stop in range(len(tokens) + 1)]


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("sent", range(1, 12))
def test_a_prompt_with_the_beginning_of_its_answer_gets_the_rest(chat: bool, sent: int) -> None:
    whole = MODEL.answer(PROMPT, 12, chat=chat)
    longer = np.concatenate((PROMPT, whole[:sent]))
    assert MODEL.begun(longer) == sent
    assert MODEL.answer(longer, 12 - sent).tolist() == whole[sent:].tolist()


def test_a_prompt_with_a_changed_answer_gets_an_answer_of_its_own() -> None:
    whole = MODEL.answer(PROMPT, 12)
    changed = np.concatenate((PROMPT, whole[:6]))
    changed[-1] = changed[-1] + 1
    assert MODEL.answer(changed, 6).tolist() != whole[6:].tolist()


def _events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


async def test_a_completion_tells_the_ids_of_prompt_and_answer_when_asked(start_engine: Any) -> None:
    engine = await start_engine(speedup=0)
    body = {"prompt": PROMPT.tolist(), "max_tokens": 3, "stream": True, "return_token_ids": True}
    events = _events((await engine.client.post("/v1/completions", json=body)).text)
    choices = [event["choices"][0] for event in events]
    assert [choice["token_ids"] for choice in choices] == [[token] for token in MODEL.answer(PROMPT, 3).tolist()]
    assert [choice["prompt_token_ids"] for choice in choices] == [PROMPT.tolist(), None, None]


async def test_a_chat_tells_its_prompt_with_the_role(start_engine: Any) -> None:
    engine = await start_engine(speedup=0)
    messages = [{"role": "user", "content": "hello"}]
    body = {"messages": messages, "max_tokens": 2, "stream": True, "return_token_ids": True}
    role, *rest = _events((await engine.client.post("/v1/chat/completions", json=body)).text)
    prompt = MODEL.encode(MODEL.render(messages))
    assert role["prompt_token_ids"] == prompt.tolist()
    ids = [event["choices"][0]["token_ids"][0] for event in rest]
    assert ids == MODEL.answer(prompt, 2, chat=True).tolist()


async def test_a_chats_prompt_sent_as_ids_gets_the_chats_answer(start_engine: Any) -> None:
    engine = await start_engine(speedup=0)
    prompt = MODEL.encode(MODEL.render([{"role": "user", "content": "hello"}]))
    body = {"prompt": prompt.tolist(), "max_tokens": 3}
    text = (await engine.client.post("/v1/completions", json=body)).json()["choices"][0]["text"]
    assert text == MODEL.decode(MODEL.answer(prompt, 3, chat=True).tolist())


async def test_without_being_asked_it_tells_none(start_engine: Any) -> None:
    engine = await start_engine(speedup=0)
    body = {"prompt": "x", "max_tokens": 2, "stream": True}
    for event in _events((await engine.client.post("/v1/completions", json=body)).text):
        assert event["choices"][0]["token_ids"] is None
        assert event["choices"][0]["prompt_token_ids"] is None


async def test_an_answer_of_open_length_ends_where_it_would_have_when_it_is_continued(start_engine: Any) -> None:
    engine = await start_engine(api={"default_output": 7}, engine={"max_model_len": 64}, speedup=0)
    begun = [*PROMPT.tolist(), *MODEL.answer(PROMPT, 3).tolist()]
    body = {"prompt": begun, "max_tokens": 64 - len(begun)}
    choice = (await engine.client.post("/v1/completions", json=body)).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["text"] == MODEL.decode(MODEL.answer(PROMPT, 7)[3:].tolist())
