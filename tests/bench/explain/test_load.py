"""How requests lie on workers: shares, spread, and the time line of what is in flight."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.explain.load import COLUMNS, in_flight, load_spread
from tests.bench.explain.test_columns import block

THREE_TO_ONE = [(0.0, 0.5, 1.0, 0, 10), (1.0, 1.5, 2.0, 0, 20), (2.0, 2.5, 3.0, 0, 30), (3.0, 3.5, 4.0, 1, 40)]


def test_shares_and_computed_tokens_are_counted_by_worker() -> None:
    found = load_spread([block(THREE_TO_ONE)], ["a", "b"])
    assert [(w.name, w.requests, w.share, w.tokens) for w in found.workers] == [("a", 3, 0.75, 60), ("b", 1, 0.25, 40)]


def test_spread_of_three_to_one_over_two_workers() -> None:
    found = load_spread([block(THREE_TO_ONE)], ["a", "b"])
    assert found.cv == pytest.approx(0.5)  # counts 3 and 1: deviation 1, mean 2
    assert found.jain == pytest.approx(16 / (2 * 10))


def test_spread_is_averaged_over_blocks_not_over_their_sum() -> None:
    mirrored = [(send, first, over, 1 - worker, tokens) for send, first, over, worker, tokens in THREE_TO_ONE]
    found = load_spread([block(THREE_TO_ONE), block(mirrored)], ["a", "b"])
    assert found.cv == pytest.approx(0.5)
    assert [w.share for w in found.workers] == [0.5, 0.5]


def test_in_flight_is_the_mean_over_a_span() -> None:
    grid = in_flight(block([(0.0, 0.5, 2.0, 0, 1), (4.0, 4.5, 9.0, 1, 1)]), 2, 2)
    assert grid[0].tolist() == [1.0, 0.0]
    assert grid[1].tolist() == [0.0, 0.0]


def test_the_time_line_of_many_blocks_shows_the_first() -> None:
    found = load_spread([block(THREE_TO_ONE)] * (COLUMNS + 5), ["a", "b"])
    assert found.line is not None
    assert found.line.in_flight.shape == (2, COLUMNS)
    assert len(found.line.rounds) == COLUMNS


def test_the_time_line_has_as_many_columns_for_each_block() -> None:
    found = load_spread([block(THREE_TO_ONE)] * 3, ["a", "b"])
    assert found.line is not None
    assert np.array_equal(found.line.in_flight[:, :32], found.line.in_flight[:, 32:64])


def test_answers_that_name_no_worker_have_no_spread() -> None:
    found = load_spread([block([(0.0, 1.0, 2.0, -1, 10)])], ["a"])
    assert (found.workers, found.cv, found.line) == ((), None, None)


def test_one_request_a_block_has_a_spread() -> None:
    found = load_spread([block([(0.0, 1.0, 2.0, 0, 10)])], ["a", "b"])
    assert found.cv == pytest.approx(1.0)
    assert found.in_flight_cv is None or math.isfinite(found.in_flight_cv)
