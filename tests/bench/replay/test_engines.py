"""Engines in virtual time against the same engines stepped one step at a time, each on its own."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.replay.engines import Engines, Tokens
from bench.sim.engine import SYMBOLS, Engine, EngineConfig, SymbolicRequest
from bench.sim.kvcache import CacheEvent
from bench.sim.timing import BatchTiming, FixedTiming, PolynomialTiming, Timing, TimingModel

BLOCK = 4
MODELS: list[TimingModel] = [PolynomialTiming(), FixedTiming(3.0, 2.0), BatchTiming()]


def request(name: str, prompt: int, answer: int, group: int) -> SymbolicRequest:
    blocks = (prompt + answer) // BLOCK
    marks = np.arange(blocks * SYMBOLS, dtype=np.uint32) + np.uint32(1000 * group)
    marks[prompt // BLOCK * SYMBOLS :] += np.uint32(100_000 + 1000 * int(name[1:]))
    return SymbolicRequest(name, prompt, answer, marks)


def engine(model: TimingModel, blocks: int = 40) -> Engine:
    config = EngineConfig(
        block_size=BLOCK, num_blocks=blocks, max_num_seqs=4, max_num_batched_tokens=24, max_model_len=80
    )
    return Engine(config, Timing(model))


@dataclass
class Heard:
    """What a fleet told: times of tokens by request, and of stored blocks by engine."""

    first: dict[str, float] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    count: dict[str, int] = field(default_factory=dict)
    cached: dict[str, int] = field(default_factory=dict)
    stall: dict[str, float] = field(default_factory=dict)
    events: list[tuple[int, float, str, list[int]]] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    heard: list[float] = field(default_factory=list)

    def tokens(self, engine: int, at: float, made: Tokens) -> None:
        if made.first:
            self.first[made.id], self.cached[made.id] = made.begin, made.cached
        self.last[made.id] = made.end
        self.count[made.id] = self.count.get(made.id, 0) + made.many
        if made.first or made.finished:
            self.heard.append(at)
        if made.finished:
            self.ends.append(at)
            self.stall[made.id] = made.stall

    def told(self, engine: int, at: float, events: list[CacheEvent]) -> None:
        self.heard.append(at)
        for event in events:
            self.events.append((engine, at, type(event).__name__, event.keys.tolist()))  # type: ignore[union-attr]


def stepped(plan: list[tuple[float, int, SymbolicRequest]], engines: list[Engine]) -> tuple[Heard, list[float]]:
    """The reference: each engine alone, step by step, arrivals of a moment before the step that begins then only
    where it rests. Also all gaps."""
    heard, gaps = Heard(), []
    for number, one in enumerate(engines):
        mine = [(at, r) for at, where, r in plan if where == number]
        times: dict[str, list[float]] = {}
        free, rests, place = 0.0, True, 0
        while True:
            if rests:
                if place == len(mine):
                    break
                free = mine[place][0]
                while place < len(mine) and mine[place][0] == free:
                    one.submit(mine[place][1], free)
                    place += 1
            else:
                while place < len(mine) and mine[place][0] < free:
                    one.submit(mine[place][1], free)
                    place += 1
            result = one.step(free)
            rests = result is None
            if result is None:
                continue
            free += result.duration
            for output in result.outputs:
                times.setdefault(output.id, []).append(free)
                heard.cached.setdefault(output.id, output.cached)
            heard.events += [(number, free, type(e).__name__, e.keys.tolist()) for e in result.events]  # type: ignore[union-attr]
        for name, at in times.items():
            heard.first[name], heard.last[name], heard.count[name] = at[0], at[-1], len(at)
            between = np.diff(at)
            heard.stall[name] = float(between.max()) if len(between) else 0.0
            gaps += between.tolist()
    return heard, gaps


plans = st.lists(
    st.tuples(st.floats(0, 0.4), st.integers(0, 2), st.integers(1, 40), st.integers(1, 40), st.integers(0, 2)),
    min_size=1,
    max_size=20,
)


@pytest.mark.parametrize("every_token", [False, True])
@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=40, deadline=None)
@given(shapes=plans)
def test_tokens_events_and_gaps_come_when_single_steps_bring_them(
    model: TimingModel, every_token: bool, shapes: list[tuple[float, int, int, int, int]]
) -> None:
    shapes = sorted(shapes)
    plan = [(at, where, request(f"r{i}", p, a, g)) for i, (at, where, p, a, g) in enumerate(shapes)]
    expected, gaps = stepped(plan, [engine(model) for _ in range(3)])
    heard = Heard()
    fleet = Engines([engine(model) for _ in range(3)], heard, every_token=every_token)
    for at in sorted({at for at, _, _ in plan}):
        fleet.advance(at)
        for _, where, one in (entry for entry in plan if entry[0] == at):
            fleet.submit(where, one, at)
        fleet.start(at)
    fleet.advance(math.inf)

    assert heard.count == expected.count
    assert heard.cached == expected.cached
    for name in expected.first:
        assert heard.first[name] == pytest.approx(expected.first[name], abs=1e-9)
        assert heard.last[name] == pytest.approx(expected.last[name], abs=1e-9)
        assert heard.stall[name] == pytest.approx(expected.stall[name], abs=1e-9)
    for number in range(3):
        mine, theirs = ([e for e in h.events if e[0] == number] for h in (heard, expected))
        assert [e[2:] for e in mine] == [e[2:] for e in theirs]
        assert [e[1] for e in mine] == pytest.approx([e[1] for e in theirs], abs=1e-9)
    assert heard.heard == sorted(heard.heard)
    pooled, weights = fleet.gaps.pooled()
    assert float(weights.sum()) == len(gaps)
    assert np.repeat(pooled, weights.astype(int)).tolist() == pytest.approx(sorted(gaps), abs=1e-9)


def test_a_quiet_engine_is_heard_when_asked_to_catch_up() -> None:
    heard = Heard()
    fleet = Engines([engine(PolynomialTiming(), 4096 // BLOCK)], heard)
    fleet.submit(0, request("r0", 1, 30, 0), 0.0)
    fleet.start(0.0)
    fleet.advance(0.017)
    fleet.advance(0.0227)
    before = dict(heard.count)
    fleet.catch_up(0.0227)
    assert (before, heard.count) == ({"r0": 1}, {"r0": 2})


@settings(max_examples=60, deadline=None)
@given(shapes=plans)
def test_a_run_to_the_next_end_stops_at_each_end_and_misses_none(
    shapes: list[tuple[float, int, int, int, int]],
) -> None:
    plan = [(0.0, where, request(f"r{i}", p, a, g)) for i, (_, where, p, a, g) in enumerate(shapes)]
    expected, _ = stepped(plan, [engine(BatchTiming()) for _ in range(3)])
    heard = Heard()
    fleet = Engines([engine(BatchTiming()) for _ in range(3)], heard)
    for _, where, one in plan:
        fleet.submit(where, one, 0.0)
    fleet.start(0.0)
    stops = []
    while (at := fleet.advance_to_end(math.inf)) is not None:
        stops.append(at)
        assert heard.ends[-1] == at
        assert all(member.free > at for member in fleet.members)
    assert stops == pytest.approx(sorted(set(expected.last.values())), abs=1e-9) or len(stops) == len(set(heard.ends))
    assert sorted(heard.ends) == pytest.approx(sorted(expected.last.values()), abs=1e-9)


def test_a_run_to_the_next_end_stops_at_its_limit() -> None:
    heard = Heard()
    fleet = Engines([engine(FixedTiming(3.0, 2.0))], heard)
    fleet.submit(0, request("r0", 4, 10, 0), 0.0)
    fleet.start(0.0)
    assert fleet.advance_to_end(0.0061) is None
    assert heard.count == {"r0": 2}
