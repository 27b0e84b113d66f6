"""Lines meant to make an expression slow: its own words over and over, and what its wildcards like."""

from __future__ import annotations

from checks.logs.patterns import PatternRow
from checks.logs.read import RECORD_CHARACTERS


def hostile_lines(row: PatternRow) -> list[str]:
    """Lines as long as a record may be, made from a row's sample."""
    words = row.sample.replace("\n", " ").split(" ")
    message = row.sample.split(": ", 1)[-1]
    seeds = [
        message,
        message[: len(message) // 2],
        message[: 2 * len(message) // 3],
        *(" ".join(words[:end]) + " " for end in range(3, min(len(words), 12))),
        *(" ".join(words[start:]) for start in range(2, min(len(words), 8))),
        "('x', 1) ",
        "http://a:1 ",
        "_1",
        "{",
        "1",
        " ",
        "\\",
        "'",
    ]
    lines = [(seed * (RECORD_CHARACTERS // len(seed) + 1))[:RECORD_CHARACTERS] for seed in seeds if seed]
    return lines + [
        (message[: len(message) // 2] + filler * RECORD_CHARACTERS)[:RECORD_CHARACTERS] for filler in "1 x_'{"
    ]
