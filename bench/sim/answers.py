"""The bytes of an answer, in the shapes of `/v1/completions` and `/v1/chat/completions` as vLLM 0.32 sends
them.

Pure: a `Shape` is made for one request and turns tokens into server-sent events or a whole body. The constant
parts of an event are made once, so that a token costs one concatenation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from router.prefix.hashing import Tokens

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request. `cached` is None where the engine does not report it."""

    prompt: int
    completion: int
    cached: int | None

    def openai(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.completion,
            "completion_tokens": self.completion,
            "prompt_tokens_details": None if self.cached is None else {"cached_tokens": self.cached},
        }


@dataclass(frozen=True, slots=True)
class Choice:
    """A finished choice of a whole answer."""

    text: str
    finish: str


class Shape(Protocol):
    """How one endpoint spells an answer.

    `opening` precedes a choice's first token, `token` is one token (`piece` is its text, escaped for JSON;
    `usage` the running counts if the client asked for them), `closing` follows the last token of the last
    choice, `whole` is the body of an answer that is not streamed. `token_id` is the token itself.
    """

    def opening(self, choice: int, usage: Usage) -> bytes: ...

    def token(self, choice: int, piece: bytes, finish: str | None, usage: Usage | None, token_id: int) -> bytes: ...

    def closing(self, choices: Sequence[Choice], usage: Usage) -> bytes: ...

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes: ...


class CompletionShape:
    """`/v1/completions`. `prompts`: their ids, where the client wants to be told token ids; `n` choices each."""

    def __init__(
        self,
        request_id: str,
        model: str,
        created: int,
        *,
        include_usage: bool,
        prompts: Sequence[Tokens] | None = None,
        n: int = 1,
    ) -> None:
        self._prompts = prompts
        self._n = n
        self._told: set[int] = set()
        self._identity = {"id": request_id, "object": "text_completion", "created": created, "model": model}
        self._head = b"data: " + msgspec.json.encode(self._identity)[:-1] + b',"choices":['
        self._include_usage = include_usage

    def opening(self, choice: int, usage: Usage) -> bytes:
        return b""

    def token(self, choice: int, piece: bytes, finish: str | None, usage: Usage | None, token_id: int) -> bytes:
        reason = b'"%b"' % finish.encode() if finish else b"null"
        line = b'%b{"index":%d,"text":"%b","logprobs":null,"finish_reason":%b,"stop_reason":null%b}]%b}\n\n'
        return line % (self._head, choice, piece, reason, self._ids(choice, token_id), _running_usage(usage))

    def _ids(self, choice: int, token_id: int) -> bytes:
        if self._prompts is None:
            return b',"prompt_token_ids":null,"token_ids":null'
        prompt = b"null"
        if choice not in self._told:
            self._told.add(choice)
            prompt = msgspec.json.encode(self._prompts[choice // self._n].tolist())
        return b',"prompt_token_ids":%b,"token_ids":[%d]' % (prompt, token_id)

    def closing(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        return _closing(self._head, usage) if self._include_usage else DONE

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        rows = [
            {
                "index": index,
                "text": choice.text,
                "logprobs": None,
                "finish_reason": choice.finish,
                "stop_reason": None,
                "token_ids": None,
                "prompt_logprobs": None,
            }
            for index, choice in enumerate(choices)
        ]
        return msgspec.json.encode(
            {**self._identity, "choices": rows, "system_fingerprint": None, "usage": usage.openai()}
        )


class ChatShape:
    """`/v1/chat/completions`. A choice begins with a chunk that carries only the role. `prompt`: its ids, where the
    client wants to be told token ids."""

    def __init__(
        self, request_id: str, model: str, created: int, *, include_usage: bool, prompt: Tokens | None = None
    ) -> None:
        self._tells = prompt is not None
        self._prompt = b"null" if prompt is None else msgspec.json.encode(prompt.tolist())
        self._identity = {"id": request_id, "object": "chat.completion.chunk", "created": created, "model": model}
        self._head = b"data: " + msgspec.json.encode(self._identity)[:-1] + b',"choices":['
        self._include_usage = include_usage

    def opening(self, choice: int, usage: Usage) -> bytes:
        delta = b'{"role":"assistant","content":""}'
        line = (
            b'%b{"index":%d,"delta":%b,"logprobs":null,"finish_reason":null}],"prompt_token_ids":%b,"prompt_text":null}'
        )
        return (line + b"\n\n") % (self._head, choice, delta, self._prompt)

    def token(self, choice: int, piece: bytes, finish: str | None, usage: Usage | None, token_id: int) -> bytes:
        reason = b'"%b","stop_reason":null' % finish.encode() if finish else b"null"
        ids = b"[%d]" % token_id if self._tells else b"null"
        line = b'%b{"index":%d,"delta":{"content":"%b"},"logprobs":null,"finish_reason":%b,"token_ids":%b}]%b}\n\n'
        return line % (self._head, choice, piece, reason, ids, _running_usage(usage))

    def closing(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        return _closing(self._head, usage) if self._include_usage else DONE

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        rows: list[dict[str, Any]] = [
            {
                "index": index,
                "message": {"role": "assistant", "content": choice.text, "refusal": None, "tool_calls": []},
                "logprobs": None,
                "finish_reason": choice.finish,
                "stop_reason": None,
                "token_ids": None,
            }
            for index, choice in enumerate(choices)
        ]
        identity = {**self._identity, "object": "chat.completion"}
        return msgspec.json.encode({**identity, "choices": rows, "system_fingerprint": None, "usage": usage.openai()})


def _running_usage(usage: Usage | None) -> bytes:
    if usage is None:
        return b""
    counts = {"prompt_tokens": usage.prompt, "total_tokens": usage.prompt + usage.completion}
    return b',"usage":' + msgspec.json.encode({**counts, "completion_tokens": usage.completion})


def _closing(head: bytes, usage: Usage) -> bytes:
    """The usage chunk, which has no choices, and the end mark."""
    return b'%b],"usage":%b}\n\n%b' % (head, msgspec.json.encode(usage.openai()), DONE)
