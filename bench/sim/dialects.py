"""Answers in the shapes of `/v1/responses` (OpenAI) and `/v1/messages` (Anthropic): text only, one choice.

Pure. Each streams its own named events; see `answers.Shape`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from bench.sim.answers import Choice, Usage


def _event(name: str, data: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode({"type": name, **data}))


class ResponsesShape:
    """`/v1/responses`. An answer cut off by its length is `incomplete`."""

    def __init__(self, request_id: str, model: str, created: int) -> None:
        self._id = request_id
        self._item = request_id.replace("resp_", "msg_", 1)
        self._model = model
        self._created = created
        self._sequence = 0
        self._where = {"item_id": self._item, "output_index": 0, "content_index": 0}

    def opening(self, choice: int, usage: Usage) -> bytes:
        response = self._response("in_progress", [], None)
        item = {"id": self._item, "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return b"".join(
            (
                self._next("response.created", {"response": response}),
                self._next("response.in_progress", {"response": response}),
                self._next("response.output_item.added", {"output_index": 0, "item": item}),
                self._next("response.content_part.added", {**self._where, "part": part}),
            )
        )

    def token(self, choice: int, piece: bytes, finish: str | None, usage: Usage | None, token_id: int) -> bytes:
        where = b'"item_id":"%b","output_index":0,"content_index":0' % self._item.encode()
        line = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":%d,'
        event = (line + b'%b,"delta":"%b","logprobs":[]}\n\n') % (self._sequence, where, piece)
        self._sequence += 1
        return event

    def closing(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        text = choices[0].text
        item = self._message(choices[0])
        status = item["status"]
        response = self._response(status, [item], usage)
        return b"".join(
            (
                self._next("response.output_text.done", {**self._where, "text": text, "logprobs": []}),
                self._next("response.content_part.done", {**self._where, "part": item["content"][0]}),
                self._next("response.output_item.done", {"output_index": 0, "item": item}),
                self._next(f"response.{status}", {"response": response}),
            )
        )

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        item = self._message(choices[0])
        return msgspec.json.encode(self._response(item["status"], [item], usage))

    def _next(self, name: str, data: dict[str, Any]) -> bytes:
        event = _event(name, {"sequence_number": self._sequence, **data})
        self._sequence += 1
        return event

    def _message(self, choice: Choice) -> dict[str, Any]:
        part: dict[str, Any] = {"type": "output_text", "text": choice.text, "annotations": [], "logprobs": None}
        status = "incomplete" if choice.finish == "length" else "completed"
        return {"id": self._item, "type": "message", "role": "assistant", "status": status, "content": [part]}

    def _response(self, status: str, output: list[dict[str, Any]], usage: Usage | None) -> dict[str, Any]:
        counts = None
        if usage is not None:
            counts = {
                "input_tokens": usage.prompt,
                "input_tokens_details": {"cached_tokens": usage.cached or 0},
                "output_tokens": usage.completion,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.prompt + usage.completion,
            }
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "model": self._model,
            "status": status,
            "output": output,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "metadata": None,
            "usage": counts,
        }


class MessagesShape:
    """`/v1/messages`. Cached tokens are counted apart from `input_tokens`, as Anthropic does."""

    def __init__(self, request_id: str, model: str) -> None:
        self._id = request_id
        self._model = model

    def opening(self, choice: int, usage: Usage) -> bytes:
        message = self._message([], None, self._usage(usage) | {"output_tokens": 0})
        block = {"type": "text", "text": ""}
        return _event("message_start", {"message": message}) + _event(
            "content_block_start", {"index": 0, "content_block": block}
        )

    def token(self, choice: int, piece: bytes, finish: str | None, usage: Usage | None, token_id: int) -> bytes:
        line = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        return (line + b'"delta":{"type":"text_delta","text":"%b"}}\n\n') % piece

    def closing(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        delta = {"stop_reason": _stop_reason(choices[0].finish), "stop_sequence": None}
        return b"".join(
            (
                _event("content_block_stop", {"index": 0}),
                _event("message_delta", {"delta": delta, "usage": self._usage(usage)}),
                _event("message_stop", {}),
            )
        )

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        content = [{"type": "text", "text": choices[0].text}]
        return msgspec.json.encode(self._message(content, _stop_reason(choices[0].finish), self._usage(usage)))

    def _message(self, content: list[dict[str, Any]], stop_reason: str | None, usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self._model,
            "stop_reason": stop_reason,
            "stop_sequence": None,
            "usage": usage,
        }

    def _usage(self, usage: Usage) -> dict[str, Any]:
        counts: dict[str, Any] = {"input_tokens": usage.prompt - (usage.cached or 0), "output_tokens": usage.completion}
        if usage.cached is not None:
            counts["cache_read_input_tokens"] = usage.cached
        return counts


def _stop_reason(finish: str) -> str:
    return "max_tokens" if finish == "length" else "end_turn"
