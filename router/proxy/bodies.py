"""Where a message's body ends: by length, or by the chunked coding (RFC 9112, section 7.1), at any split of the bytes.

Pure: bytes in, bytes out. One scanner serves both directions. It is stricter than the RFC allows: no white space
around a chunk size, extensions of token characters only, bounded lines and trailers. Unlike a callback parser it
says at which byte the body ends, so what follows is never mistaken for a part of it. Cost: about half a microsecond
a chunk.
"""

from __future__ import annotations

import re

from router.proxy.errors import BadChunk, BodyTooLarge

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;" + _TOKEN + rb"(?:=" + _TOKEN + rb")?)*\r\n")
_TRAILER_LINE = re.compile(_TOKEN + rb":[\t -~\x80-\xff]*\r\n")
_NEVER_TRAILERS = (b"content-length:", b"transfer-encoding:")
_LONGEST_LINE = 1024
_LONGEST_TRAILERS = 8192

_SIZE, _DATA, _DATA_END, _TRAILERS = range(4)


class ChunkScanner:
    """Follows one chunked body. `done` is set when its last byte has been seen."""

    __slots__ = ("_left", "_partial", "_state", "_trailers", "done")

    def __init__(self) -> None:
        self.done = False
        self._state = _SIZE
        self._left = 0
        self._partial = b""
        self._trailers = 0

    def feed(self, data: bytes, payload: list[bytes] | None) -> int:
        """Scan the next bytes; what they carry is appended to `payload`, if one is given.

        Returns:
            The index in `data` behind the body's last byte; `len(data)` while it is not done.

        Raises:
            BadChunk: the coding is broken.
        """
        kept = len(self._partial)
        if kept:
            data = self._partial + data
            self._partial = b""
        pos, size = 0, len(data)
        while pos < size:
            state = self._state
            if state == _SIZE:
                match = _SIZE_LINE.match(data, pos)
                if match is None:
                    self._keep(data, pos)
                    break
                pos = match.end()
                self._left = int(match[1], 16)
                self._state = _DATA if self._left else _TRAILERS
            elif state == _DATA:
                end = pos + self._left
                if end > size:
                    self._left = end - size
                    if payload is not None:
                        payload.append(data[pos:])
                    break
                if payload is not None:
                    payload.append(data[pos:end])
                pos = end
                self._state = _DATA_END
            elif state == _DATA_END:
                if not data.startswith(b"\r\n", pos):
                    if data[pos:] != b"\r":
                        raise BadChunk("a chunk is longer than its size says")
                    self._partial = b"\r"
                    break
                pos += 2
                self._state = _SIZE
            elif data.startswith(b"\r\n", pos):
                self.done = True
                return pos + 2 - kept
            else:
                match = _TRAILER_LINE.match(data, pos)
                if match is None:
                    self._keep(data, pos)
                    break
                if match[0].lower().startswith(_NEVER_TRAILERS):
                    raise BadChunk("a trailer speaks of framing")
                self._trailers += match.end() - pos
                if self._trailers > _LONGEST_TRAILERS:
                    raise BadChunk("the trailers are too long")
                pos = match.end()
        return size - kept

    def _keep(self, data: bytes, pos: int) -> None:
        """Hold a line whose end has not come yet."""
        line = data[pos:]
        if b"\n" in line or b"\r" in line[:-1] or len(line) > _LONGEST_LINE:
            raise BadChunk("a chunk size or trailer line is malformed")
        self._partial = line


class LengthBody:
    """Collects a request body of known length."""

    __slots__ = ("_body", "_length")

    def __init__(self, length: int) -> None:
        self._length = length
        self._body = bytearray()

    @property
    def received(self) -> int:
        return len(self._body)

    def feed(self, data: bytes) -> bytes | None:
        """Take from `data`. Returns what is behind the body, None while the body is incomplete."""
        left = self._length - len(self._body)
        if len(data) <= left:
            self._body += data
            return b"" if len(data) == left else None
        self._body += data[:left]
        return data[left:]

    def value(self) -> bytes:
        return bytes(self._body)


class ChunkedBody:
    """Collects a chunked request body of at most `limit` bytes."""

    __slots__ = ("_body", "_limit", "_scanner")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._scanner = ChunkScanner()
        self._body = bytearray()

    @property
    def received(self) -> int:
        return len(self._body)

    def feed(self, data: bytes) -> bytes | None:
        """Take from `data`. Returns what is behind the body, None while the body is incomplete.

        Raises:
            BadChunk, BodyTooLarge
        """
        payload: list[bytes] = []
        end = self._scanner.feed(data, payload)
        self._body += b"".join(payload)
        if len(self._body) > self._limit:
            raise BodyTooLarge
        return data[end:] if self._scanner.done else None

    def value(self) -> bytes:
        return bytes(self._body)
