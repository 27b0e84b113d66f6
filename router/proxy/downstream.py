"""The client's side: one connection, its requests one after the other, and the answers in the same order.

Reads and checks requests, hands each to an `Exchange`, writes what the exchange gives it. While a request is in
progress a bounded amount of what follows (pipelined requests) is kept, and reading goes on below that bound, because
only a connection that is read tells that its client has left. Touches sockets only.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from router.proxy.answers import answer_head
from router.proxy.bodies import ChunkedBody, LengthBody
from router.proxy.errors import BadChunk, BadRequest, BodyTooLarge, error_answer, refusal
from router.proxy.heads import BAD_LINES, CHUNKED, RequestHead, known_request
from router.proxy.interface import Answer, Inbound, Outcome
from router.proxy.relay import Exchange
from router.proxy.request_ids import given
from router.proxy.sockets import keep_alive, reset
from router.proxy.sweeper import NEVER

if TYPE_CHECKING:
    from router.proxy.plane import Plane

_PIPELINE_BYTES = 64 * 1024
_PIPELINE_BURST = 16
_LINGER = 2.0
_BODY_RATE = 64 * 1024
_MOST_EMPTY_LINES = 2
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class _Life:
    """What is left of a connection whose requests or age are limited."""

    __slots__ = ("_requests", "_until")

    def __init__(self, requests: int, until: float) -> None:
        """`requests`: 0 for any number; `until`: on the loop's clock."""
        self._requests = requests
        self._until = until

    def over(self, now: float) -> bool:
        """Count a request. Returns whether it is the last."""
        self._requests -= 1
        return self._requests == 0 or now >= self._until


