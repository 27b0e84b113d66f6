"""The load generator: sends each request at its scheduled time, or a think time after the answer it waits for.

A request without `after` is sent whatever the answers do (open loop). What it measures of itself (sending lag, the
event loop's lag, its share of a core) decides whether a run counts: see `guards.py`. Touches sockets through
`connection.Pool`. Cost: about 20 us a request and 10 us a chunk; of a request that has ended a row of numbers is kept.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import time
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.client.bodies import Bodies, BodyStyle, headers
from bench.client.connection import Clock, Pool, Target, clock
from bench.client.table import Table
from bench.client.timing import Timing
from bench.client.watch import SelfWatch, busy_share, cpu_ticks, note_lag, raise_file_limit
from bench.workload.model import Request, chains
from bench.workload.tokens import PieceText

SWEEP_PERIOD = 0.1
HEAD_START = 0.02
"""Seconds between the start of a block and its offset 0."""
PREPARE_LIMIT = 32 * 1024 * 1024
"""Bytes of bodies built before the block starts; the rest is built as it is sent."""


@dataclass(slots=True)
class BlockRun:
    """One block as it went. `timings[i]` belongs to `requests[i]`; `start` is the clock at offset 0."""

    requests: Sequence[Request]
    timings: Sequence[Timing]
    start: float
    watch: SelfWatch
    interrupted: bool = False


class LoadGenerator:
    """Sends blocks to targets over one pool of connections. `timeout`: seconds after its intended send at which a
    request has failed.
    """

    def __init__(self, text: PieceText, *, timeout: float, clock: Clock = clock) -> None:
        self.pool = Pool(clock)
        self.clock = clock
        self.timeout = timeout
        self.files = raise_file_limit()
        self._bodies = Bodies(text)

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

        Raises:
            WorkloadError: a request waits for one that is not there.
        """
        return await _Block(self, requests, target, style, label, on_done).run()

    def wire(
        self, request: Request, target: Target, style: BodyStyle, label: str, answers: Sequence[str] = ()
    ) -> bytes:
        """Head and body of a request, ready to write."""
        content = self._bodies.body(request, style, answers)
        head = target.head(style.path, len(content), f"{label}-{request.id}", headers(request, style, label))
        return head + content


