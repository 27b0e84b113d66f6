"""Objectives as they are written, and what misses them."""

from __future__ import annotations

import pytest

from bench.metrics import Slo
from bench.slo import Target, missed, targets


def test_objectives_are_read() -> None:
    assert targets("ttft_p95=500ms, itl_p50=0.05s,e2e=3s") == (
        Target("ttft_ms", "p95", 500),
        Target("itl_ms", "p50", 50),
        Target("e2e_ms", "p95", 3000),
    )


def test_the_spelling_of_result_json_is_read_too() -> None:
    assert targets("ttft_ms.p99=1") == (Target("ttft_ms", "p99", 1),)


@pytest.mark.parametrize("text", ["ttft=soon", "speed=3ms", "ttft_p42=3ms", "ttft", "ttft=-1", "itl=1ms,itl_p95=2ms"])
def test_what_is_not_an_objective_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=text.split(",")[-1].split("=")[0]):
        targets(text)


def test_goodput_takes_the_limits_for_each_request() -> None:
    assert Slo.parse("ttft_p95=500ms,itl=50ms") == Slo(ttft_ms=500, itl_ms=50)


def test_two_statistics_of_a_metric_make_the_widest_limit_of_goodput() -> None:
    assert Slo.parse("ttft_p50=200ms,ttft_p95=500ms") == Slo(ttft_ms=500)


def test_what_is_missed_is_said() -> None:
    values = {"ttft_ms.p95": 600.0, "itl_ms.p95": 40.0}
    assert missed(targets("ttft=500ms,itl=50ms,e2e=1s"), values.get) == [
        "ttft_ms.p95 is 600 ms, 500 allowed",
        "e2e_ms.p95 does not exist",
    ]
