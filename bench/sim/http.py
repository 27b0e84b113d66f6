"""A small HTTP/1.1 server for one engine: httptools parses, an `Exchange` is one request and its reply.

Keep-alive for a limited time, pipelined requests in order, bodies by length or chunked, replies whole or as
chunks, and word of a client that left while its reply was open. Knows nothing of models. Cost: some ten
microseconds a request, one write a reply or chunk; a look at every connection ten times a keep-alive timeout.
"""

from __future__ import annotations

import asyncio
import http
import logging
import math
from collections import deque
from collections.abc import Callable
from typing import cast

import httptools
import msgspec

log = logging.getLogger(__name__)

MAX_BODY = 64 * 1024 * 1024
MAX_HEAD = 64 * 1024
MAX_PIPELINED = 32
SHORTEST_SWEEP = 0.01

_REASONS = {status.value: status.phrase for status in http.HTTPStatus}


class Exchange:
    """A complete request, and the one reply to it: `respond`, or `start` and `write` and `finish`."""

    __slots__ = ("_chunked", "_connection", "_keep", "body", "done", "headers", "method", "on_gone", "path", "query")

    def __init__(self, connection: Connection, keep: bool, chunked: bool) -> None:
        self._connection = connection
        self._keep = keep
        self._chunked = chunked
        self.method = ""
        self.path = ""
        self.query = ""
        self.headers: dict[str, str] = {}
        self.body = b""
        self.on_gone: Callable[[], None] | None = None
        self.done = False

    @property
    def gone(self) -> bool:
        """Whether the client has left."""
        return self._connection.closed

    def json(self, value: object, status: int = 200) -> None:
        self.respond(msgspec.json.encode(value), status)

    def respond(self, body: bytes, status: int = 200, content_type: str = "application/json") -> None:
        if self.done:
            return
        head = self._head(status, content_type) + b"content-length: %d\r\n\r\n" % len(body)
        self._connection.send(head if self.method == "HEAD" else head + body)
        self._close()

    def start(self, content_type: str, first: bytes) -> None:
        """Begin a streamed reply with its first chunk."""
        head = self._head(200, content_type)
        if self._chunked:
            head += b"transfer-encoding: chunked\r\n\r\n" + _chunk(first)
        else:
            self._keep = False
            head += b"\r\n" + first
        self._connection.send(head)

    def write(self, data: bytes) -> None:
        self._connection.send(_chunk(data) if self._chunked else data)

    def finish(self, data: bytes) -> None:
        """The last chunk of a streamed reply."""
        self._connection.send(_chunk(data) + b"0\r\n\r\n" if self._chunked else data)
        self._close()

    def _head(self, status: int, content_type: str) -> bytes:
        head = f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}\r\ncontent-type: {content_type}\r\n"
        return (head if self._keep else head + "connection: close\r\n").encode("latin-1")

    def _close(self) -> None:
        self.done = True
        self.on_gone = None
        self._connection.replied(self._keep)


Handler = Callable[[Exchange], None]


