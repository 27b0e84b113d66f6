"""Messages as a client sent them -> messages as an engine hands them to its chat template.

Pure; cost linear in messages and content parts, texts are not copied. Follows vLLM 0.32: content parts are joined or
kept as the template wants them (`content_format.py`), arguments of tool calls become objects, tools get the fields and
the field order that the engine's own models print.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from router.tokens.chat import Message

_DEEPEST = 32
_BILLING = "x-anthropic-billing-header"
_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_PART_FIELDS = frozenset({"type", "text", "refusal", "thinking", "closed", "name", "uuid", "prompt_cache_breakpoint"})
_MEDIA_FIELDS = frozenset(
    {"image_url", "input_image", "image_embeds", "image_pil", "audio_url", "input_audio", "audio_embeds"}
    | {"video_url", "video_embeds", "prompt_embeds", "file", "input_file"}
)


class ContentFormat(StrEnum):
    """What a template takes as a message's content: one string, or a list of parts."""

    STRING = "string"
    OPENAI = "openai"


class NotText(Exception):
    """A part of the chat is no text (image, audio, video) or of a kind unknown here: it cannot be tokenised here."""


class Malformed(Exception):
    """The chat breaks the API's own rules; an engine answers 400."""


def has_media(messages: list[Message]) -> bool:
    """Whether any content part is something else than text."""
    for message in messages:
        content = message.get("content")
        if isinstance(content, list) and any(not _is_text(part) for part in content):
            return True
    return False


def media_mark(messages: list[Message]) -> str | None:
    """A name, in this process, for all that is no text in a chat, in its order; None where there is nothing of it.

    Cost: about 0.3 ms a megabyte of media in the body; the data behind a URL is not looked at.
    """
    marks: list[Any] = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            marks += [_frozen(part) for part in content if not _is_text(part)]
    return f"{hash(tuple(marks)) & 0xFFFFFFFFFFFFFFFF:x}" if marks else None


def _frozen(value: Any, depth: int = 0) -> Any:
    """A part of a body as something that can be hashed without a copy of its data."""
    if depth > _DEEPEST:
        return None
    if isinstance(value, dict):
        return tuple((key, _frozen(part, depth + 1)) for key, part in sorted(value.items()))
    if isinstance(value, list):
        return tuple(_frozen(part, depth + 1) for part in value)
    return value


def _is_text(part: Any) -> bool:
    if isinstance(part, str):
        return True
    if not isinstance(part, dict):
        return False
    kind = part.get("type", "text")
    known = isinstance(kind, str) and (kind in _TEXT_PARTS or kind == "tool_reference")
    return known and not (part.keys() & _MEDIA_FIELDS)


def to_conversation(
    messages: list[Message], content_format: ContentFormat, calls_as_given: bool = False
) -> list[Message]:
    """New message dicts for the template; the given ones are left as they are.

    Raises:
        NotText: there is something in it that is not text.
        Malformed: a tool call or a part is not what the API allows.
    """
    return [_message(message, content_format, calls_as_given) for message in messages]


def _message(message: Message, content_format: ContentFormat, calls_as_given: bool) -> Message:
    role = message["role"]
    content = message.get("content")
    out: Message = {"role": role, "content": _content(role, content, content_format)}
    if role == "assistant":
        calls = message.get("tool_calls")
        if isinstance(calls, list) and calls:
            out["tool_calls"] = [_tool_call(call, calls_as_given) for call in calls]
        reasoning = message.get("reasoning")
        if reasoning is None:
            reasoning = message.get("reasoning_content")
        if reasoning is not None:
            out["reasoning"] = out["reasoning_content"] = reasoning
    elif role == "tool" and "tool_call_id" in message:
        out["tool_call_id"] = message["tool_call_id"]
    elif role == "developer":
        out["tools"] = message.get("tools")
    for key in ("name", "task"):
        if isinstance(message.get(key), str):
            out[key] = message[key]
    return out


def _content(role: str, content: Any, content_format: ContentFormat) -> str | list[dict[str, Any]]:
    if isinstance(content, str) and role != "system" and content_format is ContentFormat.STRING:
        return content
    if content is None:
        parts: list[Any] = []
    elif isinstance(content, str):
        parts = [{"type": "text", "text": content}]
    elif isinstance(content, list):
        parts = content
    else:
        raise Malformed("content must be a string or a list of parts")
    if role == "system":
        parts = [part for part in map(_without_billing, parts) if part is not None]
    if content_format is ContentFormat.STRING:
        return "\n".join(text for text in map(_part_text, parts) if text is not None)
    kept = [part for part in map(_part_dict, parts) if part is not None]
    if role == "tool" and all(part["type"] == "text" for part in kept):
        return "\n".join(part["text"] for part in kept)
    return kept