class _Block:
    """The life of one block: prepared, sent, swept for timeouts, ended."""

    def __init__(
        self,
        generator: LoadGenerator,
        requests: Sequence[Request],
        target: Target,
        style: BodyStyle,
        label: str,
        on_done: Callable[[Timing], None] | None,
    ) -> None:
        self._generator = generator
        self._clock = generator.clock
        self._requests = requests
        self._target = target
        self._style = style
        self._label = label
        self._on_done = on_done
        self._loop = asyncio.get_running_loop()
        self._finished = asyncio.Event()
        self._table = Table(len(requests))
        self._live: dict[int, Timing] = {}
        self._waiting = chains(requests)
        free = (i for i, request in enumerate(requests) if request.after is None)
        self._planned = sorted(free, key=lambda i: requests[i].at)
        self._next = 0
        self._due: list[tuple[float, int]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._ended = 0
        self._start = 0.0
        self._turns = Counter(request.session for request in requests) if style.real_answers else Counter()
        self._answers: dict[str, list[str]] = {}
        self._wires = self._prepare()

    def _prepare(self) -> dict[int, bytes]:
        prepared: dict[int, bytes] = {}
        size = 0
        for index in self._planned:
            prepared[index] = self._wire(index)
            size += len(prepared[index])
            if size > PREPARE_LIMIT:
                break
        return prepared

    def _wire(self, index: int) -> bytes:
        request = self._requests[index]
        answers = self._answers.get(request.session, ())
        return self._generator.wire(request, self._target, self._style, self._label, answers)

    async def run(self) -> BlockRun:
        pool = self._generator.pool
        opened, retried = pool.opened, pool.retried
        gc.collect()
        gc.disable()
        cpu, ticks, self._start = time.process_time(), cpu_ticks(), self._clock() + HEAD_START
        lags = array("f")
        interrupted = False
        lag = self._loop.create_task(note_lag(lags, self._clock))
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
        wall = self._clock() - self._start
        watch = SelfWatch(
            cpu=(time.process_time() - cpu) / max(wall, 1e-9),
            machine=busy_share(ticks, cpu_ticks()),
            loop_lag=lags,
            wall=wall,
            connections=pool.opened - opened,
            retried=pool.retried - retried,
            peak=pool.peak,
            files=self._generator.files,
        )
        if not interrupted:
            return BlockRun(self._requests, self._table, self._start, watch)
        over = [i for i, moment in enumerate(self._table.times[:, -1].tolist()) if moment == moment]
        some = Table.of([self._table[i] for i in over])
        return BlockRun([self._requests[i] for i in over], some, self._start, watch, True)

    def _tick(self) -> None:
        """Sends all that is due, and sets the timer for what is next."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._clock()
        while not self._finished.is_set():
            index, due = self._earliest()
            if index is None:
                return
            if due > now:
                self._timer = self._loop.call_later(due - now, self._tick)
                return
            self._send(index, due)
            now = self._clock()

    def _earliest(self) -> tuple[int | None, float]:
        """What is to be sent next, and when. It stays in its queue until it is sent."""
        index, due = None, float("inf")
        if self._next < len(self._planned):
            index = self._planned[self._next]
            due = self._start + self._requests[index].at
        if self._due and self._due[0][0] < due:
            due, index = self._due[0]
        return index, due

    def _send(self, index: int, due: float) -> None:
        if self._due and self._due[0] == (due, index):
            heapq.heappop(self._due)
        else:
            self._next += 1
        request = self._requests[index]
        timing = Timing(due, abort_after=request.abort_after, keep_text=self._style.real_answers)
        wire = self._wires.pop(index, None) or self._wire(index)
        self._live[index] = timing

        def done(timing: Timing) -> None:
            self._end(index, timing)

        self._generator.pool.send(self._target, timing, wire, done)

    def _end(self, index: int, timing: Timing) -> None:
        if self._live.pop(index, None) is None:
            return
        if self._style.real_answers:
            self._keep_answer(self._requests[index].session, timing.text)
        ended = [(index, timing)]
        while ended:
            index, timing = ended.pop()
            self._table.put(index, timing)
            self._ended += 1
            if self._on_done is not None:
                self._on_done(timing)
            ended += self._release(index, timing)
        if self._ended == len(self._requests):
            self._finished.set()

    def _release(self, index: int, timing: Timing) -> list[tuple[int, Timing]]:
        """Plans what waited for this answer; returns what can no longer be sent, ended."""
        ended = []
        request = self._requests[index]
        for waiting in self._waiting.pop(request.id, ()):
            due = timing.t_over + self._requests[waiting].think
            if not timing.ok and self._requests[waiting].session == request.session:
                skipped = Timing(due)
                skipped.fail(due, "previous_failed", "the turn before it failed, so it was not sent")
                ended.append((waiting, skipped))
                continue
            self._wires[waiting] = self._wire(waiting)
            heapq.heappush(self._due, (due, waiting))
            if self._due[0] == (due, waiting):
                self._loop.call_soon(self._tick)
        return ended

    def _keep_answer(self, session: str, text: str) -> None:
        """Until the session's last turn has ended."""
        self._turns[session] -= 1
        if self._turns[session]:
            self._answers.setdefault(session, []).append(text)
        else:
            self._answers.pop(session, None)

    async def _sweep(self) -> None:
        """Waits for the end; on the way fails what has been open for too long."""
        while not self._finished.is_set():
            try:
                await asyncio.wait_for(self._finished.wait(), SWEEP_PERIOD)
            except TimeoutError:
                now = self._clock()
                late = [i for i, timing in self._live.items() if now - timing.t_sched > self._generator.timeout]
                for index in late:
                    timing = self._live[index]
                    timing.fail(now, "timeout", f"no end after {self._generator.timeout:g} s")
                    self._generator.pool.abort(timing)
                    self._end(index, timing)

    def _abandon(self, kind: str) -> None:
        self._finished.set()
        self._waiting.clear()
        now = self._clock()
        for index, timing in self._live.items():
            timing.fail(now, kind, "the run was stopped")
            self._table.put(index, timing)
        self._live.clear()
