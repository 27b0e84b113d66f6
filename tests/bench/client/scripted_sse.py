"""An HTTP server that plays a script, and the clock that goes with it.

The clock stands still but for what the script says: each step sets it, writes, and waits until the client has read
(the client reads the clock once for each arrival). Times in a test are therefore exact, on any machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from bench.client.connection import Pool, Target
from bench.client.timing import Timing
from tests.bench.fakes import chunk, read_request, serving

SENT = 1.25
"""The clock when the request is sent; its schedule says 1.0."""
HEADERS = 1.5
PATIENCE = 10.0


class Framing(Enum):
    """How the length of the body is told."""

    CHUNKED = b"transfer-encoding: chunked\r\n"
    LENGTH = b"content-length: %d\r\n"
    CLOSE = b"connection: close\r\n"


class HandClock:
    """Tells the time it was set to, and counts how often it was asked."""

    def __init__(self) -> None:
        self.now = SENT
        self.asked = 0

    def __call__(self) -> float:
        self.asked += 1
        return self.now

    async def was_asked(self, before: int) -> None:
        """Waits until somebody asked after the count was `before`."""
        async with asyncio.timeout(PATIENCE):
            while self.asked == before:  # noqa: ASYNC110
                await asyncio.sleep(0)


@dataclass
class Script:
    """Reads of the body as (time, bytes), how they are framed, and whether the body is cut before its end.

    `status` and `headers` are of the response; `end` is the time at which the end of the body is told.
    """

    reads: Sequence[tuple[float, bytes]]
    framing: Framing = Framing.CHUNKED
    cut: bool = False
    end: float | None = None
    status: int = 200
    headers: bytes = b"content-type: text/event-stream\r\n"
    bodies: list[bytes] = field(default_factory=list)


class ScriptedServer:
    """Answers each request with the script."""

    def __init__(self, script: Script, clock: HandClock) -> None:
        self.script = script
        self.clock = clock

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = self.script
        script.bodies.append((await read_request(reader))[2])
        length = sum(len(data) for _, data in script.reads)
        framing = script.framing.value
        if script.framing is Framing.LENGTH:
            framing %= length + (7 if script.cut else 0)
        await self._write(writer, HEADERS, b"HTTP/1.1 %d X\r\n%b%b\r\n" % (script.status, script.headers, framing))
        for moment, data in script.reads:
            await self._write(writer, moment, chunk(data) if script.framing is Framing.CHUNKED else data)
        end = script.end if script.end is not None else self.clock.now
        if script.framing is Framing.CHUNKED and not script.cut:
            await self._write(writer, end, b"0\r\n\r\n")
        self.clock.now = end

    async def _write(self, writer: asyncio.StreamWriter, moment: float, data: bytes) -> None:
        self.clock.now = moment
        before = self.clock.asked
        writer.write(data)
        await writer.drain()
        await self.clock.was_asked(before)


@contextlib.asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[tuple[str, HandClock]]:
    """The server of a script; yields its URL and its clock."""
    clock = HandClock()
    async with serving(ScriptedServer(script, clock)) as url:
        yield url, clock


async def play(script: Script, **how: object) -> Timing:
    """One request, scheduled for 1.0 and sent at SENT, answered by the script. `how`: fields of its Timing."""
    async with scripted(script) as (url, clock):
        pool, target = Pool(clock), Target.parse(url)
        done: asyncio.Future[Timing] = asyncio.get_running_loop().create_future()
        body = b'{"stream":true}'
        timing = Timing(1.0, **how)  # type: ignore[arg-type]
        pool.send(target, timing, target.head("/v1/x", len(body), "r1") + body, done.set_result)
        try:
            return await asyncio.wait_for(done, PATIENCE)
        finally:
            pool.close()


def event(data: object) -> bytes:
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def text(content: str, finish: str | None = None, **more: object) -> bytes:
    """A chunk of completions."""
    return event({"choices": [{"index": 0, "text": content, "finish_reason": finish}], **more})


def delta(finish: str | None = None, **fields: object) -> bytes:
    """A chunk of chat."""
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]})


def usage(prompt: int, completion: int, cached: int | None = None) -> bytes:
    details = {"prompt_tokens_details": {"cached_tokens": cached}} if cached is not None else {}
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion, **details}})


FINISH = text("", "length")
DONE = event(b"[DONE]")
