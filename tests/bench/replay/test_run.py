"""A whole replay: who waits for whom, what fails, what is the same twice, and figures known from elsewhere."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.replay.prompts import prepare
from bench.replay.run import FleetShape, Replayed, replay, speeds
from bench.sim.engine import EngineConfig
from bench.sim.timing import FixedTiming, PolynomialTiming, Timing
from bench.workload.model import Deed, FleetAction, Request, Workload, WorkloadError
from bench.workload.source import Wish, make
from bench.workload.tokens import Piece, Vocabulary, piece_key
from router.core_settings import CoreSettings
from router.policies.kv import KvWeights
from router.policies.settings import PolicySettings

BLOCK = 16
SETTINGS = CoreSettings(seed=3)


def shape(
    workers: int, *, blocks: int = 256, timing: Timing | None = None, factors: tuple[float, ...] = (1.0,)
) -> FleetShape:
    config = EngineConfig(block_size=BLOCK, num_blocks=blocks, max_model_len=blocks * BLOCK)
    return FleetShape(config, speeds(timing or Timing(FixedTiming(20.0, 10.0)), factors, workers))


def asked(name: str, at: float, *, session: str = "s", length: int = 32, output: int = 3, **more: object) -> Request:
    return Request(name, session, 0, "g", 0, at, output, (Piece(piece_key(session), length),), **more)  # type: ignore[arg-type]


def workload(*requests: Request, **more: object) -> Workload:
    return Workload("test", requests, 1, Vocabulary(), **more)  # type: ignore[arg-type]


def run(
    work: Workload, fleet: FleetShape, mode: str = "round-robin", settings: CoreSettings = SETTINGS, **more: float
) -> Replayed:
    return replay(prepare(work, BLOCK), fleet, mode, settings, **more)  # type: ignore[arg-type]


def test_a_request_alone_takes_what_the_timing_says() -> None:
    found = run(workload(asked("a", 5.0)), shape(1))
    timing = found.table[0]
    assert (timing.t_sched, timing.t_first, timing.t_end) == pytest.approx((5.0, 5.02, 5.04))
    assert timing.itl == pytest.approx(0.01)
    assert timing.stall == pytest.approx(0.01)


def test_a_turn_comes_its_think_time_after_the_answer_before_it() -> None:
    found = run(workload(asked("a", 0.0), asked("b", 0.0, after="a", think=0.5)), shape(2))
    assert found.table[1].t_sched == pytest.approx(0.04 + 0.5)


def test_a_turn_without_thinking_finds_the_blocks_of_the_turn_before() -> None:
    found = run(workload(asked("a", 0.0, length=64), asked("b", 0.0, length=64, after="a")), shape(3), "kv")
    assert found.decided[0] == found.decided[1]
    assert found.table[1].cached_tokens == 48


def test_an_open_request_does_not_wait() -> None:
    found = run(workload(asked("a", 0.0, output=200), asked("b", 0.001)), shape(1))
    assert found.table[1].t_sched == 0.001


def test_a_request_that_no_engine_can_hold_fails_and_takes_the_rest_of_its_session_with_it() -> None:
    requests = (
        asked("a", 0.0, length=5000),
        asked("b", 0.0, after="a"),
        asked("c", 0.0, after="b"),
        asked("d", 0.0, session="other", after="a"),
    )
    found = run(workload(*requests), shape(2))
    assert [timing.error for timing in found.table] == ["http_400", "previous_failed", "previous_failed", None]


def test_a_client_that_leaves_gets_the_tokens_it_stayed_for() -> None:
    found = run(workload(asked("a", 0.0, output=50, abort_after=4)), shape(1))
    timing = found.table[0]
    assert (timing.aborted, timing.ok, timing.n_out) == (True, True, 4)
    assert timing.t_end == pytest.approx(0.05)


def test_a_slow_engine_takes_longer() -> None:
    found = run(workload(asked("a", 0.0), asked("b", 10.0)), shape(2, factors=(1.0, 0.5)))
    assert [timing.ttft for timing in found.table] == pytest.approx([0.02, 0.04])


def test_a_killing_workload_is_refused() -> None:
    with pytest.raises(WorkloadError, match="kills engines"):
        prepare(workload(asked("a", 0.0), actions=(FleetAction(1.0, Deed.KILL, 0),)), BLOCK)


def test_a_replay_without_a_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="seed"):
        run(workload(asked("a", 0.0)), shape(1), settings=CoreSettings())


def test_events_that_lag_leave_the_router_in_the_dark() -> None:
    """Two prompts of one session, the second after the first has ended and before its events come."""
    settings = replace(SETTINGS, predict_ttl=0.0)
    work = workload(asked("a", 0.0, length=64), asked("b", 1.0, length=64))
    prompt, late = run(work, shape(2), "kv", settings), run(work, shape(2), "kv", settings, lag=2.0)
    assert (prompt.predicted, late.predicted) == ([0, 48], [0, 0])


def multi_turn(requests: int = 300) -> Workload:
    return make(Wish(name="multi-turn", requests=requests, rate=20.0, seed=1, workers=4))


MODES = ("kv", "random", "round-robin", "power-of-two", "least-loaded", "session", "prefixaware", "kvaware", "oracle")


@pytest.mark.parametrize("mode", MODES)
def test_every_request_of_a_multi_turn_workload_is_answered_in_every_mode(mode: str) -> None:
    work = multi_turn(120)
    found = run(work, shape(4, blocks=2048, timing=Timing(PolynomialTiming())), mode)
    assert found.table.ok.all()
    assert [timing.n_out for timing in found.table] == [request.output_len for request in work.requests]
    assert found.counts["orphan_stores"] == found.counts["unknown_removals"] == 0


def test_turns_of_many_sessions_each_come_when_the_answer_before_has_ended() -> None:
    requests = []
    for session in range(20):
        for turn in range(4):
            more = {"after": f"{session}-{turn - 1}", "think": 0.05 * (session % 3)} if turn else {}
            at = 0.02 * session
            requests.append(
                asked(f"{session}-{turn}", at, session=f"s{session}", length=40, output=5 + session, **more)
            )
    found = run(workload(*requests), shape(3, blocks=2048, timing=Timing(PolynomialTiming())), "kv")
    ends = {request.id: timing.t_end for request, timing in zip(requests, found.table, strict=True)}
    for request, timing in zip(requests, found.table, strict=True):
        expected = request.at if request.after is None else ends[request.after] + request.think
        assert timing.t_sched == pytest.approx(expected)


def test_kv_reuses_more_than_round_robin_and_no_more_than_a_cache_without_end() -> None:
    work = multi_turn()
    prompts = prepare(work, BLOCK)
    shares = []
    for mode in ("round-robin", "kv", "oracle"):
        table = replay(prompts, shape(4, blocks=2048, timing=Timing(PolynomialTiming())), mode, SETTINGS).table
        shares.append(table.counts[:, 2].sum() / table.counts[:, 1].sum())
    assert shares[0] < shares[1] <= prompts.bound
    assert shares[2] <= prompts.bound


def test_two_runs_measure_the_same_to_the_last_bit() -> None:
    work = multi_turn()
    tables = [run(work, shape(4, blocks=512, timing=Timing(PolynomialTiming())), "kv").table for _ in range(2)]
    assert tables[0].times.tobytes() == tables[1].times.tobytes()
    assert tables[0].workers == tables[1].workers


def trace(path: Path, speedup: float, requests: int | None) -> Workload:
    return make(Wish(file=path, speedup=speedup, jitter=False, requests=requests))


def figures(
    path: Path, workers: int, speedup: float, modes: tuple[str, ...], requests: int | None = None
) -> list[tuple[float, float, float, float]]:
    """Mean and p99 TTFT, mean ITL over all tokens, reuse: of the published conversation trace, by mode."""
    config = EngineConfig(block_size=64, num_blocks=16384, max_model_len=16384 * 64)
    fleet = FleetShape(config, speeds(Timing(PolynomialTiming()), [1.0], workers))
    prompts = prepare(trace(path, speedup, requests), 64)
    rows = []
    for mode in modes:
        found = replay(prompts, fleet, mode, DYNAMO)
        assert found.table.ok.all()
        ttft = found.table.latency("ttft") * 1000
        gaps, weights = found.gaps.pooled()
        cached, prompt = found.table.counts[:, 2].sum(), found.table.counts[:, 1].sum()
        itl = float((gaps * weights).sum() / weights.sum()) * 1000
        rows.append((float(ttft.mean()), float(np.percentile(ttft, 99)), itl, float(cached / prompt)))
    return rows


DYNAMO = CoreSettings(seed=0, predict_ttl=0.0, policies=PolicySettings(weights=KvWeights(), load_bound=0.0))
"""Dynamo 1.6.1 has neither predict-on-route nor a bound on load."""


def test_the_first_1500_requests_of_the_published_trace_are_served_better_by_kv_than_by_round_robin(
    conversation: Path,
) -> None:
    turns, kv = figures(conversation, 8, 1.0, ("round-robin", "kv"), 1500)
    assert kv[0] < 0.9 * turns[0]
    assert kv[3] > 2 * turns[3]


@pytest.mark.skipif(not os.environ.get("KVCTL_SLOW"), reason="minutes; KVCTL_SLOW=1 runs it")
@pytest.mark.parametrize(
    ("workers", "speedup", "mode", "published", "within"),
    [
        (8, 1.0, "round-robin", (321, 2049, 7.6, 0.082), 0.05),
        (4, 2.0, "round-robin", (618, 2865, 25.5, 0.082), 0.05),
        (8, 1.0, "kv", (278, 1690, 7.3, 0.196), 0.10),
        (4, 2.0, "kv", (553, 2261, 22.8, 0.129), 0.10),
    ],
)
def test_the_whole_published_trace_gives_the_figures_of_dynamos_own_replay(
    conversation: Path, workers: int, speedup: float, mode: str, published: tuple[float, ...], within: float
) -> None:
    (found,) = figures(conversation, workers, speedup, (mode,))
    assert found == pytest.approx(published, rel=within)
