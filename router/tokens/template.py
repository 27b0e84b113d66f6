"""The model's chat template: a chat -> the text an engine would tokenise.

Reads the template's files at load, afterwards pure but for `strftime_now`, which reads the wall clock as it does in the
engines. Cost: some 10 us a message; rendering holds the interpreter. The template is the operator's, but what it loops
over is the client's, so a rendering has a budget of characters and seconds. The clock is looked at whenever the
template reads an attribute or an item, calls something or writes; one built-in filter over a huge list (`tojson`,
`sort`) cannot be interrupted, and is bounded by the size of the body.
"""

from __future__ import annotations

import json
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import msgspec
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from router.tokens.chat import Chat, Message
from router.tokens.content_format import content_format
from router.tokens.conversation import (
    Malformed,
    developer_to_system,
    merge_system,
    to_conversation,
    to_tools,
)

_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
_STEPS_BETWEEN_LOOKS = 512
_PROBE_SECONDS = 0.2
_NOT_VARIABLES = ("messages", "chat_template", "tokenize", "self", "context")
_PROBE = [{"role": role, "content": "t"} for role in ("system", "user", "system", "user")]


class BadTemplate(Exception):
    """The template itself cannot be compiled, or its file holds no template."""


class TemplateRejected(Exception):
    """The template refuses this chat (or fails on it), as it will in the engine."""


class TemplateTooLong(Exception):
    """The rendering went past its budget of characters or seconds."""


class _Deadline(threading.local):
    """When the rendering of this thread has to be done."""

    at = float("inf")


class _Generation(Extension):
    """`{% generation %}`, which marks what the assistant wrote: its body is rendered, the mark is not needed."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja as engines set it up for chat templates; `bare` leaves out what they add to jinja's own."""

    def __init__(self, bare: bool = False) -> None:
        extensions = [loopcontrols] if bare else [_Generation, loopcontrols]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        self.deadline = _Deadline()
        self._steps = 0
        if not bare:
            self.filters["tojson"] = _tojson
            self.globals["raise_exception"] = _raise_exception
            self.globals["strftime_now"] = _strftime_now

    def step(self) -> None:
        """Look at the clock now and then. The count is shared by the threads: it only spaces the looks."""
        self._steps = steps = self._steps + 1
        if steps % _STEPS_BETWEEN_LOOKS == 0 and time.monotonic() > self.deadline.at:
            raise TemplateTooLong("the chat template took too long")

    def getattr(self, obj: Any, attribute: str) -> Any:
        self.step()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        self.step()
        return super().getitem(obj, argument)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        __self.step()
        return super().call(__context, __obj, *args, **kwargs)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.exceptions.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


