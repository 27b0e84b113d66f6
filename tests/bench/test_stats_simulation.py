"""What the statistics promise, on data whose truth is known: size of the test, coverage of the intervals, Holm."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.stats import Paired, compare, holm, percentile_interval, sign_flip, statistic

SESSIONS, TURNS = 12, 6


def block_pair(rng: np.random.Generator, between: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One slice in two equal arms: shared session effects, each arm's own noise by round, session and request."""
    shared = np.repeat(rng.normal(0, 0.3, SESSIONS), TURNS)
    arms = [
        np.exp(
            shared
            + rng.normal(0, between)
            + np.repeat(rng.normal(0, 0.15, SESSIONS), TURNS)
            + rng.normal(0, 0.2, SESSIONS * TURNS)
        )
        for _ in range(2)
    ]
    return arms[0], arms[1], np.repeat(np.arange(SESSIONS), TURNS)


@pytest.mark.parametrize("rounds", [6, 8, 10])
def test_the_exact_test_claims_at_most_five_percent_of_equal_arms(rounds: int) -> None:
    """2,000 experiments with noise that is not Gaussian; three standard errors above 5 % is 6.5 %."""
    rng = np.random.default_rng(rounds)
    claims = 0
    for _ in range(2000):
        differences = rng.standard_t(3, rounds) * rng.uniform(0.5, 2, rounds)
        claims += sign_flip(differences.tolist(), rng) <= 0.05
    assert claims / 2000 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 2000)


def test_holm_keeps_all_tests_of_an_experiment_together_below_five_percent() -> None:
    rng = np.random.default_rng(7)
    claims = 0
    for _ in range(2000):
        p = [sign_flip(rng.normal(0, 1, 10).tolist(), rng) for _ in range(4)]
        claims += any(value is not None and value <= 0.05 for value in holm(p))
    assert claims / 2000 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 2000)


@pytest.mark.parametrize("between", [0.02, 0.2])
def test_the_interval_of_a_ratio_covers_the_truth_about_as_often_as_it_says(between: float) -> None:
    """Eight rounds, equal arms: 95 % wanted, and 80 experiments leave three standard errors of 7 %."""
    rng = np.random.default_rng(11)
    covered = 0
    for _ in range(80):
        pairs = [block_pair(rng, between) for _ in range(8)]
        base, other = (np.concatenate([pair[i] for pair in pairs]) for i in (0, 1))
        found = compare({"m": Paired(base, other, statistic("mean"))}, [pair[2] for pair in pairs], rng, draws=200)["m"]
        assert found.ci95 is not None
        covered += found.ci95[0] <= 1 <= found.ci95[1]
    assert covered / 80 >= 0.88


@pytest.mark.parametrize("q", [50, 95])
def test_the_interval_of_a_percentile_covers_at_least_as_often_as_it_says(q: float) -> None:
    rng = np.random.default_rng(3)
    truth = -np.log(1 - q / 100)
    covered = 0
    for _ in range(1000):
        found = percentile_interval(rng.exponential(1, 200), q)
        assert found is not None
        covered += found[0] <= truth <= found[1]
    assert covered / 1000 >= 0.93


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_equals_the_step_down_procedure(p_values: list[float]) -> None:
    """Rejected at a level by the procedure as it is defined, exactly if the adjusted p is at most that level."""
    adjusted = holm(list(p_values))
    for level in (0.01, 0.05, 0.2, 0.5):
        rejected: set[int] = set()
        for step, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
            if p_values[index] * (len(p_values) - step) > level:
                break
            rejected.add(index)
        found = {i for i, p in enumerate(adjusted) if p is not None and p <= level}
        assert found == rejected
