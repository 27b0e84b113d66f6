"""The body of a request -> what routing reads of it. Unknown fields are skipped without making objects of them.

Pure. Cost: the JSON parser's, about 1 ms a megabyte, and it holds the interpreter: a caller that takes bodies of many
megabytes should parse those in a thread. Token ids become an array without a Python object an id.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn, TypeVar

import msgspec

from router.model import BadRequest
from router.tokens.chat import Chat
from router.tokens.convert import from_messages, from_responses
from router.tokens.token_ids import BadTokenIds, Tokens, parse_ids

_NOTHING = msgspec.Raw(b"")
_ABSENT = (b"", b"null")


class Kind(StrEnum):
    COMPLETIONS = "completions"
    CHAT = "chat"
    RESPONSES = "responses"
    MESSAGES = "messages"


_KIND_COMPLETIONS, _KIND_CHAT = Kind.COMPLETIONS, Kind.CHAT

PATHS: dict[str, Kind] = {
    "/v1/completions": Kind.COMPLETIONS,
    "/v1/chat/completions": Kind.CHAT,
    "/v1/responses": Kind.RESPONSES,
    "/v1/messages": Kind.MESSAGES,
}


@dataclass(slots=True)
class Body:
    """What routing knows of a request's body. Exactly one of `text`, `ids` and `chat` is set, or none of them when
    the prompt is not made of tokens (`prompt_embeds`).

    `prompts` counts the prompts of a completion request; the request is routed by the first. `max_tokens` is the
    bound the caller set, None where there is none. `nvext` is its JSON text. `size` is the body's length in bytes.
    `media` names the images and the like of a chat whose ids were given. `reads_cache` is False where the engine
    computes the whole prompt anew, because log probabilities of all of it are asked for.
    """

    kind: Kind
    model: str | None
    size: int
    text: str | None = None
    ids: Tokens | None = None
    chat: Chat | None = None
    prompts: int = 1
    add_special_tokens: bool = True
    stream: bool = False
    include_usage: bool = False
    max_tokens: int | None = None
    n: int = 1
    cache_salt: str | None = None
    nvext: bytes | None = None
    media: str | None = None
    reads_cache: bool = True


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Common(msgspec.Struct):
    model: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    cache_salt: str | None = None
    nvext: msgspec.Raw = _NOTHING
    chat_template_kwargs: dict[str, Any] | None = None
    prompt_logprobs: msgspec.Raw = _NOTHING


class _Completions(_Common):
    prompt: msgspec.Raw = _NOTHING
    echo: msgspec.Raw = _NOTHING
    logprobs: msgspec.Raw = _NOTHING
    prompt_embeds: msgspec.Raw = _NOTHING
    add_special_tokens: bool | None = None


class _ChatCompletions(_Common):
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    chat_template: str | None = None
    reasoning_effort: str | None = None
    max_completion_tokens: int | None = None


class _Reasoning(msgspec.Struct):
    effort: str | None = None


class _Responses(_Common):
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    reasoning: _Reasoning | None = None


class _OutputConfig(msgspec.Struct):
    effort: str | None = None


class _Thinking(msgspec.Struct):
    type: str | None = None


class _Messages(_Common):
    messages: list[dict[str, Any]] | None = None
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    thinking: _Thinking | None = None
    output_config: _OutputConfig | None = None


_COMPLETIONS = msgspec.json.Decoder(_Completions, strict=False)
_CHAT = msgspec.json.Decoder(_ChatCompletions, strict=False)
_RESPONSES = msgspec.json.Decoder(_Responses, strict=False)
_MESSAGES = msgspec.json.Decoder(_Messages, strict=False)
_TEXT = msgspec.json.Decoder(str)
_TEXTS = msgspec.json.Decoder(list[str])
_ARRAYS = msgspec.json.Decoder(list[msgspec.Raw])

_BYTE = re.compile(r" \(byte (\d+)\)$")
_PLACE = re.compile(r" - at `\$\.(\w+)([^`]*)`$")
_HALF_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

_PROMPT_KINDS = "prompt must be a string, a list of strings, a list of token ids or a list of lists of token ids"

_Shape = TypeVar("_Shape", bound=_Common)


def parse(path: str, body: bytes) -> Body:
    """What routing reads of `body`.

    Args:
        path: the request's path, one of `PATHS`; a query string is not part of it.
        body: the bytes as they came.

    Raises:
        BadRequest: not JSON, or a field that routing needs is missing or of the wrong kind; `param` names the field.
    """
    kind = PATHS.get(path.rstrip("/"))
    if kind is _KIND_COMPLETIONS:
        return _completions(_decode(_COMPLETIONS, body), len(body))
    if kind is _KIND_CHAT:
        return _chat(_decode(_CHAT, body), len(body))
    if kind is Kind.RESPONSES:
        return _responses(_decode(_RESPONSES, body), len(body))
    if kind is Kind.MESSAGES:
        return _messages(_decode(_MESSAGES, body), len(body))
    raise BadRequest(f"{path} is not routed by content; it has to be one of {', '.join(PATHS)}")


def _decode(decoder: msgspec.json.Decoder[_Shape], body: bytes) -> _Shape:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        _wrong_kind(str(error))
    except msgspec.DecodeError as error:
        if not body.strip():
            raise BadRequest("the body is empty; a JSON object is expected") from None
        _not_json(str(error), body)
    except RecursionError:
        raise BadRequest("the body is not valid JSON for this server: it is nested too deeply") from None


def _wrong_kind(text: str) -> NoReturn:
    place = _PLACE.search(text)
    what = _PLACE.sub("", text).replace("`", "").replace("Expected", "expected")
    if place is None:
        if "got" in text:
            raise BadRequest(f"the body must be a JSON object: {what}")
        raise BadRequest(f"the body holds something that cannot be read: {what}")
    raise BadRequest(f"{place[1]}{place[2]} is of the wrong kind: {what}", param=place[1])


def _not_json(text: str, body: bytes) -> NoReturn:
    if "truncated" in text:
        if body.rstrip().endswith(b"}") and _HALF_SURROGATE.search(body):
            raise BadRequest("the body is not valid JSON: it holds half of a surrogate pair (\\ud800 to \\udfff)")
        raise BadRequest(f"the body is not valid JSON: it ends too early, at byte {len(body)}")
    what = text.removeprefix("JSON is malformed: ")
    byte = _BYTE.search(what)
    if byte is not None:
        raise BadRequest(f"the body is not valid JSON: {_BYTE.sub('', what)} at byte {byte[1]}")
    raise BadRequest(f"the body is not valid JSON: {what}")


def _body(kind: Kind, raw: _Common, size: int) -> Body:
    options = raw.stream_options
    nvext = bytes(raw.nvext)
    return Body(
        kind=kind,
        model=raw.model or None,
        size=size,
        stream=bool(raw.stream),
        include_usage=bool(options and options.include_usage),
        max_tokens=raw.max_tokens,
        n=max(1, raw.n or 1),
        cache_salt=raw.cache_salt or None,
        nvext=nvext if nvext and nvext != b"null" else None,
        reads_cache=bytes(raw.prompt_logprobs) in _ABSENT,
    )


def _completions(raw: _Completions, size: int) -> Body:
    body = _body(_KIND_COMPLETIONS, raw, size)
    body.add_special_tokens = True if raw.add_special_tokens is None else raw.add_special_tokens
    if bytes(raw.echo) == b"true" and bytes(raw.logprobs) not in _ABSENT:
        body.reads_cache = False
    prompt = memoryview(raw.prompt)
    if not prompt or prompt[0] == ord("n"):
        if bytes(raw.prompt_embeds) in (b"", b"null"):
            raise BadRequest(f"prompt is missing; {_PROMPT_KINDS}", param="prompt")
        return body
    first = prompt[0]
    if first == ord('"'):
        body.text = _prompt(_TEXT, prompt)
        return body
    if first != ord("["):
        raise BadRequest(_PROMPT_KINDS, param="prompt")
    item = _first_item(prompt)
    if item == ord('"'):
        texts: list[str] = _prompt(_TEXTS, prompt)
        body.text, body.prompts = texts[0], len(texts)
    elif item == ord("["):
        lists: list[msgspec.Raw] = _prompt(_ARRAYS, prompt)
        body.prompts = len(lists)
        for index, ids in enumerate(lists):
            if memoryview(ids)[0] != ord("["):
                raise BadRequest(f"prompt[{index}] is no list; {_PROMPT_KINDS}", param="prompt")
        body.ids = _ids(memoryview(lists[0]), "prompt[0]")
    elif item == ord("]"):
        raise BadRequest("prompt is an empty list; it has to hold at least one prompt", param="prompt")
    else:
        body.ids = _ids(prompt, "prompt")
    return body


def _first_item(array: memoryview) -> int:
    place = 1
    while array[place] in b" \t\r\n":
        place += 1
    return array[place]


_Value = TypeVar("_Value")


def _prompt(decoder: msgspec.json.Decoder[_Value], raw: memoryview) -> _Value:
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError:
        raise BadRequest(_PROMPT_KINDS, param="prompt") from None
    except msgspec.DecodeError as error:
        raise BadRequest(f"prompt is not valid JSON: {error}", param="prompt") from None


def _ids(raw: memoryview, name: str) -> Tokens:
    try:
        return parse_ids(raw)
    except BadTokenIds as error:
        raise BadRequest(
            f"{name}[{error.index}] {error}: token ids are integers from 0 to 2^32 - 1", param="prompt"
        ) from None


def _chat(raw: _ChatCompletions, size: int) -> Body:
    body = _body(_KIND_CHAT, raw, size)
    if raw.max_completion_tokens is not None:
        body.max_tokens = raw.max_completion_tokens
    messages = _with_roles(raw.messages)
    kwargs = dict(raw.chat_template_kwargs or {})
    template = raw.chat_template or kwargs.pop("chat_template", None)
    body.chat = Chat(
        messages=messages,
        tools=raw.tools,
        add_generation_prompt=raw.add_generation_prompt is not False,
        continue_final_message=bool(raw.continue_final_message),
        add_special_tokens=bool(raw.add_special_tokens),
        documents=raw.documents,
        reasoning_effort=raw.reasoning_effort,
        template_kwargs=kwargs,
        client_template=None if template is None else str(template),
        local=template is None,
    )
    return body


def _responses(raw: _Responses, size: int) -> Body:
    body = _body(Kind.RESPONSES, raw, size)
    if raw.max_output_tokens is not None:
        body.max_tokens = raw.max_output_tokens
    if raw.input is None:
        raise BadRequest("input is missing; it has to be a string or a list of items", param="input")
    body.chat = from_responses(
        raw.input,
        instructions=raw.instructions,
        tools=raw.tools,
        effort=None if raw.reasoning is None else raw.reasoning.effort,
        template_kwargs=raw.chat_template_kwargs,
        stored_history=raw.previous_response_id is not None,
    )
    return body


def _messages(raw: _Messages, size: int) -> Body:
    body = _body(Kind.MESSAGES, raw, size)
    effort = None if raw.output_config is None else raw.output_config.effort
    if raw.thinking is not None and raw.thinking.type == "disabled":
        effort = "none"
    body.chat = from_messages(
        _with_roles(raw.messages),
        system=raw.system,
        tools=raw.tools,
        effort=effort,
        template_kwargs=raw.chat_template_kwargs,
    )
    return body


def _with_roles(messages: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    if messages is None:
        raise BadRequest("messages is missing; it has to be a list of messages", param="messages")
    for index, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise BadRequest(f"messages[{index}].role is missing or not a string", param="messages")
    return messages
