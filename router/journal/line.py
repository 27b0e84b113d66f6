"""One request as a line of the access log: its fields, and how they are written. Pure.

No prompt, no header and no query is in it: a query may hold a key. What a client chose (path, model, request id) is cut
to a length, and what a terminal or a reader of lines could take for something else is written as an escape.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

import msgspec

_LONGEST = 256


class AccessLine(msgspec.Struct, omit_defaults=False):
    """Times of a request in ms: `total_ms` from complete request to its end, `ttft_ms` to the first generated token
    (else to the answer's first byte), `queue_ms` waiting for a free worker. None is unknown or never came to that.
    `outcome` is how the last attempt at a worker ended, or `answered` with the error's `code` where the router answered
    by itself. `bytes_in` and `bytes_out` are those of bodies."""

    time: str
    request_id: str
    decision_id: str | None
    client: str
    caller: str | None
    tenant: str | None
    method: str
    path: str
    model: str | None
    worker: str | None
    status: int
    outcome: str
    code: str | None
    bytes_in: int
    bytes_out: int
    total_ms: float
    ttft_ms: float | None
    queue_ms: float
    tokenise_ms: float | None
    decide_ms: float | None
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    retries: int


_encoder = msgspec.json.Encoder()


def as_json(line: AccessLine) -> bytes:
    return _encoder.encode(line) + b"\n"


def as_text(line: AccessLine) -> bytes:
    """`time=… request_id=… …`, each field always there; `-` for None; quoted where it holds a space, quote or `=`."""
    return (
        f"time={line.time} request_id={_text(line.request_id)} decision_id={_text(line.decision_id)} "
        f"client={_text(line.client)} caller={_text(line.caller)} tenant={_text(line.tenant)} "
        f"method={_text(line.method)} path={_text(line.path)} model={_text(line.model)} worker={_text(line.worker)} "
        f"status={line.status} outcome={line.outcome} code={_text(line.code)} "
        f"bytes_in={line.bytes_in} bytes_out={line.bytes_out} total_ms={line.total_ms} ttft_ms={_number(line.ttft_ms)} "
        f"queue_ms={line.queue_ms} tokenise_ms={_number(line.tokenise_ms)} decide_ms={_number(line.decide_ms)} "
        f"prompt_tokens={_number(line.prompt_tokens)} cached_tokens={_number(line.cached_tokens)} "
        f"output_tokens={_number(line.output_tokens)} retries={line.retries}\n"
    ).encode()


def _text(value: str | None) -> str:
    if value is None:
        return "-"
    if value and value != "-" and " " not in value and '"' not in value and "=" not in value:
        return value
    return '"' + value.replace('"', "'") + '"'


def _number(value: float | None) -> str:
    return "-" if value is None else str(value)


def clean(text: str) -> str:
    """At most 256 characters, with what is not printable written as an escape."""
    if len(text) > _LONGEST:
        text = text[: _LONGEST - 1] + "…"
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(one if one.isprintable() and one != "\\" else _escape(ord(one)) for one in text)


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def stamp(at: float) -> str:
    """`2026-12-01T01:48:46.123Z`."""
    return f"{_second(int(at))}.{int(at * 1000) % 1000:03d}Z"


@lru_cache(8)
def _second(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def ms(seconds: float) -> float:
    """Milliseconds to the microsecond."""
    return int(seconds * 1e6 + 0.5) / 1e3
