"""The open loop: sends each request at its scheduled time, never waiting for an answer, and watches itself.

What it measures of itself (sending lag, the event loop's lag, its share of a core) decides whether a run counts: see
`guards.py`. Touches sockets through `connection.Pool`. Cost: about 20 us a request and 10 us a chunk.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bench.client.connection import Pool, Target, clock
from bench.client.timing import Timing
from bench.workload.model import Request
from bench.workload.tokens import Piece, PieceText

LAG_PERIOD = 0.01
SWEEP_PERIOD = 0.1
PREPARE_LIMIT = 96 * 1024 * 1024
"""Bytes of bodies built before the block starts; the rest is built as it is sent."""


@dataclass(frozen=True, slots=True)
class BodyStyle:
    """What every body has in common. `extra` is merged in; `lead` are pieces put before every prompt (the nonce)."""

    model: str
    extra: dict[str, object] = field(default_factory=dict)
    lead: tuple[Piece, ...] = ()


def body(prompt_json: bytes, output_len: int, style: BodyStyle) -> bytes:
    """A streaming completion of token ids, of exactly `output_len` tokens."""
    fields: dict[str, object] = {
        "model": style.model,
        "max_tokens": output_len,
        "min_tokens": output_len,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    } | style.extra
    return msgspec.json.encode(fields)[:-1] + b',"prompt":' + prompt_json + b"}"


@dataclass(slots=True)
class SelfWatch:
    """What the client did to the measurement. Lags are seconds; `cpu` is a share of one core, `machine` the share of
    all cores that anybody used (None: the system does not say).
    """

    cpu: float = 0.0
    machine: float | None = None
    loop_lag: list[float] = field(default_factory=list)
    wall: float = 0.0
    connections: int = 0
    retried: int = 0


@dataclass(slots=True)
class BlockRun:
    """One block as it went. `timings[i]` belongs to `requests[i]`; `start` is the clock at offset 0."""

    requests: list[Request]
    timings: list[Timing]
    start: float
    watch: SelfWatch
    interrupted: bool = False


class LoadGenerator:
    """Sends blocks to targets over one pool of connections."""

    def __init__(self, text: PieceText, *, timeout: float) -> None:
        self.pool = Pool()
        self._text = text
        self._timeout = timeout

    async def run(
        self,
        requests: Sequence[Request],
        target: Target,
        style: BodyStyle,
        *,
        label: str,
        on_done: Callable[[Timing], None] | None = None,
    ) -> BlockRun:
        """Runs a block until every request has ended, or `timeout` seconds after it should have been sent.

        Cancelling the task ends the block at once: what was measured is returned with `interrupted` set.
        """
        return await _Block(self, list(requests), target, style, label, on_done).run()

    def wire(self, request: Request, target: Target, style: BodyStyle, label: str) -> bytes:
        """Head and body of a request, ready to write."""
        content = body(self._text.json(style.lead + request.pieces), request.output_len, style)
        return target.head("/v1/completions", len(content), f"{label}-{request.id}") + content

    @property
    def timeout(self) -> float:
        return self._timeout


def cpu_ticks(path: Path = Path("/proc/stat")) -> tuple[int, int] | None:
    """(busy, all) ticks of all cores since the machine started; None where there is no such file."""
    try:
        fields = [int(field) for field in path.read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    return sum(fields) - fields[3] - fields[4], sum(fields)


def busy_share(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    """The share of all cores that was used between two readings."""
    if before is None or after is None or after[1] <= before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1])


class _Block:
    """The life of one block: prepared, sent, swept for timeouts, ended."""

    def __init__(
        self,
        generator: LoadGenerator,
        requests: list[Request],
        target: Target,
        style: BodyStyle,
        label: str,
        on_done: Callable[[Timing], None] | None,
    ) -> None:
        self._generator = generator
        self._requests = requests
        self._target = target
        self._style = style
        self._label = label
        self._on_done = on_done
        self._loop = asyncio.get_running_loop()
        self._finished = asyncio.Event()
        self._timings: list[Timing] = []
        self._open: set[int] = set()
        self._next = 0
        self._ended = 0
        self._watch = SelfWatch()
        self._prepared = self._prepare()

    def _prepare(self) -> list[bytes]:
        prepared: list[bytes] = []
        size = 0
        for request in self._requests:
            prepared.append(self._generator.wire(request, self._target, self._style, self._label))
            size += len(prepared[-1])
            if size > PREPARE_LIMIT:
                break
        return prepared

    async def run(self) -> BlockRun:
        pool = self._generator.pool
        opened, retried = pool.opened, pool.retried
        gc.collect()
        gc.disable()
        cpu, ticks, start = time.process_time(), cpu_ticks(), clock() + 0.02
        self._timings = [Timing(start + request.at) for request in self._requests]
        interrupted = False
        lag = self._loop.create_task(self._watch_loop())
        try:
            self._tick()
            if self._requests:
                await self._sweep()
        except asyncio.CancelledError:
            interrupted = True
            self._abandon("interrupted")
            pool.close()
        finally:
            lag.cancel()
            gc.enable()
        self._watch.wall = clock() - start
        self._watch.cpu = (time.process_time() - cpu) / max(self._watch.wall, 1e-9)
        self._watch.machine = busy_share(ticks, cpu_ticks())
        self._watch.connections = pool.opened - opened
        self._watch.retried = pool.retried - retried
        sent = self._next if interrupted else len(self._requests)
        return BlockRun(self._requests[:sent], self._timings[:sent], start, self._watch, interrupted)

    def _tick(self) -> None:
        if self._finished.is_set():
            return
        now = clock()
        while self._next < len(self._requests) and self._timings[self._next].t_sched <= now:
            self._send(self._next)
            self._next += 1
            now = clock()
        if self._next < len(self._requests):
            self._loop.call_later(max(0.0, self._timings[self._next].t_sched - now), self._tick)

    def _send(self, index: int) -> None:
        if index < len(self._prepared):
            wire = self._prepared[index]
            self._prepared[index] = b""
        else:
            wire = self._generator.wire(self._requests[index], self._target, self._style, self._label)
        self._open.add(index)

        def done(timing: Timing) -> None:
            self._end(index, timing)

        self._generator.pool.send(self._target, self._timings[index], wire, done)

    def _end(self, index: int, timing: Timing) -> None:
        if index not in self._open:
            return
        self._open.discard(index)
        self._ended += 1
        if self._on_done is not None:
            self._on_done(timing)
        if self._ended == len(self._requests):
            self._finished.set()

    async def _sweep(self) -> None:
        """Waits for the end; on the way fails what has been open for too long."""
        while not self._finished.is_set():
            try:
                await asyncio.wait_for(self._finished.wait(), SWEEP_PERIOD)
            except TimeoutError:
                now = clock()
                late = [i for i in self._open if now - self._timings[i].t_sched > self._generator.timeout]
                for index in late:
                    self._timings[index].fail(now, "timeout", f"no end after {self._generator.timeout:g} s")
                    self._generator.pool.abort(self._timings[index])
                    self._end(index, self._timings[index])

    def _abandon(self, kind: str) -> None:
        self._finished.set()
        now = clock()
        for index in self._open:
            self._timings[index].fail(now, kind, "the run was stopped")
        self._open.clear()

    async def _watch_loop(self) -> None:
        while True:
            due = clock() + LAG_PERIOD
            await asyncio.sleep(LAG_PERIOD)
            self._watch.loop_lag.append(max(0.0, clock() - due))