class ClientConnection(asyncio.Protocol):
    """One client, from its first byte to its last."""

    __slots__ = (
        "_body",
        "_body_began",
        "_buffer",
        "_content",
        "_done",
        "_exchange",
        "_head",
        "_life",
        "_peer",
        "_plane",
        "_read_paused",
        "_resuming",
        "_time",
        "_unsent",
        "_write_paused",
        "deadline",
        "group",
        "last",
        "transport",
    )

    def __init__(self, plane: Plane) -> None:
        self.deadline = NEVER
        self.group = 0
        self.transport: asyncio.Transport | None = None
        self._plane = plane
        self._time = plane.loop.time
        self._peer = ""
        # Reading: what is not read yet, and the request of which a part is.
        self._buffer = bytearray()
        self._head: RequestHead | None = None
        self._body: LengthBody | ChunkedBody | None = None
        self._body_began = 0.0
        self._content = b""
        # Answering.
        self._exchange: Exchange | None = None
        self._done = False
        self._read_paused = False
        self._write_paused = False
        self._resuming = False
        self._unsent = 0
        # How long the connection may be used; `last`: no request follows the one in progress.
        self._life: _Life | None = None
        self.last = False

    # The life of a connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        plane = self._plane
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(plane.limits.write_high_water)
        keep_alive(transport)
        peer = transport.get_extra_info("peername")
        self._peer = peer[0] if isinstance(peer, tuple) else ""
        now = self._time()
        self.deadline = now + plane.timeouts.request
        if plane.limits.max_requests or plane.timeouts.max_age:
            self._life = _Life(plane.limits.max_requests, now + (plane.timeouts.max_age or NEVER))
        plane.joined(self)
        limit, current = plane.limits.max_connections, plane.stats.connections
        if current > limit:
            extra = {"limit": "max_connections", "value": limit, "current": current}
            message = f"The router has {limit} connections and takes no more."
            self._refuse(error_answer(503, message, "too_many_connections", extra=extra))

    def data_received(self, data: bytes) -> None:
        if self._done:
            return
        if self._exchange is None and not self._write_paused and not self._resuming:
            self._read(data)
        else:
            self._hold(data)

    def eof_received(self) -> None:
        """The client is done with us; the transport closes by itself, after what is written."""
        self._gone()
        self._watch_progress()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._gone()
        self._plane.left(self)

    def _gone(self) -> None:
        self._done = True
        self._forget_request()
        exchange = self._exchange
        if exchange is not None:
            self._exchange = None
            exchange.abandon(Outcome.CLIENT_GONE)
            self._plane.released()

    def _forget_request(self) -> None:
        self._buffer.clear()
        self._head = self._body = None

    # Reading requests.

    def _read(self, data: bytes) -> None:
        """Take requests off `data` until one is in progress or incomplete, or others have waited long enough."""
        for _ in range(_PIPELINE_BURST):
            try:
                rest = self._read_head(data) if self._body is None else self._read_body(self._body, data)
            except BadRequest as error:
                self._refuse(refusal(error))
                return
            if rest is None:
                return
            self._dispatch()
            if not rest or self._done:
                return
            data = rest
            if self._exchange is not None or self._write_paused:
                self._hold(data)
                return
        self._hold(data)
        self._resume_later()

    def _read_head(self, data: bytes) -> bytes | None:
        """Read a head, and its body if that is there too.

        Returns what is behind them, or None while the request is incomplete.
        """
        buffer = self._buffer
        begins = not buffer or (len(buffer) <= 2 * _MOST_EMPTY_LINES and not buffer.strip(b"\r\n"))
        if buffer:
            held = len(buffer)
            buffer += data
            if held > 3 and buffer[0] != 13 and buffer.find(b"\r\n\r\n", held - 3) < 0:
                self._check_begun(buffer, held)
                return None
            data = bytes(buffer)
            buffer.clear()
        if data[0] == 13:
            empty, data = data, self._without_empty_lines(data)
            if not data or data == b"\r":
                buffer += empty
                return None
        if not 65 <= data[0] <= 90:
            raise BadRequest(400, "bad_request_head", "The request does not begin with a method.")
        end = data.find(b"\r\n\r\n") + 4
        if end < 4:
            self._check_begun(data, 0)
            buffer += data
            self._head_due(begins)
            return None
        self._check_size(end)
        head = self._head = known_request(data[:end], self._plane.limits.max_headers)
        data = data[end:]
        length = head.length
        if 0 <= length <= len(data) and length <= self._plane.limits.max_body:
            self._content = data[:length]
            return data[length:]
        return self._begin_body(head, data)

    def _without_empty_lines(self, data: bytes) -> bytes:
        """Old clients send an empty line behind a body (RFC 9112, section 2.2). More of them are no mistake."""
        begin = 0
        while data.startswith(b"\r\n", begin):
            begin += 2
            if begin > 2 * _MOST_EMPTY_LINES:
                raise BadRequest(400, "bad_request_head", "The request begins with empty lines.")
        return data[begin:]

    def _head_due(self, begins: bool) -> None:
        """A head has come in part: the time it may take counts from its first byte."""
        if begins:
            self.deadline = self._time() + self._plane.timeouts.request

    def _check_begun(self, data: bytes | bytearray, new: int) -> None:
        """Refuse an unfinished head that cannot become one; looks at what stands from `new` on.

        A head that ends in bare line feeds would be waited for here, and is complete to others.
        """
        self._check_size(len(data))
        if data.count(b"\n", new) != data.count(b"\r\n", max(new - 1, 0)):
            raise BadRequest(400, "bad_request_head", BAD_LINES)

    def _check_size(self, size: int) -> None:
        limit = self._plane.limits.max_head
        if size > limit:
            raise BadRequest(431, "head_too_large", f"The request head is larger than {limit} bytes.")

    def _begin_body(self, head: RequestHead, data: bytes) -> bytes | None:
        """Start on a body that is not there yet as a whole."""
        limit = self._plane.limits.max_body
        if head.length > limit:
            raise self._too_large()
        body = ChunkedBody(limit) if head.length == CHUNKED else LengthBody(head.length)
        self._body = body
        self._body_began = self._time()
        self.deadline = self._body_began + self._plane.timeouts.request
        if head.expects and not data:
            self.write(_CONTINUE)
        return self._read_body(body, data)

    def _read_body(self, body: LengthBody | ChunkedBody, data: bytes) -> bytes | None:
        try:
            rest = body.feed(data)
        except BadChunk as error:
            raise BadRequest(400, "bad_chunk", f"The chunked body is malformed: {error}.") from None
        except BodyTooLarge:
            raise self._too_large() from None
        if rest is not None:
            self._content = body.value()
            self._body = None
        return rest

    def _too_large(self) -> BadRequest:
        limit = self._plane.limits.max_body
        return BadRequest(413, "body_too_large", f"The request body is larger than {limit} bytes.")

    def _dispatch(self) -> None:
        """The request is complete: send it on its way."""
        head = self._head
        assert head is not None
        plane = self._plane
        inbound = Inbound(
            head.method,
            head.target,
            head.path,
            head.headers,
            self._content,
            head.http11,
            self._time(),
            self._peer,
        )
        self._head = None
        self._content = b""
        self.deadline = NEVER
        if self._life is not None:
            self.last = self._life.over(inbound.arrived)
        stats = plane.stats
        stats.requests += 1
        stats.open_requests += 1
        exchange = self._exchange = Exchange(plane, self, head, inbound)
        exchange.start()

    def _hold(self, data: bytes) -> None:
        """Keep pipelined bytes for later, and read no more if there are many."""
        self._buffer += data
        if len(self._buffer) > _PIPELINE_BYTES and not self._read_paused and self.transport is not None:
            self._read_paused = True
            self.transport.pause_reading()

    def _resume_later(self) -> None:
        if not self._resuming:
            self._resuming = True
            self._plane.loop.call_soon(self._resume)

    def _resume(self) -> None:
        """Go on with what was kept."""
        self._resuming = False
        if self._done or self._exchange is not None or self._write_paused:
            return
        data = bytes(self._buffer)
        self._buffer.clear()
        self._resume_reading()
        if data:
            self._read(data)

    def _resume_reading(self) -> None:
        if self._read_paused and self.transport is not None:
            self._read_paused = False
            self.transport.resume_reading()

    # Answering; called by the exchange.

    def write(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)

    def answer(self, answer: Answer, keep: bool, http11: bool, bodiless: bool, lines: bytes = b"") -> None:
        """Write an answer of ours; `finished` has to follow."""
        head = answer_head(answer, keep, http11, lines)
        self.write(head if bodiless else head + answer.body)

    def finished(self, keep: bool) -> None:
        """The answer is complete. `keep`: another request may follow."""
        self._exchange = None
        self._plane.released()
        if not keep or self._plane.draining:
            self._close()
            return
        if not self._write_paused:
            self.deadline = self._time() + self._plane.timeouts.keepalive
            if self._buffer:
                self._resume_later()

    def cut(self, framed: bool) -> None:
        """The answer stays incomplete, and the client has to notice. `framed`: it knows where the end should be."""
        self._exchange = None
        self._plane.released()
        if framed or self.transport is None:
            self._close()
        else:
            self._done = True
            reset(self.transport)

    def pause_writing(self) -> None:
        self._write_paused = True
        self._watch_progress()
        if self._exchange is not None:
            self._exchange.pause()

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._done:
            return
        if self._exchange is not None:
            self.deadline = NEVER
            self._exchange.resume()
        else:
            self.deadline = self._time() + self._plane.timeouts.keepalive
            if self._buffer:
                self._resume_later()

    # Ending.

    @property
    def _begun(self) -> bool:
        """Whether some of a head has come, other than empty lines."""
        return bool(self._buffer.strip(b"\r\n"))

    @property
    def busy(self) -> bool:
        """Whether a request is in progress."""
        return self._exchange is not None

    def _refuse(self, answer: Answer) -> None:
        """Answer and end the connection. The client may still be sending: closing now could cost it the answer."""
        self._plane.stats.bad_requests += 1
        head = self._head
        bodiless = head is not None and head.verb == b"HEAD"
        request_id = (given(head.headers) if head is not None else "") or self._plane.ids.new()
        if self._plane.journal is not None:
            method, path = (head.method, head.path) if head is not None else ("", "")
            self._plane.journal.refused(self._peer, method, path, request_id, answer)
        self._forget_request()
        self._done = True
        self.answer(answer, False, True, bodiless, b"x-request-id: %b\r\n" % request_id.encode())
        self._linger()

    def _linger(self) -> None:
        """Say that nothing more comes (where the transport can: TLS cannot), and drop what does until the client has
        closed: bytes left unread would make the kernel take the answer back."""
        transport = self.transport
        if transport is None:
            return
        if transport.can_write_eof():
            transport.write_eof()
        self._resume_reading()
        self.deadline = self._time() + _LINGER

    def _close(self) -> None:
        """Close when all is written."""
        if self.transport is None:
            return
        if self._buffer and not self._done:
            self._done = True
            self._forget_request()
            self._linger()
            return
        self._done = True
        self._watch_progress()
        self.transport.close()

    def _watch_progress(self) -> None:
        """Give the client `idle` seconds to take some of what is written."""
        if self.transport is not None:
            self._unsent = self.transport.get_write_buffer_size()
            self.deadline = self._time() + self._plane.timeouts.idle

    def expired(self, now: float) -> None:
        transport = self.transport
        if transport is None:
            self.deadline = NEVER
        elif self._done or self._write_paused:
            if transport.get_write_buffer_size() < self._unsent:
                self._watch_progress()
            else:
                self.abort()
        elif self._body is not None:
            allowed = self._body_began + self._plane.timeouts.request + self._body.received / _BODY_RATE
            if allowed > now:
                self.deadline = allowed
            else:
                self._refuse(error_answer(408, "The request body did not arrive in time.", "request_timeout"))
        elif self._begun:
            self._refuse(error_answer(408, "The request head did not arrive in time.", "request_timeout"))
        else:
            self._close()

    def drain(self) -> None:
        """The router stops: end now, unless a request is in progress."""
        if self._exchange is not None or self._done:
            return
        if self._body is not None or self._begun:
            self._refuse(error_answer(503, "The router is shutting down.", "shutting_down"))
        else:
            self._close()

    def abort(self, outcome: Outcome = Outcome.CLIENT_GONE) -> None:
        """End now, whatever is in progress."""
        exchange, self._exchange = self._exchange, None
        self._done = True
        self.deadline = NEVER
        if exchange is not None:
            exchange.abandon(outcome)
            self._plane.released()
        if self.transport is not None:
            reset(self.transport)
