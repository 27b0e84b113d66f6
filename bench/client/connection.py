"""HTTP/1.1 connections of the load generator: one request at a time each, timestamps taken in `data_received`.

Owns sockets, nothing else: what the bytes mean is `timing.py`. The pool has no limit, an idle connection is used
again, a connection that the server closed before the first byte of an answer is replaced once. The clock is
`time.perf_counter` unless another is given: the loop's own is rounded to milliseconds.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

from bench.client.timing import Timing

Done = Callable[[Timing], None]
Clock = Callable[[], float]
clock: Clock = time.perf_counter

OWN_LIMITS = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM})
"""Errors of opening a connection that are this machine's limits and not the server's doing."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go. `prefix`: the URL's path without a trailing slash."""

    host: str
    port: int
    prefix: str = ""

    @classmethod
    def parse(cls, url: str) -> Target:
        """Raises: ValueError for anything but http://host[:port][/path]."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"{url!r} is not an http:// URL")
        return cls(parts.hostname, parts.port or 80, parts.path.rstrip("/"))

    def head(self, path: str, length: int, request_id: str, headers: Sequence[tuple[str, str]] = ()) -> bytes:
        further = "".join(f"{name}: {value}\r\n" for name, value in headers)
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (
            f"POST {self.prefix}{path} HTTP/1.1\r\nhost: {host}:{self.port}\r\ncontent-type: application/json\r\n"
            f"accept: text/event-stream\r\nx-request-id: {request_id}\r\n{further}content-length: {length}\r\n\r\n"
        ).encode()


class Connection(asyncio.Protocol):
    """One keep-alive connection. `start` sends a request; its `done` is called once, whatever happens."""

    def __init__(self, pool: Pool, target: Target) -> None:
        self._pool = pool
        self._target = target
        self._clock = pool.clock
        self._transport: asyncio.Transport | None = None
        self._timing: Timing | None = None
        self._done: Done | None = None
        self._wire = b""
        self._served = 0
        self._answered = False
        self._headers: dict[str, str] = {}
        self._parts: list[bytes] = []
        self._complete = self._keep = False
        self._now = 0.0
        self._parser: httptools.HttpResponseParser | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def start(self, timing: Timing, wire: bytes, done: Done) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionError("the connection is closed")
        self._timing, self._wire, self._done = timing, wire, done
        self._answered = self._complete = False
        self._pool.serving[id(timing)] = self
        self._parser = httptools.HttpResponseParser(self)
        if timing.t_send != timing.t_send:
            timing.sent(self._clock())
        transport.write(wire)

    @property
    def timing(self) -> Timing | None:
        """The request that holds this connection."""
        return self._timing

    def data_received(self, data: bytes) -> None:
        self._now = self._clock()
        timing, parser = self._timing, self._parser
        if timing is None or parser is None:
            self.close()
            return
        self._answered = True
        try:
            parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._flush(timing)
            timing.fail(self._now, "bad_response", str(error))
        else:
            self._flush(timing)
        if self._complete:
            timing.end(self._now)
        if timing.over:
            self._finish(timing)

    def _flush(self, timing: Timing) -> None:
        if self._parts:
            timing.data(self._now, b"".join(self._parts))
            self._parts.clear()

    def _finish(self, timing: Timing) -> None:
        done = self._done
        self._timing = self._done = None
        self._wire = b""
        self._pool.serving.pop(id(timing), None)
        self._served += 1
        if self._complete and self._keep:
            self._pool.give_back(self._target, self)
        else:
            self.close()
        if done is not None:
            done(timing)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._pool.forget(self._target, self)
        timing, done = self._timing, self._done
        self._parser = None  # the cycle parser -> connection would outlive its use while the collector is off
        if timing is None or done is None:
            return
        self._pool.serving.pop(id(timing), None)
        self._timing = self._done = None
        now = self._clock()
        if not self._answered and self._served and not timing.retried and not timing.over:
            timing.retried = True
            self._pool.send_on_new(self._target, timing, self._wire, done)
            return
        if (
            timing.status == 200
            and not self._headers.get("content-length")
            and not self._headers.get("transfer-encoding")
        ):
            timing.end(now)
        timing.fail(now, "cut" if self._answered else "reset", str(exc or "the server closed the connection"))
        done(timing)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def on_message_begin(self) -> None:
        self._headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._timing is not None and self._parser is not None:
            self._timing.header(self._now, self._parser.get_status_code(), self._headers)

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        self._complete = True
        self._keep = self._parser is not None and self._parser.should_keep_alive()


class Pool:
    """Idle connections by target, and the way to a new one. `opened`, `peak` (most at once) and `retried` are reported.
    `serving`: the connection of each request that holds one, by the identity of its timing.
    """

    def __init__(self, clock: Clock = clock) -> None:
        self.clock = clock
        self.serving: dict[int, Connection] = {}
        self._idle: dict[Target, list[Connection]] = {}
        self._all: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.opened = 0
        self.peak = 0
        self.retried = 0

    def send(self, target: Target, timing: Timing, wire: bytes, done: Done) -> None:
        """Sends now on an idle connection, or as soon as a new one is open."""
        idle = self._idle.get(target)
        while idle:
            connection = idle.pop()
            try:
                connection.start(timing, wire, done)
            except ConnectionError:
                continue
            return
        self.send_on_new(target, timing, wire, done)

    def send_on_new(self, target: Target, timing: Timing, wire: bytes, done: Done) -> None:
        self.retried += timing.retried
        task = asyncio.get_running_loop().create_task(self._open_and_send(target, timing, wire, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open_and_send(self, target: Target, timing: Timing, wire: bytes, done: Done) -> None:
        try:
            connection = await self._open(target)
            if not timing.over:
                connection.start(timing, wire, done)
                return
            self.give_back(target, connection)
        except OSError as error:
            kind = "client_limit" if error.errno in OWN_LIMITS else "connect"
            timing.fail(self.clock(), kind, str(error))
        done(timing)

    async def _open(self, target: Target) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: Connection(self, target), target.host, target.port)
        self.opened += 1
        self._all.add(connection)
        self.peak = max(self.peak, len(self._all))
        return connection

    def give_back(self, target: Target, connection: Connection) -> None:
        self._idle.setdefault(target, []).append(connection)

    def forget(self, target: Target, connection: Connection) -> None:
        self._all.discard(connection)
        idle = self._idle.get(target)
        if idle and connection in idle:
            idle.remove(connection)

    def abort(self, timing: Timing) -> None:
        """Closes the connection that a request still holds, so that the server stops working on it."""
        connection = self.serving.get(id(timing))
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Closes every connection; requests still open end as cut."""
        for task in list(self._tasks):
            task.cancel()
        for connection in list(self._all):
            connection.close()
