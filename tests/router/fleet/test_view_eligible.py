"""Looked-up eligibility is the one that would be computed."""

from __future__ import annotations

import numpy as np
import pytest

from router.fleet.registry import Fleet
from router.fleet.worker import Health
from router.model import WhyNot, WorkerSpec


def fleet() -> Fleet:
    made = Fleet()
    for number, health in enumerate((Health.UP, Health.DOWN, Health.UP)):
        worker = made.add(WorkerSpec(url=f"http://h{number}:1", id=f"w{number}"))
        worker.health, worker.models = health, ("m",) if number else ("m", "other")
    made.changed()
    return made


@pytest.mark.parametrize("model", ["", "m", "other", "nobody"])
def test_eligible_is_where_no_rule_bites(model: str) -> None:
    view = fleet().view
    codes = view.base_why_not(model)
    for _ in range(2):
        assert view.eligible(codes).tolist() == [code == WhyNot.OK for code in codes.tolist()]


def test_a_copy_that_was_written_to_is_computed_anew() -> None:
    view = fleet().view
    codes = view.base_why_not("m").copy()
    codes[0] = WhyNot.TAINT
    assert view.eligible(codes).tolist() == [False, False, True]


def test_what_is_looked_up_cannot_be_written_to() -> None:
    view = fleet().view
    with pytest.raises(ValueError, match="read-only"):
        view.eligible(view.base_why_not("m"))[0] = np.False_
