"""Watches an answer's content go by: the first generated token, and what the engine says of its own work.

A watcher gets the body's bytes (without transfer coding) after they were passed on; it cannot delay or change them.
A stream is read as server-sent events, split at any byte, `data:` with or without a space, LF or CRLF; one `data` line
is one JSON document, as all engines send it. Lines are decoded until the first one with content; from then on a packet
costs one look for `"usage"`, about 0.3 us. Memory: one unfinished line of at most 1 MiB (streams), the body up to
8 MiB (JSON answers).
"""

from __future__ import annotations

import msgspec

from router.proxy.interface import Leg, Usage
from router.proxy.usage import decode_usage, merge

_LONGEST_LINE = 1024 * 1024
_LARGEST_JSON = 8 * 1024 * 1024
_USAGE = b'"usage":'
_NO_USAGE = (b'"usage":null', b'"usage": null')


class _Delta(msgspec.Struct):
    content: object = None
    reasoning: object = None
    reasoning_content: object = None
    tool_calls: object = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: object = None


class _Event(msgspec.Struct):
    type: object = None
    choices: list[_Choice] | None = None


_decode_event = msgspec.json.Decoder(_Event).decode


def has_content(document: bytes) -> bool:
    """Whether an event's data carries something generated, in any of the four APIs' spellings."""
    try:
        event = _decode_event(document)
    except msgspec.MsgspecError:
        return False
    for choice in event.choices or ():
        delta = choice.delta
        if choice.text or (
            delta is not None and (delta.content or delta.reasoning or delta.reasoning_content or delta.tool_calls)
        ):
            return True
    kind = event.type
    return isinstance(kind, str) and (kind == "content_block_delta" or kind.endswith(".delta"))


def items_in(lines: bytes) -> int:
    """Events in whole lines of a stream, the end mark left out: about one a generated token."""
    return lines.count(b"\ndata:") + lines.startswith(b"data:") - (b"data: [DONE]" in lines)


class StreamWatcher:
    """Watches `text/event-stream`."""

    __slots__ = ("_counts", "_first", "_last", "_leg", "_line", "_started", "complete")

    def __init__(self, leg: Leg) -> None:
        self.complete = True
        """False once a line was too long to be followed."""
        self._leg = leg
        self._counts = leg.counts
        self._started = False
        self._line = bytearray()
        self._first: Usage | None = None
        self._last = b""

    def feed(self, data: bytes) -> None:
        line = self._line
        if self._started and not line and data.endswith(b"\n"):
            if self._counts:
                self._leg.generated(items_in(data))
            if _USAGE in data:
                self._lines(data)
            return
        cut = data.rfind(b"\n") + 1
        if cut:
            whole = bytes(line + data[:cut]) if line else data[:cut]
            started = self._started
            first = self._lines(whole)
            if self._counts and self._started:
                self._leg.generated(items_in(whole) if started else items_in(whole[first:]))
            line.clear()
            data = data[cut:]
        line += data
        if len(line) > _LONGEST_LINE:
            self.complete = False
            line[:] = b"!"  # what follows belongs to a line that is not `data:`, and is skipped with it

    def end(self, good: bool) -> None:
        """The answer is over, or was broken off (`good` is False)."""
        if self._line:
            self._lines(bytes(self._line))
        usage = merge(self._first, decode_usage(self._last)) if self._last else self._first
        if usage is not None:
            self._leg.usage(usage)

    def _lines(self, block: bytes) -> int:
        """Look at whole lines: is there content, if there was none yet; is there usage.

        Returns where in the block the first line with content begins, if it is the stream's first.
        """
        first = at = 0
        if self._started and _USAGE not in block:
            return first
        for line in block.split(b"\n"):
            begins, at = at, at + len(line) + 1
            if not line.startswith(b"data:"):
                continue
            document = line[5:]
            if not self._started and has_content(document):
                self._started, first = True, begins
                self._leg.first_token()
            if _USAGE in document and not any(absent in document for absent in _NO_USAGE):
                if self._first is None:
                    self._first = decode_usage(document)
                else:
                    self._last = document
        return first


class JsonWatcher:
    """Watches an answer that is one JSON document."""

    __slots__ = ("_leg", "_parts", "_size", "complete")

    def __init__(self, leg: Leg) -> None:
        self.complete = True
        """False if the document was too large to be decoded."""
        self._leg = leg
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > _LARGEST_JSON:
            self.complete = False
            self._parts.clear()
        else:
            self._parts.append(data)

    def end(self, good: bool) -> None:
        if not good:
            return
        self._leg.first_token()
        if self.complete:
            usage = decode_usage(b"".join(self._parts))
            if usage is not None:
                self._leg.usage(usage)


class OpaqueWatcher:
    """Watches an answer whose content cannot be read (compressed, or of another type)."""

    __slots__ = ("_leg", "_seen", "complete")

    def __init__(self, leg: Leg) -> None:
        self.complete = False
        self._leg = leg
        self._seen = False

    def feed(self, data: bytes) -> None:
        if not self._seen:
            self._seen = True
            self._leg.first_token()

    def end(self, good: bool) -> None:
        pass


Watcher = StreamWatcher | JsonWatcher | OpaqueWatcher


def watch(leg: Leg, content_type: bytes, encoded: bool) -> Watcher:
    """The watcher for an answer's content type; `encoded`: it has a content coding, such as gzip."""
    if not encoded:
        if content_type.startswith(b"text/event-stream"):
            return StreamWatcher(leg)
        if content_type.startswith(b"application/json"):
            return JsonWatcher(leg)
    return OpaqueWatcher(leg)
