"""Runs an engine in real time on the event loop, and hands its outputs to whoever asked for them.

Steps follow one another on an absolute schedule: a step begins when the one before was due, not when the loop
got round to it, so lateness does not add up. It is measured (`lag`). After a stall of more than a quarter of
a second (a stopped process) the schedule begins anew instead of rushing through what was missed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from bench.sim.alarm import make_alarm
from bench.sim.engine import Engine, EngineRequest, Output, StepResult
from bench.sim.kvcache import CacheEvent
from bench.sim.lag import LagMeter

MOST_BEHIND = 0.25


class Sink(Protocol):
    """Receives a request's outputs: `token` for each in a step, then one `flush`."""

    def token(self, output: Output, now: float) -> None: ...

    def flush(self) -> None: ...


class LiveEngine:
    """`publish` gets the cache events of each step when it has ended."""

    def __init__(self, engine: Engine, publish: Callable[[list[CacheEvent]], None] | None) -> None:
        self.engine = engine
        self.lag = LagMeter()
        self._publish = publish
        self._loop = asyncio.get_running_loop()
        self._alarm = make_alarm(self._loop, self._release)
        self._sinks: dict[str, Sink] = {}
        self._result: StepResult | None = None
        self._due = 0.0
        self._released = float("nan")
        self._start_asked = False
        self._closed = False

    @property
    def open_requests(self) -> int:
        return len(self._sinks)

    def submit(self, request: EngineRequest, sink: Sink) -> None:
        """Queue a request; all that arrive in one turn of the loop enter an idle engine together."""
        self.engine.submit(request, time.monotonic())
        self._sinks[request.id] = sink
        if self._result is None and not self._start_asked:
            self._start_asked = True
            self._loop.call_soon(self._start)

    def abort(self, request_id: str) -> None:
        """Stop a request at once; its sink hears no more."""
        if self._sinks.pop(request_id, None) is not None:
            self.engine.abort(request_id, time.monotonic())

    def reset_prefix_cache(self, *, preempt: bool = False) -> bool:
        """See `Engine`; an idle engine publishes it with the step of its next request, as vLLM does."""
        return self.engine.reset_prefix_cache(preempt=preempt)

    def close(self) -> None:
        self._closed = True
        self._alarm.close()

    def _start(self) -> None:
        self._start_asked = False
        if self._result is None:
            self._released = float("nan")
            self._begin(time.monotonic())

    def _begin(self, at: float) -> None:
        self._result = result = self.engine.step(at)
        if result is not None:
            self._due = at + result.duration
            self._alarm.set(self._due)

    def _release(self) -> None:
        result = self._result
        if result is None:
            return
        now = time.monotonic()
        if result.events and self._publish is not None:
            self._publish(result.events)
        touched: dict[int, Sink] = {}
        sinks = self._sinks
        for output in result.outputs:
            sink = sinks.get(output.id)
            if sink is None:
                continue
            if output.finish is not None:
                del sinks[output.id]
            sink.token(output, now)
            touched[id(sink)] = sink
        for sink in touched.values():
            sink.flush()
        self._loop.call_soon(self._after_release, result.duration)

    def _after_release(self, duration: float) -> None:
        """One turn later, when uvloop has made the writes: note the lag and begin the next step."""
        if self._closed:
            return
        end = time.monotonic()
        self.lag.record(end - self._due, duration, end - self._released)
        self._released = end
        start = self._due
        if end - start > MOST_BEHIND:
            self.lag.resyncs += 1
            start = end
        self._begin(start)
