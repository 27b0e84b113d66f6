"""What counts as agreement: two per cent of each number that two tools define alike, and the same work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.agreement.plan import make_plan
from bench.agreement.report import METRICS, beyond, markdown, unsteady
from bench.agreement.tools import Report, ToolFailed

NUMBERS: dict[str, dict[str, float | None]] = {name: {"mean": 100.0, "p50": 90.0, "p95": 150.0} for name in METRICS}
OURS = Report(NUMBERS, 1000, 50, 3, [5.0, 6.5, 8.0])


def like(**changed: float) -> Report:
    ttft = NUMBERS["ttft_send_ms"] | changed
    return replace(OURS, numbers=NUMBERS | {"ttft_send_ms": ttft})


def test_what_is_within_two_per_cent_agrees() -> None:
    assert beyond({"kvctl": OURS, "aiperf": like(mean=101.9, p95=147.1)}) == []


def test_what_is_further_apart_is_named() -> None:
    assert beyond({"kvctl": OURS, "aiperf": like(p95=154.5)}) == ["aiperf: TTFT, from the sending, p95: +3.0%"]


def test_a_metric_that_a_tool_lacks_is_not_compared() -> None:
    lacking = replace(OURS, numbers={name: one for name, one in NUMBERS.items() if name != "icl_ms"})
    assert beyond({"kvctl": OURS, "vllm": lacking}) == []
    assert "| - |" in markdown({"kvctl": OURS, "vllm": lacking}, {"kvctl": "1", "vllm": "2"}, "facts", {})


def test_other_work_is_no_agreement() -> None:
    assert beyond({"kvctl": OURS, "aiperf": replace(OURS, output_tokens=49)}) == ["aiperf: 49 output tokens, kvctl 50"]


def test_the_table_has_each_tools_number_and_its_difference() -> None:
    text = markdown({"kvctl": OURS, "aiperf": like(mean=101.0)}, {"kvctl": "1", "aiperf": "0.13"}, "facts", {})
    assert "| TTFT, from the sending | mean | 100.00 | 101.00 (+1.0%) |" in text
    assert "All agrees within 2%." in text


def test_a_tool_that_could_not_run_is_named_with_its_reason() -> None:
    assert "- vllm could not be run: no such file" in markdown(
        {"kvctl": OURS}, {"kvctl": "1"}, "f", {"vllm": "no such file"}
    )


def test_what_a_tool_alone_does_not_repeat_is_told_with_every_tools_spread() -> None:
    runs = {"kvctl": [OURS, like(p95=156.0)], "aiperf": [OURS, like(p95=151.5)]}
    assert unsteady(runs) == ["TTFT, from the sending, p95: kvctl 4.0%, aiperf 1.0%"]


def test_times_of_sending_are_held_against_the_plan_from_the_first_on() -> None:
    plan = make_plan(3, 1.5, "sim", 0)
    assert replace(OURS, sent=[8.25, 5.0, 6.5]).drift(plan) == pytest.approx(0.25)


def test_a_tool_that_sent_fewer_requests_failed() -> None:
    with pytest.raises(ToolFailed, match="2 requests were sent where 3 were planned"):
        replace(OURS, sent=[1.0, 2.0]).drift(make_plan(3, 1.5, "sim", 0))
