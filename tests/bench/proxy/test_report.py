"""The report's figures, against ones worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.proxy import report
from bench.proxy.load import Result
from bench.proxy.routers import ARMS
from bench.proxy.run import Measured, Outcome, Plan


def plan(*names: str) -> Plan:
    return Plan(tuple(arm for arm in ARMS if arm.name in names), 2, 1.0, Path("peers"), Path("tokenizer"))


def measured(rate: int, cpu: float, p50: float = 0.0, p99: float = 0.0) -> Measured:
    """`rate` answers in one second, `cpu` seconds of the router in it; percentiles in seconds."""
    return Measured(
        closed=Result(rate, 1.0, 0, router_cpu=cpu, client_cpu=0.2),
        paced=Result(500, 1.0, 0, p50=p50, p99=p99, router_cpu=0.1),
        streams=Result(1000, 1.0, 0, router_cpu=0.02),
    )


def outcome() -> Outcome:
    return Outcome(
        rounds={
            "direct": [measured(80_000, 0.0, 100e-6, 200e-6), measured(80_000, 0.0, 100e-6, 200e-6)],
            "kvctl-rr": [measured(20_000, 1.0, 200e-6, 500e-6), measured(30_000, 1.0, 300e-6, 600e-6)],
            "vllm-rr": [measured(10_000, 1.0, 300e-6, 500e-6), measured(20_000, 1.0, 500e-6, 800e-6)],
        },
        cores="router on core 0",
    )


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    figures = report.Figures(plan("direct", "kvctl-rr", "vllm-rr"), outcome())
    assert figures.ratio("kvctl-rr", "vllm-rr", "rate") == pytest.approx((20 / 10 + 30 / 20) / 2)


def test_added_latency_is_over_the_engines_alone() -> None:
    figures = report.Figures(plan("direct", "kvctl-rr", "vllm-rr"), outcome())
    assert figures.each("kvctl-rr", "p50") == pytest.approx([100.0, 200.0])
    assert figures.each("kvctl-rr", "p99") == pytest.approx([300.0, 400.0])


def test_a_goal_that_is_missed_says_by_how_much() -> None:
    slow = outcome()
    slow.rounds["kvctl-rr"] = [measured(10_000, 1.0, 200e-6, 500e-6)] * 2
    slow.rounds["vllm-rr"] = [measured(20_000, 1.0, 200e-6, 500e-6)] * 2
    text = report.markdown(plan("direct", "kvctl-rr", "vllm-rr"), slow)
    assert (
        "| round-robin: requests/s at least 1.2 times vllm-router's | 0.50 | missed by a factor of 2.40 | 0.50 |"
        in text
    )


def test_a_goal_that_is_met_says_so() -> None:
    text = report.markdown(plan("direct", "kvctl-rr", "vllm-rr"), outcome())
    assert "| round-robin: requests/s at least 1.2 times vllm-router's | 1.75 | met | 1.75 |" in text


def test_a_router_that_was_not_busy_is_noted() -> None:
    idle = outcome()
    idle.rounds["kvctl-rr"] = [measured(20_000, 0.5)] * 2
    assert "kvctl-rr): client and engines were the limit" in report.markdown(plan("direct", "kvctl-rr"), idle)
