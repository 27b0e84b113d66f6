"""The table on the terminal: 80 columns, both arms, the star explained, why in a few lines."""

from __future__ import annotations

import pytest

from tests.bench.report.made import CASES, growing, made, shown


@pytest.mark.parametrize("name", CASES)
def test_it_fits_80_columns_and_cuts_nothing(name: str) -> None:
    text = shown(*CASES[name]())
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "nan" not in text


def test_both_arms_and_their_latencies_are_shown() -> None:
    text = shown(*CASES["a pair"]())
    for wanted in (
        "kv",
        "random",
        "TTFT mean, ms",
        "TTFT p99, ms",
        "ITL mean, ms",
        "ITL p99, ms",
        "from cache",
        "stable",
    ):
        assert wanted in text


def test_five_arms_are_all_named() -> None:
    text = shown(*CASES["five arms"]())
    assert all(name in text for name in ("kv", "random", "round", "least", "power"))


def test_the_star_has_a_legend() -> None:
    text = " ".join(shown(*CASES["a pair"]()).split())
    assert "* a difference is shown" in text
    assert "corrected for 2 tests" in text


def test_the_star_stands_in_the_table_of_many_arms_too() -> None:
    text = shown(*made(("kv", "random", "round-robin"), rounds=12))
    ratios = next(line for line in text.splitlines() if line.startswith("ttft_ms.mean"))
    assert ratios.count("*") == 2


def test_why_says_where_the_difference_comes_from() -> None:
    text = " ".join(shown(*CASES["a pair"]()).split())
    assert "why: mean TTFT, kv - random: -" in text
    assert "hits" in text
    assert "predicted less reported cached tokens" in text


def test_of_an_unstable_arm_there_is_no_ratio() -> None:
    text = shown(*made(make=growing), width=200)
    assert "unstable at this rate" in text
    assert "95 % interval" not in text
    assert "cannot be told" in text


def test_too_few_rounds_are_said_in_plain_words() -> None:
    text = " ".join(shown(*made(rounds=2)).split())
    assert "2 rounds cannot show a difference: even if all of them favour one side, p is 0.5" in text
    assert "--blocks 7 can" in text
