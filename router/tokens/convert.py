"""`/v1/responses` and `/v1/messages` -> a chat: the messages an engine would make of them for its chat template.

Pure; cost linear in the number of items. What an engine does here was read from vLLM 0.32; where a request uses
something that cannot be followed without the engine (a stored conversation, tools that change on the way), the chat
says so (`Chat.local`, `Chat.remote`) and keeps its text for the approximate way.
"""

from __future__ import annotations

from typing import Any

import msgspec

from router.tokens.chat import Chat, Message

_BILLING = "x-anthropic-billing-header"


def from_responses(
    given: str | list[dict[str, Any]],
    *,
    instructions: str | None,
    tools: list[dict[str, Any]] | None,
    effort: str | None,
    template_kwargs: dict[str, Any] | None,
    stored_history: bool,
) -> Chat:
    """The chat of a `/v1/responses` body; `instructions` first, as the system message."""
    messages: list[Message] = []
    known = True
    if instructions:
        messages.append({"role": "system", "content": instructions})
    items: list[dict[str, Any]] = [{"role": "user", "content": given}] if isinstance(given, str) else given
    fresh = len(messages)
    for item in items:
        known &= _add_item(messages, item, fresh)
    unfinished = not isinstance(given, str) and bool(given) and _unfinished(given[-1])
    functions = (
        [] if tools is None else [_function(tool, "parameters") for tool in tools if tool.get("type") == "function"]
    )
    odd_tools = any(tool.get("type") in ("custom", "namespace") for tool in tools or ())
    return Chat(
        messages=messages,
        tools=functions if tools else None,
        add_generation_prompt=not unfinished,
        continue_final_message=unfinished,
        add_special_tokens=True,
        reasoning_effort=effort,
        template_kwargs=dict(template_kwargs or {}),
        calls_as_given=True,
        local=known and not stored_history and not odd_tools,
        remote=known and not stored_history and not odd_tools,
    )


def _unfinished(item: dict[str, Any]) -> bool:
    return item.get("type", "message") in ("message", "reasoning") and item.get("status") in (
        "in_progress",
        "incomplete",
    )


def _add_item(messages: list[Message], item: dict[str, Any], fresh: int) -> bool:
    """Add one input item; False when an engine's reading of it is not known here."""
    kind = item.get("type")
    previous = messages[-1] if len(messages) > fresh and messages[-1]["role"] == "assistant" else None
    if kind == "function_call":
        call = {
            "id": item.get("call_id"),
            "function": {"name": item.get("name"), "arguments": item.get("arguments")},
            "type": "function",
        }
        if previous is not None:
            previous.setdefault("tool_calls", []).append(call)
        else:
            messages.append({"role": "assistant", "tool_calls": [call]})
        return not item.get("namespace")
    if kind == "function_call_output":
        messages.append({"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")})
        return True
    if kind == "reasoning":
        parts = item.get("content") or item.get("summary")
        part = parts[0] if isinstance(parts, list) and parts else None
        _fill(messages, previous, "reasoning", str(part.get("text", "")) if isinstance(part, dict) else "")
        return not item.get("encrypted_content")
    role = item.get("role")
    if not isinstance(role, str):
        messages.append({"role": "user", "content": str(item)})
        return False
    if role == "assistant":
        content = item.get("content")
        text = content if isinstance(content, str) else None
        if isinstance(content, list) and content and isinstance(content[0], dict):
            text = content[0].get("text")
        if isinstance(text, str):
            _fill(messages, previous, "content", text)
            return True
    messages.append(item)
    return True


def _fill(messages: list[Message], previous: Message | None, key: str, text: str) -> None:
    """One assistant turn may span several items: add to the previous one if it lacks this part."""
    if previous is not None and previous.get(key) is None:
        previous[key] = text
    else:
        messages.append({"role": "assistant", key: text})


def _function(tool: dict[str, Any], schema: str) -> dict[str, Any]:
    function = {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": tool.get(schema),
        "strict": tool.get("strict"),
        "defer_loading": tool.get("defer_loading"),
    }
    return {"type": "function", "function": function}


