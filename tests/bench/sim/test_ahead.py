"""The compiled run of decoding steps against `Engine.step`, which is its judge."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.sim.engine import SYMBOLS, Engine, EngineConfig, EngineRequest, SymbolicRequest
from bench.sim.kvcache import CacheEvent, Removed, Stored
from bench.sim.timing import BatchTiming, FixedTiming, PolynomialTiming, Timing, TimingModel

BLOCK = 4


def told(events: list[CacheEvent]) -> list[tuple[object, ...]]:
    out: list[tuple[object, ...]] = []
    for event in events:
        if isinstance(event, Stored):
            out.append(("stored", event.keys.tolist(), event.parent, event.tokens.tolist()))
        elif isinstance(event, Removed):
            out.append(("removed", event.keys.tolist()))
        else:
            out.append(("cleared",))
    return out


class Run:
    """An engine in virtual time: when each token came, and what was told when."""

    def __init__(self, engine: Engine, *, ahead: bool) -> None:
        self.engine = engine
        self.tokens: dict[str, list[float]] = {}
        self.events: list[tuple[float, list[tuple[object, ...]]]] = []
        self._ahead = ahead
        self.jumps = 0

    def play(self, requests: list[EngineRequest | SymbolicRequest], arrivals: list[float]) -> None:
        free, place = 0.0, 0
        while True:
            while place < len(requests) and arrivals[place] <= free:
                self.engine.submit(requests[place], free)
                place += 1
            later = arrivals[place] if place < len(requests) else float("inf")
            if self._ahead:
                run = self.engine.ahead(free, later)
                if run is not None:
                    self.jumps += 1
                    for name in run.ids:
                        self.tokens.setdefault(name, []).extend(run.ends.tolist())
                    self.events += [(at, told(events)) for at, events in run.events]
                    free = float(run.ends[-1])
                    continue
            step = self.engine.step(free)
            if step is None:
                if place == len(requests):
                    return
                free = later
                continue
            free += step.duration
            for output in step.outputs:
                self.tokens.setdefault(output.id, []).append(free)
            if step.events:
                self.events.append((free, told(step.events)))


def plain(number: int, prompt: list[int], answer: int) -> EngineRequest:
    made = np.arange(answer, dtype=np.uint32) + np.uint32(1000 * (number + 1))
    return EngineRequest(f"r{number}", np.array(prompt, np.uint32), made)


MODELS: list[TimingModel] = [PolynomialTiming(), FixedTiming(3.0, 2.0), BatchTiming()]


@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(
        st.tuples(st.integers(1, 30), st.integers(1, 40), st.integers(0, 3), st.floats(0, 60)), min_size=1, max_size=12
    ),
    blocks=st.integers(24, 60),
    seqs=st.integers(1, 6),
    model=st.sampled_from(MODELS),
    reuse=st.booleans(),
    slow=st.sampled_from([1.0, 1.7]),
)
def test_running_ahead_is_stepping(
    shapes: list[tuple[int, int, int, float]],
    blocks: int,
    seqs: int,
    model: TimingModel,
    reuse: bool,
    slow: float,
) -> None:
    config = EngineConfig(BLOCK, blocks, seqs, 64, blocks * BLOCK, prefix_caching=reuse)
    requests: list[EngineRequest | SymbolicRequest] = []
    arrivals: list[float] = []
    for number, (length, answer, family, at) in enumerate(shapes):
        requests.append(plain(number, [family * 100 + i for i in range(length)], answer))
        arrivals.append(at / 1000)
    arrivals.sort()
    stepped = Run(Engine(config, Timing(model, slow=slow)), ahead=False)
    jumped = Run(Engine(config, Timing(model, slow=slow)), ahead=True)
    stepped.play(requests, arrivals)
    jumped.play(requests, arrivals)
    assert jumped.tokens == stepped.tokens
    assert jumped.events == stepped.events
    assert jumped.engine.counters == stepped.engine.counters
    assert jumped.engine.cache.cached_keys() == stepped.engine.cache.cached_keys()
    assert jumped.engine.snapshot() == stepped.engine.snapshot()


def test_a_lone_answer_is_one_jump() -> None:
    engine = Engine(EngineConfig(BLOCK, 64, 4, 64, 256), Timing(PolynomialTiming()))
    run = Run(engine, ahead=True)
    run.play([plain(0, [1, 2, 3], 100)], [0.0])
    assert run.jumps == 1
    assert len(run.tokens["r0"]) == 100


def test_it_stops_where_a_request_arrives_and_ends_the_step_that_runs() -> None:
    engine = Engine(EngineConfig(BLOCK, 64, 4, 64, 256), Timing(FixedTiming(1.0, 10.0)))
    engine.submit(plain(0, [1, 2, 3], 50), 0.0)
    first = engine.step(0.0)
    assert first is not None
    run = engine.ahead(first.duration, 0.045)
    assert run is not None
    assert run.ends.tolist() == pytest.approx([0.011, 0.021, 0.031, 0.041, 0.051])


def test_it_does_not_run_while_somebody_waits() -> None:
    engine = Engine(EngineConfig(BLOCK, 64, 1, 64, 256), Timing(FixedTiming(1.0, 10.0)))
    engine.submit(plain(0, [1, 2, 3], 50), 0.0)
    assert engine.step(0.0) is not None
    engine.submit(plain(1, [1, 2, 3], 50), 0.0)
    assert engine.ahead(0.001, 1.0) is None


def test_symbols_stand_for_tokens() -> None:
    """Two symbols a block, and the same timings, reuse and counters as with tokens."""
    config = EngineConfig(BLOCK, 64, 4, 64, 256)
    shared = [7] * 10
    real = Run(Engine(config, Timing(BatchTiming())), ahead=True)
    real.play([plain(0, shared, 9), plain(1, [*shared, 8, 8, 8], 5)], [0.0, 1.0])

    def symbols(number: int, total: int) -> np.ndarray:
        made = np.full((total // BLOCK, SYMBOLS), 100 + number, np.uint32)
        made[:2] = 7
        return np.ascontiguousarray(made.reshape(-1))

    stand_in = Run(Engine(config, Timing(BatchTiming())), ahead=True)
    stand_in.play(
        [SymbolicRequest("r0", 10, 9, symbols(0, 19)), SymbolicRequest("r1", 13, 5, symbols(1, 18))], [0.0, 1.0]
    )
    assert stand_in.tokens == real.tokens
    assert stand_in.engine.counters == real.engine.counters
    assert stand_in.engine.counters.cache_hits == 8


def test_missing_symbols_are_refused() -> None:
    engine = Engine(EngineConfig(BLOCK, 64, 4, 64, 256), Timing(BatchTiming()))
    with pytest.raises(ValueError, match="2 symbols are not 2 for each of 4 blocks"):
        engine.submit(SymbolicRequest("r", 10, 6, np.zeros(2, np.uint32)), 0.0)
