"""Events of a stream that the router writes itself: an engine's, told anew as those of the engine before it.

Pure. The form is that of vLLM 0.32; what is not known here stays as the engine wrote it.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

DONE = b"data: [DONE]\n\n"

_IDS, _PROMPT_IDS = b'"token_ids":[', b'"prompt_token_ids":['
_SPACED = re.compile(rb'"(prompt_token_ids|token_ids)":\s*\[[0-9,\s]*\]')

Identity = tuple[str | None, int | None, str | None]
"""An answer's id, when it was created, its model."""


def completion_choice(
    found: dict[str, Any], text: str, finish: str | None, stop_reason: object, *, ids: bool
) -> dict[str, Any]:
    """A choice of a completion. `ids`: the client asked for token ids."""
    shown = {**found, "text": text, "finish_reason": finish, "stop_reason": stop_reason}
    return shown | {"prompt_token_ids": None, "token_ids": found.get("token_ids") if ids else None}


def chat_choice(
    found: dict[str, Any], text: str, finish: str | None, stop_reason: object, *, ids: bool
) -> dict[str, Any]:
    """A choice of a completion as one of a chat. `ids`: the client asked for token ids."""
    chosen: dict[str, Any] = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": finish}
    if finish is not None:
        chosen["stop_reason"] = stop_reason
    return chosen | {"token_ids": found.get("token_ids") if ids else None}


def whole_usage(said: dict[str, Any], prompt: int, output: int) -> dict[str, Any]:
    """The usage of a whole answer of so many tokens. `said`: that of the last engine, whose prompt was longer.

    Cached tokens are what the last engine found of its own prompt, at most the prompt that the client sent.
    """
    usage = {**said, **_counts(prompt, output)}
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict) and isinstance(details.get("cached_tokens"), int):
        usage["prompt_tokens_details"] = {**details, "cached_tokens": min(details["cached_tokens"], prompt)}
    return usage


def usage_event(identity: Identity, prompt: int, output: int, *, chat: bool) -> bytes:
    """The event with the usage, where no engine is left to write it; what was cached is not known then."""
    name, created, model = identity
    kind = "chat.completion.chunk" if chat else "text_completion"
    usage = _counts(prompt, output) | {"prompt_tokens_details": None}
    event: dict[str, Any] = {"id": name, "object": kind, "created": created, "model": model, "choices": []}
    return b"data: %b\n\n" % msgspec.json.encode(event | {"usage": usage})


def without_ids(event: bytes) -> bytes:
    """The event with its token ids as null: what the engine writes where nobody asks for them.

    Inside a string the quotes of such a name would be escaped, so what is found is a name.
    """
    for name in (_IDS, _PROMPT_IDS):
        at = event.find(name)
        if at >= 0:
            event = event[: at + len(name) - 1] + b"null" + event[event.index(b"]", at) + 1 :]
    return _SPACED.sub(rb'"\1":null', event) if b'token_ids": ' in event else event


def framed(data: bytes, chunked: bool) -> bytes:
    """`data` as a chunk of chunked coding if the answer is `chunked`."""
    return b"%x\r\n%b\r\n" % (len(data), data) if chunked and data else data


def _counts(prompt: int, output: int) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}
