"""The measurement contract: what a request's bytes, each with its time of arrival, say about it. Pure: no socket.

    t_sched  intended send        t_first  first chunk with text, reasoning or tool-call arguments
    t_send   just before the      t_last   last such chunk
             first byte is sent   t_end    end of the body
    t_hdr    response headers
    ttft = t_first - t_sched      itl = (t_last - t_first) / (n_out - n_first)      e2e = t_last - t_sched

Role-only, empty, finish-only, usage-only, framing, `[DONE]` and comment events are counted apart and never move t_first
or t_last. A failed request has no times: it is +infinity in every percentile. One that the client aborted by plan has
a TTFT and nothing else. Times are seconds of one monotonic clock. A chunk whose text is still held back by the engine's
detokeniser counts as content if it carries token ids or a per-chunk usage that has grown; both only come when a request
asks for them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from bench.client.chunks import BadEvent, ErrorEvent, Event, Kind, read
from bench.client.sse import SseParser

DETAIL_LIMIT = 300
"""Characters kept of what a server says about a failure."""


@dataclass(slots=True)
class Events:
    """How many events of each kind a request saw. `frame`: events of the responses API around the answer."""

    content: int = 0
    role: int = 0
    empty: int = 0
    finish: int = 0
    usage: int = 0
    comment: int = 0
    done: int = 0
    frame: int = 0

    def add(self, kind: Kind) -> None:
        """Counts an event without content."""
        if kind is Kind.ROLE:
            self.role += 1
        elif kind is Kind.FINISH:
            self.finish += 1
        elif kind is Kind.USAGE:
            self.usage += 1
        elif kind is Kind.FRAME:
            self.frame += 1
        else:
            self.empty += 1


@dataclass(slots=True)
class Timing:
    """The state of one request. Fed by the connection, read when it is `over`.

    `coalesced`: content events that shared their read with an earlier one, and so its time. `gaps`: seconds between
    content chunks. `error` is a short kind (`http_503`, `cut`, `timeout`, ...), `detail` what the server said,
    `retry_after` the seconds it asked to wait (the client does not). `abort_after`: content chunks after which the
    client hangs up, which sets `aborted`. `t_over`: when it ended, in whichever way. With `keep_text` the answer's text
    is in `text`.
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
    aborted: bool = False
    abort_after: int | None = None
    retry_after: float | None = None
    t_over: float = math.nan
    keep_text: bool = False
    text: str = ""
    _sse: SseParser = field(default_factory=SseParser, repr=False)
    _stream: bool = field(default=False, repr=False)
    _body: bytearray = field(default_factory=bytearray, repr=False)
    _counted: int = field(default=0, repr=False)
    _finished: bool = field(default=False, repr=False)

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
        self._stream = status == 200 and headers.get("content-type", "").lower().startswith("text/event-stream")
        if status != 200 and headers.get("retry-after", "").isdecimal():
            self.retry_after = float(headers["retry-after"])

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
        if self.over:
            return
        if not self.events.done and not self._finished:
            self.fail(now, "cut", "the stream ended before a finish reason or [DONE]")
        elif not self.events.content:
            self.fail(now, "no_content", "the answer carried no text")
        else:
            if self.n_out is None:
                self.n_out, self.n_out_source = self.events.content, "chunks"
            self.t_end = self.t_over = now

    def fail(self, now: float, kind: str, detail: str = "") -> None:
        """Ends the request as failed; the first failure counts."""
        if not self.over:
            self.error = kind
            self.t_over = now
            self.detail = detail[:DETAIL_LIMIT]
            self.events.comment = self._sse.comments

    def _take(self, now: float, payloads: list[bytes]) -> None:
        content_in_read = 0
        for payload in payloads:
            if self.over:
                break
            if payload == b"[DONE]":
                self.events.done += 1
                continue
            try:
                event = read(payload)
            except BadEvent as error:
                self.fail(now, "bad_event", str(error))
            except ErrorEvent as error:
                self.fail(now, "error_in_stream", str(error))
            else:
                content_in_read += self._count(now, event)
        if content_in_read > 1:
            self.coalesced += content_in_read - 1

    def _count(self, now: float, event: Event) -> bool:
        """Counts one event; returns whether it carried content."""
        grown = self._usage(*event.usage) if event.usage is not None else 0
        tokens = event.tokens or grown
        self._finished = self._finished or event.finished
        held_back = event.choices and not event.finished and tokens > 0
        if event.kind is Kind.CONTENT or held_back:
            if self.keep_text:
                self.text += event.text
            self._content(now, tokens)
            return True
        self.events.add(event.kind)
        return False

    def _content(self, now: float, tokens: int) -> None:
        if self.events.content:
            self.gaps.append(now - self.t_last)
        else:
            self.t_first = now
            self.n_first = max(1, tokens)
        self.t_last = now
        self.events.content += 1
        if self.events.content == self.abort_after:
            self.aborted = True
            self.t_end = self.t_over = now
            if self.n_out is None:
                self.n_out, self.n_out_source = self.events.content, "chunks"
            self.events.comment = self._sse.comments

    def _usage(self, prompt: int | None, cached: int | None, completion: int | None) -> int:
        """Takes the engine's own counts; returns by how many completion tokens they have grown."""
        if prompt is not None:
            self.prompt_tokens = prompt
        if cached is not None:
            self.cached_tokens = cached
        if completion is None:
            return 0
        grown = completion - self._counted
        self._counted = completion
        self.n_out, self.n_out_source = completion, "usage"
        return max(0, grown)

    @property
    def ok(self) -> bool:
        """It ended as planned: answered whole, or aborted by the client after enough chunks."""
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
        """Seconds a token after the first chunk; None where the answer has no second one, or was aborted."""
        rest = (self.n_out or 0) - self.n_first
        return self._whole((self.t_last - self.t_first) / rest if rest > 0 else None)

    @property
    def e2e(self) -> float | None:
        return self._whole(self.t_last - self.t_sched)

    @property
    def drain(self) -> float | None:
        return self._whole(self.t_end - self.t_last)

    @property
    def stall(self) -> float | None:
        """The longest gap between two content chunks; None where there is no second one, or it was aborted."""
        return self._whole(max(self.gaps) if self.gaps else None)

    def _whole(self, value: float | None) -> float | None:
        """A latency that only a whole answer has."""
        if not self.ok:
            return math.inf
        return None if self.aborted else value
