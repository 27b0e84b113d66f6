"""10,000,000 different blocks through an index of 256 MiB: memory keeps to the limit, and what is kept stays right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BLOCKS, LIMIT_MIB = 10_000_000, 256
OVERHEAD = 32 << 20
"""Of the process past the arrays, as docs/performance.md states it: allocator, small objects, moves of small pools."""


@pytest.fixture(scope="module")
def filled() -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.router.prefix.fill_index", str(BLOCKS), str(LIMIT_MIB)]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_arrays_stay_within_the_limit(filled: dict[str, Any]) -> None:
    assert 0 < filled["bytes"] <= LIMIT_MIB << 20


def test_the_process_stays_within_the_limit_and_a_constant(filled: dict[str, Any]) -> None:
    assert filled["peak_growth"] <= (LIMIT_MIB << 20) + OVERHEAD


def test_every_block_was_taken_and_the_limit_was_reached(filled: dict[str, Any]) -> None:
    assert filled["stored"] == BLOCKS * 11 // 10
    assert filled["evicted"] > BLOCKS // 2


def test_most_of_the_limit_is_used_for_blocks(filled: dict[str, Any]) -> None:
    assert filled["nodes"] > 2_500_000


def test_what_is_kept_is_matched_exactly_by_what_the_index_says_it_holds(filled: dict[str, Any]) -> None:
    """For 2,000 chains and every worker, the depth is that of the first block which is no longer held there."""
    assert filled["matches"] > 100_000
    assert filled["wrong"] == 0


def test_no_worker_is_said_to_hold_what_it_never_told_or_took_back(filled: dict[str, Any]) -> None:
    assert filled["untrue"] == 0


def test_some_of_the_newest_chains_are_still_there_and_some_of_the_oldest_are_not(filled: dict[str, Any]) -> None:
    assert 100 < filled["deep"] < 2000
