"""The table of `make compare`: every arm with its title and version, and those that are absent with their reason."""

from __future__ import annotations

from bench.compare.report import markdown
from tests.bench.test_results_page import DATA


def text(**absent: str) -> str:
    data = DATA | {"provenance": DATA["provenance"] | {"versions": {"kv": "kvctl 1.2", "random": None}}}
    return markdown(data, {"kv": "kvctl, kv"}, absent, "make compare", "text")


def test_each_arm_has_its_title_and_version() -> None:
    rows = [line for line in text().splitlines() if line.startswith("| ")]
    assert rows[2].startswith("| kvctl, kv | kvctl 1.2 | 50.0 |")
    assert rows[3].startswith("| random (unstable) | unknown | - |")
    assert rows[3].endswith("| 0.50 [0.40, 0.60]* |  |")


def test_an_absent_arm_has_its_reason_on_one_line() -> None:
    assert "- smg: ended with code 1: no such\n" in text(smg="ended with code 1:\n no such")
    assert "Not in the comparison" not in text()


def test_why_a_run_does_not_count_is_told() -> None:
    assert "- random: too late" in text().splitlines()
