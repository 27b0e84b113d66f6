"""The request that goes on with a broken stream: the client's body -> that of a completion whose prompt are token ids.

Token ids and not text, for a chat too: `continue_final_message` would render and tokenise the text anew, which gives
other tokens where a word was generated in pieces or the template trims its messages. Also what may be followed at all.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from router.tokens.body import Body
from router.tokens.conversation import has_media

_OFF = (b"", b"null", b"false", b"0", b"[]", b"{}", b'""')
_NOTHING = msgspec.Raw(b"")

_DEFAULT_OUTPUT = 16
"""Tokens of a completion that names no bound, in OpenAI's API and in vLLM."""
_READ_BY_THE_PROMPT = frozenset(
    {"messages", "prompt", "tools", "tool_choice", "parallel_tool_calls", "functions", "function_call"}
    | {"add_generation_prompt", "continue_final_message", "chat_template", "chat_template_kwargs", "documents"}
    | {"reasoning_effort", "include_reasoning", "mm_processor_kwargs", "media_io_kwargs", "return_prompt_text"}
    | {"add_special_tokens", "truncate_prompt_tokens", "truncation_side"}
)
_SAID_OTHERWISE = frozenset(
    {"max_tokens", "max_completion_tokens", "logprobs", "top_logprobs", "response_format", "echo", "nvext"}
)
_ROOT_KEYS = _READ_BY_THE_PROMPT | _SAID_OTHERWISE


class _Format(msgspec.Struct):
    type: object = None


class _Wants(msgspec.Struct):
    best_of: msgspec.Raw = _NOTHING
    use_beam_search: msgspec.Raw = _NOTHING
    logprobs: msgspec.Raw = _NOTHING
    prompt_logprobs: msgspec.Raw = _NOTHING
    echo: msgspec.Raw = _NOTHING
    suffix: msgspec.Raw = _NOTHING
    prompt_embeds: msgspec.Raw = _NOTHING
    response_format: _Format | None = None
    structured_outputs: msgspec.Raw = _NOTHING
    guided_json: msgspec.Raw = _NOTHING
    guided_regex: msgspec.Raw = _NOTHING
    guided_choice: msgspec.Raw = _NOTHING
    guided_grammar: msgspec.Raw = _NOTHING
    tools: msgspec.Raw = _NOTHING
    tool_choice: msgspec.Raw = _NOTHING
    functions: msgspec.Raw = _NOTHING
    thinking_token_budget: msgspec.Raw = _NOTHING
    include_reasoning: bool | None = None
    kv_transfer_params: msgspec.Raw = _NOTHING
    ec_transfer_params: msgspec.Raw = _NOTHING
    return_token_ids: bool | None = None
    stop: str | list[str] | None = None
    include_stop_str_in_output: bool = False


_wants = msgspec.json.Decoder(_Wants, strict=False)


class Followed(msgspec.Struct):
    """How a stream is followed. `asked`: the client asks for token ids itself; `said`: it says something of them."""

    asked: bool
    said: bool
    stops: tuple[str, ...]
    include_stop: bool


def followed(raw: bytes, body: Body) -> Followed | str:
    """What following the request's stream needs, or why it cannot go on elsewhere when it breaks."""
    try:
        wants = _wants.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return "unknown_field"
    why = _why_not(wants, body)
    if why:
        return why
    stop = wants.stop
    stops = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
    asked = wants.return_token_ids
    return Followed(
        bool(asked), asked is not None, tuple(one for one in stops if one), wants.include_stop_str_in_output
    )


def _why_not(wants: _Wants, body: Body) -> str:
    if body.n > 1 or body.prompts > 1 or bytes(wants.best_of) not in (*_OFF, b"1") or _on(wants.use_beam_search):
        return "choices"
    chat = body.chat is not None
    if _on(wants.prompt_logprobs) or (_on(wants.logprobs) if chat else bytes(wants.logprobs) not in (b"", b"null")):
        return "logprobs"
    if _on(wants.echo) or _on(wants.suffix):
        return "echo"
    if _on(wants.prompt_embeds):
        return "embeds"
    form = wants.response_format
    guided = (wants.structured_outputs, wants.guided_json, wants.guided_regex, wants.guided_choice)
    if (form is not None and form.type != "text") or any(map(_on, guided)) or _on(wants.guided_grammar):
        return "structured"
    if _on(wants.functions) or (_on(wants.tools) and bytes(wants.tool_choice) != b'"none"'):
        return "tools"
    if _on(wants.thinking_token_budget) or wants.include_reasoning is False:
        return "reasoning"
    if _on(wants.kv_transfer_params) or _on(wants.ec_transfer_params):
        return "transfer"
    if body.chat is not None and has_media(body.chat.messages):
        return "media"
    return ""


def _on(raw: msgspec.Raw) -> bool:
    return bytes(raw) not in _OFF


def asking_for_ids(raw: bytes, said: bool) -> bytes:
    """The body, with the wish to be told token ids. `said`: it says something of that already."""
    if said:
        body: dict[str, Any] = msgspec.json.decode(raw)
        return msgspec.json.encode(body | {"return_token_ids": True})
    return raw.rstrip()[:-1] + b',"return_token_ids":true}'


def going_on(raw: bytes, *, chat: bool, prompt: Sequence[int], sent: Sequence[int], room: int | None) -> bytes | None:
    """The body of a completion that goes on behind `sent`; None where nothing is left to generate.

    Args:
        raw: the body of the request whose stream broke, as engines got it.
        prompt: its prompt's ids, as the engine said.
        room: tokens that the context holds beside the prompt and what was sent; None if nobody knows.
    """
    body: dict[str, Any] = msgspec.json.decode(raw)
    most = body.get("max_completion_tokens") if chat else body.get("max_tokens", _DEFAULT_OUTPUT)
    if chat and most is None:
        most = body.get("max_tokens")
    if most is not None:
        most = int(most) - len(sent)
    # vLLM 0.32 fails on a stream of completions whose max_tokens is null.
    left = room if most is None else most
    if left is not None and left < 1:
        return None
    new = {key: value for key, value in body.items() if key not in _ROOT_KEYS}
    new["prompt"] = [*prompt, *sent]
    new["max_tokens"] = left
    if body.get("min_tokens"):
        new["min_tokens"] = max(int(body["min_tokens"]) - len(sent), 0)
    return msgspec.json.encode(new)


class _Salt(msgspec.Struct):
    cache_salt: str | None = None


def salt_in(raw: bytes) -> str | None:
    """The `cache_salt` of a body."""
    return msgspec.json.decode(raw, type=_Salt).cache_salt or None
