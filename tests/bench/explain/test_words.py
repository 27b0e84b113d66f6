"""The explanation in plain lines: what is known is said, what is not is left out or has its reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench.explain.words import explanation_lines, ttft_line
from tests.bench.report.made import CASES, growing, made

PAIR: dict[str, Any] = {
    "base": "random", "other": "kv", "pairs": 60, "difference_ms": -19.0, "reason": "", "r2": [0.9, 0.8],
    "effects": [
        {"name": "hits", "ms": -16.0, "ci95": None}, {"name": "imbalance", "ms": None, "ci95": None},
        {"name": "unexplained", "ms": -3.0, "ci95": None},
    ],
}  # fmt: skip


def test_the_parts_that_are_known_add_up_in_the_line() -> None:
    assert ttft_line(PAIR) == "mean TTFT, kv - random: -19.0 ms = hits -16.0, unexplained -3.0"


def test_a_model_that_explains_little_says_so() -> None:
    assert "explains little (R² 0.20)" in ttft_line(PAIR | {"r2": [0.9, 0.2]})


def test_a_pair_without_a_decomposition_has_its_reason() -> None:
    line = ttft_line(PAIR | {"effects": [], "reason": "too few"})
    assert line == "where the TTFT of kv against random comes from cannot be told: too few"


@pytest.mark.parametrize("name", CASES)
def test_every_result_can_be_written_as_json_and_said(name: str) -> None:
    data = CASES[name]()[0]["explanation"]
    text = json.dumps(data, allow_nan=False)
    assert json.loads(text) == json.loads(json.dumps(data))
    assert all(line and "nan" not in line and "None" not in line for line in explanation_lines(data))


def test_a_router_that_predicts_nothing_is_named_as_such() -> None:
    data = made()[0]["explanation"]
    for arm in data["arms"]:
        for one in arm["cache"]["calibration"]["bins"]:
            one["predicted"] = 0.0
    assert any("kv predicts none, random predicts none" in line for line in explanation_lines(data))


def test_an_unstable_arm_has_no_difference_in_milliseconds() -> None:
    pair = made(make=growing)[0]["explanation"]["ttft"][0]
    assert pair["difference_ms"] is None
    assert "unstable" in pair["reason"]
