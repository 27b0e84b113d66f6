"""Requests as people send them: conversations that grow, plain completions of text and of token ids, streamed or not.

Everything goes through the `openai` package. `Exchange` is one answered request with what the router predicted, what
the router was told by the engine, and what the client was told.
"""

from __future__ import annotations

import random
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .router_process import Router

if TYPE_CHECKING:
    from openai import OpenAI

SHAPES = ("chat", "chat-stream", "text", "text-stream", "ids", "ids-stream")


@dataclass(frozen=True, slots=True)
class Exchange:
    shape: str
    decision: str
    worker: str
    prompt_tokens: int
    predicted: int
    joined: int
    told: int
    """`cached_tokens` in the usage that the client received."""

    @property
    def equal(self) -> bool:
        return self.predicted == self.joined == self.told


class Corpus:
    """Endless text, different at every call, the same for the same seed: slices of the standard library's sources."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        stdlib = Path(sysconfig.get_paths()["stdlib"])
        self.text = "\n".join(
            path.read_text(encoding="utf-8", errors="replace") for path in sorted(stdlib.glob("[a-d]*.py"))
        )

    def slice(self, low: int, high: int) -> str:
        """Between `low` and `high` characters."""
        length = self.rng.randint(low, high)
        start = self.rng.randrange(len(self.text) - length)
        return self.text[start : start + length]


@dataclass(slots=True)
class Thread:
    """One conversation, or one text or one list of token ids that grows by what the model answers."""

    shape: str
    corpus: Corpus
    model: str
    opening: str
    grow: tuple[int, int] = (40, 400)
    answer: tuple[int, int] = (4, 40)
    think: float = 0.25
    """Seconds before a turn. KV events have no fixed place in time: on a busy machine the event of the last block that
    an answer filled was seen up to 0.13 s after the answer's end."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    text: str = ""
    ids: list[int] = field(default_factory=list)

    def turn(self, client: OpenAI, router: Router) -> Exchange:
        """Sends the next turn and keeps the answer as part of the one after it."""
        tokens = self.corpus.rng.randint(*self.answer)
        more = self.corpus.slice(*self.grow)
        time.sleep(self.think)
        send: Callable[[OpenAI, str, int], _Told] = {"chat": self._chat, "text": self._text, "ids": self._ids}[
            self.shape.partition("-")[0]
        ]
        told = send(client, more, tokens)
        found = router.joined(told.headers["x-kvctl-decision"])
        assert found["prompt_tokens"] == told.prompt_tokens, f"{self.shape}: our ids are not the engine's"
        return Exchange(
            shape=self.shape,
            decision=found["id"],
            worker=told.headers["x-kvctl-worker"],
            prompt_tokens=told.prompt_tokens,
            predicted=found["predicted_cached_tokens"],
            joined=found["engine_cached_tokens"],
            told=told.cached,
        )

    @property
    def _stream(self) -> dict[str, Any]:
        if self.shape.endswith("-stream"):
            return {"stream": True, "stream_options": {"include_usage": True}}
        return {}

    def _chat(self, client: OpenAI, more: str, tokens: int) -> _Told:
        if not self.messages:
            self.messages.append({"role": "system", "content": self.opening})
        self.messages.append({"role": "user", "content": more})
        raw = client.chat.completions.with_raw_response.create(
            model=self.model, messages=self.messages, max_tokens=tokens, temperature=0.0, **self._stream
        )
        told = _read(raw, lambda choice: (getattr(choice, "delta", None) or choice.message).content or "")
        self.messages.append({"role": "assistant", "content": told.text})
        return told

    def _text(self, client: OpenAI, more: str, tokens: int) -> _Told:
        self.text = (self.text or self.opening) + more
        raw = client.completions.with_raw_response.create(
            model=self.model, prompt=self.text, max_tokens=tokens, temperature=0.0, **self._stream
        )
        told = _read(raw, lambda choice: choice.text)
        self.text += told.text
        return told

    def _ids(self, client: OpenAI, more: str, tokens: int) -> _Told:
        rng = self.corpus.rng
        if not self.ids:
            self.ids = [10 + ord(letter) % 2000 for letter in self.opening]
        self.ids += [rng.randrange(10, 2000) for _ in range(max(1, len(more) // 4))]
        raw = client.completions.with_raw_response.create(
            model=self.model,
            prompt=self.ids,
            max_tokens=tokens,
            temperature=0.0,
            extra_body={"return_token_ids": True},
            **self._stream,
        )
        told = _read(raw, lambda choice: choice.text)
        self.ids += told.ids
        return told


@dataclass(slots=True)
class _Told:
    headers: Any
    text: str = ""
    ids: list[int] = field(default_factory=list)
    prompt_tokens: int = -1
    cached: int = -1


def _read(raw: Any, text_of: Callable[[Any], str]) -> _Told:
    """The whole answer, whether it is one object or a stream of chunks."""
    told = _Told(headers=raw.headers)
    for part in _parts(raw.parse()):
        for choice in part.choices:
            told.text += text_of(choice)
            told.ids += getattr(choice, "token_ids", None) or []
        if part.usage is not None:
            told.prompt_tokens = part.usage.prompt_tokens
            told.cached = part.usage.prompt_tokens_details.cached_tokens
    return told


def _parts(answer: Any) -> Iterator[Any]:
    if hasattr(answer, "choices"):
        yield answer
    else:
        yield from answer
