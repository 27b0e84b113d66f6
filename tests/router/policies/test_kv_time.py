"""kv's cost in time: each term worked out by hand, and that the winner is the row that costs least time."""

from __future__ import annotations

import numpy as np
import pytest

from router.engine_time import EngineTimes
from router.model import Candidates
from router.policies.kv_time import KvTime
from router.policies.registry import make_policy
from router.policies.settings import PolicySettings
from tests.router.policies.build import fleet, request, rng


def timed(
    rows: Candidates, *, queued: list[float], pace: list[float], step: tuple[float, float] = (0, 0)
) -> Candidates:
    """`pace`: seconds a thousand tokens on each row; `step`: growth of a decode step a request, a thousand blocks."""
    n = len(rows)
    rows.times = EngineTimes(
        queued_s=np.array(queued),
        prefill=np.stack([np.full(n, 0.01), np.array(pace), np.zeros(n)], axis=1),
        step=np.tile(np.array([0.005, *step]), (n, 1)),
        output_tokens=100.0,
    )
    return rows


def terms(rows: Candidates, tokens: int = 1000) -> dict[str, list[float]]:
    decision = KvTime().decide(request(tokens), rows, rng())
    assert decision.cost.tolist() == pytest.approx(sum(term.values for term in decision.terms).tolist())
    assert {term.unit for term in decision.terms} == {"ms"}
    return {term.name: term.values.tolist() for term in decision.terms}


def test_queue_and_prefill_are_milliseconds() -> None:
    """Row 0 holds 50 of 100 blocks of 10: 500 tokens at 40 ms a thousand and 10 ms before; row 1 all of 1,000."""
    found = terms(timed(fleet(2, device=[50, 0]), queued=[0.25, 0.0], pace=[0.04, 0.04]))
    assert found["queue"] == [250.0, 0.0]
    assert found["prefill"] == pytest.approx([30.0, 50.0])
    assert found["slow_down"] == [0.0, 0.0]


def test_a_prompt_that_is_wholly_cached_takes_no_prefill() -> None:
    assert terms(timed(fleet(1, device=[100]), queued=[0.0], pace=[0.04]))["prefill"] == [0.0]


def test_the_slow_down_is_each_running_requests_and_its_own() -> None:
    """3 running, 100 tokens to come, 0.1 ms more a step and 1 ms a thousand of its 50 new blocks: 4*100*0.15 ms."""
    rows = timed(fleet(1, active_requests=[3], new_blocks=[50]), queued=[0.0], pace=[0.0], step=(1e-4, 1e-3))
    assert terms(rows)["slow_down"] == pytest.approx([60.0])


def test_queued_prefill_that_is_the_requests_own_prefix_is_not_waited_for() -> None:
    rows = fleet(1, prefill_tokens=[800], own_prefill_tokens=[600])
    assert terms(timed(rows, queued=[0.8], pace=[0.0]))["queue"] == pytest.approx([200.0])


def test_a_slow_worker_with_half_the_prompt_loses_to_a_fast_one_with_none() -> None:
    rows = timed(fleet(2, device=[50, 0]), queued=[0.0, 0.0], pace=[0.4, 0.1])
    assert KvTime().decide(request(1000), rows, rng()).worker == "w1"


def test_the_setting_chooses_the_unit() -> None:
    assert isinstance(make_policy("kv", PolicySettings(kv_cost="time")), KvTime)
    with pytest.raises(ValueError, match="kv-cost must be blocks or time"):
        PolicySettings(kv_cost="dollars")
