"""Each number of the statistics against one worked out by hand (or by a plain loop)."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.stats import (
    Paired,
    compare,
    holm,
    mean,
    percentile,
    percentile_interval,
    share_of_sums,
    sign_flip,
    statistic,
    values_needed,
)

INF = math.inf


def rng() -> np.random.Generator:
    return np.random.default_rng(1)


def array(*values: float) -> np.ndarray:
    return np.array(values, np.float64)


def test_percentiles_are_linear_between_ranks() -> None:
    values = array(10, 20, 30, 40, 50)
    assert percentile(values, 50) == 30
    assert percentile(values, 90) == pytest.approx(46)
    assert percentile(values, 0) == 10


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.floats(0, 100))
def test_percentile_equals_numpys(values: list[float], q: float) -> None:
    assert percentile(array(*values), q) == pytest.approx(float(np.percentile(values, q)), rel=1e-9, abs=1e-6)


def test_failures_reach_the_percentiles_above_them() -> None:
    values = array(*[1.0] * 98, INF, INF)
    assert percentile(values, 50) == 1.0
    assert percentile(values, 99) == INF


def test_the_mean_is_of_what_succeeded() -> None:
    assert mean(array(1, 3, INF)) == 2


def test_nothing_has_no_percentile_and_no_mean() -> None:
    assert math.isnan(percentile(array(), 50))
    assert math.isnan(mean(array()))


def test_statistics_by_name() -> None:
    assert statistic("p25")(array(1, 2, 3, 4, 5)) == 2
    assert statistic("mean")(array(1, 2, 6)) == 3
    with pytest.raises(ValueError, match="p200"):
        statistic("p200")


@pytest.mark.parametrize(("q", "enough"), [(99, 368), (99.9, 3688)])
def test_an_interval_of_a_high_percentile_needs_many_values(q: float, enough: int) -> None:
    assert percentile_interval(np.arange(enough - 1, dtype=np.float64), q) is None
    found = percentile_interval(np.arange(enough, dtype=np.float64), q)
    assert found is not None
    assert found[1] == enough - 1


def test_the_interval_of_a_median_is_the_binomial_one() -> None:
    """n = 10: P(X <= 1) = 11/1024 is below 2.5 %, P(X <= 2) = 56/1024 is not, so ranks 2 and 9."""
    assert percentile_interval(array(*range(1, 11)), 50) == (2.0, 9.0)


def test_six_equal_signs_give_the_smallest_p_of_six_rounds() -> None:
    assert sign_flip([0.1, 0.2, 0.3, 0.1, 0.2, 0.4], rng()) == pytest.approx(2 / 64)


def test_sign_flip_by_hand() -> None:
    """Sums of +-1 +-2 +-4: |1 + 2 - 4| = 1 is reached by every pattern, |1 - 2 + 4| = 3 by six of eight."""
    assert sign_flip([1, 2, -4], rng()) == 1.0
    assert sign_flip([1, -2, 4], rng()) == pytest.approx(6 / 8)


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=8))
def test_sign_flip_equals_the_plain_enumeration(values: list[int]) -> None:
    observed = abs(sum(values))
    patterns = list(itertools.product((-1, 1), repeat=len(values)))
    hits = sum(abs(sum(s * v for s, v in zip(signs, values, strict=True))) >= observed for signs in patterns)
    assert sign_flip(values, rng()) == pytest.approx(hits / len(patterns))


def test_many_rounds_are_drawn_and_never_give_zero() -> None:
    assert 0 < sign_flip([1.0] * 30, rng()) <= 2 / 65_537


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_holm_leaves_out_what_was_not_tested() -> None:
    assert holm([0.02, None]) == [0.02, None]


def test_holm_never_exceeds_one() -> None:
    assert holm([0.6, 0.7]) == [1.0, 1.0]


def sessions(*counts: int) -> np.ndarray:
    return np.repeat(np.arange(len(counts)), counts)


def test_a_constant_factor_is_found_with_a_narrow_interval_and_the_smallest_p() -> None:
    base = rng().uniform(1, 2, 80)
    metric = Paired(base, base * 0.5, statistic("mean"))
    found = compare({"m": metric}, [sessions(5, 5)] * 8, rng(), draws=200)["m"]
    assert found.ratio == pytest.approx(0.5)
    assert found.ci95 == pytest.approx((0.5, 0.5))
    assert found.p == pytest.approx(2 / 256)


def test_equal_arms_have_ratio_one_and_p_one() -> None:
    base = rng().uniform(1, 2, 40)
    found = compare({"m": Paired(base, base.copy(), statistic("p95"))}, [sessions(10)] * 4, rng(), draws=100)["m"]
    assert found.ratio == 1
    assert found.p == 1


def test_the_interval_spans_what_differs_between_rounds() -> None:
    base = np.ones(40)
    other = np.repeat([0.5, 1.5, 0.5, 1.5], 10)
    found = compare({"m": Paired(base, other, statistic("mean"))}, [sessions(10)] * 4, rng(), draws=400)["m"]
    assert found.ratio == pytest.approx(1.0)
    assert found.ci95 is not None
    assert found.ci95[0] == pytest.approx(0.5)
    assert found.ci95[1] == pytest.approx(1.5)


def test_one_round_has_a_ratio_and_no_interval() -> None:
    found = compare({"m": Paired(array(1, 2), array(2, 4), statistic("mean"))}, [sessions(1, 1)], rng())["m"]
    assert found.ratio == 2
    assert found.ci95 is None


def test_a_percentile_that_failures_reach_has_no_ratio() -> None:
    other = array(*[1.0] * 9, INF)
    metrics = {
        "p99": Paired(np.ones(10), other, statistic("p99")),
        "p50": Paired(np.ones(10), other, statistic("p50")),
    }
    found = compare(metrics, [sessions(5), sessions(5)], rng(), draws=100)
    assert found["p99"].ratio is None
    assert found["p99"].p is None
    assert found["p50"].ratio == 1


def test_requests_without_the_metric_are_left_out() -> None:
    nan = math.nan
    metric = Paired(array(1, nan, 3), array(2, nan, 6), statistic("mean"))
    assert compare({"m": metric}, [sessions(3)], rng())["m"].ratio == 2


def test_a_ratio_of_sums_weighs_by_the_second_column() -> None:
    base = np.array([[10.0, 100.0], [0.0, 300.0]])
    other = np.array([[10.0, 100.0], [70.0, 300.0]])
    assert share_of_sums(base) == pytest.approx(0.025)
    found = compare({"m": Paired(base, other, share_of_sums)}, [sessions(2)], rng())["m"]
    assert found.ratio == pytest.approx(8)


def test_the_bootstrap_resamples_whole_sessions() -> None:
    """Two sessions of equal values inside a round: every draw's mean is one of three values, never between."""
    base = np.ones(20)
    other = np.concatenate([np.repeat([1.0, 3.0], 5)] * 2)
    means: set[float] = set()

    def note(values: np.ndarray) -> float:
        means.add(round(float(values.mean()), 6))
        return float(values.mean())

    compare({"m": Paired(base, other, note)}, [sessions(5, 5)] * 2, rng(), draws=200)
    assert means <= {1.0, 1.5, 2.0, 2.5, 3.0}


@pytest.mark.parametrize("q", [5.0, 50.0, 90.0, 95.0, 99.0, 99.9])
def test_the_values_needed_are_the_first_with_an_interval(q: float) -> None:
    needed = values_needed(q)
    assert percentile_interval(np.arange(needed, dtype=np.float64), q) is not None
    assert percentile_interval(np.arange(needed - 1, dtype=np.float64), q) is None
