"""One request as a line of the access log: its fields, and how they are written. Pure.

No prompt, no header and no query is in it: a query may hold a key. What a client chose (path, model, request id) is cut
to a length, and what a terminal or a reader of lines could take for something else is written as an escape.
"""

from __future__ import annotations

from datetime import UTC, datetime

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


_FIELDS = AccessLine.__struct_fields__
_encoder = msgspec.json.Encoder()


def as_json(line: AccessLine) -> bytes:
    return _encoder.encode(line) + b"\n"


def as_text(line: AccessLine) -> bytes:
    """`time=… request_id=… …`, each field always there; `-` for None; quoted where it holds a space, quote or `=`."""
    parts = []
    for name, value in zip(_FIELDS, msgspec.structs.astuple(line), strict=True):
        if value is None:
            value = "-"
        elif isinstance(value, str):
            value = _quoted(value)
        parts.append(f"{name}={value}")
    return " ".join(parts).encode() + b"\n"


def _quoted(text: str) -> str:
    if text and text != "-" and not any(one in text for one in ' "='):
        return text
    return '"' + text.replace('"', "'") + '"'


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
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{int(at * 1000) % 1000:03d}Z"
