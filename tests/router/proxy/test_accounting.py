"""Whatever happens, in whatever mixture: every leg ends exactly once, and nothing stays open."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from router.proxy.downstream import ClientConnection
from router.proxy.interface import Answer, Inbound, Leg, Limits, PlaneStats
from router.proxy.plane import DataPlane
from router.proxy.request_ids import RequestIds
from tests.router.proxy.scripted import (
    OK,
    PATIENT,
    Placing,
    Wire,
    chunks,
    engine_script,
    free_endpoint,
    get,
    post,
    stage,
    until,
)

ENGINE = {
    "answers": OK,
    "streams": b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    + chunks(b"data: {}\n\n"),
    "fails": b"HTTP/1.1 500 x\r\ncontent-length: 0\r\n\r\n",
    "cuts head": b"HTTP/1.1 2",
    "cuts body": b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf",
    "cuts chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nhalf",
    "babbles": b"SSH-2.0\r\n",
    "talks on": OK + OK,
    "says nothing": b"",
}
AFTERWARDS = ("keeps", "closes", "resets", "hangs")
CLIENT = ("reads", "closes", "resets")

_ENGINE = st.tuples(st.sampled_from(sorted(ENGINE)), st.sampled_from(AFTERWARDS))
_CLIENT = st.tuples(st.sampled_from(CLIENT), st.booleans())


async def behave(wire: Wire, what: str, afterwards: str) -> None:
    await wire.message()
    await wire.send(ENGINE[what])
    if afterwards == "resets":
        wire.reset()
    elif afterwards == "hangs":
        await wire.gone()


async def call(scene: object, how: str, waits: bool) -> None:
    wire = await scene.client()  # type: ignore[attr-defined]
    await wire.send(post())
    if waits:
        await asyncio.sleep(0.002)
    if how == "reads":
        try:
            await wire.message()
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            return
    elif how == "resets":
        wire.reset()
    wire.close()


async def mixture(behaviours: list[tuple[str, str]], clients: list[tuple[str, bool]]) -> None:
    turn = 0

    async def script(wire: Wire) -> None:
        nonlocal turn
        while True:
            what, afterwards = behaviours[turn % len(behaviours)]
            turn += 1
            await behave(wire, what, afterwards)
            if afterwards != "keeps":
                return

    timeouts = replace(PATIENT, first_byte=0.03, idle=0.03)
    engine = engine_script(script)
    async with stage(engine, free_endpoint(), engine, timeouts=timeouts) as scene:

        async def later(inbound: Inbound) -> Leg:
            await asyncio.sleep(0.001)
            return scene.placing.ticket(scene.placing.endpoints[0])

        def choose(inbound: Inbound) -> object:
            number = len(scene.placing.inbounds)
            return later(inbound) if number % 3 == 0 else scene.placing.ticket(scene.placing.endpoints[number % 3 - 1])

        scene.placing.choose = choose  # type: ignore[assignment]
        await asyncio.gather(*(call(scene, how, waits) for how, waits in clients))
        await until(lambda: not (scene.stats.open_requests or scene.stats.connections))
        for ticket in scene.placing.tickets:
            await ticket.ended.wait()
        assert [len(ticket.ends) for ticket in scene.placing.tickets] == [1] * len(scene.placing.tickets)
        assert sum(scene.stats.outcomes.values()) == len(scene.placing.tickets)
        assert all(ticket.tokens <= 1 and len(ticket.used) <= 1 for ticket in scene.placing.tickets)
        assert scene.stats.faults == 0


@settings(max_examples=25, deadline=None)
@given(st.lists(_ENGINE, min_size=1, max_size=6), st.lists(_CLIENT, min_size=1, max_size=8))
def test_every_leg_ends_exactly_once_in_any_mix_of_failures(
    behaviours: list[tuple[str, str]], clients: list[tuple[str, bool]]
) -> None:
    asyncio.run(asyncio.wait_for(mixture(behaviours, clients), 30))


# Requests at any split, with the protocol driven directly so that the splits are exactly those.


class Pipe(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.closed = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


_BODIES = st.binary(max_size=30)
_REQUEST = st.one_of(
    _BODIES.map(lambda body: post(body, b"X-A: b")),
    st.sampled_from([get(b"/a"), get(b"/b?c", b"Accept: */*"), get(b"http://h/x"), b"\r\n" + get(b"/c")]),
    st.lists(st.binary(min_size=1, max_size=9), max_size=4).map(
        lambda parts: b"POST /t HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks(*parts)
    ),
)
_BAD = st.sampled_from([b"", b"bad\r\n\r\n", b"GET / HTTP/1.1\nHost: a\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"])


async def understood(pieces: list[bytes]) -> tuple[list[tuple[object, ...]], bytes, bool]:
    """What the dispatcher saw, what was written, and whether the connection was ended."""
    placing = Placing()
    placing.choose = lambda inbound: Answer(200, inbound.body)
    plane = DataPlane(placing, PATIENT, Limits(), PlaneStats())
    plane.ids = RequestIds("same")
    await plane.start("127.0.0.1", 0)
    pipe = Pipe()
    client = ClientConnection(plane)
    client.connection_made(pipe)
    for piece in pieces:
        client.data_received(piece)
        for _ in range(3):
            await asyncio.sleep(0)
    seen = [(i.method, i.target, i.path, i.headers, i.body, i.http11) for i in placing.inbounds]
    client.connection_lost(None)
    await plane.stop(0)
    return seen, pipe.written, pipe.closed


@settings(max_examples=60, deadline=None)
@given(st.lists(_REQUEST, max_size=4), _BAD, st.lists(st.integers(0, 10_000), max_size=15))
def test_requests_are_understood_the_same_at_any_split(requests: list[bytes], bad: bytes, cuts: list[int]) -> None:
    stream = b"".join(requests) + bad
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    pieces = [stream[start:stop] for start, stop in pairwise(places)]

    async def both() -> None:
        whole = await understood([stream] if stream else [])
        assert len(whole[0]) == len(requests)
        assert await understood(pieces) == whole
        assert await understood([stream[at : at + 1] for at in range(len(stream))]) == whole

    asyncio.run(both())
