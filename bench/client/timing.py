"""The measurement contract: what a request's bytes, each with its time of arrival, say about it. Pure: no socket.

    t_sched  intended send        t_first  first chunk with text, reasoning or tool-call arguments
    t_send   just before the      t_last   last such chunk
             first byte is sent   t_end    end of the body
    t_hdr    response headers
    ttft = t_first - t_sched      itl = (t_last - t_first) / (n_out - n_first)      e2e = t_last - t_sched

Role-only, empty, finish-only, usage-only, `[DONE]` and comment events are counted apart and never move t_first or
t_last. A failed request has no times: it is +infinity in every percentile. Times are seconds of one monotonic clock.
A chunk whose text is still held back by the engine's detokeniser counts as content if it carries token ids or a
per-chunk usage that has grown; both only come when a request asks for them. Cost: one typed JSON decode a chunk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bench.client.sse import SseParser


class _Function(msgspec.Struct):
    arguments: str | None = None
    name: str | None = None


class _ToolCall(msgspec.Struct):
    function: _Function | None = None


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Chunk)


@dataclass(slots=True)
class Events:
    """How many events of each kind a request saw."""

    content: int = 0
    role: int = 0
    empty: int = 0
    finish: int = 0
    usage: int = 0
    comment: int = 0
    done: int = 0


@dataclass(slots=True)
class Timing:
    """The state of one request. Fed by the connection, read when `ended` or `error` is set.

    `coalesced`: content events that shared their read with an earlier one, and so its time. `gaps`: seconds between
    content chunks. `error` is a short kind (`http_503`, `cut`, `timeout`, ...), `detail` what the server said.
    """

    t_sched: float
    t_send: float = math.nan
    t_hdr: float = math.nan
    t_first: float = math.nan
    t_last: float = math.nan
    t_end: float = math.nan
    status: int = 0
    worker: str | None = None
    decision: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    n_out: int | None = None
    n_out_source: str = "none"
    n_first: int = 1
    coalesced: int = 0
    retried: bool = False
    events: Events = field(default_factory=Events)
    gaps: list[float] = field(default_factory=list)
    error: str | None = None
    detail: str = ""
    _sse: SseParser = field(default_factory=SseParser)
    _stream: bool = False
    _body: bytearray = field(default_factory=bytearray)
    _counted: int = 0
    _finished: bool = False

    @property
    def over(self) -> bool:
        return self.error is not None or not math.isnan(self.t_end)

    def sent(self, now: float) -> None:
        self.t_send = now

    def header(self, now: float, status: int, headers: dict[str, str]) -> None:
        """The response head; header names in lower case."""
        self.t_hdr = now
        self.status = status
        self.worker = headers.get("x-kvctl-worker")
        self.decision = headers.get("x-kvctl-decision")
        self._stream = status == 200 and headers.get("content-type", "").startswith("text/event-stream")

    def data(self, now: float, data: bytes) -> None:
        """Body bytes of one read."""
        if not self._stream:
            self._body += data[: 4096 - len(self._body)]
            return
        self._take(now, self._sse.feed(data))

    def end(self, now: float) -> None:
        """The body is complete as HTTP has it; whether the stream is, is decided here."""
        if self.over:
            return
        if self.status != 200:
            self.fail(now, f"http_{self.status}", self._body.decode("utf-8", "replace"))
            return
        if not self._stream:
            self.fail(now, "not_a_stream", self._body.decode("utf-8", "replace"))
            return
        self._take(now, self._sse.finish())
        self.events.comment = self._sse.comments
        if self.error is not None:
            return
        if not self.events.done and not self._finished:
            self.fail(now, "cut", "the stream ended before a finish reason or [DONE]")
        elif not self.events.content:
            self.fail(now, "no_content", "the answer carried no text")
        else:
            if self.n_out is None:
                self.n_out, self.n_out_source = self.events.content, "chunks"
            self.t_end = now

    def fail(self, now: float, kind: str, detail: str = "") -> None:
        """Ends the request as failed; the first failure counts."""
        if not self.over:
            self.error = kind
            self.detail = detail[:300]
            self.events.comment = self._sse.comments

    def _take(self, now: float, events: list[bytes]) -> None:
        content_in_read = 0
        for event in events:
            if self.error is not None:
                return
            if event == b"[DONE]":
                self.events.done += 1
                continue
            try:
                chunk = _decoder.decode(event)
            except msgspec.DecodeError as error:
                self.fail(now, "bad_event", f"{error}: {event[:100]!r}")
                return
            if chunk.error is not None:
                self.fail(now, "error_in_stream", msgspec.json.encode(chunk.error).decode())
                return
            if self._classify(now, chunk):
                content_in_read += 1
        if content_in_read > 1:
            self.coalesced += content_in_read - 1

    def _classify(self, now: float, chunk: _Chunk) -> bool:
        """Counts one event; returns whether it carried content."""
        grown = self._usage(chunk.usage) if chunk.usage is not None else 0
        finish = role = content = False
        ids = 0
        for choice in chunk.choices or ():
            finish = finish or choice.finish_reason is not None
            ids += len(choice.token_ids or ())
            delta = choice.delta
            content = content or bool(choice.text)
            if delta is not None:
                role = role or delta.role is not None
                content = content or bool(delta.content or delta.reasoning_content or delta.reasoning)
                content = content or _has_arguments(delta)
        if chunk.choices and not content and not finish and (ids or grown):
            content = True
        self._finished = self._finished or finish
        if content:
            self._content(now, ids or grown)
        elif not chunk.choices:
            if chunk.usage is not None:
                self.events.usage += 1
            else:
                self.events.empty += 1
        elif finish:
            self.events.finish += 1
        elif role:
            self.events.role += 1
        else:
            self.events.empty += 1
        return content

    def _content(self, now: float, tokens: int) -> None:
        if self.events.content:
            self.gaps.append(now - self.t_last)
        else:
            self.t_first = now
            self.n_first = max(1, tokens)
        self.t_last = now
        self.events.content += 1

    def _usage(self, usage: _Usage) -> int:
        """Takes the engine's own counts; returns by how many completion tokens they have grown."""
        if usage.prompt_tokens is not None:
            self.prompt_tokens = usage.prompt_tokens
        if usage.prompt_tokens_details is not None and usage.prompt_tokens_details.cached_tokens is not None:
            self.cached_tokens = usage.prompt_tokens_details.cached_tokens
        if usage.completion_tokens is None:
            return 0
        grown = usage.completion_tokens - self._counted
        self._counted = usage.completion_tokens
        self.n_out, self.n_out_source = usage.completion_tokens, "usage"
        return max(0, grown)

    @property
    def ok(self) -> bool:
        return self.error is None and not math.isnan(self.t_end)

    @property
    def ttft(self) -> float:
        return self.t_first - self.t_sched if self.ok else math.inf

    @property
    def ttft_send(self) -> float:
        return self.t_first - self.t_send if self.ok else math.inf

    @property
    def sched_lag(self) -> float:
        """NaN if it was never sent."""
        return self.t_send - self.t_sched

    @property
    def itl(self) -> float | None:
        """Seconds a token after the first chunk; None where the answer has no second one."""
        if not self.ok:
            return math.inf
        rest = (self.n_out or 0) - self.n_first
        return (self.t_last - self.t_first) / rest if rest > 0 else None

    @property
    def e2e(self) -> float:
        return self.t_last - self.t_sched if self.ok else math.inf

    @property
    def drain(self) -> float:
        return self.t_end - self.t_last if self.ok else math.inf

    @property
    def stall(self) -> float | None:
        """The longest gap between two content chunks; None where there is no second one."""
        if not self.ok:
            return math.inf
        return max(self.gaps) if self.gaps else None


def _has_arguments(delta: _Delta) -> bool:
    return any(call.function is not None and call.function.arguments for call in delta.tool_calls or ())
