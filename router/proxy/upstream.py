"""The engine's side: keep-alive connections, a pool of them for each endpoint, and where an engine's answer ends.

`EngineConnection` carries one request at a time for an `Exchange`, to which it reports the head, the pieces of the
body as they came, the end, or the failure. It never retries and never speaks to the client. Touches sockets only.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import TYPE_CHECKING, cast

from router.proxy.bodies import ChunkScanner
from router.proxy.errors import BadChunk, BadResponse
from router.proxy.heads import CHUNKED, UNTIL_CLOSE, ResponseHead, read_response
from router.proxy.interface import Endpoint, Limits, Outcome, PlaneStats, Timeouts
from router.proxy.sockets import keep_alive
from router.proxy.sweeper import NEVER, Sweeper

if TYPE_CHECKING:
    from router.proxy.relay import Exchange

log = logging.getLogger(__name__)

_SLICE = 256 * 1024
_SMALL_BODY = 64 * 1024

_CONNECTING, _IDLE, _HEAD, _BODY, _CLOSED = range(5)


class EnginePool:
    """The connections to one endpoint. The one used last is used next, so that the surplus ages and is closed."""

    __slots__ = (
        "_connects",
        "_idle",
        "_loop",
        "_on_path",
        "_tls",
        "closed",
        "endpoint",
        "limits",
        "stats",
        "sweeper",
        "timeouts",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        loop: asyncio.AbstractEventLoop,
        timeouts: Timeouts,
        limits: Limits,
        stats: PlaneStats,
        sweeper: Sweeper,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`tls`: for an endpoint that is https."""
        self.endpoint = endpoint
        self.timeouts = timeouts
        self.limits = limits
        self.stats = stats
        self.sweeper = sweeper
        self.closed = False
        self._loop = loop
        self._tls = tls if endpoint.tls else None
        self._idle: dict[EngineConnection, None] = {}
        self._connects: set[asyncio.Task[None]] = set()
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        self._on_path = (
            endpoint.prefix.encode("latin-1"),
            f" HTTP/1.1\r\nhost: {host}:{endpoint.port}\r\n".encode("latin-1"),
        )

    def request_head(self, verb: bytes, target: bytes, lines: bytes, length: int, bodiless: bool) -> bytes:
        """The head an engine gets. `lines`: filtered header lines; `bodiless`: the method usually has no body."""
        prefix, host = self._on_path
        if length or not bodiless:
            return b"%b %b%b%b%bcontent-length: %d\r\n\r\n" % (verb, prefix, target, host, lines, length)
        return b"%b %b%b%b%b\r\n" % (verb, prefix, target, host, lines)

    def send(self, exchange: Exchange, fresh: bool = False) -> EngineConnection:
        """Send the exchange's request on an idle connection, or on a new one (always so if `fresh`)."""
        idle = self._idle
        while idle and not fresh:
            connection, _ = idle.popitem()
            if connection.alive:
                self.stats.upstream_reused += 1
                connection.send(exchange)
                return connection
        connection = EngineConnection(self, self._loop, exchange)
        self.stats.upstream_opened += 1
        task = self._loop.create_task(self._connect(connection))
        connection.connecting = task
        self._connects.add(task)
        task.add_done_callback(self._connects.discard)
        return connection

    async def _connect(self, connection: EngineConnection) -> None:
        endpoint = self.endpoint
        try:
            if endpoint.tls and self._tls is None:
                raise ValueError("the endpoint is https, and there is nothing to check its certificate with")
            await self._loop.create_connection(
                lambda: connection,
                endpoint.host,
                endpoint.port,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else 2 * self.timeouts.connect,
            )
        except (OSError, ValueError, OverflowError) as error:
            log.debug("connecting to %s:%s failed: %s", self.endpoint.host, self.endpoint.port, error)
            connection.connecting = None
            connection.fail(Outcome.CONNECT_FAILED)

    def put_back(self, connection: EngineConnection) -> bool:
        """Take a connection that is free again. Returns False if it is not wanted."""
        if self.closed or len(self._idle) >= self.limits.idle_per_endpoint:
            return False
        self._idle[connection] = None
        return True

    def drop(self, connection: EngineConnection) -> None:
        """Forget an idle connection that is closed."""
        self._idle.pop(connection, None)

    @property
    def idle(self) -> int:
        return len(self._idle)

    def give_up(self) -> None:
        """Requests that have not begun at this endpoint may go elsewhere. O(connections): not for every day."""
        for item in self.sweeper.items():
            if isinstance(item, EngineConnection):
                item.worker_down(self)

    def close(self) -> None:
        """Close the idle connections, and those in use when they become free."""
        self.closed = True
        for connection in tuple(self._idle):
            connection.close()
        self._idle.clear()


