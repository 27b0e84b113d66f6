"""One streamed event, read: what kind it is, what text and how many tokens it carries. Pure.

Knows the events of completions, chat and responses, told apart by their own fields. Only text, reasoning, refusals
and tool-call arguments are content; everything else frames it. Cost: one typed JSON decode, about 1 us.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec


class Kind(Enum):
    """What an event is for. FRAME: an event of the responses API around the answer."""

    CONTENT = "content"
    ROLE = "role"
    EMPTY = "empty"
    FINISH = "finish"
    USAGE = "usage"
    FRAME = "frame"


class BadEvent(ValueError):
    """The payload is no event of any known API."""


class ErrorEvent(Exception):
    """The server reports an error inside the stream; the message is what it says."""


@dataclass(slots=True)
class Event:
    """One event.

    `tokens`: ids it names; 0 where it names none. `finished`: it ends the answer, whatever else it carries.
    `usage`: (prompt, cached, completion) tokens so far, each None where it does not say.
    """

    kind: Kind
    text: str = ""
    tokens: int = 0
    finished: bool = False
    usage: tuple[int | None, int | None, int | None] | None = None
    choices: bool = False


class _Function(msgspec.Struct):
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    function: _Function | None = None


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None


class _Response(msgspec.Struct):
    usage: _Usage | None = None
    error: Any = None


class _Payload(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    type: Any = None
    delta: Any = None
    response: _Response | None = None
    message: Any = None


_decoder = msgspec.json.Decoder(_Payload)

_RESPONSES_CONTENT = frozenset(
    f"response.{name}.delta"
    for name in (
        "output_text", "refusal", "reasoning_text", "reasoning_summary_text", "function_call_arguments",
        "mcp_call_arguments", "custom_tool_call_input", "code_interpreter_call_code",
    )
)  # fmt: skip
_ANSWER = "response.output_text.delta"


def read(payload: bytes) -> Event:
    """The event of one payload (not `[DONE]`).

    Raises:
        BadEvent: not JSON, or fields of a wrong type.
        ErrorEvent: the server says that it failed.
    """
    try:
        chunk = _decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise BadEvent(f"{error}: {payload[:100]!r}") from None
    if chunk.error is not None:
        raise ErrorEvent(msgspec.json.encode(chunk.error).decode())
    if isinstance(chunk.type, str) and chunk.choices is None:
        return _of_responses(chunk, chunk.type)
    return _of_choices(chunk)


def _of_choices(chunk: _Payload) -> Event:
    usage = _counts(chunk.usage)
    if not chunk.choices:
        return Event(Kind.EMPTY if usage is None else Kind.USAGE, usage=usage)
    finished = role = content = False
    text, ids = "", 0
    for choice in chunk.choices:
        finished = finished or choice.finish_reason is not None
        if choice.token_ids:
            ids += len(choice.token_ids)
        if choice.text:
            content, text = True, text + choice.text
        delta = choice.delta
        if delta is not None:
            role = role or delta.role is not None
            if delta.content:
                content, text = True, text + delta.content
            elif delta.reasoning_content or delta.reasoning or delta.refusal or _has_arguments(delta):
                content = True
    if content:
        kind = Kind.CONTENT
    elif finished:
        kind = Kind.FINISH
    else:
        kind = Kind.ROLE if role else Kind.EMPTY
    return Event(kind, text, ids, finished, usage, True)


def _of_responses(chunk: _Payload, name: str) -> Event:
    if name in _RESPONSES_CONTENT:
        said = chunk.delta if isinstance(chunk.delta, str) else ""
        return Event(Kind.CONTENT if said else Kind.EMPTY, said if name == _ANSWER else "")
    response = chunk.response
    if name in ("response.failed", "error"):
        said = chunk.message if response is None else response.error
        raise ErrorEvent(msgspec.json.encode(said).decode())
    if name in ("response.completed", "response.incomplete"):
        return Event(Kind.FINISH, finished=True, usage=_counts(response.usage) if response is not None else None)
    return Event(Kind.FRAME)


def _counts(usage: _Usage | None) -> tuple[int | None, int | None, int | None] | None:
    if usage is None:
        return None
    details = usage.prompt_tokens_details or usage.input_tokens_details
    return (
        usage.prompt_tokens if usage.prompt_tokens is not None else usage.input_tokens,
        details.cached_tokens if details is not None else None,
        usage.completion_tokens if usage.completion_tokens is not None else usage.output_tokens,
    )


def _has_arguments(delta: _Delta) -> bool:
    return any(call.function is not None and call.function.arguments for call in delta.tool_calls or ())
