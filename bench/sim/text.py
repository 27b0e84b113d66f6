"""Text and tokens of the simulated model: tokenizer, chat template, and the answer that a prompt gets.

The answer is a function of the prompt's token ids, of the choice's index and of nothing else, so every engine
gives the same one; given a prompt and the beginning of its answer, every engine goes on with that answer. It is
made of whole lower-case words whose text encodes back to the same ids: a client that sends the answer back in the
next turn meets the blocks that the engine made while generating it, as with a real model.

Reads the tokenizer's files when it is made; afterwards no I/O. Encoding costs about a microsecond a token and
releases the GIL.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import numpy as np
import numpy.typing as npt
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from bench.sim.continuation import prefix_seeds
from router.prefix.hashing import Tokens

BUNDLED = Path(__file__).parent / "tokenizer"

_WORD = re.compile(r" [a-z]{2,}")
_START = re.compile(r"[a-z]{2,}")
_ANSWER_ROOT = np.uint64(0xA5F1C3D29B4E7A61)
_STRIDE = np.uint64(0x9E3779B97F4A7C15)
_MOST_WORDS = 2048


class TextError(ValueError):
    """The tokenizer's folder, the template or the messages cannot be used; the message says which."""


class TextModel:
    """A tokenizer folder: `tokenizer.json`, and `tokenizer_config.json` or `chat_template.jinja` for chat."""

    def __init__(self, folder: Path = BUNDLED) -> None:
        file = folder / "tokenizer.json" if folder.is_dir() else folder
        if not file.is_file():
            raise TextError(f"no tokenizer.json at {folder}")
        self._tokenizer = Tokenizer.from_file(str(file))
        self.vocab_size: int = self._tokenizer.get_vocab_size()
        self._config = _read_config(file.parent)
        self._template = _read_template(file.parent, self._config)
        self._pieces: dict[int, str] = {}
        self._words = self._find(_WORD)
        self._starts = self._find(_START)
        self._turn = self._opening_of_a_turn()
        self._json = {token: json.dumps(text)[1:-1].encode() for token, text in self._pieces.items()}

    def encode(self, text: str, *, special: bool = True) -> Tokens:
        """Token ids; `special` adds what the tokenizer itself adds (a BOS, if it has one)."""
        return np.array(self._tokenizer.encode(text, add_special_tokens=special).ids, np.uint32)

    def decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        *,
        generation_prompt: bool = True,
        extra: dict[str, Any] | None = None,
    ) -> str:
        """The prompt text of a conversation.

        Raises:
            TextError: no template, or the template or a message part refuses.
        """
        if self._template is None:
            raise TextError("this tokenizer has no chat template: use /v1/completions")
        try:
            return self._template.render(
                messages=[_plain(message) for message in messages],
                tools=[_as_shown(tool) for tool in tools] if tools else None,
                add_generation_prompt=generation_prompt,
                bos_token=_token_text(self._config.get("bos_token")),
                eos_token=_token_text(self._config.get("eos_token")),
                **(extra or {}),
            )
        except (jinja2.TemplateError, TypeError, KeyError) as error:
            raise TextError(f"chat template: {error}") from error

    def answer(self, prompt: Tokens, count: int, choice: int = 0, *, chat: bool = False) -> Tokens:
        """The ids of an answer of `count` tokens, shape (count,). A chat answer begins without a space.

        A prompt that ends within an answer to what stands before it gets the rest of that answer.
        """
        seed, begun = self._begun(prompt, choice)
        return self._draw(seed, begun, count, chat=chat)

    def opens_a_turn(self, prompt: Tokens) -> bool:
        """Whether the prompt ends as a chat's does for which an answer is wanted."""
        size = len(self._turn)
        return 0 < size <= len(prompt) and np.array_equal(prompt[-size:], self._turn)

    def _opening_of_a_turn(self) -> Tokens:
        """The ids with which the template asks for an answer; none without a template."""
        if self._template is None:
            return np.empty(0, np.uint32)
        say = [{"role": "user", "content": "x"}]
        try:
            asked, told = self.render(say), self.render(say, generation_prompt=False)
        except TextError:
            return np.empty(0, np.uint32)
        return self.encode(asked.removeprefix(told), special=False) if asked.startswith(told) else self.encode("")

    def begun(self, prompt: Tokens, choice: int = 0) -> int:
        """How many of the prompt's last tokens are the beginning of an answer."""
        return self._begun(prompt, choice)[1]

    def _begun(self, prompt: Tokens, choice: int) -> tuple[np.uint64, int]:
        """The seed of the answer that the prompt is to get, and how much of it stands in the prompt already."""
        seeds = prefix_seeds(_ANSWER_ROOT, prompt) ^ np.uint64(choice)
        value = _mixed(seeds[:-1] + _STRIDE)
        words = self._words[value % np.uint64(len(self._words))]
        starts = self._starts[value % np.uint64(len(self._starts))]
        for place in np.flatnonzero((prompt == words) | (prompt == starts)).tolist():
            rest = len(prompt) - place
            if np.array_equal(self._draw(seeds[place], 1, rest - 1, chat=False), prompt[place + 1 :]):
                return seeds[place], rest
        return seeds[-1], 0

    def _draw(self, seed: np.uint64, first: int, count: int, *, chat: bool) -> Tokens:
        value = _mixed(seed + np.arange(first + 1, first + count + 1, dtype=np.uint64) * _STRIDE)
        ids: Tokens = self._words[value % np.uint64(len(self._words))]
        if chat and count and not first:
            ids[0] = self._starts[int(value[0]) % len(self._starts)]
        return ids

    def piece(self, token: int) -> str:
        """The text that an answer's token adds."""
        return self._pieces[token]

    def piece_json(self, token: int) -> bytes:
        """The same, escaped for a JSON string, without the quotes."""
        return self._json[token]

    def _find(self, shape: re.Pattern[str]) -> Tokens:
        """Tokens whose text has this shape and encodes back to just them."""
        anchor = self._tokenizer.encode("x", add_special_tokens=False).ids
        before = len(self._tokenizer.decode(anchor))
        ids = range(self.vocab_size)
        texts = self._tokenizer.decode_batch([[*anchor, token] for token in ids], skip_special_tokens=False)
        found = [
            (token, text[before:]) for token, text in zip(ids, texts, strict=True) if shape.fullmatch(text[before:])
        ]
        found = found[: 2 * _MOST_WORDS]
        encoded = self._tokenizer.encode_batch([text for _, text in found], add_special_tokens=False)
        kept = [pair for pair, back in zip(found, encoded, strict=True) if back.ids == [pair[0]]][:_MOST_WORDS]
        if len(kept) < 16:
            raise TextError("the tokenizer has too few plain words to make answers of")
        self._pieces.update(kept)
        return np.array([token for token, _ in kept], np.uint32)


