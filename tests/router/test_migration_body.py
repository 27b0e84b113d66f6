"""What is followed, and the request that goes on with a stream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from router.migration_body import Followed, asking_for_ids, followed, going_on, salt_in
from router.tokens.body import parse

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SAY = [{"role": "user", "content": "hi"}]


def why(path: str, **fields: Any) -> Followed | str:
    raw = json.dumps(({"prompt": "x"} if path == COMPLETIONS else {"messages": SAY}) | fields).encode()
    return followed(raw, parse(path, raw))


@pytest.mark.parametrize(
    ("path", "fields", "reason"),
    [
        (COMPLETIONS, {"n": 2}, "choices"),
        (COMPLETIONS, {"best_of": 2}, "choices"),
        (COMPLETIONS, {"prompt": ["a", "b"]}, "choices"),
        (COMPLETIONS, {"use_beam_search": True}, "choices"),
        (COMPLETIONS, {"logprobs": 0}, "logprobs"),
        (COMPLETIONS, {"prompt_logprobs": 1}, "logprobs"),
        (COMPLETIONS, {"echo": True}, "echo"),
        (COMPLETIONS, {"suffix": "end"}, "echo"),
        (COMPLETIONS, {"prompt": None, "prompt_embeds": "AAAA"}, "embeds"),
        (COMPLETIONS, {"response_format": {"type": "json_object"}}, "structured"),
        (COMPLETIONS, {"structured_outputs": {"regex": "a"}}, "structured"),
        (COMPLETIONS, {"guided_choice": ["a"]}, "structured"),
        (COMPLETIONS, {"kv_transfer_params": {"do_remote_decode": True}}, "transfer"),
        (COMPLETIONS, {"stop": 5}, "unknown_field"),
        (CHAT, {"n": 3}, "choices"),
        (CHAT, {"logprobs": True}, "logprobs"),
        (CHAT, {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        (CHAT, {"functions": [{"name": "f"}]}, "tools"),
        (CHAT, {"include_reasoning": False}, "reasoning"),
        (CHAT, {"thinking_token_budget": 100}, "reasoning"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}]},
            "media",
        ),
    ],
)
def test_what_cannot_go_on_elsewhere(path: str, fields: dict[str, Any], reason: str) -> None:
    assert why(path, **fields) == reason


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (COMPLETIONS, {}),
        (COMPLETIONS, {"n": 1, "best_of": 1, "echo": False, "logprobs": None, "suffix": None}),
        (COMPLETIONS, {"response_format": {"type": "text"}}),
        (CHAT, {"logprobs": False, "tools": [], "n": 1}),
        (CHAT, {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"}),
    ],
)
def test_fields_that_ask_for_nothing_do_not_stand_in_the_way(path: str, fields: dict[str, Any]) -> None:
    assert why(path, **fields) == Followed(False, False, (), False)


def test_stop_strings_are_kept_and_empty_ones_mean_nothing() -> None:
    assert why(COMPLETIONS, stop="END") == Followed(False, False, ("END",), False)
    assert why(COMPLETIONS, stop=["", "a"], include_stop_str_in_output=True) == Followed(False, False, ("a",), True)


def test_the_wish_for_ids_is_added_and_the_rest_stays_byte_for_byte() -> None:
    raw = b' {"prompt": "x", "weird":  1.0 } \n'
    asked = asking_for_ids(raw, False)
    assert asked.startswith(raw.rstrip()[:-1])
    assert json.loads(asked) == {"prompt": "x", "weird": 1.0, "return_token_ids": True}


def test_a_client_that_said_no_to_ids_does_not_say_so_twice() -> None:
    asked = asking_for_ids(b'{"return_token_ids":false,"prompt":"x"}', True)
    assert asked.count(b"return_token_ids") == 1
    assert json.loads(asked)["return_token_ids"] is True


def rest(chat: bool = False, room: int | None = None, sent: int = 3, **fields: Any) -> dict[str, Any] | None:
    raw = json.dumps({"model": "m", "stream": True, "return_token_ids": True} | fields).encode()
    found = going_on(raw, chat=chat, prompt=[1, 2], sent=[7] * sent, room=room)
    return None if found is None else json.loads(found)


def test_the_prompt_is_the_ids_of_prompt_and_answer() -> None:
    new = rest(prompt="two words", max_tokens=10)
    assert new == {
        "model": "m",
        "stream": True,
        "return_token_ids": True,
        "prompt": [1, 2, 7, 7, 7],
        "max_tokens": 7,
    }


def test_how_it_is_sampled_stays() -> None:
    kept = {
        "temperature": 0.3,
        "seed": 5,
        "top_p": 0.9,
        "stop": ["x"],
        "ignore_eos": True,
        "cache_salt": "s",
        "user": "u",
    }
    new = rest(prompt="x", max_tokens=10, **kept)
    assert new is not None and kept.items() <= new.items()


def test_a_completion_without_a_bound_has_16_tokens() -> None:
    assert (rest(prompt="x") or {})["max_tokens"] == 13


def test_a_minimum_counts_what_was_sent() -> None:
    assert (rest(prompt="x", max_tokens=10, min_tokens=5) or {})["min_tokens"] == 2
    assert (rest(prompt="x", max_tokens=10, min_tokens=2) or {})["min_tokens"] == 0


def test_where_nothing_is_left_to_generate_there_is_no_request() -> None:
    assert rest(prompt="x", max_tokens=3) is None
    assert rest(prompt="x", max_tokens=None, room=0) is None


def test_an_open_length_becomes_the_room_of_the_context() -> None:
    assert (rest(chat=True, messages=SAY, room=90) or {})["max_tokens"] == 90
    assert (rest(chat=True, messages=SAY) or {})["max_tokens"] is None


def test_a_chat_loses_what_made_its_prompt() -> None:
    fields = {
        "messages": SAY,
        "max_completion_tokens": 10,
        "max_tokens": 99,
        "tools": [],
        "tool_choice": "none",
        "chat_template_kwargs": {"a": 1},
        "reasoning_effort": "low",
        "top_logprobs": 0,
        "logprobs": False,
        "add_generation_prompt": True,
        "truncate_prompt_tokens": 5,
    }
    new = rest(chat=True, **fields)
    assert new is not None
    assert new.keys() == {"model", "stream", "return_token_ids", "prompt", "max_tokens"}
    assert new["max_tokens"] == 7


def test_the_salt_of_a_body() -> None:
    assert salt_in(b'{"cache_salt":"s"}') == "s"
    assert salt_in(b'{"prompt":"x"}') is None
