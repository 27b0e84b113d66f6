"""Predicted against reported cached tokens: bias, error and bins on numbers that can be added up by hand."""

from __future__ import annotations

import numpy as np
import pytest

from bench.explain.cache import cache_use, calibration
from tests.bench.explain.test_columns import block

NAN = float("nan")


def test_bias_is_the_mean_of_predicted_less_reported() -> None:
    found = calibration(np.full(4, 100.0), np.array([0.0, 50, 80, 20]), np.array([10.0, 50, 60, 60]))
    assert found is not None
    assert found.bias == pytest.approx((10 + 0 - 20 + 40) / 4)
    assert found.error == pytest.approx((10 + 0 + 20 + 40) / 4)
    assert (found.exact, found.over, found.under) == (0.25, 0.5, 0.25)


def test_bins_are_of_the_predicted_share_and_zero_has_its_own() -> None:
    found = calibration(np.full(4, 100.0), np.array([30.0, 15, 25, 90]), np.array([0.0, 10, 20, 100]))
    assert found is not None
    rows = [(one.low, one.high, one.requests, one.predicted, one.actual) for one in found.bins]
    assert rows == [
        (0.0, 0.0, 1, 0.0, pytest.approx(0.3)),
        (0.0, 0.2, 2, pytest.approx(0.15), pytest.approx(0.2)),
        (0.8, 1.0, 1, 1.0, pytest.approx(0.9)),
    ]


def test_requests_of_which_one_side_is_unknown_are_in_no_bin() -> None:
    found = calibration(np.full(3, 100.0), np.array([NAN, 10, 10]), np.array([10.0, NAN, 10]))
    assert found is not None
    assert found.requests == 1
    assert calibration(np.full(1, 100.0), np.array([NAN]), np.array([1.0])) is None


def test_what_was_reached_is_the_share_of_the_bound() -> None:
    found = cache_use([block([(0, 1, 2, 0, 400), (1, 2, 3, 0, 800)])], 0.8)
    assert found.actual == pytest.approx((600 + 200) / 2000)
    assert found.reached == pytest.approx(0.5)
    assert found.predicted is None
    assert found.calibration is None


def test_nothing_measured_has_no_shares() -> None:
    found = cache_use([], 0.8)
    assert (found.actual, found.predicted, found.reached, found.calibration) == (None, None, None, None)
