"""The `openai` package as the client of a router before real engines."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from .engines import Engine
from .router_process import Router, wait_for

if TYPE_CHECKING:
    from openai import OpenAI

FLEET = "pair"
MODEL = "tiny"
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds two numbers.",
            "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
        },
    }
]
CHAT: list[Any] = [
    {"role": "system", "content": "You are a compiler. " * 20},
    {"role": "user", "content": "def add(a, b):"},
]


@pytest.fixture(scope="module")
def openai() -> ModuleType:
    import openai

    return openai


def test_chat(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=5, temperature=0.0)
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5


def test_streamed_chat_says_what_the_whole_one_says(client: OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=12, temperature=0.0)
    chunks = client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=12, temperature=0.0, stream=True)
    parts = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(parts) == whole.choices[0].message.content
    assert len(parts) > 3


def test_completion_of_text(client: OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="import os", max_tokens=4, temperature=0.0)
    assert answer.choices[0].text


def test_streamed_completion_says_what_the_whole_one_says(client: OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt="import os", max_tokens=8, temperature=0.0)
    chunks = client.completions.create(model=MODEL, prompt="import os", max_tokens=8, temperature=0.0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text


def test_completion_of_several_texts(client: OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=["import os", "import sys"], max_tokens=2)
    assert [choice.index for choice in answer.choices] == [0, 1]


def test_completion_of_token_ids(client: OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=[767, 587], max_tokens=2)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 2


def test_responses(client: OpenAI) -> None:
    answer = client.responses.create(model=MODEL, instructions="Be brief.", input="import os", max_output_tokens=4)
    assert answer.output_text
    assert answer.usage is not None
    assert answer.usage.output_tokens == 4


def test_streamed_responses(client: OpenAI) -> None:
    events = list(client.responses.create(model=MODEL, input="import os", max_output_tokens=4, stream=True))
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"


def test_the_models_are_listed(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]


def test_tools_and_system_message_are_predicted_exactly(client: OpenAI, router: Router) -> None:
    body: dict[str, Any] = {"model": MODEL, "messages": CHAT, "tools": TOOLS, "max_tokens": 3, "temperature": 0.0}
    for _ in range(2):
        raw = client.chat.completions.with_raw_response.create(**body)
        found = router.joined(raw.headers["x-kvctl-decision"])
        usage = raw.parse().usage
        assert usage is not None
        assert found["prompt_tokens"] == usage.prompt_tokens
        assert found["predicted_cached_tokens"] == found["engine_cached_tokens"]
    assert found["engine_cached_tokens"] > 0


def test_tool_calls_and_their_results_are_tokenised_as_the_engine_does(client: OpenAI, router: Router) -> None:
    call = {"id": "call-1", "type": "function", "function": {"name": "add", "arguments": '{"b": 1, "a": 2}'}}
    messages: list[Any] = [
        *CHAT,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call-1", "content": [{"type": "text", "text": "3"}]},
        {"role": "user", "content": [{"type": "text", "text": "and"}, {"type": "text", "text": "now?"}]},
    ]
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=messages, tools=TOOLS, max_tokens=1)
    usage = raw.parse().usage
    assert usage is not None
    assert router.joined(raw.headers["x-kvctl-decision"])["prompt_tokens"] == usage.prompt_tokens


def test_an_unknown_model_is_not_found(client: OpenAI, openai: ModuleType) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="nobody", messages=CHAT, max_tokens=1)
    assert "nobody" in str(caught.value)


def test_a_prompt_that_is_too_long_is_a_bad_request(
    client: OpenAI, openai: ModuleType, engines: Sequence[Engine]
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt=[5] * (engines[0].max_model_len + 1), max_tokens=1)
    assert str(engines[0].max_model_len) in str(caught.value)


def test_a_stream_with_a_bad_parameter_is_a_bad_request(client: OpenAI, openai: ModuleType) -> None:
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=1, temperature=-1.0, stream=True)


def test_an_unknown_path_is_not_found(client: OpenAI, openai: ModuleType, router: Router) -> None:
    astray = client.with_options(base_url=f"{router.url}/nowhere")
    with pytest.raises(openai.NotFoundError):
        astray.models.list()


def test_closing_a_stream_early_frees_the_engine(client: OpenAI, router: Router) -> None:
    stream = client.completions.create(model=MODEL, prompt="import os", max_tokens=4000, stream=True)
    next(iter(stream))
    stream.close()
    wait_for(lambda: router.get("/loads")["open_bookings"] == 0, "no open booking", 30.0)
