"""The cast of the data plane's tests: an engine and a client that do what they are told at byte level, a dispatcher
of a few lines, and a stage on which they meet over loopback sockets.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from router.proxy.errors import gateway_answer
from router.proxy.forwarded import Forwarding
from router.proxy.interface import (
    Answer,
    Endpoint,
    Inbound,
    Journal,
    Leg,
    Limits,
    Outcome,
    PlaneStats,
    Timeouts,
    Usage,
)
from router.proxy.plane import DataPlane

PATIENT = Timeouts(connect=90, first_byte=90, idle=90, request=90, keepalive=90, pool_idle=90)
LONGEST_SCENE = 30
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def post(body: bytes = b"{}", *lines: bytes, target: bytes = b"/v1/completions") -> bytes:
    """A usual request."""
    head = b"POST " + target + b" HTTP/1.1\r\nHost: router\r\n"
    for line in lines:
        head += line + b"\r\n"
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def get(target: bytes = b"/v1/models", *lines: bytes, method: bytes = b"GET", version: bytes = b"1.1") -> bytes:
    head = method + b" " + target + b" HTTP/" + version + b"\r\nHost: router\r\n"
    return head + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def chunks(*pieces: bytes) -> bytes:
    """Pieces in chunked coding, with the end."""
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


async def until(condition: Callable[[], object]) -> None:
    """Look until it is so. For facts that nothing announces."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@dataclass
class Message:
    """A message as read from a socket: the first line, the headers (names lower-cased), the body as it came."""

    first: bytes
    headers: list[tuple[bytes, bytes]]
    raw: bytes
    body: bytes = b""

    @property
    def status(self) -> int:
        return int(self.first.split(b" ")[1])

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key == name]

    def one(self, name: bytes) -> bytes:
        (value,) = self.all(name)
        return value