def from_messages(
    given: list[Message],
    *,
    system: str | list[dict[str, Any]] | None,
    tools: list[dict[str, Any]] | None,
    effort: str | None,
    template_kwargs: dict[str, Any] | None,
) -> Chat:
    """The chat of a `/v1/messages` body; `system` first, as the system message."""
    messages: list[Message] = []
    text = system if isinstance(system, str) else _system_text(system or [])
    if text:
        messages.append({"role": "system", "content": text})
    changes_tools = False
    for message in given:
        content = message.get("content")
        if message["role"] == "system":
            text = content if isinstance(content, str) else _system_text(content if isinstance(content, list) else [])
            if text and not text.startswith(_BILLING):
                messages.append({"role": "system", "content": text})
            changes_tools |= isinstance(content, list) and any(
                isinstance(block, dict) and block.get("type") in ("tool_addition", "tool_removal") for block in content
            )
        elif isinstance(content, list):
            _add_blocks(messages, message["role"], content)
        else:
            messages.append({"role": message["role"], "content": content})
    return Chat(
        messages=messages,
        tools=None if tools is None else [_function(_with_type(tool), "input_schema") for tool in tools],
        reasoning_effort=effort,
        template_kwargs=dict(template_kwargs or {}),
        merge_system=True,
        local=not changes_tools,
        remote=not changes_tools,
    )


def _with_type(tool: dict[str, Any]) -> dict[str, Any]:
    schema = tool.get("input_schema")
    if isinstance(schema, dict) and "type" not in schema:
        return {**tool, "input_schema": {**schema, "type": "object"}}
    return tool


def _system_text(blocks: list[Any]) -> str:
    """Text blocks joined; the client's billing line differs on every request and engines drop it."""
    texts = (block.get("text") for block in blocks if isinstance(block, dict) and block.get("type") == "text")
    return "".join(text for text in texts if isinstance(text, str) and not text.startswith(_BILLING))


def _add_blocks(messages: list[Message], role: str, blocks: list[Any]) -> None:
    """One message of content blocks; a tool's results become messages of their own, before it."""
    message: Message = {"role": role}
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for block in blocks:
        if not isinstance(block, dict):
            continue
        kind = block.get("type")
        if kind == "text" and block.get("text"):
            parts.append({"type": "text", "text": block["text"]})
        elif kind == "image" and block.get("source"):
            parts.append(_image(block["source"]))
        elif kind == "thinking" and isinstance(block.get("thinking"), str):
            thoughts.append(block["thinking"])
        elif kind == "tool_use":
            arguments = msgspec.json.encode(block.get("input") or {}).decode()
            function = {"name": block.get("name") or "", "arguments": arguments}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "tool_result" and role == "user":
            _add_tool_result(messages, block)
        elif kind == "tool_result":
            content = block.get("content")
            parts.append({"type": "text", "text": f"Tool result: {content if content else ''}"})
    if thoughts:
        message["reasoning"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    if parts:
        message["content"] = parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts
    if role != "user" or parts:
        messages.append(message)


def _image(source: Any) -> dict[str, Any]:
    source = source if isinstance(source, dict) else {}
    if source.get("type") == "url":
        url = source.get("url", "")
    else:
        url = f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _add_tool_result(messages: list[Message], block: dict[str, Any]) -> None:
    content = block.get("content")
    call = block.get("tool_use_id") or ""
    texts: list[str] = [content] if isinstance(content, str) else []
    images: list[dict[str, Any]] = []
    references: list[dict[str, Any]] = []
    for item in content if isinstance(content, list) else []:
        if not isinstance(item, dict):
            continue
        if item.get("type") == "text":
            texts.append(str(item.get("text", "")))
        elif item.get("type") == "image":
            images.append(_image(item.get("source")))
        elif item.get("type") == "tool_reference":
            name = item.get("tool_name") or item.get("name")
            references += [{"type": "tool_reference", "name": name}] if name else []
    messages.append({"role": "tool", "tool_call_id": call, "content": "\n".join(texts)})
    if images:
        messages.append({"role": "user", "content": images})
    if references:
        messages.append({"role": "tool", "tool_call_id": call, "content": references})
