"""What was ahead of a request when it was sent, on schedules small enough to count by eye."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.control import DecisionFacts
from bench.explain.columns import BlockColumns, ahead, columns
from bench.metrics import Measured
from tests.bench.results import request, timing


def block(rows: list[tuple[float, float, float, int, float]]) -> BlockColumns:
    """(send, first, over, worker, uncached) a request; prompts of 1,000 tokens."""
    send, first, over, worker, uncached = (np.array(column, np.float64) for column in zip(*rows, strict=True))
    n = len(rows)
    nothing = np.full(n, np.nan)
    return BlockColumns(
        0, [f"r{i}" for i in range(n)], [f"s{i}" for i in range(n)], ~np.isnan(first), send, send, first, over,
        worker.astype(np.int64), np.full(n, 1000.0), 1000.0 - uncached, nothing, nothing,
    )  # fmt: skip


def test_ahead_counts_what_is_not_complete_and_tokens_without_a_first_one() -> None:
    found = ahead(
        block(
            [
                (0.0, 1.0, 3.0, 0, 100),  # first token at 1, complete at 3
                (0.5, 2.0, 4.0, 0, 200),  # behind the first: 1 request, 100 tokens
                (1.5, 2.5, 5.0, 0, 300),  # 2 requests, only the second has no token yet
                (3.5, 4.5, 6.0, 0, 400),  # the first is complete
            ]
        ),
        1,
    )
    assert found.requests.tolist() == [0, 1, 2, 2]
    assert found.tokens.tolist() == [0, 100, 200, 0]


def test_another_worker_is_in_the_average_alone() -> None:
    found = ahead(block([(0.0, 1.0, 3.0, 0, 100), (0.5, 2.0, 4.0, 1, 200)]), 2)
    assert found.requests.tolist() == [0, 0]
    assert found.mean_requests.tolist() == [0, 0.5]
    assert found.mean_tokens.tolist() == [0, 50]


def test_an_unknown_worker_has_an_average_only() -> None:
    found = ahead(block([(0.0, 1.0, 3.0, -1, 100), (0.5, 2.0, 4.0, -1, 200)]), 2)
    assert np.isnan(found.requests).all()
    assert found.mean_requests.tolist() == [0, 0.5]


def test_a_failed_request_is_ahead_until_it_failed() -> None:
    found = ahead(block([(0.0, math.nan, 1.0, 0, 100), (0.5, 1.5, 2.0, 0, 1), (1.2, 2.0, 3.0, 0, 1)]), 1)
    assert found.requests.tolist() == [0, 1, 1]
    assert found.tokens.tolist() == [0, 100, 1]


def test_the_columns_are_those_of_the_requests() -> None:
    sent = [
        Measured(request(0), timing(10.0, ttft=0.1, lag=0.02, cached=64, worker="w1"), DecisionFacts(250.0, 80)),
        Measured(request(1), timing(11.0, error="http_500", worker=None)),
    ]
    found = columns(sent, 3, ["w0", "w1"], reports=True)
    assert found.round == 3
    assert found.worker.tolist() == [1, -1]
    assert found.ttft_send_ms[0] == pytest.approx(80)
    assert found.late_ms[0] == pytest.approx(20)
    assert found.uncached[0] == 36
    assert found.decide_ms[0] == 0.25
    assert found.predicted[0] == 80
    assert np.isnan([found.ttft_send_ms[1], found.cached[1], found.predicted[1]]).all()


def test_cached_tokens_are_unknown_where_no_engine_reports_them() -> None:
    found = columns([Measured(request(0), timing(1.0, cached=None))], 0, ["w0"], reports=False)
    assert np.isnan(found.cached).all()
