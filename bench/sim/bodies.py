"""Request bodies of the engine's endpoints: the fields that the simulated model reads; unknown ones are
ignored.

Pure. Decoding is typed (msgspec): a wrong type is an error that names the field.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

Message = dict[str, Any]
Body = TypeVar("Body", bound=msgspec.Struct)


class BadBody(Exception):
    """The caller's mistake. `kind` and `param` go into the error body, as vLLM writes them."""

    def __init__(
        self, message: str, *, status: int = 400, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    def body(self) -> dict[str, Any]:
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}}


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class CompletionBody(msgspec.Struct):
    prompt: list[Any] | str
    model: str | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    n: int = 1
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    echo: bool | None = False
    add_special_tokens: bool = True
    return_token_ids: bool | None = None
    cache_salt: str | None = None


class ChatBody(msgspec.Struct):
    messages: list[Message]
    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    n: int | None = 1
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    tools: list[Message] | None = None
    add_generation_prompt: bool = True
    add_special_tokens: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: str | None = None
    return_token_ids: bool | None = None


class ResponsesBody(msgspec.Struct):
    input: str | list[Message]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    stream: bool | None = False
    tools: list[Message] | None = None
    cache_salt: str | None = None


class MessagesBody(msgspec.Struct):
    messages: list[Message]
    max_tokens: int
    model: str | None = None
    system: str | list[Message] | None = None
    stream: bool | None = False
    tools: list[Message] | None = None


class TokenizeBody(msgspec.Struct):
    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[Message] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool | None = False
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeBody(msgspec.Struct):
    tokens: list[int]
    model: str | None = None


def decode(data: bytes, kind: type[Body]) -> Body:
    """The typed body.

    Raises:
        BadBody: not JSON, or not of this shape.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise BadBody(str(error), kind="Bad Request") from error
    except msgspec.DecodeError as error:
        raise BadBody(f"body is not JSON: {error}", kind="Bad Request") from error


def prompts_of(prompt: str | list[Any]) -> list[str] | list[list[int]]:
    """The prompts of a completion: a text, texts, a list of ids, or lists of ids.

    Raises:
        BadBody: a mixture, or nothing.
    """
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise BadBody("prompt is empty", param="prompt")
    if all(type(item) is int for item in prompt):
        return [prompt]
    if all(isinstance(item, str) for item in prompt):
        return prompt
    if all(isinstance(item, list) and item and all(type(token) is int for token in item) for item in prompt):
        return prompt
    raise BadBody("prompt must be a text, a list of texts, a list of token ids or a list of those", param="prompt")


def responses_messages(body: ResponsesBody) -> list[Message]:
    """The conversation of a `/v1/responses` body, in chat form."""
    messages: list[Message] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*messages, {"role": "user", "content": body.input}]
    for item in body.input:
        if item.get("type", "message") == "message":
            messages.append({"role": item.get("role", "user"), "content": item.get("content")})
        elif item["type"] == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            messages.append({"role": "assistant", "content": None, "tool_calls": [{"function": function}]})
        elif item["type"] == "function_call_output":
            messages.append({"role": "tool", "content": item.get("output")})
    return messages


def responses_tools(tools: list[Message] | None) -> list[Message] | None:
    """Flat function tools, nested as chat has them."""
    return _nest(tools, "parameters")


def messages_messages(body: MessagesBody) -> list[Message]:
    """The conversation of a `/v1/messages` body, in chat form."""
    messages: list[Message] = []
    if body.system:
        messages.append({"role": "system", "content": body.system})
    for message in body.messages:
        content = message.get("content")
        if not isinstance(content, list):
            messages.append(message)
            continue
        texts = [part for part in content if part.get("type") not in ("tool_use", "tool_result")]
        calls = [
            {"function": {"name": part.get("name"), "arguments": part.get("input")}}
            for part in content
            if part.get("type") == "tool_use"
        ]
        results = [part.get("content") for part in content if part.get("type") == "tool_result"]
        messages.extend({"role": "tool", "content": result} for result in results)
        if texts or calls:
            plain: Message = {"role": message.get("role"), "content": texts or None}
            messages.append(plain | {"tool_calls": calls} if calls else plain)
    return messages


def messages_tools(tools: list[Message] | None) -> list[Message] | None:
    return _nest(tools, "input_schema")


def _nest(tools: list[Message] | None, schema: str) -> list[Message] | None:
    if not tools:
        return None
    nested = []
    for tool in tools:
        function = {"name": tool.get("name"), "description": tool.get("description"), "parameters": tool.get(schema)}
        nested.append(tool if "function" in tool else {"type": "function", "function": function})
    return nested
