"""Durations and sizes as they stand on a command line."""

from __future__ import annotations

import pytest

from kvctl.errors import Problem
from kvctl.quantities import seconds, size


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90", 90), ("1.5", 1.5), ("90s", 90), ("15m", 900), ("1h30m", 5400), ("500ms", 0.5), ("1d", 86400), ("0", 0)],
)
def test_a_duration(text: str, expected: float) -> None:
    assert seconds(text, "--window") == expected


@pytest.mark.parametrize("text", ["", "m", "15 minutes", "-5s", "1h 3", "1e3", "31d", "inf"])
def test_what_is_no_duration_names_the_option(text: str) -> None:
    with pytest.raises(Problem, match="--window"):
        seconds(text, "--window")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1048576", 1 << 20), ("4Mi", 4 << 20), ("64KiB", 64 << 10), ("1G", 1 << 30), ("512k", 512 << 10), ("10B", 10)],
)
def test_a_size(text: str, expected: int) -> None:
    assert size(text, "--log-limit-bytes") == expected


@pytest.mark.parametrize("text", ["", "Mi", "1.5Mi", "-1", "0", "4Ti", "5Gi"])
def test_what_is_no_size_names_the_option(text: str) -> None:
    with pytest.raises(Problem, match="--log-limit-bytes"):
        size(text, "--log-limit-bytes")
