"""POST a JSON body to an engine and read its JSON answer: the small HTTP/1.1 client behind `/tokenize`.

Touches sockets of the running loop. Kept apart from the data plane's upstream pool, which relays and never reads
bodies; a general client would cost several times as much a call, and this call stands before every request of a router
without a tokenizer of its own. Cost: about 0.1 ms of the loop a call, and one connection kept alive an engine and call
in flight.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import SplitResult, urlsplit

import httptools

_MAX_ANSWER = 256 << 20
_MAX_IDLE = 32


class EngineUnreachable(Exception):
    """No answer: refused, reset, cut off or not HTTP. The message says which."""


@dataclass(slots=True)
class EngineAnswer:
    status: int
    body: bytes


class _Connection(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.closed = False
        self.keep_alive = False
        self._waiter: asyncio.Future[EngineAnswer] | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._chunks: list[bytes] = []
        self._size = 0
        self._seen = False

    def ask(self, request: bytes) -> asyncio.Future[EngineAnswer]:
        assert self.transport is not None
        self._waiter = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._chunks, self._size, self._seen = [], 0, False
        self.transport.write(request)
        return self._waiter

    @property
    def answered(self) -> bool:
        """Whether a byte of the answer to the last request has come."""
        return self._seen

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one only by behaviour

    def data_received(self, data: bytes) -> None:
        self._seen = True
        if self._parser is None:
            self.close("it spoke without being asked")
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.close(f"its answer is not HTTP: {error}")

    def on_body(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size > _MAX_ANSWER:
            self.close(f"its answer is longer than {_MAX_ANSWER} bytes")
            return
        self._chunks.append(chunk)

    def on_message_complete(self) -> None:
        parser, waiter = self._parser, self._waiter
        if parser is None or waiter is None or waiter.done() or parser.get_status_code() < 200:
            return
        self.keep_alive = parser.should_keep_alive()
        waiter.set_result(EngineAnswer(parser.get_status_code(), b"".join(self._chunks)))

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"the connection was lost: {error}" if error else "it closed the connection")

    def close(self, why: str = "closed") -> None:
        if self.transport is not None:
            self.transport.abort()
        self._fail(why)

    def _fail(self, why: str) -> None:
        self.closed = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(EngineUnreachable(why))


@dataclass(slots=True)
class EngineHttp:
    """Keeps connections alive, by engine. `close` when done. `tls`: checks https engines; without it, what the system
    trusts does. `lines`: more header lines for each request."""

    tls: ssl.SSLContext | None = None
    lines: str = field(default="", repr=False)
    _idle: dict[tuple[str, str], deque[_Connection]] = field(default_factory=dict)

    async def post(self, base: str, path: str, body: bytes) -> EngineAnswer:
        """The engine's answer, whatever its status. Has no timeout of its own; cancelling closes the connection.

        Raises:
            EngineUnreachable: there was no complete answer.
        """
        url = urlsplit(base)
        head = (
            f"POST {url.path.rstrip('/')}{path} HTTP/1.1\r\nhost: {url.netloc}\r\nuser-agent: kvctl\r\n"
            f"content-type: application/json\r\naccept: application/json\r\n{self.lines}"
            f"content-length: {len(body)}\r\n\r\n"
        )
        request = head.encode("latin-1") + body
        idle = self._idle.setdefault((url.scheme, url.netloc), deque())
        while idle:
            connection = idle.pop()
            if connection.closed:
                continue
            try:
                return await self._ask(connection, request, idle)
            except EngineUnreachable:
                if connection.answered:
                    raise
                break  # kept alive too long; a new connection tells whether the engine is there
        return await self._ask(await _connect(url, self.tls), request, idle)

    async def _ask(self, connection: _Connection, request: bytes, idle: deque[_Connection]) -> EngineAnswer:
        try:
            answer = await connection.ask(request)
        except BaseException:
            connection.close()
            raise
        if connection.keep_alive and not connection.closed and len(idle) < _MAX_IDLE:
            idle.append(connection)
        else:
            connection.close()
        return answer

    def forget(self, base: str) -> None:
        """Close what is kept alive to an engine that has gone."""
        url = urlsplit(base)
        for connection in self._idle.pop((url.scheme, url.netloc), ()):
            connection.close()

    def close(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()


async def _connect(url: SplitResult, tls: ssl.SSLContext | None) -> _Connection:
    secure = url.scheme == "https"
    try:
        port = url.port or (443 if secure else 80)
        _, connection = await asyncio.get_running_loop().create_connection(
            _Connection, url.hostname or "", port, ssl=(tls or True) if secure else None
        )
    except (OSError, ValueError) as error:
        raise EngineUnreachable(f"cannot connect: {error}") from None
    return connection
