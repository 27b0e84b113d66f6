"""The live driver: delivery, batching of arrivals, schedule, and its own lag."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest

from bench.sim.engine import Engine, EngineConfig, EngineRequest, Output
from bench.sim.kvcache import CacheEvent, Cleared, Stored
from bench.sim.lag import LagMeter
from bench.sim.live import LiveEngine
from bench.sim.timing import FixedTiming, Timing


class Collector:
    """A sink that keeps what it gets; `flushes` holds the tokens between two flushes."""

    def __init__(self) -> None:
        self.outputs: list[Output] = []
        self.flushes: list[int] = []
        self.done = asyncio.Event()

    def token(self, output: Output, now: float) -> None:
        self.outputs.append(output)

    def flush(self) -> None:
        self.flushes.append(len(self.outputs) - sum(self.flushes))
        if self.outputs[-1].finish:
            self.done.set()


def request(name: str, answer: int, prompt: int = 20) -> EngineRequest:
    ids = np.arange(1, prompt + 1, dtype=np.uint32)
    return EngineRequest(name, ids, np.arange(answer, dtype=np.uint32))


@pytest.fixture
def published() -> list[CacheEvent]:
    return []


@pytest.fixture
async def live(published: list[CacheEvent]) -> AsyncIterator[LiveEngine]:
    config = EngineConfig(num_blocks=64, max_model_len=1024)
    made = LiveEngine(Engine(config, Timing(FixedTiming(2, 2))), published.extend)
    yield made
    made.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (the condition is another object's state)
            await asyncio.sleep(0)


async def finished(sink: Collector) -> None:
    await asyncio.wait_for(sink.done.wait(), 20)


async def test_a_requests_tokens_arrive_in_order(live: LiveEngine) -> None:
    sink = Collector()
    live.submit(request("a", 6), sink)
    await finished(sink)
    assert [output.position for output in sink.outputs] == list(range(6))
    assert live.open_requests == 0


async def test_a_sink_with_several_sequences_is_flushed_once_a_step(live: LiveEngine) -> None:
    sink = Collector()
    for name in "abc":
        live.submit(request(name, 4), sink)
    await finished(sink)
    assert sink.flushes == [3, 3, 3, 3]


async def test_what_arrives_in_one_turn_is_computed_in_one_step(live: LiveEngine) -> None:
    sinks = [Collector(), Collector()]
    for name, sink in zip("ab", sinks, strict=True):
        live.submit(request(name, 1), sink)
    await finished(sinks[1])
    assert live.engine.counters.steps == 1


async def test_an_aborted_request_hears_no_more(live: LiveEngine) -> None:
    kept, dropped = Collector(), Collector()
    live.submit(request("a", 10), kept)
    live.submit(request("b", 10), dropped)
    await until(lambda: dropped.outputs)
    heard = len(dropped.outputs)
    live.abort("b")
    await finished(kept)
    assert len(dropped.outputs) == heard


async def test_events_are_published_before_the_tokens_of_their_step(
    live: LiveEngine, published: list[CacheEvent]
) -> None:
    known: list[int] = []

    class Asking(Collector):
        def token(self, output: Output, now: float) -> None:
            known.append(sum(isinstance(event, Stored) for event in published))
            super().token(output, now)

    sink = Asking()
    live.submit(request("a", 2), sink)
    await finished(sink)
    assert known[0] == 1


async def test_a_reset_is_published_with_the_next_step_and_not_at_once(
    live: LiveEngine, published: list[CacheEvent]
) -> None:
    sinks = [Collector(), Collector()]
    live.submit(request("a", 1), sinks[0])
    await finished(sinks[0])
    await until(live.reset_prefix_cache)
    assert [type(event) for event in published] == [Stored]
    live.submit(request("b", 1), sinks[1])
    await finished(sinks[1])
    assert [type(event) for event in published] == [Stored, Cleared, Stored]


async def test_after_a_long_stall_the_schedule_begins_anew(live: LiveEngine) -> None:
    sink = Collector()
    live.submit(request("a", 8), sink)
    await until(lambda: sink.outputs)
    time.sleep(0.4)  # noqa: ASYNC251 (the stall is what is tested)
    await finished(sink)
    await until(lambda: live.lag.total_steps == 8)
    assert live.lag.resyncs >= 1


def test_the_report_separates_lag_from_distortion() -> None:
    meter = LagMeter()
    meter.record(0.001, 0.020, math.nan)
    meter.record(0.003, 0.020, 0.022)
    meter.record(0.002, 0.020, 0.019)
    report = meter.report()
    assert report["steps"] == 3
    assert report["lag_ms"]["mean"] == pytest.approx(2.0)
    assert report["lag_ms"]["max"] == pytest.approx(3.0)
    assert report["step_ms"]["actual"] == pytest.approx(20.5)
    assert report["distortion"] == pytest.approx(0.025)
    assert report["step_error_share"]["max"] == pytest.approx(0.1)


def test_the_report_covers_the_kept_steps_and_the_totals_all() -> None:
    meter = LagMeter()
    for _ in range(5):
        meter.record(0.001, 0.02, 0.02)
    meter.reset()
    assert meter.report() == {"steps": 0, "resyncs": 0}
    assert (meter.total_steps, meter.total_lag) == (5, pytest.approx(0.005))
