"""One answer to a probe request: what of it is kept, and how it is read as it comes. No prompt and no answer text.

`Reply` is what goes through the tape. Times are taken here, next to the socket; `ttft_s` runs from sending the request
to the first event that carries text, or to the end of an answer that is not streamed. At most 1 MiB is read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from checks.evidence import shown
from checks.model import Reason

ANSWER_BYTES = 1 << 20
WORKER_HEADERS = (
    "x-kvctl-worker",
    "x-smg-routed-worker-id",
    "target-pod",
    "x-gateway-destination-endpoint-served",
    "x-gateway-destination-endpoint",
    "x-conformance-test-served-endpoint",
)
"""In which routers name the worker: kvctl, SMG (a URL, with `@rank`), AIBrix (IP:PORT), gateways with an endpoint
picker (most of them strip it)."""
KEPT_HEADERS = (*WORKER_HEADERS, "x-kvctl-decision", "x-request-id")
_VALUE_CHARACTERS = 256
_DELTAS = ("content", "reasoning_content", "reasoning")
"""Parts of a chat's event that are text; its role is none."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What came back. `status` 0: nothing."""

    status: int = 0
    headers: dict[str, str] = {}
    """Those of KEPT_HEADERS, names in lower case."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """None where `usage` does not say: vLLM leaves it out without --enable-prompt-tokens-details, and also when it is
    0."""
    worker: str = ""
    """As Dynamo's answer names it."""
    ttft_s: float | None = None
    total_s: float = 0.0
    sent_at: float = 0.0
    """Epoch seconds."""
    error: str = ""
    """One line; '' where the status is 200 and the answer could be read."""
    reason: Reason | None = None

    @property
    def ok(self) -> bool:
        return self.status == 200 and not self.error

    @property
    def worker_header(self) -> tuple[str, str]:
        """Name and value of the first header that names a worker; '' without one."""
        return next(((name, value) for name in WORKER_HEADERS if (value := self.headers.get(name))), ("", ""))


def failure(reason: Reason, message: str, sent_at: float, total_s: float = 0.0) -> Reply:
    return Reply(error=shown(message), reason=reason, sent_at=sent_at, total_s=total_s)


@dataclass(slots=True)
class Clock:
    """Seconds since a request was sent; the deadline of its answer."""

    timeout_s: float
    sent_at: float = field(default_factory=time.time)
    _begun: float = field(default_factory=time.monotonic)

    def passed(self) -> float:
        return time.monotonic() - self._begun

    @property
    def over(self) -> bool:
        return self.passed() > self.timeout_s


def read(status: int, headers: Mapping[str, str], chunks: Iterable[bytes], *, stream: bool, clock: Clock) -> Reply:
    """The answer whose head has come; reads its body. Raises what `chunks` raises."""
    lowered = {name.lower(): value for name, value in headers.items()}
    kept = {name: shown(lowered[name])[:_VALUE_CHARACTERS] for name in KEPT_HEADERS if lowered.get(name)}
    body = _Body(stream=stream and status == 200 and "event-stream" in lowered.get("content-type", ""))
    for chunk in chunks:
        body.feed(chunk, clock)
        if body.size > ANSWER_BYTES:
            return _failed(status, kept, clock, Reason.PARSE, f"the answer has more than {ANSWER_BYTES >> 20} MiB")
        if clock.over:
            return _failed(status, kept, clock, Reason.TIMEOUT, f"no whole answer within {clock.timeout_s:g} s")
    total = clock.passed()
    if status != 200:
        reason = Reason.RBAC if status in (401, 403) else Reason.UNREACHABLE
        return _failed(status, kept, clock, reason, f"HTTP {status}: {_told(body.text)}")
    answer = body.answer()
    if answer is None:
        return _failed(status, kept, clock, Reason.PARSE, "the answer is not what an OpenAI-compatible server sends")
    if (told := answer.get("error")) is not None:
        return _failed(status, kept, clock, Reason.UNREACHABLE, f"the answer holds an error: {_text_of(told)}")
    usage = answer.get("usage")
    prompt, cached = _tokens(usage if isinstance(usage, dict) else {})
    return Reply(
        status=status,
        headers=kept,
        prompt_tokens=prompt,
        cached_tokens=cached,
        worker=_worker(answer),
        ttft_s=body.first_s if body.stream else total,
        total_s=total,
        sent_at=clock.sent_at,
    )


@dataclass(slots=True)
class _Body:
    """A JSON body, or server-sent events, read as they come."""

    stream: bool
    size: int = 0
    first_s: float | None = None
    _data: bytearray = field(default_factory=bytearray)
    _merged: dict[str, Any] = field(default_factory=dict)
    _events: int = 0
    _done: bool = False

    def feed(self, chunk: bytes, clock: Clock) -> None:
        self.size += len(chunk)
        self._data += chunk
        if not self.stream:
            return
        *lines, rest = bytes(self._data).replace(b"\r\n", b"\n").split(b"\n")
        self._data = bytearray(rest)
        for line in lines:
            self._line(line, clock)

    def _line(self, line: bytes, clock: Clock) -> None:
        name, _, value = line.partition(b":")
        if name != b"data":
            return
        if value.strip() == b"[DONE]":
            self._done = True
            return
        event = _object(value)
        if event is None:
            return
        self._events += 1
        if self.first_s is None and any(_texts(event)):
            self.first_s = clock.passed()
        self._merged.update({name: event[name] for name in ("usage", "nvext", "error") if event.get(name) is not None})

    @property
    def text(self) -> str:
        return self._data[:4096].decode("utf-8", "replace")

    def answer(self) -> dict[str, Any] | None:
        """The object; of a stream what its events say together. None for what is neither, or was cut off."""
        if not self.stream:
            return _object(bytes(self._data))
        return self._merged if self._events and (self._done or "error" in self._merged) else None


def _failed(status: int, kept: dict[str, str], clock: Clock, reason: Reason, message: str) -> Reply:
    return Reply(
        status=status,
        headers=kept,
        error=shown(message),
        reason=reason,
        sent_at=clock.sent_at,
        total_s=clock.passed(),
    )


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _tokens(usage: Mapping[str, Any]) -> tuple[int | None, int | None]:
    prompt = usage.get("prompt_tokens")
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return _count(prompt), _count(cached)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40 else None


def _worker(answer: Mapping[str, Any]) -> str:
    """Dynamo's `nvext.worker_id`: an id, or an object with one for prefill and one for decode."""
    extra = answer.get("nvext")
    told = extra.get("worker_id") if isinstance(extra, dict) else None
    if isinstance(told, dict):
        told = told.get("prefill_worker_id", told.get("decode_worker_id"))
    return shown(str(told))[:_VALUE_CHARACTERS] if isinstance(told, (int, str)) else ""


def _texts(event: Mapping[str, Any]) -> Iterator[bool]:
    """Whether each choice of an event carries text."""
    choices = event.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict):
            delta = choice.get("delta")
            told = [choice.get("text"), *(delta.get(name) for name in _DELTAS if isinstance(delta, dict))]
            yield any(isinstance(text, str) and text for text in told)


def _told(text: str) -> str:
    """The message of an error body, else its first line."""
    value = _object(text.encode())
    if value is not None:
        return _text_of(value.get("error", value.get("message", value.get("detail", value))))
    return next(iter(text.strip().splitlines()), "") or "no body"


def _text_of(told: Any) -> str:
    if isinstance(told, dict):
        told = told.get("message", told)
    return str(told)
