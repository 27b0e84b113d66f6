"""The client: sends a load for a while and counts what comes back. Reads no more of an answer than where it ends.

A process of its own, pinned by whoever starts it: one job a line in, one result a line out (`Job`, `Result`), so that
the interpreter starts once. Cost: about 6 us a request and 2 us a streamed item, which it reports as its own CPU time:
where that is near the time measured, the client was the limit and not the router.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import msgspec
import uvloop

from bench.proxy.processes import cpu_seconds, memory_bytes
from bench.proxy.prompts import Load, Template, templates

if TYPE_CHECKING:
    from collections.abc import Callable

_OPENING = 200
_FIRST_ANSWER = 30.0
_MOST_MISSED = 0.02


class Job(msgspec.Struct):
    """`kind`: closed (each connection asks again as soon as it is answered), paced (`rate` requests a second) or
    streams (as many open streams). `pids`: processes whose CPU time counts as the router's. Seconds."""

    kind: str
    load: Load
    targets: list[tuple[str, int]]
    seconds: float
    connections: int = 32
    warm: float = 0.5
    rate: float = 0.0
    pids: list[int] = msgspec.field(default_factory=list)


class Result(msgspec.Struct):
    """`done`: answers, or items of streams. Times in seconds; `client_cpu` and `router_cpu` in the same window."""

    done: int
    seconds: float
    failed: int
    p50: float = 0.0
    p99: float = 0.0
    client_cpu: float = 0.0
    router_cpu: float = 0.0
    memory: int = 0
    error: str = ""


class LoadError(Exception):
    """The router did not do its work; the message is its answer."""


@dataclass(slots=True)
class _Counts:
    done: int = 0
    failed: int = 0
    missed: int = 0
    said: str = ""
    times: list[float] = field(default_factory=list)


class Client(asyncio.Protocol):
    """One connection. `free` is told when an answer is whole."""

    __slots__ = ("_buffer", "_left", "_sent", "_streaming", "_transport", "closed", "counts", "free", "started")

    def __init__(self, counts: _Counts, free: Callable[[Client], None], streaming: bool) -> None:
        self.counts = counts
        self.free = free
        self.closed = False
        self.started = False
        self._streaming = streaming
        self._buffer = b""
        self._left = 0
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed:
            self.closed = True
            self.counts.failed += 1
            self.counts.said = self.counts.said or f"the connection was closed ({exc})"

    def send(self, request: bytes) -> None:
        self._sent = time.perf_counter()
        self._transport.write(request)

    def close(self) -> None:
        self.closed = True
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._streaming:
            self._stream(data)
        elif self._left > 0:
            self._left -= len(data)
            if self._left <= 0:
                self._whole()
        elif self._left < 0:
            self._buffer = self._buffer[-4:] + data
            if self._buffer.endswith(b"0\r\n\r\n"):
                self._whole()
        else:
            self._head(self._buffer + data if self._buffer else data)

    def _stream(self, data: bytes) -> None:
        if not self.started:
            if not data.startswith(b"HTTP/1.1 200"):
                self._refused(data)
                return
            self.started = True
        self.counts.done += data.count(b"data:")

    def _head(self, data: bytes) -> None:
        end = data.find(b"\r\n\r\n") + 4
        if end < 4:
            self._buffer = data
            return
        if not data.startswith(b"HTTP/1.1 200"):
            self._refused(data)
            return
        place = data.find(b"ontent-", 0, end)
        while place >= 0 and data[place : place + 14].lower() != b"ontent-length:":
            place = data.find(b"ontent-", place + 1, end)
        if place < 0:
            self._left = -1
            self._buffer = data[end - 4 :]
            if data.endswith(b"\r\n0\r\n\r\n"):
                self._whole()
            return
        self._left = int(data[place + 14 : data.index(b"\r", place)]) - (len(data) - end)
        if self._left <= 0:
            self._whole()

    def _whole(self) -> None:
        self._left, self._buffer = 0, b""
        self.counts.times.append(time.perf_counter() - self._sent)
        self.counts.done += 1
        self.free(self)

    def _refused(self, data: bytes) -> None:
        self.counts.failed += 1
        head, _, body = data.decode("latin-1").partition("\r\n\r\n")
        status = head.partition("\r\n")[0]
        self.counts.said = self.counts.said or " ".join(f"{status}: {body[:200]}".split())
        self.close()


class _Requests:
    """The load's requests, one after the other; their numbers never come again in the life of this process."""

    def __init__(self, load: Load) -> None:
        self._templates: list[Template] = templates(load)
        self._next = 0

    def next(self) -> bytes:
        self._next += 1
        return self._templates[self._next % len(self._templates)].request(self._next)


