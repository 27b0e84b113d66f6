"""The table of a decision."""

from __future__ import annotations

from typing import Any

import pytest

from kvctl.render import decision_report


def decision(terms: list[tuple[str, float, str]], cost: float, **more: Any) -> dict[str, Any]:
    row = {
        "worker": "w1",
        "dp_rank": 0,
        "eligible": True,
        "why_not": None,
        "overlap": {"device": 8, "host": 0, "disk": 0, "shared": 0},
        "load": {"prefill_tokens": 32, "decode_blocks": 10, "active_requests": 0},
        "terms": [{"name": name, "value": value, "unit": unit} for name, value, unit in terms],
        "cost": cost,
    }
    return {
        "id": "d-1",
        "mode": "kv",
        "model": "m",
        "winner": {"worker": "w1", "dp_rank": 0},
        "reason": "load_bound",
        "degraded": [],
        "prompt_tokens": 160,
        "block_size": 16,
        "decide_us": 40.0,
        "candidates": [row],
        "predicted_cached_tokens": 128,
        "engine_cached_tokens": None,
    } | more


def test_terms_that_add_up_are_shown_as_a_sum(capsys: pytest.CaptureFixture[str]) -> None:
    decision_report(decision([("prefill", 2.0, "blocks"), ("decode", 10.0, "blocks")], 12.0))
    shown = capsys.readouterr().out
    assert "+ decode" in shown
    assert "= cost" in shown
    assert "cost in blocks" in shown
    assert "because of load bound" in shown


def test_terms_that_are_compared_one_after_the_other_are_not_shown_as_a_sum(capsys: pytest.CaptureFixture[str]) -> None:
    decision_report(decision([("known_prefix", 7.0, "blocks"), ("active_requests", 2.0, "requests")], 2.0))
    shown = capsys.readouterr().out
    assert "known prefix" in shown
    assert "+" not in shown
    assert "= cost" not in shown
    assert "cost in requests" in shown


def test_a_mode_without_terms_has_a_cost_in_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    decision_report(decision([], 0.0, mode="random"))
    assert "cost in nothing" in capsys.readouterr().out
