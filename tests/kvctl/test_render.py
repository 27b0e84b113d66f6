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


def test_a_mode_that_looks_at_nothing_claims_nothing_of_the_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    decision_report(decision([], 0.0, mode="random", prompt_tokens=0, predicted_cached_tokens=0))
    shown = capsys.readouterr().out
    assert "prompt not read: this mode does not look at blocks" in shown
    assert "predicted" not in shown
    assert "cost in" not in shown


def test_blocks_of_slower_tiers_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    row = decision([("prefill", 2.0, "blocks")], 2.0)
    row["candidates"][0]["overlap"] = {"device": 30, "host": 8, "disk": 0, "shared": 4}
    decision_report(row)
    assert "30 + 8 host + 4 shared" in capsys.readouterr().out
