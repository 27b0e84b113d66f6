"""The chat template renders what the engine's renderer does; expectations marked (engine) were taken from vLLM 0.32."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment

from router.tokens.chat import Chat
from router.tokens.content_format import content_format
from router.tokens.conversation import ContentFormat, NotText, has_media
from router.tokens.template import BadTemplate, ChatTemplate, TemplateRejected, TemplateTooLong, read_template

DUMP = "{% for m in messages %}{{ m | tojson }}\n{% endfor %}"
PARTS = "{% for m in messages %}{% for c in m['content'] %}<{{ c | tojson }}>{% endfor %}{% endfor %}"
SYSTEM_FIRST = (
    "{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('system first') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}"
)
FOREVER = "{% for i in range(99999) %}{% for j in range(99999) %}BODY{% endfor %}{% endfor %}"


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def assistant(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def call(arguments: Any) -> dict[str, Any]:
    return {"type": "function", "id": "c1", "function": {"name": "get", "arguments": arguments}}


def render(source: Any, *messages: dict[str, Any], special: dict[str, str] | None = None, **fields: Any) -> str:
    return ChatTemplate(source, special).render(Chat(messages=list(messages), **fields))


def rows(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_chatml_is_rendered_with_the_generation_prompt(templates: dict[str, str]) -> None:
    text = render(templates["chatml"], user("Hi"), assistant("Yo"))
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYo<|im_end|>\n<|im_start|>assistant\n"


def test_the_generation_prompt_can_be_left_out(templates: dict[str, str]) -> None:
    assert render(templates["chatml"], user("Hi"), add_generation_prompt=False) == "<|im_start|>user\nHi<|im_end|>\n"


def test_special_tokens_are_variables(templates: dict[str, str]) -> None:
    text = render(templates["llama3"], user(" Hi "), special={"bos_token": "<BOS>"}, add_generation_prompt=False)
    assert text == "<BOS><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"


def test_blocks_are_trimmed_as_the_engines_do() -> None:
    assert render("  {% if true %}\n  x\n  {% endif %}\ny", user("")) == "  x\ny"


def test_tojson_keeps_order_and_letters_and_takes_an_indent() -> None:
    assert render("{{ messages[0].content | tojson }}", user("ü<&>'")) == '"ü<&>\'"'
    assert render("{{ {'b': 1, 'a': 2} | tojson(indent=1) }}", user("")) == '{\n "b": 1,\n "a": 2\n}'


def test_loop_controls_work() -> None:
    assert render("{% for m in messages %}{{ m.content }}{% break %}{% endfor %}", user("a"), user("b")) == "a"


def test_the_generation_mark_is_transparent() -> None:
    source = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    assert render(source, assistant("a"), assistant("b")) == "ab"


def test_strftime_now_gives_the_date() -> None:
    assert render("{{ strftime_now('%Y') }}", user("")) == time.strftime("%Y")


def test_what_the_template_raises_is_a_rejection() -> None:
    with pytest.raises(TemplateRejected, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}", user(""))


def test_a_template_that_fails_is_a_rejection() -> None:
    with pytest.raises(TemplateRejected, match="UndefinedError"):
        render("{{ messages[7].content.x }}", user(""))


def test_the_sandbox_forbids_internals() -> None:
    with pytest.raises(TemplateRejected, match="SecurityError"):
        render("{{ ''.__class__.__mro__ }}", user(""))


def test_the_sandbox_forbids_changing_the_messages() -> None:
    with pytest.raises(TemplateRejected, match="SecurityError"):
        render("{{ messages.append(1) }}", user(""))


def test_the_named_tool_template_is_used_with_tools() -> None:
    named = {"default": "plain", "tool_use": "with tools"}
    tool = {"type": "function", "function": {"name": "f"}}
    assert render(named, user("")) == "plain"
    assert render(named, user(""), tools=[tool]) == "with tools"


def test_named_templates_without_a_default_reject_a_chat() -> None:
    with pytest.raises(TemplateRejected, match="no default"):
        render({"rag": "x"}, user(""))


def test_parts_are_joined_by_newlines_for_a_template_that_takes_strings() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}, "three"]
    assert render("{{ messages[0].content }}", user(parts)) == "one\ntwo\nthree"


def test_a_string_becomes_a_part_for_a_template_that_takes_parts() -> None:
    assert render(PARTS, user("x")) == '<{"type": "text", "text": "x"}>'


def test_unknown_fields_of_a_part_reach_the_template() -> None:
    part = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
    assert render(PARTS, user([part])) == '<{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}>'


IN_MESSAGES = "{% for m in messages %}BODY{% endfor %}"
SHOW_PARTS = "{% for c in PARTS %}{{ c }}{% endfor %}"
MACRO = "{% macro show(x) %}" + SHOW_PARTS.replace("PARTS", "x") + "{% endmacro %}"


@pytest.mark.parametrize(
    ("before", "loop", "body", "wants_parts"),
    [
        ("", "messages", "{{ m.content }}", False),
        ("", "messages", SHOW_PARTS.replace("PARTS", "m.content"), True),
        ("", "messages", SHOW_PARTS.replace("PARTS", "m['content'] | list"), True),
        ("{% set chat = messages[1:] %}", "chat", SHOW_PARTS.replace("PARTS", "m.content"), True),
        ("", "messages", "{% set content = m.content %}" + SHOW_PARTS.replace("PARTS", "content"), True),
        (MACRO, "messages", "{{ show(m.content) }}", True),
        (MACRO, "messages", "{{ show(x=m.content) }}", True),
        (MACRO, "messages", "{{ show(m.role) }}", False),
        (MACRO.replace("x", "content"), "messages", "{{ show('y') }}", False),
        ("", "tools", SHOW_PARTS.replace("PARTS", "m.content"), False),
        (
            "{% set ns = namespace() %}{% set ns.m = messages %}",
            "messages",
            SHOW_PARTS.replace("PARTS", "m.content"),
            False,
        ),
    ],
)
def test_the_content_format_is_found_from_what_the_template_iterates_over(
    before: str, loop: str, body: str, wants_parts: bool
) -> None:
    """(engine) The last one is a case that its rule does not cover: then it takes strings."""
    source = before + IN_MESSAGES.replace("messages", loop).replace("BODY", body)
    found = content_format(Environment(extensions=["jinja2.ext.do"]).parse(source))
    assert (found is ContentFormat.OPENAI) == wants_parts


def test_arguments_of_tool_calls_become_objects_in_the_engines_order() -> None:
    """(engine)"""
    row = rows(render(DUMP, assistant(None, tool_calls=[call('{"z": "ä", "a": 2}')])))[0]
    assert json.dumps(row["tool_calls"][0]) == json.dumps(
        {"id": "c1", "function": {"arguments": {"z": "ä", "a": 2}, "name": "get"}, "type": "function"}
    )


@pytest.mark.parametrize("arguments", ["not json", "[1]", "", None, 3])
def test_arguments_that_are_no_object_become_an_empty_one(arguments: Any) -> None:
    row = rows(render(DUMP, assistant("x", tool_calls=[call(arguments)])))[0]
    assert row["tool_calls"][0]["function"]["arguments"] == {}


def test_an_empty_list_of_tool_calls_is_left_out() -> None:
    assert "tool_calls" not in rows(render(DUMP, assistant("x", tool_calls=[])))[0]


def test_a_tool_call_of_another_type_is_rejected() -> None:
    with pytest.raises(TemplateRejected, match="type function"):
        render(DUMP, assistant("x", tool_calls=[{"type": "custom", "custom": {}}]))


def test_reasoning_reaches_the_template_under_both_names() -> None:
    row = rows(render(DUMP, assistant("x", reasoning_content="thought")))[0]
    assert (row["reasoning"], row["reasoning_content"]) == ("thought", "thought")


def test_a_tools_answer_is_one_string_even_for_a_template_that_takes_parts() -> None:
    source = PARTS.replace("<{{ c | tojson }}>", "") + "{{ messages[0].content }}"
    message = {
        "role": "tool",
        "tool_call_id": "c1",
        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
    }
    assert render(source, message) == "a\nb"


def test_tools_get_the_engines_fields_in_its_order() -> None:
    """(engine)"""
    tools = [
        {"function": {"parameters": {}, "strict": True, "name": "f", "extra": 1}, "type": "function"},
        {"function": {"name": "g"}},
    ]
    assert render("{{ tools | tojson }}", user(""), tools=tools) == (
        '[{"type": "function", "function": {"name": "f", "description": null, "parameters": {}, "strict": true}}, '
        '{"type": "function", "function": {"name": "g", "description": null, "parameters": null}}]'
    )


def test_a_tool_without_a_name_is_rejected() -> None:
    with pytest.raises(TemplateRejected, match="tools must be"):
        render(DUMP, user(""), tools=[{"type": "function", "function": {}}])


def test_no_tools_are_none() -> None:
    assert render("{{ tools is none }}{{ documents is none }}", user("")) == "TrueTrue"


def test_template_kwargs_are_variables_and_win_over_special_tokens() -> None:
    text = render(
        "{{ enable_thinking }}{{ bos_token }}",
        user(""),
        special={"bos_token": "b"},
        template_kwargs={"enable_thinking": False, "bos_token": "c"},
    )
    assert text == "Falsec"


def test_template_kwargs_cannot_replace_the_messages() -> None:
    assert render("{{ messages[0].content }}", user("kept"), template_kwargs={"messages": [user("evil")]}) == "kept"


@pytest.mark.parametrize(("effort", "thinking"), [("none", "False"), ("high", "True")])
def test_an_effort_switches_thinking(effort: str, thinking: str) -> None:
    """(engine)"""
    assert render("{{ reasoning_effort }}{{ enable_thinking }}", user(""), reasoning_effort=effort) == effort + thinking


def test_developer_becomes_system_where_the_template_does_not_know_it(templates: dict[str, str]) -> None:
    text = render(templates["plain"], {"role": "developer", "content": "be kind"}, user("x"))
    assert text == "system: be kind\nuser: x\n"


def test_a_late_developer_message_is_merged_into_the_first_system_message(templates: dict[str, str]) -> None:
    """(engine)"""
    messages = [{"role": "system", "content": "a"}, user("x"), {"role": "developer", "content": "b"}]
    assert render(templates["plain"], *messages) == "system: a\n\nb\nuser: x\n"


def test_developer_stays_where_the_template_knows_it() -> None:
    source = "{% for m in messages %}{% if m.role == 'developer' %}D{% endif %}{% endfor %}"
    assert render(source, {"role": "developer", "content": "x"}) == "D"


def test_late_system_messages_are_merged_for_a_template_that_wants_them_first() -> None:
    messages = [{"role": "system", "content": "a"}, user("x"), {"role": "system", "content": "b"}]
    assert render(SYSTEM_FIRST, *messages, merge_system=True) == "<system>ab<user>x"
    with pytest.raises(TemplateRejected, match="system first"):
        render(SYSTEM_FIRST, *messages)


def test_late_system_messages_stay_for_a_template_that_takes_them(templates: dict[str, str]) -> None:
    messages = [{"role": "system", "content": "a"}, user("x"), {"role": "system", "content": "b"}]
    assert render(templates["plain"], *messages, merge_system=True) == "system: a\nuser: x\nsystem: b\n"


def test_a_clients_billing_line_is_dropped_from_the_system_message() -> None:
    """(engine) It differs on every request, and would end the shared prefix at its first block."""
    text = render("{{ messages[0].content }}", {"role": "system", "content": "x-anthropic-billing-header: 1\nYou are"})
    assert text == "You are"


@pytest.mark.parametrize("last", ["Once upon a", "Once upon a  ", [{"type": "text", "text": "Once"}]])
def test_a_final_message_can_be_continued(templates: dict[str, str], last: Any) -> None:
    text = render(
        templates["chatml"], user("Go"), assistant(last), continue_final_message=True, add_generation_prompt=False
    )
    end = last if isinstance(last, str) else "Once"
    assert text == f"<|im_start|>user\nGo<|im_end|>\n<|im_start|>assistant\n{end}"


def test_a_trimmed_final_message_is_continued_from_its_last_letter(templates: dict[str, str]) -> None:
    text = render(templates["llama3"], assistant("Once  "), continue_final_message=True, add_generation_prompt=False)
    assert text.endswith("\n\nOnce")


def test_to_continue_and_to_begin_an_answer_exclude_each_other(templates: dict[str, str]) -> None:
    with pytest.raises(TemplateRejected, match="continue_final_message"):
        render(templates["chatml"], assistant("x"), continue_final_message=True)


def test_rendering_leaves_the_messages_as_they_were(templates: dict[str, str]) -> None:
    messages = [user([{"type": "text", "text": "x"}]), assistant("y", tool_calls=[call('{"a": 1}')])]
    before = json.dumps(messages)
    render(templates["plain"], *messages)
    assert json.dumps(messages) == before


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "x"}},
        {"type": "input_audio"},
        {"image_url": "x"},
        {"type": "video"},
        3,
    ],
)
def test_media_cannot_be_rendered(templates: dict[str, str], part: Any) -> None:
    assert has_media([user([part])])
    with pytest.raises(NotText):
        render(templates["plain"], user([part]))


def test_text_is_no_media() -> None:
    assert not has_media(
        [user("x"), user([{"type": "text", "text": "x"}, "y", {"type": "refusal", "refusal": "z"}]), user(None)]
    )


def test_a_rendering_beyond_its_characters_is_stopped() -> None:
    template = ChatTemplate("{% for i in range(100000) %}{{ messages[0].content }}{% endfor %}", max_chars=1000)
    with pytest.raises(TemplateTooLong, match="1000 characters"):
        template.render(Chat(messages=[user("0123456789")]))


@pytest.mark.parametrize(
    "source",
    [
        FOREVER.replace("BODY", "{% for m in messages %}{{ m.content }}{% endfor %}"),
        FOREVER.replace("BODY", "{% if messages[0].role == 'x' %}{% endif %}"),
        FOREVER.replace("BODY", "{% for k in range(9) %}{% endfor %}"),
        "{% macro f(n) %}{% for i in range(9) %}{{ f(n - 1) if n else '' }}{% endfor %}{% endmacro %}{{ f(30) }}",
    ],
)
def test_a_rendering_that_loops_for_long_is_stopped(source: str) -> None:
    with pytest.raises(TemplateTooLong, match="too long"):
        ChatTemplate(source).render(Chat(messages=[user("")]), max_seconds=0.05)


def test_the_next_rendering_has_a_budget_of_its_own() -> None:
    template = ChatTemplate("{% for i in range(n) %}{{ messages[0].content }}{% endfor %}")
    with pytest.raises(TemplateTooLong):
        template.render(Chat(messages=[user("x")], template_kwargs={"n": 99999}), max_seconds=0.0)
    assert template.render(Chat(messages=[user("x")], template_kwargs={"n": 3})) == "xxx"


def test_a_template_with_an_error_names_its_line() -> None:
    with pytest.raises(BadTemplate, match="line 2"):
        ChatTemplate("x\n{% for %}")


def test_the_jinja_file_beats_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("file")
    assert read_template(tmp_path, {"chat_template": "config"}) == "file"


def test_named_templates_are_read_from_the_configuration(tmp_path: Path) -> None:
    config = {"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]}
    assert read_template(tmp_path, config) == {"default": "d", "tool_use": "t"}


def test_additional_templates_are_read_beside_the_jinja_file(tmp_path: Path) -> None:
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("t")
    (tmp_path / "chat_template.jinja").write_text("d")
    assert read_template(tmp_path, {}) == {"default": "d", "tool_use": "t"}


def test_the_processors_file_is_the_last_resort(tmp_path: Path) -> None:
    (tmp_path / "chat_template.json").write_text('{"chat_template": "p"}')
    assert read_template(tmp_path, {}) == "p"


def test_no_template_anywhere_is_none(tmp_path: Path) -> None:
    assert read_template(tmp_path, {}) is None


@pytest.mark.parametrize("wrong", [3, [], [{"name": "x"}], {}, ["x"]])
def test_something_else_than_a_template_is_named(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(BadTemplate, match=r"tokenizer_config\.json"):
        read_template(tmp_path, {"chat_template": wrong})
