"""Noise from A/A pairs, the smallest difference that a run can show, and the rounds that a difference needs."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from bench.power import detectable, noise, rounds_for, smallest_effect
from bench.stats import sign_flip


def test_the_noise_of_pairs_is_their_root_mean_square() -> None:
    found = noise([0.03, -0.04])
    assert found is not None
    assert found.sd == pytest.approx(math.sqrt((0.0009 + 0.0016) / 2))
    assert found.pairs == 2


def test_pairs_that_agree_by_luck_are_not_taken_for_no_noise() -> None:
    found = noise([0.0, 0.0], within=[0.03, 0.04])
    assert found is not None
    assert found.sd == pytest.approx(math.sqrt((0.0009 + 0.0016) / 2))


def test_no_pair_gives_no_noise() -> None:
    assert noise([]) is None


def test_the_interval_of_the_noise_is_the_tables_chi_square() -> None:
    """Chi square of 4 degrees of freedom: 5 % above 9.488, 95 % above 0.711, 80 % above 1.649."""
    found = noise([0.1, -0.1, 0.1, -0.1])
    assert found is not None
    assert found.low == pytest.approx(0.1 * math.sqrt(4 / 9.488), rel=1e-3)
    assert found.high == pytest.approx(0.1 * math.sqrt(4 / 0.711), rel=1e-3)
    assert found.upper(0.8) == pytest.approx(0.1 * math.sqrt(4 / 1.649), rel=1e-3)


def test_too_few_rounds_can_show_nothing() -> None:
    assert detectable(6, 2) is None
    assert detectable(7, 2) is not None


@pytest.mark.parametrize("rounds", [8, 20])
def test_the_detectable_effect_is_claimed_four_times_in_five(rounds: int) -> None:
    """Against other noise than the function used, with the test that the run uses."""
    units = detectable(rounds, 1)
    assert units is not None
    rng = np.random.default_rng(99)
    claimed = [sign_flip(rng.normal(units, 1, rounds).tolist(), rng) <= 0.05 for _ in range(400 if rounds < 17 else 60)]
    assert 0.65 < np.mean(claimed) < 0.93


def test_more_rounds_show_less_and_more_tests_show_more() -> None:
    effects = [smallest_effect(0.05, rounds, 2) for rounds in (8, 12, 16, 24, 40)]
    assert all(a is not None and b is not None and a > b for a, b in pairwise(effects))
    few, many = smallest_effect(0.05, 12, 1), smallest_effect(0.05, 12, 4)
    assert few is not None
    assert many is not None
    assert few < many


def test_the_rounds_for_an_effect_are_the_fewest() -> None:
    rounds = rounds_for(0.05, 0.05, 2, 60)
    assert rounds is not None
    at, before = smallest_effect(0.05, rounds, 2), smallest_effect(0.05, rounds - 1, 2)
    assert at is not None
    assert at <= 0.05
    assert before is None or before > 0.05


def test_an_effect_out_of_reach_has_no_number_of_rounds() -> None:
    assert rounds_for(0.5, 0.01, 2, 20) is None
