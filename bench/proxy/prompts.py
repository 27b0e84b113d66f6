"""What the load sends and the stub engines announce: requests as bytes, each loop over them slightly different.

Pure and deterministic, so that the load and the engines, which are processes of their own, agree without a word. A
request is a head and a body with a place for a number of fixed width: written into it, the newest message of a chat or
the last tokens of a prompt were never seen before, while everything before them was. That is what a growing chat is.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from enum import StrEnum

MODEL = "sim"
BLOCK = 16
CONVERSATIONS = 16
TURNS = 8
_DIGITS = 9
_STAMP = "0" * _DIGITS
_VOCABULARY = 1000
_PROMPT_IDS = (600, 400)
_WORDS_A_TURN = 155
_IDS_STAMP = 3
_SOURCE = (
    "please explain how the cache of a server keeps what was computed before and why it matters when many people "
    "ask about the same long document one after another with small changes at the end of each question they send"
)


class Load(StrEnum):
    """`SMALL`: a short completion. `CHAT`: growing chats as text, `IDS`: the same as token ids, both of 2,000 tokens on
    average. `STREAM`: a chat that streams without an end. `HOLD`: one that streams one item and then keeps still."""

    SMALL = "small"
    CHAT = "chat"
    IDS = "ids"
    STREAM = "stream"
    HOLD = "hold"


@dataclass(frozen=True, slots=True)
class Template:
    """A request whose number stands at `place`, in a body that keeps its length."""

    before: bytes
    after: bytes
    width: int

    def request(self, number: int) -> bytes:
        """The request with the last digits of `number`."""
        if not self.width:
            return self.before
        return b"%b%b%b" % (self.before, _digits(number, self.width), self.after)


def _digits(number: int, width: int) -> bytes:
    """`number` in decimal; token ids (three of four digits each) stay below the vocabulary."""
    if width == _DIGITS:
        return b"%0*d" % (width, number % 10**width)
    one, two, three = number % 1000, number // 1000 % 1000, number // 1000_000 % 1000
    return b"1%03d,1%03d,1%03d" % (one, two, three)


def templates(load: Load) -> list[Template]:
    """The requests of a load, in the order in which they are sent, again and again."""
    if load is Load.SMALL:
        return [_post("/v1/completions", {"model": MODEL, "prompt": "Hello there", "max_tokens": 16})]
    if load in (Load.STREAM, Load.HOLD):
        content = "Please count" if load is Load.STREAM else "Please hold"
        message = {"role": "user", "content": content}
        return [
            _post("/v1/chat/completions", {"model": MODEL, "messages": [message], "max_tokens": 1000, "stream": True})
        ]
    made = []
    for turn in range(1, TURNS + 1):
        for conversation in range(CONVERSATIONS):
            if load is Load.CHAT:
                body: dict[str, object] = {"model": MODEL, "messages": messages(conversation, turn), "max_tokens": 16}
                made.append(_post("/v1/chat/completions", body, _STAMP))
            else:
                ids = token_ids(conversation, turn)
                body = {"model": MODEL, "prompt": ids, "max_tokens": 16}
                made.append(_post("/v1/completions", body, ",".join(["1000"] * _IDS_STAMP)))
    return made


def messages(conversation: int, turns: int) -> list[dict[str, str]]:
    """A chat after so many questions; the last one ends with the number's place."""
    chat = [{"role": "system", "content": f"You answer conversation {conversation}. " + _text(conversation, -1)}]
    for turn in range(turns):
        last = turn == turns - 1
        chat.append({"role": "user", "content": _text(conversation, turn) + (f" {_STAMP}" if last else "")})
        if not last:
            chat.append({"role": "assistant", "content": _text(conversation, 1000 + turn)})
    return chat


def token_ids(conversation: int, turns: int) -> list[int]:
    """A prompt of token ids, 600 at first and 400 more a turn, all of four digits; the last three are the number's."""
    rng = random.Random(conversation)
    first, more = _PROMPT_IDS
    grown = [rng.randrange(1000, 1000 + _VOCABULARY) for _ in range(first + more * TURNS)]
    return [*grown[: first + more * (turns - 1)], *[1000] * _IDS_STAMP]


def _text(conversation: int, turn: int) -> str:
    rng, words = random.Random(conversation * 10_007 + turn), _SOURCE.split()
    return " ".join(rng.choice(words) for _ in range(_WORDS_A_TURN))


def _post(path: str, body: dict[str, object], stamp: str = "") -> Template:
    text = json.dumps(body, separators=(",", ":")).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: router.test\r\nUser-Agent: kvctl-bench\r\nAccept: */*\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    ).encode()
    if not stamp:
        return Template(head + text, b"", 0)
    place = text.rfind(stamp.encode())
    return Template(head + text[:place], text[place + len(stamp) :], len(stamp))
