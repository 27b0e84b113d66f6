"""The probe's own prompts: one random line, then plain filler, so that a prompt is cold and touches nobody's cache.

Nothing of a user is ever sent. Pure; a prompt depends on its nonce and its length alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_TEXT = (
    "the water of a long river runs down to the sea and all the small boats go with it in the morning light while the "
    "people on the bank look at them and talk about the rain of last night"
)
WORDS = tuple(_TEXT.split())
CHARACTERS_PER_TOKEN = 4.0
"""Of English in most vocabularies; used until an answer told better."""
SAMPLE_CHARACTERS = 600
"""Length of the first prompt, which shows how long a token is."""
NONCE_CHARACTERS_PER_TOKEN = 2.0
"""Hexadecimal digits make short tokens."""
SUFFIX_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Scale:
    """How many characters of filler make a token."""

    characters_per_token: float = CHARACTERS_PER_TOKEN

    @staticmethod
    def of(prompt: str, tokens: int | None) -> Scale:
        """Told by an answer to a prompt of `first_line` and `filler`."""
        if not tokens:
            return Scale()
        line, _, rest = prompt.partition("\n")
        left = max(1.0, tokens - len(line) / NONCE_CHARACTERS_PER_TOKEN)
        return Scale(min(16.0, max(0.25, len(rest) / left)))

    def characters(self, tokens: int) -> int:
        return max(1, round(tokens * self.characters_per_token))


def first_line(nonce: str) -> str:
    return f"kvctl probe {nonce}\n"


def filler(characters: int, *, start: int = 0) -> str:
    """Exactly so many characters of words; another `start` gives another text from its first word on."""
    parts: list[str] = []
    length, at = 0, start
    while length < characters:
        word = WORDS[at % len(WORDS)]
        parts.append(word)
        length += len(word) + 1
        at += 1
    return " ".join(parts)[:characters].ljust(characters, ".")


def prompt(nonce: str, tokens: int, scale: Scale) -> str:
    """About `tokens` tokens, the nonce's included."""
    line = first_line(nonce)
    rest = tokens - round(len(line) / NONCE_CHARACTERS_PER_TOKEN)
    return line + filler(scale.characters(max(1, rest)))


def with_suffix(text: str, scale: Scale) -> str:
    """The same prompt with another end, of about 64 tokens."""
    return f"{text}\nAnd then: {filler(scale.characters(SUFFIX_TOKENS), start=7)}"


def body(model: str, text: str, *, chat: bool, stream: bool = False) -> dict[str, Any]:
    """A request for one token, as OpenAI-compatible servers take it. The prompt is a string, never token ids: routers
    tokenise it themselves."""
    asked: dict[str, Any] = {"model": model} if model else {}
    asked |= {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
    asked |= {"max_tokens": 1, "temperature": 0, "stream": stream}
    return asked | ({"stream_options": {"include_usage": True}} if stream else {})
