"""What an engine says of its own work, out of its JSON: OpenAI's, the Responses API's and Anthropic's spellings.

Pure. Only the fields that count are decoded; a document that does not have them, or is no JSON, yields None.
"""

from __future__ import annotations

import msgspec

from router.proxy.interface import Usage


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Holder(msgspec.Struct):
    usage: _Usage | None = None


class _Document(msgspec.Struct):
    """`response`: the Responses API's events; `message`: Anthropic's message_start."""

    usage: _Usage | None = None
    response: _Holder | None = None
    message: _Holder | None = None


_decode = msgspec.json.Decoder(_Document).decode


def decode_usage(document: bytes) -> Usage | None:
    """The usage in a JSON document: a whole answer, or the data of one event."""
    try:
        found = _decode(document)
    except (msgspec.MsgspecError, RecursionError):
        return None
    usage = found.usage
    if usage is None and found.response is not None:
        usage = found.response.usage
    if usage is None and found.message is not None:
        usage = found.message.usage
    if usage is None:
        return None
    details = usage.prompt_tokens_details or usage.input_tokens_details
    cached = details.cached_tokens if details is not None else None
    prompt = usage.prompt_tokens if usage.prompt_tokens is not None else usage.input_tokens
    completion = usage.completion_tokens if usage.completion_tokens is not None else usage.output_tokens
    if usage.cache_read_input_tokens is not None:
        cached = usage.cache_read_input_tokens
        if usage.input_tokens is not None:
            # Anthropic counts as input only what its cache neither held nor was given.
            prompt = usage.input_tokens + cached + (usage.cache_creation_input_tokens or 0)
    return Usage(prompt, completion, cached)


def merge(first: Usage | None, last: Usage | None) -> Usage | None:
    """Two reports of one answer as one: what `last` says, else what `first` said (Anthropic reports in two parts)."""
    if first is None or last is None:
        return last or first
    return Usage(
        first.prompt_tokens if last.prompt_tokens is None else last.prompt_tokens,
        first.completion_tokens if last.completion_tokens is None else last.completion_tokens,
        first.cached_tokens if last.cached_tokens is None else last.cached_tokens,
    )
