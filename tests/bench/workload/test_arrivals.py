"""Arrival processes: their distributions, that the mean rate is met exactly, and what a closed loop waits for."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from bench.workload.arrivals import Arrivals, Process, rearranged
from bench.workload.model import Request, Workload, WorkloadError, chains
from bench.workload.tokens import Piece, Vocabulary

COUNT = 4001


def gaps(written: str, seed: int = 1, rate: float = 20.0) -> np.ndarray:
    return np.diff(Arrivals.parse(written).offsets(COUNT, rate, np.random.default_rng(seed)))


def workload(sessions: int = 6, turns: int = 2, gap: float = 0.5) -> Workload:
    requests = [
        Request(f"{s}.{t}", f"s{s}", t, "g", 0, s + gap * t, 4, (Piece(s, 8),))
        for s in range(sessions)
        for t in range(turns)
    ]
    return Workload("w", tuple(sorted(requests, key=lambda r: r.at)), 1, Vocabulary())


@pytest.mark.parametrize("written", ["poisson", "gamma:0.3", "gamma:4", "constant"])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_mean_rate_is_the_one_asked_for(written: str, seed: int) -> None:
    offsets = Arrivals.parse(written).offsets(COUNT, 20.0, np.random.default_rng(seed))
    assert offsets[0] == 0
    assert offsets[-1] == pytest.approx((COUNT - 1) / 20.0, rel=1e-12)


def test_there_is_no_drift_half_way() -> None:
    """Half of a Poisson process lies within four standard deviations of half the time."""
    offsets = Arrivals.parse("poisson").offsets(COUNT, 20.0, np.random.default_rng(3))
    assert offsets[COUNT // 2] == pytest.approx(100.0, abs=4 * 0.5 * COUNT**0.5 / 20.0)


def test_poisson_gaps_are_exponential() -> None:
    assert stats.kstest(gaps("poisson"), stats.expon(scale=1 / 20).cdf).pvalue > 0.01


@pytest.mark.parametrize("shape", [0.3, 4.0])
def test_gamma_gaps_have_the_shape(shape: float) -> None:
    assert stats.kstest(gaps(f"gamma:{shape}"), stats.gamma(shape, scale=1 / 20 / shape).cdf).pvalue > 0.01


def test_gamma_gaps_are_not_exponential() -> None:
    assert stats.kstest(gaps("gamma:0.3"), stats.expon(scale=1 / 20).cdf).pvalue < 1e-6


def test_constant_gaps_are_equal() -> None:
    assert gaps("constant") == pytest.approx(np.full(COUNT - 1, 0.05))


def test_a_burst_is_one_moment_and_bursts_keep_the_rate() -> None:
    offsets = Arrivals.parse("burst:4").offsets(12, 8.0, np.random.default_rng(0))
    assert offsets.tolist() == [0.0] * 4 + [0.5] * 4 + [1.0] * 4


def test_the_seed_decides() -> None:
    assert (gaps("poisson", 1) == gaps("poisson", 1)).all()
    assert (gaps("poisson", 1) != gaps("poisson", 2)).any()


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("often", "unknown process; one of poisson"),
        ("poisson:2", "takes no number"),
        ("gamma", "from 0.01 to 100"),
        ("gamma:0", "from 0.01"),
        ("gamma:nan", "from 0.01"),
        ("burst:0", "from 1"),
        ("closed:2.5", "from 1"),
        ("closed:100001", "to 100000"),
    ],
)
def test_a_wrong_process_is_refused(bad: str, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        Arrivals.parse(bad)


@pytest.mark.parametrize("written", ["poisson", "gamma:0.5", "constant", "burst:3", "trace", "closed:8"])
def test_a_process_is_shown_as_it_is_written(written: str) -> None:
    assert str(Arrivals.parse(written)) == written


def test_sessions_arrive_anew_and_their_turns_keep_their_distance() -> None:
    moved = rearranged(workload(), Arrivals(Process.POISSON), 4.0, seed=5)
    times: dict[str, list[float]] = {}
    for r in moved.requests:
        times.setdefault(r.session, []).append(r.at)
    assert all(b - a == pytest.approx(0.5) for a, b in times.values())
    first = sorted(a for a, _ in times.values())
    assert first[-1] - first[0] == pytest.approx(5 / 2.0)


def test_the_rate_stays_where_none_is_given() -> None:
    single = workload(turns=1)
    moved = rearranged(single, Arrivals(Process.CONSTANT), None, seed=5)
    assert [r.at for r in moved.requests] == pytest.approx([float(i) for i in range(6)])


def test_a_closed_loop_has_one_request_a_user_under_way() -> None:
    closed = rearranged(workload(), Arrivals(Process.CLOSED, 2), None, seed=0)
    assert closed.users == 2
    assert closed.loop == "closed"
    assert sum(r.after is None for r in closed.requests) == 2
    assert max(Counter(r.after for r in closed.requests if r.after is not None).values()) == 1
    assert len(chains(closed.requests)) == 10


def test_a_closed_loop_keeps_think_times_and_waits_for_nothing_between_sessions() -> None:
    closed = rearranged(workload(), Arrivals(Process.CLOSED, 2), None, seed=0)
    session = {r.id: r.session for r in closed.requests}
    for r in closed.requests:
        if r.after is not None:
            assert r.think == (0.5 if session[r.after] == r.session else 0.0)


def test_a_closed_loop_shares_sessions_evenly() -> None:
    closed = rearranged(workload(), Arrivals(Process.CLOSED, 3), None, seed=0)
    follower = {r.after: r for r in closed.requests if r.after is not None}
    lengths = []
    for r in closed.requests:
        if r.after is None:
            length = 1
            while r.id in follower:
                r = follower[r.id]
                length += 1
            lengths.append(length)
    assert lengths == [4, 4, 4]


def test_a_closed_loop_is_labelled() -> None:
    closed = rearranged(workload(), Arrivals(Process.CLOSED, 2), None, seed=0)
    assert closed.facts["arrivals"] == "closed:2"
    assert "closed loop of 2 users" in closed.notes[0]


def test_times_stay_in_order() -> None:
    for written in ("poisson", "burst:2", "closed:3"):
        moved = rearranged(workload(), Arrivals.parse(written), None, seed=9)
        assert all(a.at <= b.at for a, b in pairwise(moved.requests))


def test_all_at_one_time_needs_a_rate() -> None:
    with pytest.raises(WorkloadError, match="--rate"):
        rearranged(workload(1, 1), Arrivals(Process.POISSON), None, seed=0)
