"""Streams as engines send them, for tests of streams that break: one prompt, one answer of eight tokens."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from bench.sim.answers import ChatShape, Choice, CompletionShape, Usage
from bench.sim.text import TextModel

MODEL = TextModel()
PROMPT = MODEL.encode("once upon a time there was")
COUNT = 8
ANSWER = {chat: MODEL.answer(PROMPT, COUNT, chat=chat) for chat in (False, True)}


def stream(chat: bool, sent: int = 0, *, told: bool = True, name: str = "x-1") -> list[bytes]:
    """The events of an engine that is asked for the answer behind `sent` tokens; a stream that goes on is a completion
    with another identity."""
    as_chat = chat and not sent
    prompt = MODEL.encode("once upon a time there was") if not sent else None
    ids = [*PROMPT.tolist(), *ANSWER[chat][:sent].tolist()]
    shape: ChatShape | CompletionShape
    if as_chat:
        assert prompt is not None
        shape = ChatShape(name, "sim", 100, include_usage=True, prompt=prompt if told else None)
    else:
        prompts = [np.array(ids, np.uint32)] if told else None
        shape = CompletionShape(name, "sim", 100 + sent, include_usage=True, prompts=prompts)
    usage = Usage(len(ids), COUNT - sent, 16)
    events = [shape.opening(0, usage)] if as_chat else []
    for index, token in enumerate(ANSWER[chat][sent:].tolist(), sent):
        finish = "length" if index == COUNT - 1 else None
        events.append(shape.token(0, MODEL.piece_json(token), finish, None, token))
    closing = shape.closing([Choice("", "length")], usage)
    return [*events, *(event + b"\n\n" for event in closing.split(b"\n\n")[:-1])]


def events(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in data.split(b"\n\n") if line.startswith(b"data: {")]


def content(data: bytes) -> str:
    found = [event["choices"][0] for event in events(data) if event["choices"]]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in found)


def behind_the_role() -> list[bytes]:
    """The completion that goes on with a chat of which only the role was sent: the whole answer, as a completion."""
    shape = CompletionShape("y-2", "sim", 7, include_usage=True, prompts=[np.array(PROMPT, np.uint32)])
    found = [
        shape.token(0, MODEL.piece_json(token), "length" if index == COUNT - 1 else None, None, token)
        for index, token in enumerate(ANSWER[True].tolist())
    ]
    return [*found, shape.closing([Choice("", "length")], Usage(len(PROMPT), COUNT, 16))]