class Connection(asyncio.Protocol):
    """One client connection. `open_connections` is the server's set of live ones.

    `idle_since` is the loop's time of the last reply while nothing came after it, else infinite (also before the
    first request: uvicorn, too, gives a new connection all the time it wants).
    """

    def __init__(self, handler: Handler, open_connections: set[Connection]) -> None:
        self._handler = handler
        self._open = open_connections
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._queue: deque[Exchange] = deque()
        self._current: Exchange | None = None
        self._url = b""
        self._fields: dict[str, str] = {}
        self._body: list[bytes] = []
        self._size = 0
        self._head_size = 0
        self._refused = False
        self.closed = False
        self.idle_since = math.inf

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._open.discard(self)
        self._queue.clear()
        if self._current is not None and self._current.on_gone is not None:
            self._current.on_gone()
        self._current = None

    def data_received(self, data: bytes) -> None:
        self.idle_since = math.inf
        if self._refused:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(400, "upgrades are not supported")
        except httptools.HttpParserError as error:
            if not self._refused:
                self._refuse(400, f"not HTTP/1.1: {error}")

    def on_message_begin(self) -> None:
        self._url = b""
        self._fields = {}
        self._body = []
        self._size = self._head_size = 0

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value))
        self._fields[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._fields.get("expect", "").lower() == "100-continue":
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > MAX_BODY:
            self._refuse(413, f"body larger than {MAX_BODY} bytes")
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self._refused:
            return
        chunked = self._parser.get_http_version() == "1.1"
        exchange = Exchange(self, self._parser.should_keep_alive(), chunked)
        exchange.method = self._parser.get_method().decode("latin-1")
        path, _, query = self._url.decode("latin-1").partition("?")
        exchange.path, exchange.query = path, query
        exchange.headers = self._fields
        exchange.body = b"".join(self._body)
        self._body = []
        self._queue.append(exchange)
        if len(self._queue) > MAX_PIPELINED and self._transport is not None:
            self._transport.pause_reading()
        if self._current is None:
            self._next()

    def send(self, data: bytes) -> None:
        if self._transport is not None and not self.closed:
            self._transport.write(data)

    def replied(self, keep: bool) -> None:
        """The current exchange is over."""
        self._current = None
        if self._transport is None or self.closed:
            return
        if not keep or self._refused:
            self._transport.close()
            return
        if self._queue:
            asyncio.get_running_loop().call_soon(self._next)
        else:
            self.idle_since = asyncio.get_running_loop().time()
            self._transport.resume_reading()

    def end(self) -> None:
        """Close when all that was written has gone out."""
        if self._transport is not None:
            self._transport.close()

    def shut(self) -> None:
        """Close without waiting for replies."""
        if self._transport is not None:
            self._transport.abort()

    def _next(self) -> None:
        if self._current is not None or not self._queue or self.closed:
            return
        exchange = self._current = self._queue.popleft()
        try:
            self._handler(exchange)
        except Exception:
            log.exception("%s %s failed", exchange.method, exchange.path)
            exchange.json({"error": {"message": "internal error", "type": "InternalServerError", "code": 500}}, 500)

    def _count_head(self, size: int) -> None:
        self._head_size += size
        if self._head_size > MAX_HEAD:
            self._refuse(431, f"head larger than {MAX_HEAD} bytes")

    def _refuse(self, status: int, message: str) -> None:
        if self._refused:
            return
        self._refused = True
        body = msgspec.json.encode({"error": {"message": message, "type": "Bad Request", "code": status}})
        head = f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: application/json\r\nconnection: close\r\n"
        if self._current is None:
            self.send(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
        if self._transport is not None:
            self._transport.close()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


class Server:
    """Listens for one handler. `port` 0 lets the kernel choose; `self.port` is the one that it is.

    A connection that is idle for `keep_alive` seconds after a reply is closed, at most a tenth later; 0: never.
    """

    def __init__(self, handler: Handler, keep_alive: float = 0.0) -> None:
        self._handler = handler
        self._keep_alive = keep_alive
        self._sweeper: asyncio.TimerHandle | None = None
        self._server: asyncio.Server | None = None
        self._open: set[Connection] = set()
        self.port = 0

    async def listen(self, host: str, port: int) -> None:
        """OSError says why not."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self._handler, self._open), host, port)
        self.port = int(self._server.sockets[0].getsockname()[1])
        if self._keep_alive:
            self._sweep()

    async def close(self) -> None:
        """Stop listening and drop all connections."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            self._server.close()
            for connection in list(self._open):
                connection.shut()
            await self._server.wait_closed()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        latest = loop.time() - self._keep_alive
        for connection in self._open:
            if connection.idle_since <= latest:
                connection.end()
        self._sweeper = loop.call_later(max(self._keep_alive / 10, SHORTEST_SWEEP), self._sweep)
