"""Token ids without a tokenizer: every four bytes of the text are one pseudo token.

Pure. Four bytes are about a token of English text, so lengths and loads come out near the truth. The ids mean nothing
to an engine: they match what this router itself made likely (predict-on-route, approximate mode), never a block that an
engine reports. Cost: about a nanosecond a byte.

What matters is that a prompt which extends another shares its prefix: a chat is written message after message, tools
first, with nothing at the end that the next turn would change.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import numpy as np

from router.tokens.body import Body
from router.tokens.chat import Chat
from router.tokens.token_ids import NO_TOKENS, Tokens

BYTES_A_TOKEN = 4
_LARGE = 1024
_DEEPEST = 32
_MARK = b"\x1e"
_encoder = msgspec.json.Encoder()


def approximate(body: Body) -> Tokens:
    """Pseudo tokens of a body's prompt: uint32, shape (about bytes / 4,). Empty when it has neither text nor chat."""
    if body.text is not None:
        return of_bytes(body.text.encode("utf-8", "surrogatepass"))
    if body.chat is not None:
        return of_bytes(canonical(body.chat))
    return NO_TOKENS


def of_bytes(text: bytes) -> Tokens:
    """Groups of four bytes, the last one filled with zeros."""
    return np.frombuffer(text + b"\0" * (-len(text) % BYTES_A_TOKEN), "<u4").astype(np.uint32, copy=False)


def canonical(chat: Chat) -> bytes:
    """One serialisation of tools and messages; that of a longer chat begins with that of the shorter."""
    parts: list[bytes] = []
    for tool in chat.tools or ():
        parts += (_json(tool), _MARK)
    for message in chat.messages:
        parts += (str(message["role"]).encode("utf-8", "surrogatepass"), b"\n")
        content = message.get("content")
        if isinstance(content, str):
            parts.append(content.encode("utf-8", "surrogatepass"))
        elif content is not None:
            parts.append(_json(_small(content)))
        for key in ("reasoning", "reasoning_content", "tool_calls", "tool_call_id", "name"):
            if message.get(key) is not None:
                parts.append(_json(message[key]))
        parts.append(_MARK)
    return b"".join(parts)


def _json(value: Any) -> bytes:
    """As JSON; nothing for what nests more deeply than can be written."""
    try:
        return _encoder.encode(value)
    except RecursionError:
        return b""


def _small(content: Any, depth: int = 0) -> Any:
    """Parts as they are, but for media, whose data would count as text: a digest stands for it. No prompt nests
    deeply: what does is left out."""
    if depth > _DEEPEST:
        return None
    if isinstance(content, dict):
        if isinstance(content.get("text"), str):
            return content["text"]
        return {key: _small(value, depth + 1) for key, value in content.items()}
    if isinstance(content, list):
        return [_small(part, depth + 1) for part in content]
    if isinstance(content, str) and len(content) > _LARGE:
        return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return content