class Runner:
    """Runs jobs. Keeps the requests of each load, so that no number is used twice."""

    def __init__(self) -> None:
        self._requests: dict[Load, _Requests] = {}

    async def run(self, job: Job) -> Result:
        """Raises LoadError: the router did not answer as it should."""
        if job.load not in self._requests:
            self._requests[job.load] = _Requests(job.load)
        requests = self._requests[job.load]
        counts = _Counts()
        if job.kind == "closed":
            return await self._closed(job, requests, counts)
        if job.kind == "paced":
            return await self._paced(job, requests, counts)
        if job.kind == "streams":
            return await self._streams(job, requests, counts)
        raise LoadError(f"no such kind of job: {job.kind}")

    async def _closed(self, job: Job, requests: _Requests, counts: _Counts) -> Result:
        stopping = False

        def again(client: Client) -> None:
            if not stopping:
                client.send(requests.next())

        clients = await _connect(job, counts, again, streaming=False)
        try:
            for client in clients:
                client.send(requests.next())
            await asyncio.sleep(job.warm)
            result = await _window(job, counts)
            stopping = True
        finally:
            for client in clients:
                client.close()
        return result

    async def _paced(self, job: Job, requests: _Requests, counts: _Counts) -> Result:
        idle: deque[Client] = deque()
        clients = await _connect(job, counts, idle.append, streaming=False)
        idle.extend(clients)
        sender = asyncio.get_running_loop().create_task(_send_paced(job, requests, counts, idle))
        try:
            await asyncio.sleep(job.warm)
            return await _window(job, counts)
        finally:
            sender.cancel()
            for client in clients:
                client.close()

    async def _streams(self, job: Job, requests: _Requests, counts: _Counts) -> Result:
        clients: list[Client] = []
        try:
            while len(clients) < job.connections:
                more = min(_OPENING, job.connections - len(clients))
                opened = await _connect(job, counts, lambda _client: None, streaming=True, count=more)
                clients += opened
                for client in opened:
                    client.send(requests.next())
                await _all_started(opened, counts)
            await asyncio.sleep(job.warm)
            return await _window(job, counts)
        finally:
            for client in clients:
                client.close()


async def _connect(
    job: Job, counts: _Counts, free: Callable[[Client], None], *, streaming: bool, count: int | None = None
) -> list[Client]:
    loop = asyncio.get_running_loop()
    clients = []
    for number in range(job.connections if count is None else count):
        host, port = job.targets[number % len(job.targets)]
        try:
            _transport, client = await loop.create_connection(lambda: Client(counts, free, streaming), host, port)
        except OSError as error:
            raise LoadError(f"cannot connect to {host}:{port}: {error.strerror or error}") from None
        clients.append(client)
    return clients


async def _all_started(clients: list[Client], counts: _Counts) -> None:
    until = time.monotonic() + _FIRST_ANSWER
    while not all(client.started for client in clients):
        if counts.failed or time.monotonic() > until:
            begun = sum(client.started for client in clients)
            raise LoadError(f"{begun} of {len(clients)} streams began: {counts.said or 'no answer'}")
        await asyncio.sleep(0.01)


async def _send_paced(job: Job, requests: _Requests, counts: _Counts, idle: deque[Client]) -> None:
    """One request each 1/rate seconds; one for which no connection is free is left out, and counted as missed."""
    start, number = time.perf_counter(), 0
    while True:
        number += 1
        if idle:
            idle.popleft().send(requests.next())
        else:
            counts.missed += 1
        await asyncio.sleep(max(start + number / job.rate - time.perf_counter(), 0))


async def _window(job: Job, counts: _Counts) -> Result:
    """What is counted in the next `seconds`."""
    counts.times.clear()
    failed, missed = counts.failed, counts.missed
    done, began = counts.done, time.perf_counter()
    router, client = cpu_seconds(job.pids), time.process_time()
    await asyncio.sleep(job.seconds)
    seconds, done = time.perf_counter() - began, counts.done - done
    router, client = cpu_seconds(job.pids) - router, time.process_time() - client
    if not done and job.load is not Load.HOLD:
        raise LoadError(counts.said or "no answer came")
    missed = counts.missed - missed
    if missed > _MOST_MISSED * job.rate * seconds:
        raise LoadError(f"{done / seconds:.0f} requests/s were answered where {job.rate:g} were to be sent")
    times = sorted(counts.times)
    return Result(
        done=done,
        seconds=seconds,
        failed=counts.failed - failed,
        p50=_percentile(times, 0.5),
        p99=_percentile(times, 0.99),
        client_cpu=client,
        router_cpu=router,
        memory=memory_bytes(job.pids),
        error=counts.said,
    )


def _percentile(ordered: list[float], share: float) -> float:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0


async def _serve() -> None:
    runner = Runner()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
        try:
            result = await runner.run(msgspec.json.decode(line, type=Job))
        except LoadError as error:
            result = Result(0, 0.0, 0, error=str(error))
        sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
        sys.stdout.buffer.flush()


def main() -> None:
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(_serve())


if __name__ == "__main__":
    main()