def _mixed(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return value ^ (value >> np.uint64(31))


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / "tokenizer_config.json"
    if not file.is_file():
        return {}
    config: dict[str, Any] = json.loads(file.read_text())
    return config


def _read_template(folder: Path, config: dict[str, Any]) -> jinja2.Template | None:
    file = folder / "chat_template.jinja"
    source = file.read_text() if file.is_file() else config.get("chat_template")
    if isinstance(source, list):
        source = next((entry["template"] for entry in source if entry.get("name") == "default"), None)
    if not source:
        return None
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(source)


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _token_text(token: str | dict[str, Any] | None) -> str:
    if isinstance(token, dict):
        return str(token.get("content", ""))
    return token or ""


def _as_shown(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool as vLLM shows it to a template: these fields in this order, null where the client said nothing."""
    function = tool.get("function")
    if not isinstance(function, dict) or "name" not in function:
        raise TextError("tools must be functions with a name")
    shown = {key: function.get(key) for key in ("name", "description", "parameters")}
    if function.get("strict") is not None:
        shown["strict"] = function["strict"]
    return {"type": "function", "function": shown}


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """A message as templates expect it: content as one string, tool-call arguments as objects."""
    plain = dict(message)
    content = plain.get("content")
    if isinstance(content, list):
        plain["content"] = "\n".join(_part_text(part) for part in content)
    calls = plain.get("tool_calls")
    if calls:
        plain["tool_calls"] = [_plain_call(call) for call in calls]
    return plain


def _part_text(part: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    raise TextError(f"content part of type {kind!r} is not supported: this model reads text only")


def _plain_call(call: dict[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function") or {})
    if isinstance(function.get("arguments"), str):
        try:
            function["arguments"] = json.loads(function["arguments"] or "{}")
        except ValueError as error:
            raise TextError(f"tool call arguments are not JSON: {error}") from error
    return {**call, "function": function}
