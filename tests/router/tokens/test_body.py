"""Bodies of the four routed paths: what is read, and what the answer names when it cannot be."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.model import BadRequest
from router.tokens.body import Body, Kind, parse
from router.tokens.token_ids import BadTokenIds, Fault, parse_ids

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
HI = [{"role": "user", "content": "Hi"}]


def read(path: str, **fields: Any) -> Body:
    return parse(path, json.dumps(fields).encode())


def refusal(path: str, body: bytes | dict[str, Any]) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        parse(path, body if isinstance(body, bytes) else json.dumps(body).encode())
    return caught.value


def test_a_text_prompt_is_read_as_it_is() -> None:
    body = read(COMPLETIONS, model="m", prompt="Größe\n", max_tokens=7, stream=True, n=2, cache_salt="s")
    assert (body.kind, body.model, body.text, body.max_tokens) == (Kind.COMPLETIONS, "m", "Größe\n", 7)
    assert (body.stream, body.n, body.cache_salt, body.add_special_tokens) == (True, 2, "s", True)


def test_a_list_of_texts_is_routed_by_the_first() -> None:
    body = read(COMPLETIONS, prompt=["one", "two", "three"])
    assert (body.text, body.prompts) == ("one", 3)


def test_token_ids_become_an_array_of_uint32() -> None:
    body = parse(COMPLETIONS, b'{"prompt": [ 0, 17,\n4294967295 ]}')
    assert body.ids is not None
    assert body.ids.dtype == np.uint32
    assert body.ids.tolist() == [0, 17, 4294967295]
    assert body.ids.flags.c_contiguous


def test_a_list_of_id_lists_is_routed_by_the_first() -> None:
    body = read(COMPLETIONS, prompt=[[1, 2], [3]])
    assert body.ids is not None
    assert (body.ids.tolist(), body.prompts) == ([1, 2], 2)


def test_add_special_tokens_can_be_switched_off() -> None:
    assert not read(COMPLETIONS, prompt="x", add_special_tokens=False).add_special_tokens


def test_prompt_embeds_stand_for_a_prompt() -> None:
    body = read(COMPLETIONS, prompt_embeds="AAAA")
    assert body.text is None
    assert body.ids is None


def test_unknown_fields_are_ignored() -> None:
    assert read(COMPLETIONS, prompt="x", temperature=[1], logit_bias={"a": {}}).text == "x"


def test_null_stands_for_absent() -> None:
    body = read(
        COMPLETIONS, prompt="x", model=None, stream=None, n=None, max_tokens=None, nvext=None, stream_options=None
    )
    assert (body.model, body.stream, body.n, body.max_tokens, body.nvext) == (None, False, 1, None, None)


def test_nvext_is_kept_as_its_json_text() -> None:
    assert read(COMPLETIONS, prompt="x", nvext={"agent_hints": {"osl": 3}}).nvext == b'{"agent_hints": {"osl": 3}}'


def test_usage_in_a_stream_is_noticed() -> None:
    assert read(COMPLETIONS, prompt="x", stream_options={"include_usage": True}).include_usage


def test_a_chat_is_read_with_its_tools_and_switches() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    body = read(
        CHAT,
        messages=HI,
        tools=tools,
        add_generation_prompt=False,
        continue_final_message=True,
        add_special_tokens=True,
    )
    assert body.chat is not None
    assert (body.chat.messages, body.chat.tools) == (HI, tools)
    assert (body.chat.add_generation_prompt, body.chat.continue_final_message) == (False, True)
    assert body.chat.add_special_tokens


def test_a_chat_by_default_asks_for_an_answer_and_no_special_tokens() -> None:
    chat = read(CHAT, messages=HI).chat
    assert chat is not None
    assert (chat.add_generation_prompt, chat.continue_final_message, chat.add_special_tokens) == (True, False, False)
    assert chat.local


@pytest.mark.parametrize(
    "fields", [{"chat_template": "{{ 1 }}"}, {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}]
)
def test_a_template_of_the_client_is_not_for_us(fields: dict[str, Any]) -> None:
    chat = read(CHAT, messages=HI, **fields).chat
    assert chat is not None
    assert not chat.local
    assert chat.client_template == "{{ 1 }}"
    assert "chat_template" not in chat.template_kwargs


def test_max_completion_tokens_beats_max_tokens() -> None:
    assert read(CHAT, messages=HI, max_tokens=5, max_completion_tokens=6).max_tokens == 6


def test_responses_have_their_own_name_for_the_bound() -> None:
    assert read(RESPONSES, input="x", max_output_tokens=6).max_tokens == 6


def test_messages_bring_their_bound_and_model() -> None:
    body = read(MESSAGES, model="m", messages=HI, max_tokens=9)
    assert (body.kind, body.model, body.max_tokens) == (Kind.MESSAGES, "m", 9)


@pytest.mark.parametrize(
    ("path", "body", "words", "param"),
    [
        (COMPLETIONS, b"", "empty", None),
        (COMPLETIONS, b"[]", "must be a JSON object", None),
        (COMPLETIONS, b'{"prompt": "a" x}', "not valid JSON: expected ',' or '}' at byte 15", None),
        (COMPLETIONS, b'{"prompt": [1,', "ends too early, at byte 14", None),
        (COMPLETIONS, b'{"prompt": "\\ud83d"}', "surrogate", None),
        (COMPLETIONS, b'{"prompt": "\xff"}', "UTF-8", "prompt"),
        (CHAT, b'{"messages": ' + b"[" * 100_000, "nested too deeply|wrong kind", None),
        (COMPLETIONS, {}, "prompt is missing", "prompt"),
        (COMPLETIONS, {"prompt": None}, "prompt is missing", "prompt"),
        (COMPLETIONS, {"prompt": 3}, "prompt must be a string, a list", "prompt"),
        (COMPLETIONS, {"prompt": {}}, "prompt must be", "prompt"),
        (COMPLETIONS, {"prompt": []}, "empty list", "prompt"),
        (COMPLETIONS, {"prompt": ["a", 1]}, "prompt must be", "prompt"),
        (COMPLETIONS, {"prompt": [1, "a"]}, r"prompt\[1\] is not an integer", "prompt"),
        (COMPLETIONS, {"prompt": [1, 2, -3]}, r"prompt\[2\] is negative", "prompt"),
        (COMPLETIONS, {"prompt": [2**32]}, r"prompt\[0\] is not below 2\^32", "prompt"),
        (COMPLETIONS, {"prompt": [10**30]}, "not below", "prompt"),
        (COMPLETIONS, {"prompt": [1.5]}, "not an integer", "prompt"),
        (COMPLETIONS, {"prompt": [[1], 2]}, r"prompt\[1\] is no list", "prompt"),
        (COMPLETIONS, {"prompt": [[-1]]}, r"prompt\[0\]\[0\] is negative", "prompt"),
        (COMPLETIONS, {"prompt": "x", "model": 3}, "model is of the wrong kind: expected str", "model"),
        (CHAT, {}, "messages is missing", "messages"),
        (CHAT, {"messages": "x"}, "messages is of the wrong kind", "messages"),
        (CHAT, {"messages": [3]}, r"messages\[0\] is of the wrong kind", "messages"),
        (CHAT, {"messages": [{"content": "x"}]}, r"messages\[0\].role", "messages"),
        (RESPONSES, {}, "input is missing", "input"),
        (MESSAGES, {}, "messages is missing", "messages"),
    ],
)
def test_a_bad_body_is_refused_by_name(path: str, body: Any, words: str, param: str | None) -> None:
    error = refusal(path, body)
    assert re.search(words, str(error)), str(error)
    if "nested" not in words:
        assert error.param == param


def test_an_unrouted_path_is_refused() -> None:
    assert "/v1/embeddings" in str(refusal("/v1/embeddings", {}))


def test_a_hundred_thousand_ids_are_the_same_ids() -> None:
    ids = random.Random(1).choices(range(2**32), k=100_000)
    body = read(COMPLETIONS, prompt=ids)
    assert body.ids is not None
    assert body.ids.tolist() == ids


@given(st.lists(st.integers(0, 2**32 - 1)), st.sampled_from([None, 0, 2]))
def test_ids_are_parsed_as_a_json_parser_would(ids: list[int], indent: int | None) -> None:
    assert parse_ids(json.dumps(ids, indent=indent).encode()).tolist() == ids


@given(
    st.lists(st.integers(0, 9)),
    st.sampled_from([(-1, Fault.NEGATIVE), (2**32, Fault.TOO_LARGE), ("1", Fault.NOT_INTEGER)]),
)
def test_the_first_bad_id_is_named(good: list[int], bad: tuple[Any, Fault]) -> None:
    with pytest.raises(BadTokenIds) as caught:
        parse_ids(json.dumps([*good, bad[0], 5]).encode())
    assert (caught.value.index, caught.value.fault) == (len(good), bad[1])
