"""Pseudo tokens share a prefix where the prompts do, and are about as many as real ones."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.model import BadRequest
from router.tokens.approximate import approximate, canonical, of_bytes
from router.tokens.body import parse
from router.tokens.chat import Chat
from router.tokens.engine_http import EngineHttp
from router.tokens.remote import RemoteTokenizer

MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant"]), "content": st.text(max_size=20)}
)


def ids_of(path: str, **fields: Any) -> list[int]:
    return approximate(parse(path, json.dumps(fields).encode())).tolist()


def test_four_bytes_are_a_token() -> None:
    assert of_bytes(b"abcdefgh\x01").tolist() == [0x64636261, 0x68676665, 1]
    assert of_bytes(b"").dtype == np.uint32


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_a_longer_text_shares_all_whole_tokens(text: bytes, more: bytes) -> None:
    whole = len(text) // 4
    assert of_bytes(text)[:whole].tolist() == of_bytes(text + more)[:whole].tolist()


@given(st.lists(MESSAGE, max_size=5), st.lists(MESSAGE, max_size=3))
def test_a_longer_chat_begins_with_the_shorter(turns: list[dict[str, Any]], more: list[dict[str, Any]]) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    shorter = canonical(Chat(messages=turns, tools=tools))
    assert canonical(Chat(messages=turns + more, tools=tools)).startswith(shorter)


@given(st.lists(MESSAGE, min_size=1, max_size=4), st.lists(MESSAGE, min_size=1, max_size=4))
def test_other_chats_have_other_tokens(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    assert (canonical(Chat(messages=one)) == canonical(Chat(messages=other))) == (one == other)


def test_tools_and_tool_calls_count() -> None:
    call = [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]
    bare = canonical(Chat(messages=[{"role": "assistant", "content": None}]))
    assert canonical(Chat(messages=[{"role": "assistant", "content": None, "tool_calls": call}])) != bare


def test_the_order_of_fields_in_a_message_does_not_matter() -> None:
    one = [{"role": "user", "content": "x", "name": "n"}]
    other = [{"name": "n", "content": "x", "role": "user"}]
    assert canonical(Chat(messages=one)) == canonical(Chat(messages=other))


def test_a_large_image_is_a_few_tokens_and_still_itself() -> None:
    def image(letter: str) -> list[dict[str, Any]]:
        url = "data:image/png;base64," + letter * 100_000
        return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]

    one, other = canonical(Chat(messages=image("A"))), canonical(Chat(messages=image("B")))
    assert len(one) < 200
    assert one != other


def test_texts_and_chats_of_a_body_are_approximated() -> None:
    assert ids_of("/v1/completions", prompt="abcd") == [0x64636261]
    assert len(ids_of("/v1/chat/completions", messages=[{"role": "user", "content": "abcd" * 100}])) in range(100, 110)


def test_embedded_prompts_have_no_tokens() -> None:
    assert ids_of("/v1/completions", prompt_embeds="AAAA") == []


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
@pytest.mark.parametrize("field", ["content", "tool_calls", "tools"])
def test_what_nests_deeply_is_approximated_too(field: str, opening: str, closing: str) -> None:
    """Down to the depth that the JSON parser takes: what it takes has to be taken by all that comes after it."""
    remote = RemoteTokenizer(list, EngineHttp())
    taken = 0
    for depth in range(1000, 700, -1):
        deep = opening * depth + "1" + closing * depth
        message = '{"role": "user", "content": "x"}' if field == "tools" else f'{{"role": "user", "{field}": {deep}}}'
        tools = f', "tools": [{{"a": {deep}}}]' if field == "tools" else ""
        try:
            body = parse("/v1/chat/completions", f'{{"messages": [{message}]{tools}}}'.encode())
        except BadRequest:
            continue
        assert approximate(body).size
        remote.prepare(body)
        taken += 1
    assert taken
