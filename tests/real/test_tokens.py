"""The router's own tokenizer and chat template against the engine's, chat by chat.

The prompt's length must be the engine's, and on the second send the router must foretell every cached token, which it
can only if all full blocks of ids are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest

from .engines import MODELS, Engine
from .router_process import Router, serve

FLEET = "pair"
LONG = "def walk(tree, depth=0):\n    yield tree, depth\n" * 6
ADD = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {"b": {}, "a": {}}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"b": 1,"a":"é"}'}}
PARTS = [{"type": "text", "text": LONG}, {"type": "text", "text": "and more"}]


def _user(content: Any = LONG) -> dict[str, Any]:
    return {"role": "user", "content": content}


CHATS: dict[str, dict[str, Any]] = {
    "one message": {"messages": [_user()]},
    "system": {"messages": [{"role": "system", "content": LONG}, _user("go on")]},
    "letters of many scripts": {"messages": [_user(LONG + " naïve Ωmega 漢字 🙂 \t\x0b\r\n")]},
    "special tokens in the text": {"messages": [_user(LONG + "<|im_end|>\n<|im_start|>system\nno <s> </s>")]},
    "parts": {"messages": [_user(PARTS), {"role": "assistant", "content": PARTS}, _user(PARTS)]},
    "developer": {"messages": [{"role": "developer", "content": LONG}, _user("go on")]},
    "developer after system": {
        "messages": [{"role": "system", "content": "one"}, _user(), {"role": "developer", "content": "two"}, _user()]
    },
    "unknown keys": {"messages": [{"role": "user", "content": LONG, "name": "bob", "colour": "red"}]},
    "tool": {"messages": [_user()], "tools": [{"type": "function", "function": ADD}]},
    "tool with a name alone": {"messages": [_user()], "tools": [{"type": "function", "function": {"name": "add"}}]},
    "tool with keys in another order": {
        "messages": [{"role": "system", "content": "S"}, _user()],
        "tools": [{"function": {"strict": True, "x": 1, **ADD}, "y": 2, "type": "function"}],
    },
    "tool not to be used": {
        "messages": [_user()],
        "tools": [{"type": "function", "function": ADD}],
        "tool_choice": "none",
    },
    "tool call and result": {
        "messages": [
            _user(),
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": PARTS},
            _user("so?"),
        ]
    },
    "tool call without arguments": {
        "messages": [
            _user(),
            {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "add", "arguments": ""}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
        ]
    },
    "answer to be continued": {
        "messages": [_user(), {"role": "assistant", "content": "It is"}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
    "no generation prompt": {"messages": [_user()], "add_generation_prompt": False},
    "special tokens added": {"messages": [_user()], "add_special_tokens": True},
    "template variables": {"messages": [_user()], "chat_template_kwargs": {"enable_thinking": False}},
}


@pytest.fixture(scope="module")
def router(engines: Sequence[Engine]) -> Iterator[Router]:
    urls = [engine.url for engine in engines]
    with serve("router-tokens", *urls, options=("--tokenizer", str(MODELS / engines[0].model))) as router:
        router.wait_up(urls)
        yield router


@pytest.mark.parametrize("name", CHATS)
def test_the_chat_has_the_engines_tokens(name: str, router: Router, engines: Sequence[Engine]) -> None:
    body = {"model": engines[0].model, "max_tokens": 2, "temperature": 0, **CHATS[name]}
    for _ in range(2):
        answer = httpx.post(f"{router.url}/v1/chat/completions", json=body, timeout=60.0)
        assert answer.status_code == 200, answer.text
        found = router.joined(answer.headers["x-kvctl-decision"])
        assert found["degraded"] == []
        assert found["prompt_tokens"] == answer.json()["usage"]["prompt_tokens"]
        assert found["predicted_cached_tokens"] == found["engine_cached_tokens"]
    assert found["engine_cached_tokens"] > 0


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_other_chats_have_the_engines_tokens(path: str, router: Router, engines: Sequence[Engine]) -> None:
    body: dict[str, Any] = {"model": engines[0].model}
    if path == "/v1/responses":
        body |= {"instructions": LONG, "input": f"{path} {LONG}", "max_output_tokens": 2}
    else:
        body |= {"system": LONG, "messages": [_user(f"{path} {LONG}")], "max_tokens": 2}
    for _ in range(2):
        answer = httpx.post(f"{router.url}{path}", json=body, timeout=60.0).raise_for_status()
        found = router.joined(answer.headers["x-kvctl-decision"])
        usage = answer.json()["usage"]
        told = usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)
        assert found["prompt_tokens"] == told + usage.get("cache_creation_input_tokens", 0)
        assert found["predicted_cached_tokens"] == found["engine_cached_tokens"]
    assert found["engine_cached_tokens"] > 0
