"""Markdown tables of a run's numbers, for pages that programs write. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def table(head: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> list[str]:
    """The lines of a table whose first `words` columns are text; the others are aligned to the right."""
    marks = ["---"] * words + ["---:"] * (len(head) - words)
    return [_line(head), _line(marks), *map(_line, rows)]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def milliseconds(value: float | None, digits: int = 1) -> str:
    """None, which is infinite or missing, as a dash."""
    return "-" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    """None, which is unknown, as a question mark."""
    return "?" if value is None else f"{value:.0%}"


def ratio(comparisons: Sequence[Mapping[str, Any]], base: str, metric: str) -> str:
    """What result.json's comparisons say of the first arm against `base`: `0.80 [0.70, 0.90]*`, the star if claimed;
    empty if there is none.
    """
    for one in comparisons:
        if one["base"] == base and one["metric"] == metric and one["ratio"] is not None:
            interval = one["ci95"]
            span = f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else ""
            return f"{one['ratio']:.2f}{span}{'*' if one['claimed'] else ''}"
    return ""


def one_line(text: str) -> str:
    """Text of several lines, as it stands in a list."""
    return " ".join(text.split())


def verdict_lines(verdict: Mapping[str, Any]) -> list[str]:
    """Why a run does not count, or what is to be noted of it; empty if nothing is."""
    if not verdict["valid"]:
        return ["", "The run does not count:", "", *(f"- {one_line(reason)}" for reason in verdict["reasons"])]
    return ["", *(f"- {one_line(note)}" for note in verdict["notes"])] if verdict["notes"] else []