class ChatTemplate:
    """One model's chat template, or its named ones (`default`, `tool_use`).

    Args:
        source: the template, or templates by name.
        special_tokens: `bos_token` and the like, as the template sees them.
        max_chars: the longest text a rendering may give.
    """

    def __init__(
        self, source: str | dict[str, str], special_tokens: dict[str, Any] | None = None, max_chars: int = 64 << 20
    ) -> None:
        sources = {"default": source} if isinstance(source, str) else source
        if not sources:
            raise BadTemplate("there is no template in it")
        self.special_tokens = dict(special_tokens or {})
        self.max_chars = max_chars
        self._environment = _Environment()
        self._variants = {name: _Variant(self._environment, name, text) for name, text in sources.items()}

    def render(self, chat: Chat, max_seconds: float = 1.0) -> str:
        """The text of a chat.

        Raises:
            NotText: the chat holds images or the like.
            TemplateRejected: the template refuses it, or the chat is malformed.
            TemplateTooLong: past `max_chars` or `max_seconds`.
        """
        variant = self._variant(chat)
        messages = merge_system(chat.messages) if chat.merge_system and variant.system_first else chat.messages
        try:
            conversation = to_conversation(messages, variant.content_format, chat.calls_as_given)
            tools = to_tools(chat.tools)
        except Malformed as error:
            raise TemplateRejected(str(error)) from None
        if not variant.knows_developer and any(message["role"] == "developer" for message in conversation):
            conversation = developer_to_system(conversation)
        variables: dict[str, Any] = {"documents": None, **self.special_tokens, "tools": tools, **chat.extra_variables()}
        for name in _NOT_VARIABLES:
            variables.pop(name, None)
        variables["add_generation_prompt"] = chat.add_generation_prompt
        if not chat.continue_final_message:
            return self._run(variant, conversation, variables, max_seconds)
        return self._continued(variant, conversation, variables, max_seconds)

    def _variant(self, chat: Chat) -> _Variant:
        if chat.tools is not None and "tool_use" in self._variants:
            return self._variants["tool_use"]
        try:
            return self._variants["default"]
        except KeyError:
            raise TemplateRejected(f"no default among the model's templates ({', '.join(self._variants)})") from None

    def _continued(
        self, variant: _Variant, conversation: list[Message], variables: dict[str, Any], max_seconds: float
    ) -> str:
        """The chat cut off after its last message's text, which the model is to continue."""
        if not variant.shows_content:
            raise TemplateRejected("continue_final_message needs a template that shows a message's content")
        if variables["add_generation_prompt"] or not conversation:
            raise TemplateRejected(
                "continue_final_message goes with add_generation_prompt false and at least one message"
            )
        last = dict(conversation[-1])
        content = last["content"]
        if isinstance(content, str):
            last["content"] = content + _TAG
        else:
            parts = [dict(part) for part in content]
            texts = [part for part in parts if "text" in part]
            if not texts:
                raise TemplateRejected("the final message has no text to continue")
            texts[-1]["text"] += _TAG
            last["content"] = parts
        text = self._run(variant, [*conversation[:-1], last], variables, max_seconds)
        place = text.rfind(_TAG.strip())
        if place < 0:
            raise TemplateRejected("the template does not show the final message, so it cannot be continued")
        if text.startswith(_TAG, place):
            return text[:place]
        return text[:place].rstrip()

    def _run(
        self, variant: _Variant, conversation: list[Message], variables: dict[str, Any], max_seconds: float
    ) -> str:
        self._environment.deadline.at = time.monotonic() + max_seconds
        chunks: list[str] = []
        room = self.max_chars
        try:
            for chunk in variant.template.generate(messages=conversation, **variables):
                self._environment.step()
                room -= len(chunk)
                if room < 0:
                    raise TemplateTooLong(f"the chat template wrote more than {self.max_chars} characters")
                chunks.append(chunk)
        except TemplateTooLong:
            raise
        except RecursionError:
            raise TemplateRejected("the chat is nested too deeply for the template") from None
        except Exception as error:  # a template may fail in any way on what a client sent
            raise TemplateRejected(f"{type(error).__name__}: {error}") from error
        return "".join(chunks)


class _Variant:
    """One compiled template and what was found out about it."""

    def __init__(self, environment: _Environment, name: str, source: str) -> None:
        try:
            self.content_format = content_format(environment.parse(source))
            self.template = environment.from_string(source)
        except jinja2.TemplateError as error:
            line = f", line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
            raise BadTemplate(f"the chat template {name!r} cannot be compiled{line}: {error}") from None
        self.knows_developer = "'developer'" in source or '"developer"' in source
        self.shows_content = "content" in source
        self.system_first = not _accepts_late_system(source)


def _accepts_late_system(source: str) -> bool:
    """Whether a system message may come later: the engine's own probe, in an environment as bare as the engine's (so a
    template that needs more than jinja's own counts as one that wants the system message first)."""
    bare = _Environment(bare=True)
    bare.deadline.at = time.monotonic() + _PROBE_SECONDS
    try:
        bare.from_string(source).render(messages=_PROBE, add_generation_prompt=False)
    except Exception:  # a template may fail in any way
        return False
    return True


def read_template(folder: Path, config: dict[str, Any]) -> str | dict[str, str] | None:
    """The chat template of a model folder: `chat_template.jinja`, else tokenizer_config.json's, else
    `chat_template.json`; None if there is none.

    Raises:
        BadTemplate: a file is there, but holds no template.
    """
    extra = {path.stem: path.read_text("utf-8") for path in sorted(folder.glob("additional_chat_templates/*.jinja"))}
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        text = jinja.read_text("utf-8")
        return {"default": text, **extra} if extra else text
    if config.get("chat_template") is not None:
        return _named(config["chat_template"], "tokenizer_config.json")
    legacy = folder / "chat_template.json"
    if legacy.is_file():
        try:
            found = msgspec.json.decode(legacy.read_bytes())
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadTemplate(f"{legacy} is not valid JSON: {error}") from None
        return _named(found.get("chat_template") if isinstance(found, dict) else found, str(legacy))
    return extra or None


def _named(found: Any, where: str) -> str | dict[str, str]:
    if isinstance(found, str):
        return found
    if isinstance(found, dict) and found and all(isinstance(text, str) for text in found.values()):
        return found
    if isinstance(found, list) and found:
        try:
            return {str(entry["name"]): str(entry["template"]) for entry in found}
        except (TypeError, KeyError):
            pass
    raise BadTemplate(f"chat_template in {where} must be a string or a list of name and template")
