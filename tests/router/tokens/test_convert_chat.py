"""`/v1/responses` and `/v1/messages` become the messages that vLLM 0.32 makes of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.model import BadRequest
from router.tokens.approximate import approximate
from router.tokens.body import PATHS, parse
from router.tokens.chat import Chat
from router.tokens.remote import question


def chat(path: str, **fields: Any) -> Chat:
    body = parse(path, json.dumps(fields).encode())
    assert body.chat is not None
    return body.chat


def responses(given: Any, **fields: Any) -> Chat:
    return chat("/v1/responses", input=given, **fields)


def messages(*given: Any, **fields: Any) -> Chat:
    return chat("/v1/messages", messages=list(given), max_tokens=1, **fields)


def test_a_text_input_is_a_user_message_behind_the_instructions() -> None:
    found = responses("Hi", instructions="Be kind").messages
    assert found == [{"role": "system", "content": "Be kind"}, {"role": "user", "content": "Hi"}]


def test_responses_are_tokenised_with_special_tokens() -> None:
    assert responses("Hi").add_special_tokens


def test_an_assistant_item_gives_its_first_text() -> None:
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yo"}]}
    assert responses([{"role": "user", "content": "Hi"}, item]).messages[1] == {"role": "assistant", "content": "Yo"}


def test_function_calls_in_a_row_are_one_assistant_message() -> None:
    calls = [{"type": "function_call", "call_id": name, "name": name, "arguments": "{}"} for name in "ab"]
    result = {"type": "function_call_output", "call_id": "a", "output": "42"}
    found = responses([{"role": "user", "content": "Hi"}, *calls, result]).messages
    assert [call["function"]["name"] for call in found[1]["tool_calls"]] == ["a", "b"]
    assert found[2] == {"role": "tool", "content": "42", "tool_call_id": "a"}


def test_reasoning_and_answer_are_one_assistant_message() -> None:
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    found = responses([{"role": "user", "content": "Hi"}, thought, {"role": "assistant", "content": "Yo"}]).messages
    assert found[1] == {"role": "assistant", "reasoning": "hm", "content": "Yo"}


def test_an_unfinished_last_item_is_continued() -> None:
    item = {"type": "message", "role": "assistant", "status": "incomplete", "content": "Once"}
    found = responses([{"role": "user", "content": "Hi"}, item])
    assert (found.continue_final_message, found.add_generation_prompt) == (True, False)


def test_flat_tools_are_nested() -> None:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    tools = responses("x", tools=[tool]).tools
    assert tools is not None
    assert (tools[0]["type"], tools[0]["function"]["name"], tools[0]["function"]["parameters"]) == (
        "function",
        "f",
        {"type": "object"},
    )


def test_a_stored_conversation_cannot_be_known() -> None:
    found = responses("x", previous_response_id="resp_1")
    assert (found.local, found.remote) == (False, False)


def test_an_item_of_unknown_type_keeps_its_text_and_says_so() -> None:
    found = responses([{"type": "computer_call", "id": "1"}])
    assert not found.local
    assert "computer_call" in found.messages[0]["content"]


def test_the_effort_of_a_response_is_the_templates() -> None:
    assert responses("x", reasoning={"effort": "low"}).reasoning_effort == "low"


def test_system_blocks_are_joined_in_front() -> None:
    system = [
        {"type": "text", "text": "A"},
        {"type": "text", "text": "x-anthropic-billing-header: 1"},
        {"type": "text", "text": "B"},
    ]
    found = messages({"role": "user", "content": "Hi"}, system=system).messages
    assert found == [{"role": "system", "content": "AB"}, {"role": "user", "content": "Hi"}]


def test_a_tool_use_is_a_tool_call_and_its_result_a_tool_message() -> None:
    used = {"type": "tool_use", "id": "t1", "name": "get", "input": {"z": 1}}
    result = {
        "type": "tool_result",
        "tool_use_id": "t1",
        "content": [{"type": "text", "text": "4"}, {"type": "text", "text": "2"}],
    }
    found = messages(
        {"role": "assistant", "content": [{"type": "text", "text": "yo"}, used]},
        {"role": "user", "content": [{"type": "text", "text": "go on"}, result]},
    ).messages
    assert found[0]["content"] == "yo"
    assert json.loads(found[0]["tool_calls"][0]["function"]["arguments"]) == {"z": 1}
    assert found[1] == {"role": "tool", "tool_call_id": "t1", "content": "4\n2"}
    assert found[2] == {"role": "user", "content": "go on"}


def test_a_user_turn_of_results_only_is_no_empty_message() -> None:
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "42"}
    assert [m["role"] for m in messages({"role": "user", "content": [result]}).messages] == ["tool"]


def test_thinking_is_reasoning() -> None:
    blocks = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "so"}]
    assert messages({"role": "assistant", "content": blocks}).messages == [
        {"role": "assistant", "reasoning": "hm", "content": "so"}
    ]


def test_an_image_block_is_an_image_part() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    found = messages({"role": "user", "content": [{"type": "image", "source": source}]}).messages
    assert found[0]["content"] == [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]


def test_a_tools_schema_gets_its_type() -> None:
    tools = messages({"role": "user", "content": "x"}, tools=[{"name": "f", "input_schema": {"properties": {}}}]).tools
    assert tools is not None
    assert tools[0]["function"]["parameters"] == {"properties": {}, "type": "object"}


def test_tools_that_change_on_the_way_are_not_followed() -> None:
    change = {"role": "system", "content": [{"type": "tool_removal", "tool": {"type": "tool_reference", "name": "f"}}]}
    assert not messages({"role": "user", "content": "x"}, change).local


def test_disabled_thinking_is_no_effort() -> None:
    assert messages({"role": "user", "content": "x"}, thinking={"type": "disabled"}).reasoning_effort == "none"


@pytest.mark.parametrize("content", [3, "text", {"a": 1}, [3], [None], [{"text": 3}], [[]]])
def test_reasoning_that_is_no_list_of_parts_is_not_the_routers_business(content: Any) -> None:
    assert responses([{"type": "reasoning", "content": content}]).messages[-1]["role"] == "assistant"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(("type", "role", "content", "text", "source", "name", "input", "function", "summary")),
            inner
            | st.sampled_from(
                (
                    "message",
                    "user",
                    "assistant",
                    "system",
                    "reasoning",
                    "function_call",
                    "tool_use",
                    "tool_result",
                    "text",
                )
            ),
            max_size=4,
        )
    ),
    max_leaves=12,
)
_FIELDS = (
    "input",
    "messages",
    "system",
    "tools",
    "instructions",
    "reasoning",
    "chat_template_kwargs",
    "thinking",
    "prompt",
)


@given(st.sampled_from(sorted(PATHS)), st.dictionaries(st.sampled_from(_FIELDS), _JSON, min_size=1))
@settings(max_examples=300, deadline=None)
def test_a_body_of_any_shape_is_read_or_refused_and_never_breaks_the_router(path: str, fields: dict[str, Any]) -> None:
    try:
        body = parse(path, json.dumps(fields).encode())
    except BadRequest:
        return
    approximate(body)
    question(body)
