"""What a run says of its workload before it starts."""

from __future__ import annotations

import io

from rich.console import Console

from bench.announce import announce_workload
from bench.workload.describe import describe
from tests.bench.results import workload


def said(requests: int, slices: int) -> str:
    made = workload(slices, requests // slices)
    out = io.StringIO()
    announce_workload(Console(file=out, width=200), made, describe(made))
    return out.getvalue()


def test_blocks_of_a_few_requests_are_named_with_the_number_that_helps() -> None:
    assert "2.0 requests a block are too few" in said(80, 40)
    assert "give --requests 320 or more" in said(80, 40)


def test_blocks_that_are_long_enough_are_not_named() -> None:
    assert "too few" not in said(320, 40)
