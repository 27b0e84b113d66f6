"""Columns give back what was put, and say the same as the objects."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.client.table import LATENCIES, Table
from bench.client.timing import Events, Timing
from bench.metrics import Measured, Measurements
from tests.bench.results import request

moments = st.integers(1, 40).map(lambda n: n / 8)


@st.composite
def timings(draw: st.DrawFn) -> Timing:
    """Any request that has ended."""
    sched = draw(moments)
    send = sched + draw(moments)
    kind = draw(st.sampled_from(["whole", "aborted", "failed", "never sent"]))
    if kind == "never sent":
        return Timing(sched, error="previous_failed", t_over=sched)
    if kind == "failed":
        return Timing(sched, send, status=500, error="http_500", detail="no", t_over=send + 1, retry_after=3.0)
    gaps = draw(st.lists(moments, max_size=5))
    first = send + draw(moments)
    last = first + sum(gaps)
    return Timing(
        sched, send, send + 0.125, first, last, last + 0.5, 200, "w1", "d1", draw(st.none() | st.integers(1, 99)),
        draw(st.none() | st.integers(0, 99)), len(gaps) + draw(st.integers(1, 3)), "usage",
        events=Events(content=len(gaps) + 1, done=1), gaps=gaps, t_over=last + 0.5, aborted=kind == "aborted",
    )  # fmt: skip


@settings(deadline=None)
@given(st.lists(timings(), max_size=8))
def test_a_row_comes_back_as_it_was_put(found: list[Timing]) -> None:
    table = Table.of(found)
    assert [repr(timing) for timing in table] == [repr(timing) for timing in found]


@settings(deadline=None)
@given(st.lists(timings(), max_size=8))
def test_columns_of_latencies_equal_those_of_the_objects(found: list[Timing]) -> None:
    table = Table.of(found)
    for name in LATENCIES:
        plain = [getattr(timing, name) for timing in found]
        wanted = np.array([math.nan if value is None else value for value in plain], np.float64)
        np.testing.assert_allclose(table.latency(name), wanted)


@settings(deadline=None)
@given(st.lists(timings(), max_size=8))
def test_pooled_gaps_are_those_of_whole_answers(found: list[Timing]) -> None:
    wanted = [gap for timing in found if timing.ok and not timing.aborted for gap in timing.gaps]
    assert Table.of(found).gaps().tolist() == wanted


def test_joined_blocks_are_one_sequence() -> None:
    blocks = [[Measured(request(i, r), Timing(float(i), error="cut")) for i in range(3)] for r in range(2)]
    joined = Measurements.join(blocks)
    assert [m.request.id for m in joined] == ["r0-0", "r0-1", "r0-2", "r1-0", "r1-1", "r1-2"]
    assert joined[4].timing.t_sched == 1.0
    assert joined[-1].request.id == "r1-2"


def test_an_unknown_latency_is_an_error() -> None:
    with pytest.raises(ValueError, match="no latency 'tpot'"):
        Table(1).latency("tpot")
