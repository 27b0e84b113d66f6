"""Prompts: random in their first line, as long as asked, one token out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from checks.probe.prompts import Scale, body, filler, first_line, prompt, with_suffix


@given(st.integers(1, 5000), st.integers(0, 50))
def test_filler_is_exactly_as_long_as_asked(characters: int, start: int) -> None:
    assert len(filler(characters, start=start)) == characters


def test_other_nonces_make_other_first_lines() -> None:
    one, other = prompt("a" * 32, 500, Scale()), prompt("b" * 32, 500, Scale())
    assert one.split("\n")[0] != other.split("\n")[0]
    assert one.split("\n")[1] == other.split("\n")[1]


def test_a_prompt_depends_on_its_nonce_and_length_alone() -> None:
    assert prompt("a" * 32, 500, Scale()) == prompt("a" * 32, 500, Scale())


def test_the_nonce_stands_within_the_first_128_characters() -> None:
    """Pieces of the production stack's prefix trie."""
    assert len(first_line("a" * 32)) < 128


def test_the_scale_is_what_an_answer_told() -> None:
    """44 characters of first line count as 22 tokens, so 600 characters made 200."""
    line = first_line("a" * 31)
    assert len(line) == 44
    assert Scale.of(line + filler(600), 221).characters_per_token == 600 / (221 - 43 / 2)


def test_a_suffix_leaves_the_prompt_as_it_was() -> None:
    text = prompt("a" * 32, 500, Scale())
    assert with_suffix(text, Scale()).startswith(text)
    assert len(with_suffix(text, Scale())) > len(text) + 200


def test_a_completion_has_a_string_for_a_prompt_and_asks_for_one_token() -> None:
    assert body("m", "hello", chat=False) == {
        "model": "m",
        "prompt": "hello",
        "max_tokens": 1,
        "temperature": 0,
        "stream": False,
    }


def test_a_streamed_chat_asks_for_its_usage() -> None:
    asked = body("m", "hello", chat=True, stream=True)
    assert asked["messages"] == [{"role": "user", "content": "hello"}]
    assert asked["stream_options"] == {"include_usage": True}


def test_an_unknown_model_is_left_out() -> None:
    assert "model" not in body("", "hello", chat=False)