def _without_billing(part: Any) -> Any:
    """A client's billing line in the system prompt differs on every request; engines drop it, so do we."""
    text = (
        part
        if isinstance(part, str)
        else part.get("text")
        if isinstance(part, dict) and part.get("type") == "text"
        else None
    )
    if not isinstance(text, str) or not text.startswith(_BILLING):
        return part
    rest = text.partition("\n")[2]
    if not rest:
        return None
    return rest if isinstance(part, str) else {**part, "text": rest}


def _part_text(part: Any) -> str | None:
    if isinstance(part, str):
        return part
    if not _is_text(part):
        raise NotText(_kind(part))
    kind = part.get("type", "text")
    text = part.get("name") if kind == "tool_reference" else part.get(_TEXT_PARTS[kind])
    if text is None:
        return None
    if not isinstance(text, str):
        raise Malformed(f"a content part of type {kind} holds no string")
    return text


def _part_dict(part: Any) -> dict[str, Any] | None:
    text = _part_text(part)
    if text is None:
        return None
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if part.get("type") == "tool_reference":
        return {"type": "tool_reference", "name": text}
    out = {"type": "text", "text": text}
    out.update((key, value) for key, value in part.items() if key not in _PART_FIELDS)
    return out


def _kind(part: Any) -> str:
    return str(part.get("type", "unnamed")) if isinstance(part, dict) else type(part).__name__


def _tool_call(call: Any, as_given: bool) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type", "function") != "function":
        raise Malformed("an assistant's tool_calls must be of type function")
    arguments = _arguments(function.get("arguments"))
    if as_given:
        return {**call, "function": {**function, "arguments": arguments}}
    out: dict[str, Any] = {}
    if "id" in call:
        out["id"] = call["id"]
    out["function"] = {"arguments": arguments}
    if "name" in function:
        out["function"]["name"] = function["name"]
    out["function"].update((key, value) for key, value in function.items() if key not in ("arguments", "name"))
    if "type" in call:
        out["type"] = call["type"]
    out.update((key, value) for key, value in call.items() if key not in ("id", "function", "type"))
    return out


def _arguments(given: Any) -> dict[str, Any]:
    """Templates want an object; what is not one becomes an empty one, as it does in the engine."""
    if isinstance(given, str) and given:
        try:
            given = msgspec.json.decode(given)
        except (msgspec.DecodeError, RecursionError):
            return {}
    return given if isinstance(given, dict) else {}


def to_tools(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Tools with the fields and in the order in which the engine's template sees them.

    Raises:
        Malformed: a tool is not a function with a name.
    """
    return None if tools is None else [_tool(tool) for tool in tools]


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if tool.get("type", "function") != "function" or not isinstance(function, dict) or "name" not in function:
        raise Malformed("tools must be of type function, with a function that has a name")
    defer = tool.get("defer_loading")
    shown: dict[str, Any] = {key: function.get(key) for key in ("name", "description", "parameters")}
    if function.get("strict") is not None:
        shown["strict"] = function["strict"]
    if function.get("defer_loading") is not None or defer is not None:
        shown["defer_loading"] = function.get("defer_loading") if function.get("defer_loading") is not None else defer
    out: dict[str, Any] = {"type": "function", "function": shown}
    if defer is not None:
        out["defer_loading"] = defer
    return out


def developer_to_system(conversation: list[Message]) -> list[Message]:
    """For templates that do not know the role `developer`: it becomes `system`, all merged into one at the front."""
    changed = [
        {key: value for key, value in {**message, "role": "system"}.items() if key != "tools"}
        if message["role"] == "developer"
        else message
        for message in conversation
    ]
    places = [index for index, message in enumerate(changed) if message["role"] == "system"]
    if places in ([], [0]):
        return changed
    texts = (_joined(message["content"], "\n") for message in changed if message["role"] == "system")
    merged = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [merged, *(message for message in changed if message["role"] != "system")]


def merge_system(messages: list[Message]) -> list[Message]:
    """All system messages as one at the front, their texts joined: for templates that want the system message first."""
    texts = [_joined(message.get("content"), "") for message in messages if message["role"] == "system"]
    if not texts:
        return messages
    merged = {"role": "system", "content": "".join(texts)}
    return [merged, *(message for message in messages if message["role"] != "system")]


def _joined(content: Any, separator: str) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = (part if isinstance(part, str) else part.get("text") for part in parts if isinstance(part, str | dict))
    return separator.join(text for text in texts if isinstance(text, str))
