"""Queued prefill as time passes; values worked out by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from router.prefills import PrefillQueues

ONE = np.array([0])


def load(queues: PrefillQueues, now: float) -> int:
    return int(queues.load(ONE, now)[0])


def seconds(queues: PrefillQueues, now: float) -> float:
    return float(queues.seconds(ONE, now)[0])


def test_without_expected_times_tokens_count_until_they_are_computed() -> None:
    queues = PrefillQueues()
    ticket = queues.add(0, 1000, 0.0, now=0.0)
    assert load(queues, 100.0) == 1000
    queues.remove(0, ticket, now=100.0)
    assert load(queues, 100.0) == 0


def test_the_oldest_goes_down_at_its_expected_pace() -> None:
    """1,000 tokens in 2 s are 500 a second; behind them 400 more."""
    queues = PrefillQueues()
    queues.add(0, 1000, 2.0, now=0.0)
    queues.add(0, 400, 1.0, now=0.5)
    assert [load(queues, at) for at in (0.5, 1.0, 2.0)] == [1150, 900, 400]
    assert [seconds(queues, at) for at in (0.5, 1.0, 2.0)] == [2.5, 2.0, 1.0]


def test_time_that_runs_over_eats_into_the_next() -> None:
    queues = PrefillQueues()
    queues.add(0, 1000, 2.0, now=0.0)
    queues.add(0, 400, 1.0, now=0.0)
    assert load(queues, 2.4) == 200
    assert load(queues, 99.0) == 0


def test_when_the_oldest_is_computed_the_next_ones_time_starts() -> None:
    queues = PrefillQueues()
    first = queues.add(0, 1000, 2.0, now=0.0)
    queues.add(0, 400, 1.0, now=0.0)
    queues.remove(0, first, now=3.0)
    assert [load(queues, at) for at in (3.0, 3.5)] == [400, 200]


def test_one_that_is_computed_out_of_turn_leaves_the_oldest_its_time() -> None:
    queues = PrefillQueues()
    queues.add(0, 1000, 2.0, now=0.0)
    second = queues.add(0, 400, 1.0, now=0.0)
    queues.remove(0, second, now=1.0)
    assert load(queues, 1.0) == 500


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.integers(1, 999), st.floats(0, 9)), max_size=60))
def test_load_is_never_negative_never_above_the_sum_and_ends_at_zero(
    steps: list[tuple[bool, int, int, float]],
) -> None:
    queues, live, now = PrefillQueues(3), [], 0.0
    slots = np.arange(3)
    for drop, slot, tokens, expected in steps:
        now += 0.1
        if drop and live:
            at, ticket, _tokens = live.pop(tokens % len(live))
            queues.remove(at, ticket, now)
        else:
            live.append((slot, queues.add(slot, tokens, expected, now), tokens))
        sums = [sum(t for s, _, t in live if s == each) for each in range(3)]
        assert queues.tokens[:3].tolist() == sums
        assert all(0 <= here <= most for here, most in zip(queues.load(slots, now + 1.0).tolist(), sums, strict=True))
        assert (queues.seconds(slots, now) >= 0).all()
    for slot, ticket, _tokens in live:
        queues.remove(slot, ticket, now)
    assert queues.load(slots, now).tolist() == [0, 0, 0]
    assert queues.seconds(slots, now).tolist() == [0.0, 0.0, 0.0]