class EngineConnection(asyncio.Protocol):
    """One connection to an engine, from connecting to closed."""

    __slots__ = (
        "_answered",
        "_body",
        "_exchange",
        "_head",
        "_held",
        "_left",
        "_paused",
        "_pool",
        "_reusable",
        "_scanner",
        "_sent",
        "_state",
        "_time",
        "_transport",
        "_write_paused",
        "connecting",
        "deadline",
        "group",
        "reused",
    )

    def __init__(self, pool: EnginePool, loop: asyncio.AbstractEventLoop, exchange: Exchange) -> None:
        self.connecting: asyncio.Task[None] | None = None
        self.reused = False
        self.deadline = loop.time() + pool.timeouts.connect
        self.group = 0
        self._time = loop.time
        self._pool = pool
        self._exchange: Exchange | None = exchange
        self._transport: asyncio.Transport | None = None
        self._state = _CONNECTING
        self._paused = False
        self._write_paused = False
        self._reset_message()
        pool.sweeper.add(self)

    def _reset_message(self) -> None:
        self._answered = False
        self._head = b""
        self._held: ResponseHead | None = None
        self._scanner: ChunkScanner | None = None
        self._left = 0
        self._reusable = True
        self._body: memoryview | None = None
        self._sent = 0

    @property
    def alive(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    # The life of a connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.connecting = None
        keep_alive(transport)
        exchange = self._exchange
        if exchange is None:
            self._transport.abort()
            return
        self._state = _IDLE
        self.send(exchange)

    def send(self, exchange: Exchange) -> None:
        """Send the exchange's request. Its first byte is awaited from now on."""
        transport = self._transport
        assert transport is not None
        self._exchange = exchange
        self._state = _HEAD
        self.deadline = self._time() + self._pool.timeouts.first_byte
        head, body = exchange.request(self._pool)
        if len(body) <= _SMALL_BODY:
            transport.write(head + body)
        else:
            transport.write(head)
            self._body = memoryview(body)
            self._send_body()

    def _send_body(self) -> None:
        """Send slices of a large body until the transport says stop, or there are no more."""
        body = self._body
        transport = self._transport
        while body is not None and transport is not None and not self._write_paused:
            transport.write(body[self._sent : self._sent + _SLICE])
            self._sent += _SLICE
            if self._sent >= len(body):
                self._body = None
                return

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._body is not None:
            if self._state == _HEAD:
                self.deadline = self._time() + self._pool.timeouts.first_byte
            self._send_body()

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            self.close()  # an engine that speaks unasked: whatever it says belongs to no request
            return
        if not self._paused:
            self.deadline = self._time() + self._pool.timeouts.idle
        self._answered = True
        try:
            if self._state == _BODY:
                held, self._held = self._held, None
                self._read_body(exchange, held, data)
            else:
                self._read_head(exchange, data)
        except (BadResponse, BadChunk) as error:
            endpoint = self._pool.endpoint
            log.warning("bad response from %s:%s: %s", endpoint.host, endpoint.port, error)
            self.fail(Outcome.BAD_RESPONSE)

    def _read_head(self, exchange: Exchange, data: bytes) -> None:
        if self._head:
            data = self._head + data
        while True:
            end = data.find(b"\r\n\r\n") + 4
            if end < 4:
                self._keep_head(data)
                return
            head = read_response(data[:end], exchange.bodiless)
            data = data[end:]
            if head.status >= 200:
                break
            if head.status == 101:
                raise BadResponse("it switches to a protocol nobody asked for")
        self._state = _BODY
        self._reusable = head.keep_alive
        self._left = head.length
        if head.length == CHUNKED:
            self._scanner = ChunkScanner()
        if not data and head.length != 0:
            self._held = head
            self.deadline = self._time() + self._pool.timeouts.first_byte
            return
        self._read_body(exchange, head, data)

    def _keep_head(self, data: bytes) -> None:
        """Hold an unfinished head, if it can become one."""
        if not data.startswith(b"HTTP/1."[: len(data)]):
            raise BadResponse("it does not begin with HTTP/1")
        if len(data) > self._pool.limits.max_head:
            raise BadResponse("its head is too large")
        if b"\n\n" in data:
            raise BadResponse("a line of the response head does not end in CRLF")
        self._head = data

    def _read_body(self, exchange: Exchange, head: ResponseHead | None, data: bytes) -> None:
        """Pass on a piece of the body, with the head if it is the first, and see whether it is the last."""
        payload: list[bytes] | None = None
        if self._scanner is not None:
            payload = [] if exchange.wants_payload else None
            end = self._scanner.feed(data, payload)
            done = self._scanner.done
        elif self._left == UNTIL_CLOSE:
            end = len(data)
            done = False
        else:
            end = min(len(data), self._left)
            self._left -= end
            done = self._left == 0
        if end < len(data):
            self._reusable = False
            data = data[:end]
        if head is not None:
            if not exchange.begin(head, data, payload):
                return
        elif data:
            exchange.relay(data, payload)
        if done and self._exchange is exchange:
            self._release()
            exchange.complete()

    def _release(self) -> None:
        """The answer is complete: back to the pool, if both sides can go on."""
        self._exchange = None
        transport = self._transport
        reusable = self._reusable and self._body is None and not self._write_paused
        if reusable and transport is not None and not transport.is_closing():
            if self._paused:
                self.resume()
            self._reset_message()
            self._state = _IDLE
            self.reused = True
            self.deadline = self._time() + self._pool.timeouts.pool_idle
            if self._pool.put_back(self):
                return
        self.close()

    def eof_received(self) -> None:
        """The transport closes by itself; what it means is decided in `connection_lost`."""

    def connection_lost(self, exc: Exception | None) -> None:
        state = self._state
        exchange = self._exchange
        self._state = _CLOSED
        self._pool.sweeper.discard(self)
        self._transport = None
        self._body = None
        if exchange is None:
            self._pool.drop(self)
            return
        self._exchange = None
        if state == _BODY:
            held, self._held = self._held, None
            if self._left == UNTIL_CLOSE and exc is None:
                if held is None or exchange.begin(held, b"", None):
                    exchange.complete()
            else:
                exchange.failed(Outcome.CUT if held is None else Outcome.RESET)
        else:
            exchange.failed(Outcome.CUT if self._answered else Outcome.RESET)

    # What others may ask of it.

    def pause(self) -> None:
        """The client is slow: read no more for now. Its slowness is not the engine's silence."""
        if not self._paused and self.alive and self._transport is not None:
            self._paused = True
            self.deadline = NEVER
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self.deadline = self._time() + self._pool.timeouts.idle
            if self.alive and self._transport is not None:
                self._transport.resume_reading()

    def expired(self, now: float) -> None:
        if self._state == _CONNECTING:
            self.fail(Outcome.CONNECT_TIMEOUT)
        elif (self._state == _HEAD and not self._answered) or self._held is not None:
            self.fail(Outcome.FIRST_BYTE_TIMEOUT)
        elif self._exchange is not None:
            self.fail(Outcome.IDLE_TIMEOUT)
        else:
            self.close()

    def worker_down(self, pool: EnginePool) -> None:
        """The endpoint of `pool` answers no longer: let a request that has not begun there go elsewhere."""
        exchange = self._exchange
        if exchange is not None and pool is self._pool and (not self._answered or self._held is not None):
            exchange.move(Outcome.WORKER_DOWN)

    def fail(self, outcome: Outcome) -> None:
        """Give up on the connection and tell the exchange why."""
        exchange = self._exchange
        self.close()
        if exchange is not None:
            exchange.failed(outcome)

    def close(self) -> None:
        """Close at once, without a word to the exchange."""
        self._exchange = None
        self._state = _CLOSED
        self.deadline = NEVER
        self._body = None
        self._pool.sweeper.discard(self)
        self._pool.drop(self)
        if self.connecting is not None:
            self.connecting.cancel()
            self.connecting = None
        if self._transport is not None:
            self._transport.abort()
