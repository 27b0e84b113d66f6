"""An `Answer` of ours as bytes. Pure."""

from __future__ import annotations

from router.proxy.errors import REASONS
from router.proxy.interface import Answer

_STATUS_LINES = {status: f"HTTP/1.1 {status} {phrase}\r\n".encode("latin-1") for status, phrase in REASONS.items()}


def answer_head(answer: Answer, keep: bool, http11: bool, lines: bytes = b"") -> bytes:
    """The head of an answer of ours, with `lines` (each ending in CRLF) added."""
    status_line = _STATUS_LINES.get(answer.status) or b"HTTP/1.1 %d Unknown\r\n" % answer.status
    fields = f"content-type: {answer.content_type}\r\ncontent-length: {len(answer.body)}\r\n"
    for name, value in answer.headers:
        fields += f"{name}: {value}\r\n"
    if not keep:
        fields += "connection: close\r\n"
    elif not http11:
        fields += "connection: keep-alive\r\n"
    return b"%b%b%b\r\n" % (status_line, fields.encode("latin-1"), lines)
