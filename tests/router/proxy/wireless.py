"""The data plane without sockets: bytes go in, bytes come out, in one thread and at once.

The connections, exchanges and pools are the real ones; the loop and the transports are of a few lines. For tests that
try thousands of messages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from router.proxy.downstream import ClientConnection
from router.proxy.interface import Answer, Endpoint, Inbound, Leg, Limits, Outcome, PlaneStats, Timeouts
from router.proxy.plane import DataPlane
from router.proxy.relay import Exchange
from router.proxy.request_ids import RequestIds
from router.proxy.sweeper import Sweeper
from router.proxy.upstream import EngineConnection, EnginePool
from tests.router.proxy.scripted import OK, Ticket

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Loop:
    """Runs callbacks when told; time stands still."""

    def __init__(self) -> None:
        self._ready: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()

    def time(self) -> float:
        return 1000.0

    def call_soon(self, callback: Callable[..., object], *arguments: Any) -> None:
        self._ready.append((callback, arguments))

    def call_later(self, delay: float, callback: Callable[..., object]) -> None:
        """Nothing is ever late here."""

    def run(self) -> None:
        while self._ready:
            callback, arguments = self._ready.popleft()
            callback(*arguments)


class Transport:
    def __init__(self, loop: Loop, protocol: asyncio.Protocol) -> None:
        self.sent = bytearray()
        self.eof = False
        self.closed = False
        self._loop = loop
        self._protocol = protocol

    def write(self, data: bytes | memoryview) -> None:
        assert not self.eof, "written behind the end"
        if not self.closed:
            self.sent += data

    def write_eof(self) -> None:
        self.eof = True

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._loop.call_soon(self._protocol.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str) -> object:
        return ("127.0.0.1", 1) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0


class Pool(EnginePool):
    """Connects at once."""

    plane: Wireless

    def send(self, exchange: Exchange, fresh: bool = False) -> EngineConnection:
        while self._idle and not fresh:
            connection, _ = self._idle.popitem()
            if connection.alive:
                connection.send(exchange)
                return connection
        connection = EngineConnection(self, self.plane.loop, exchange)
        transport = Transport(self.plane.wireless, connection)
        self.plane.engines.append((connection, transport))
        connection.connection_made(transport)  # type: ignore[arg-type]
        return connection


class Wireless(DataPlane):
    """A data plane with one engine address, whose engine says nothing by itself."""

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(self, Timeouts(), limits or Limits(), PlaneStats())
        self.wireless = Loop()
        self.loop = self.wireless  # type: ignore[assignment]
        self._sweeper = Sweeper(self.loop, 1.0)
        self.ids = RequestIds("")
        self.inbounds: list[Inbound] = []
        self.tickets: list[Ticket] = []
        self.engines: list[tuple[EngineConnection, Transport]] = []
        self._one_pool = Pool(Endpoint("e", 1), self.loop, self.timeouts, self.limits, self.stats, self._sweeper)
        self._one_pool.plane = self

    def dispatch(self, inbound: Inbound) -> Answer | Leg:
        self.inbounds.append(inbound)
        self.tickets.append(Ticket(Endpoint("e", 1), watch=False))
        return self.tickets[-1]

    def retry(self, inbound: Inbound, failed: Leg, outcome: Outcome) -> Answer | Leg:
        return Answer(502, b"{}")

    def go_on(self, inbound: Inbound, failed: Leg, outcome: Outcome) -> Answer | Leg:
        raise AssertionError("no stream is followed here")

    def elsewhere(self, inbound: Inbound, leg: Leg) -> Leg | None:
        return None

    def pool(self, endpoint: Endpoint) -> EnginePool:
        return self._one_pool

    def client(self) -> tuple[ClientConnection, Transport]:
        client = ClientConnection(self)
        transport = Transport(self.wireless, client)
        client.connection_made(transport)  # type: ignore[arg-type]
        return client, transport


@dataclass
class Understood:
    """What became of a client's bytes. `sent`: what the engine got of each request; `back`: what the client got, less
    interim answers; `ended`: the router closed, or has said its last word."""

    inbounds: list[Inbound] = field(default_factory=list)
    sent: list[bytes] = field(default_factory=list)
    back: bytes = b""
    ended: bool = False
    refused: bool = False
    faults: int = 0

    @property
    def facts(self) -> tuple[object, ...]:
        """What must not depend on how the bytes were split. The words of a refusal may: one mistake is seen sooner in
        one split, another in another."""
        read = [(i.method, i.target, i.path, i.headers, i.body, i.http11) for i in self.inbounds]
        return read, self.sent, self.back.count(b" 200 OK"), self.refused, self.ended


def requests(pieces: list[bytes], limits: Limits | None = None, *, at_once: bool = True) -> Understood:
    """Send a client's bytes to the router, before an engine that answers every request with `OK`: as soon as it has
    come, or (not `at_once`) when all pieces have."""
    plane = Wireless(limits)
    client, transport = plane.client()
    found = Understood(plane.inbounds)
    answered = 0

    def answer() -> None:
        nonlocal answered
        plane.wireless.run()
        while answered < len(plane.tickets):
            answered += 1
            connection, engine = plane.engines[-1]
            found.sent.append(bytes(engine.sent))
            engine.sent.clear()
            head_only = plane.inbounds[-1].method == "HEAD"
            connection.data_received(OK[:-2] if head_only else OK)
            plane.wireless.run()

    for piece in pieces:
        if not piece:
            continue
        if transport.closed:
            break
        client.data_received(piece)
        if at_once:
            answer()
    answer()
    found.back = bytes(transport.sent).replace(CONTINUE, b"")
    found.ended = transport.closed or transport.eof
    found.refused = plane.stats.bad_requests > 0
    found.faults = plane.stats.faults
    return found


@dataclass
class Relayed:
    """What became of an engine's bytes. `back`: what the client got; `closed`: its connection ended; `kept`: the
    engine's connection went back to the pool."""

    back: bytes
    closed: bool
    kept: bool
    outcomes: list[Outcome]
    faults: int

    @property
    def facts(self) -> tuple[object, ...]:
        return self.back, self.closed, self.kept, self.outcomes


def response(pieces: list[bytes], request: bytes, *, eof: bool) -> Relayed:
    """Let an engine answer one request with these bytes, then close (`eof`) or stay."""
    plane = Wireless()
    client, transport = plane.client()
    client.data_received(request)
    plane.wireless.run()
    connection, engine = plane.engines[0]
    for piece in pieces:
        if engine.closed or plane.tickets[0].ends:
            break
        if piece:
            connection.data_received(piece)
    if eof:
        engine.close()
    plane.wireless.run()
    kept = plane.pool(Endpoint("e", 1)).idle > 0
    ends = [outcome for ticket in plane.tickets for outcome, _ in ticket.ends]
    return Relayed(bytes(transport.sent), transport.closed or transport.eof, kept, ends, plane.stats.faults)