@dataclass
class Wire:
    """One end of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def trickle(self, data: bytes) -> None:
        """Send every byte by itself."""
        for index in range(len(data)):
            self.writer.write(data[index : index + 1])
            await asyncio.sleep(0)

    async def head(self) -> Message:
        raw = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = raw[:-4].split(b"\r\n")
        pairs = [line.split(b":", 1) for line in lines]
        return Message(first, [(name.lower(), value.strip()) for name, value in pairs], raw)

    async def message(self, bodiless: bool = False) -> Message:
        """A whole message, its body without chunked coding, or up to EOF where nothing says its length."""
        message = await self.head()
        if bodiless:
            return message
        if message.all(b"transfer-encoding"):
            while size := int(await self.reader.readline(), 16):
                message.body += (await self.reader.readexactly(size + 2))[:-2]
            assert await self.reader.readline() == b"\r\n"
        elif length := message.all(b"content-length"):
            message.body = await self.reader.readexactly(int(length[0]))
        elif message.first.startswith(b"HTTP/"):
            message.body = await self.reader.read()
        return message

    async def ask(self, request: bytes, bodiless: bool = False) -> Message:
        await self.send(request)
        return await self.message(bodiless)

    async def rest(self) -> bytes:
        """Everything up to EOF. Raises ConnectionResetError on RST."""
        return await self.reader.read()

    async def gone(self) -> bool:
        """Wait until the other side has closed, either way."""
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        reset(self.writer)


Script = Callable[[Wire], Awaitable[None]]


class Engine:
    """A listening engine: `script` runs for each connection, `wires` are those it had."""

    def __init__(self, script: Script, tls: ssl.SSLContext | None = None) -> None:
        self.script = script
        self._tls = tls
        self.wires: list[Wire] = []
        self.requests: list[Message] = []
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.endpoint = Endpoint("", 0)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._tls)
        port = self._server.sockets[0].getsockname()[1]
        self.endpoint = Endpoint("127.0.0.1", port, tls=self._tls is not None)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        wire = Wire(reader, writer)
        self.wires.append(wire)
        try:
            await self.script(wire)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            writer.close()
            self._tasks.discard(task)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.sleep(0)


Bind = Callable[[Engine], Script]


def serving(engine_answer: bytes | Callable[[Message], bytes]) -> Bind:
    """A script that answers every request of a keep-alive connection, and keeps what it was asked."""

    def bind(engine: Engine) -> Script:
        async def script(wire: Wire) -> None:
            while True:
                request = await wire.message()
                engine.requests.append(request)
                await wire.send(engine_answer if isinstance(engine_answer, bytes) else engine_answer(request))

        return script

    return bind


@dataclass
class Ticket:
    """A leg that keeps what it is told."""

    endpoint: Endpoint
    head_lines: bytes = b"x-kvctl-worker: w1\r\n"
    upstream_lines: bytes = b""
    without: tuple[bytes, ...] = ()
    watch: bool = True
    repeatable: bool = True
    counts: bool = False
    items: int = 0
    tokens: int = 0
    used: list[Usage] = field(default_factory=list)
    ends: list[tuple[Outcome, int]] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def first_token(self) -> None:
        self.tokens += 1

    def generated(self, items: int) -> None:
        self.items += items

    def usage(self, usage: Usage) -> None:
        self.used.append(usage)

    def end(self, outcome: Outcome, status: int) -> None:
        self.ends.append((outcome, status))
        self.ended.set()


Choice = Callable[[Inbound], "Answer | Leg | Awaitable[Answer | Leg]"]


class Placing:
    """A dispatcher that goes through its endpoints one leg after the other, unless `choose` says otherwise."""

    def __init__(self) -> None:
        self.endpoints: list[Endpoint] = []
        self.inbounds: list[Inbound] = []
        self.tickets: list[Ticket] = []
        self.choose: Choice | None = None
        self.choose_again: Choice | None = None
        self.retries: list[Outcome] = []
        self.moves = False
        """Whether `elsewhere` finds somebody."""

    def ticket(self, endpoint: Endpoint, **fields: object) -> Ticket:
        ticket = Ticket(endpoint, **fields)  # type: ignore[arg-type]
        self.tickets.append(ticket)
        return ticket

    def dispatch(self, inbound: Inbound) -> Answer | Leg | Awaitable[Answer | Leg]:
        self.inbounds.append(inbound)
        if self.choose is not None:
            return self.choose(inbound)
        return self.ticket(self.endpoints[0])

    def retry(self, inbound: Inbound, failed: Leg, outcome: Outcome) -> Answer | Leg:
        self.retries.append(outcome)
        index = len(self.retries)
        if index < len(self.endpoints):
            return self.ticket(self.endpoints[index])
        return gateway_answer(outcome)

    def go_on(self, inbound: Inbound, failed: Leg, outcome: Outcome) -> Answer | Leg | Awaitable[Answer | Leg]:
        self.retries.append(outcome)
        assert inbound.carry is not None
        inbound.carry.move()
        if self.choose_again is not None:
            return self.choose_again(inbound)
        index = len(self.tickets)
        return self.ticket(self.endpoints[index]) if index < len(self.endpoints) else Answer(502, b"for nobody")

    def elsewhere(self, inbound: Inbound, leg: Leg) -> Leg | None:
        index = len(self.tickets)
        return self.ticket(self.endpoints[index]) if self.moves and index < len(self.endpoints) else None


class Stage:
    """A running data plane and the means to talk to it."""

    def __init__(
        self,
        plane: DataPlane,
        placing: Placing,
        stats: PlaneStats,
        port: int,
        engines: list[Engine],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.engines = engines
        self.tls = tls
        self.plane = plane
        self.placing = placing
        self.stats = stats
        self.port = port
        self.wires: list[Wire] = []

    async def client(self) -> Wire:
        wire = Wire(*await asyncio.open_connection("127.0.0.1", self.port, ssl=self.tls))
        self.wires.append(wire)
        return wire

    async def ask(self, request: bytes, bodiless: bool = False) -> Message:
        """One request on a connection of its own."""
        wire = await self.client()
        return await wire.ask(request, bodiless)

    @property
    def ticket(self) -> Ticket:
        """The only leg there was."""
        (ticket,) = self.placing.tickets
        return ticket

    async def ends(self) -> list[tuple[Outcome, int]]:
        """How the legs ended, once there are some and all have."""
        await until(lambda: self.placing.tickets)
        for ticket in self.placing.tickets:
            await ticket.ended.wait()
        return [end for ticket in self.placing.tickets for end in ticket.ends]


@asynccontextmanager
async def stage(
    *engines: Bind | Endpoint,
    timeouts: Timeouts = PATIENT,
    limits: Limits | None = None,
    journal: Journal | None = None,
    tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
    engines_tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
    forwarding: Forwarding | None = None,
) -> AsyncIterator[Stage]:
    """A data plane before some engines, which are tried in order. The contexts of TLS: the listener's, and that of
    who connects to it.

    A scene that hangs fails after `LONGEST_SCENE` seconds, before a patient timeout could end it in another way.
    """
    placing, stats = Placing(), PlaneStats()
    running: list[Engine] = []
    for bind in engines:
        if isinstance(bind, Endpoint):
            placing.endpoints.append(bind)
            continue
        engine = Engine(lambda wire: asyncio.sleep(0), engines_tls[0] if engines_tls else None)
        engine.script = bind(engine)
        await engine.start()
        running.append(engine)
        placing.endpoints.append(engine.endpoint)
    plane = DataPlane(
        placing,
        timeouts,
        limits or Limits(),
        stats,
        journal,
        tls=tls[0] if tls else None,
        engine_tls=engines_tls[1] if engines_tls else None,
        forwarding=forwarding,
    )
    _, port = await plane.start("127.0.0.1", 0)
    scene = Stage(plane, placing, stats, port, running, tls[1] if tls else None)
    try:
        async with asyncio.timeout(LONGEST_SCENE):
            yield scene
    finally:
        for wire in scene.wires:
            wire.writer.transport.abort()
        await plane.stop(0)
        for engine in running:
            await engine.stop()


def engine_script(script: Script) -> Bind:
    """An engine that runs `script` for each connection."""
    return lambda engine: script


def free_endpoint() -> Endpoint:
    """An address nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return Endpoint("127.0.0.1", sock.getsockname()[1])


@contextmanager
def deaf_endpoint() -> Iterator[Endpoint]:
    """An address whose packets vanish: a listener whose queue is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        fill = [socket.socket() for _ in range(3)]
        for sock in fill:
            sock.setblocking(False)
            sock.connect_ex(address)
        yield Endpoint(*address)
        for sock in fill:
            sock.close()


def code(answer: Message) -> str:
    """The code of an error in the shape OpenAI clients know."""
    error = json.loads(answer.body)["error"]
    assert set(error) >= {"message", "type", "code", "param"}
    return str(error["code"])
