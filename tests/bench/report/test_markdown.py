"""report.md: verdict, one table, gates; nothing in it from outside is markup."""

from __future__ import annotations

from typing import Any

import pytest
from markdown_it import MarkdownIt

from bench.report.markdown import markdown
from tests.bench.report.made import CASES, failing, growing, made, sweep


def rendered(text: str) -> str:
    return MarkdownIt("commonmark", {"html": True}).enable("table").render(text)


@pytest.mark.parametrize("name", CASES)
def test_there_is_one_table_and_every_row_has_its_cells(name: str) -> None:
    text = markdown(CASES[name]()[0])
    assert rendered(text).count("<table>") == 1
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in rows}) == 1
    assert "nan" not in text


def test_the_verdict_comes_first_then_gates_then_the_table() -> None:
    text = markdown(CASES["a pair"]()[0])
    places = [text.index("**kv against random: mean TTFT is 50% lower"), text.index("- gate `"), text.index("| |")]
    assert places == sorted(places)
    assert "`ttft_ms.mean: kv <= 0.9*random`: **pass**" in text


def test_a_base_has_the_ratio_with_its_interval_and_a_star() -> None:
    text = markdown(CASES["a pair"]()[0])
    assert "kv / random (95 %)" in text
    assert r"0.50 \* (0.50–0.50)" in text
    assert r"<sub>\* a difference is shown" in text


def test_a_percentile_that_failures_reach_is_infinite() -> None:
    assert "| TTFT p99, ms | ∞ | ∞ |" in markdown(made(make=failing, rounds=2)[0])


def test_of_an_unstable_arm_there_is_no_ratio() -> None:
    text = markdown(made(make=growing)[0])
    assert "unstable at this rate" in text
    assert "(95 %)" not in text


def test_a_void_run_is_a_warning() -> None:
    assert "> [!WARNING]\n> No verdict: interrupted" in markdown(CASES["stopped"]()[0])


def test_names_and_sentences_from_outside_are_no_markup() -> None:
    data: dict[str, Any] = made(("a|b<i>", "c`d"))[0]
    data["verdict"]["notes"] = ["one\ntwo | <b>x</b>"]
    text = markdown(data)
    page = rendered(text)
    assert "<i>" not in page
    assert "<b>" not in page
    assert "a|b&lt;i&gt;" in page
    assert "one two" in text


def test_a_sweep_has_the_capacities_as_its_table() -> None:
    text = markdown(sweep(made()[0]))
    assert "| kv | 9.50 | 10.00 |" in text
    assert rendered(text).count("<table>") == 1
