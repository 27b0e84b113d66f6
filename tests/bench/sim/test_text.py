"""The model's text: template, tokenizer, and answers that encode back to themselves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.sim.text import BUNDLED, TextError, TextModel

MODEL = TextModel()
HELLO = [{"role": "user", "content": "hello"}]


def test_the_bundled_vocabulary_has_2048_entries_and_no_bos() -> None:
    assert MODEL.vocab_size == 2048
    assert list(MODEL.encode("def", special=True)) == list(MODEL.encode("def", special=False))


def test_special_tokens_of_the_template_are_single_tokens() -> None:
    assert [len(MODEL.encode(text)) for text in ("<|im_start|>", "<|im_end|>", "<|endoftext|>")] == [1, 1, 1]


def test_chatml_with_a_generation_prompt() -> None:
    messages = [{"role": "system", "content": "be brief"}, *HELLO]
    assert MODEL.render(messages) == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    )


def test_without_a_generation_prompt_the_text_ends_with_the_last_message() -> None:
    assert MODEL.render(HELLO, generation_prompt=False).endswith("hello<|im_end|>\n")


def test_tools_are_part_of_the_prompt() -> None:
    tools = [{"type": "function", "function": {"name": "weather"}}]
    assert '"name": "weather"' in MODEL.render(HELLO, tools)
    assert "weather" not in MODEL.render(HELLO)


def test_text_parts_are_joined_by_line_breaks() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "input_text", "text": "two"}]
    assert "user\none\ntwo<|im_end|>" in MODEL.render([{"role": "user", "content": parts}])


def test_a_part_that_is_not_text_is_refused_by_its_type() -> None:
    with pytest.raises(TextError, match="image_url"):
        MODEL.render([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])


def test_tool_call_arguments_are_rendered_as_objects() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    assert '{"name": "f", "arguments": {"a": 1}}' in MODEL.render(
        [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}]
    )


def test_a_later_turn_begins_with_the_text_of_the_earlier_one() -> None:
    longer = [*HELLO, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "more"}]
    assert MODEL.render(longer).startswith(MODEL.render(HELLO) + "hi")


@settings(max_examples=40, deadline=None)
@given(st.text(alphabet="abc \n{}", min_size=1, max_size=20), st.integers(1, 60))
def test_a_chat_answer_sent_back_encodes_to_its_own_ids(question: str, length: int) -> None:
    text = MODEL.render([{"role": "user", "content": question}])
    prompt = MODEL.encode(text)
    answer = MODEL.answer(prompt, length, chat=True)
    written = "".join(MODEL.piece(int(token)) for token in answer)
    again = MODEL.encode(text + written + "<|im_end|>\n")
    assert again[: len(prompt) + length].tolist() == [*prompt.tolist(), *answer.tolist()]


def test_an_answer_depends_on_the_prompt_and_the_choice_alone() -> None:
    prompt = np.arange(40, dtype=np.uint32)
    first = MODEL.answer(prompt, 20).tolist()
    assert TextModel().answer(prompt, 20).tolist() == first
    assert MODEL.answer(prompt, 20, 1).tolist() != first
    assert MODEL.answer(prompt[:-1], 20).tolist() != first
    assert MODEL.answer(prompt, 30).tolist()[:20] == first


def test_pieces_are_what_the_tokenizer_decodes() -> None:
    answer = MODEL.answer(np.arange(9, dtype=np.uint32), 50).tolist()
    assert "".join(map(MODEL.piece, answer)) == MODEL.decode(answer)
    assert all(json.loads(b'"%b"' % MODEL.piece_json(token)) == MODEL.piece(token) for token in answer)


def test_a_folder_without_tokenizer_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(TextError, match=str(tmp_path)):
        TextModel(tmp_path)


def test_a_tokenizer_without_template_can_complete_but_not_chat(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((BUNDLED / "tokenizer.json").read_bytes())
    model = TextModel(tmp_path)
    assert len(model.encode("def main"))
    with pytest.raises(TextError, match="no chat template"):
        model.render(HELLO)


def test_a_template_cannot_reach_outside_its_sandbox(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((BUNDLED / "tokenizer.json").read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ messages.__class__.__mro__ }}")
    with pytest.raises(TextError, match="chat template"):
        TextModel(tmp_path).render(HELLO)


def test_a_tool_is_shown_to_the_template_with_the_fields_and_order_of_vllm() -> None:
    tool = {"function": {"parameters": {"b": 1, "a": 2}, "name": "add", "unknown": 1}, "type": "function"}
    rendered = TextModel().render([{"role": "user", "content": "x"}], [tool])
    shown = '{"type": "function", "function": {"name": "add", "description": null, "parameters": {"b": 1, "a": 2}}}'
    assert shown in rendered
