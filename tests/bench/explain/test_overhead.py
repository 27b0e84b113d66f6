"""The router's own time from three clocks laid over each other."""

from __future__ import annotations

import numpy as np
import pytest

from bench.clocks import BlockClocks
from bench.control import Clock
from bench.explain.overhead import overhead
from tests.bench.explain.test_columns import block

TWO = block([(0.0, 0.040, 1.0, 0, 10), (1.0, 1.060, 2.0, 0, 10)])
"""TTFT of 40 and 60 ms by the client."""


def clocks(count: float = 2) -> BlockClocks:
    return BlockClocks(
        {"ttft": Clock(0.080, count), "queue": Clock(0.010, count)},
        {"ttft": Clock(0.096, count), "tokenize": Clock(0.002, count)},
    )


def test_what_is_outside_the_engines_is_the_difference_of_the_means() -> None:
    found = overhead([TWO], [clocks()])
    assert found.client_ttft == pytest.approx(50)
    assert found.engine_ttft == pytest.approx(40)
    assert found.outside == pytest.approx(10)
    assert found.to_router == pytest.approx(50 - 48)
    assert found.to_engine == pytest.approx(48 - 40 - 1)
    assert (found.tokenize, found.queue, found.prefill) == (pytest.approx(1), pytest.approx(5), None)


def test_a_clock_that_counted_other_requests_is_not_used() -> None:
    found = overhead([TWO], [clocks(count=3)])
    assert found.engine_ttft is None
    assert found.outside is None
    assert found.client_ttft == pytest.approx(50)


def test_a_block_without_clocks_leaves_them_unknown() -> None:
    assert overhead([TWO, TWO], [clocks(), BlockClocks()]).outside is None


def test_nothing_measured_is_nothing_known() -> None:
    found = overhead([], [])
    assert (found.client_ttft, found.decide, found.decide_p99, found.outside) == (None, None, None, None)


def test_decisions_are_milliseconds() -> None:
    from dataclasses import replace

    found = overhead([replace(TWO, decide_ms=np.array([0.1, 0.3]))], [clocks()])
    assert found.decide == pytest.approx(0.2)
    assert found.decide_p50 == pytest.approx(0.2)
