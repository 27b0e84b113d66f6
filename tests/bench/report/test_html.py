"""report.html stands alone, tells the verdict first, and is written for every way in which a run can end."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

from bench.report.html import html
from bench.verdict import Verdict
from tests.bench.report.made import CASES, growing, large, made, sweep

VOID = {"meta", "link", "br", "circle", "path", "rect"}


class Page(HTMLParser):
    """Collects what a page would load, its headings and alternative texts, and checks that its tags are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.tags: list[str] = []
        self.alts: list[str] = []
        self.open: list[str] = []
        self.crossed: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append(tag)
        for name in ("src", "href", "xlink:href"):
            value = found.get(name)
            if value and not value.startswith(("#", "data:")):
                self.loads.append(value)
        if tag == "svg" and found.get("role") == "img":
            self.alts.append(found.get("aria-label") or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open and self.open[-1] != tag:
            self.crossed.append(tag)
        if tag in self.open:
            del self.open[len(self.open) - 1 - self.open[::-1].index(tag)]


@pytest.fixture(scope="module")
def pair() -> tuple[dict[str, Any], Verdict]:
    return CASES["a pair"]()


@pytest.mark.parametrize("name", CASES)
def test_the_page_is_whole_and_loads_nothing(name: str) -> None:
    page = html(*CASES[name]())
    found = Page(page)
    assert found.loads == []
    assert found.crossed == []
    assert found.open == []
    assert "script" not in found.tags
    assert "@import" not in page
    assert "url(" not in page
    assert "nan" not in page.lower()
    assert all(found.alts)


def test_the_verdict_stands_before_every_number(pair: tuple[dict[str, Any], Verdict]) -> None:
    page = html(*pair)
    places = [page.index(f"<h2>{title}</h2>") for title in ("Gates", "Numbers", "Why", "Distributions", "Noise")]
    assert page.index("mean TTFT is 50% lower") < places[0]
    assert places == sorted(places)


def test_a_pair_has_every_picture_with_an_alternative_text(pair: tuple[dict[str, Any], Verdict]) -> None:
    alts = " | ".join(Page(html(*pair)).alts)
    for wanted in (
        "TTFT: share of requests",
        "ITL: share of requests",
        "round by round",
        "of the same request",
        "at each worker of kv",
        "at each worker of random",
        "in flight over a block",
        "predicted by the router",
        "Mean TTFT differs by",
    ):
        assert wanted in alts


def test_the_star_is_explained_where_it_stands(pair: tuple[dict[str, Any], Verdict]) -> None:
    page = html(*pair)
    assert "0.500 *" in page
    assert "* a difference is shown" in page
    assert "corrected for 2 tests" in page


def test_a_failed_gate_marks_the_verdict(pair: tuple[dict[str, Any], Verdict]) -> None:
    page = html(*pair)
    assert "class='verdict failed'" in page
    assert "<td class='fail'>fail</td>" in page
    assert "<td class='pass'>pass</td>" in page


def test_of_an_unstable_arm_there_is_no_ratio_and_no_difference() -> None:
    page = html(*made(make=growing))
    assert "unstable at this rate" in page
    assert "95 % interval" not in page
    assert "Pair by pair" not in page
    assert "Where the difference in TTFT comes from" not in page


def test_text_from_outside_is_escaped(pair: tuple[dict[str, Any], Verdict]) -> None:
    evil = "<script>alert(1)</script>'\""
    data, _ = pair
    data = data | {"verdict": data["verdict"] | {"summary": [evil], "reasons": [evil], "notes": [evil]}}
    data = data | {"provenance": data["provenance"] | {"argv": [evil]}}
    assert "<script>" not in html(data, pair[1])


def test_names_of_arms_and_workers_from_outside_are_escaped() -> None:
    data, verdict = made(("<b>a", "<b>c"))
    page = html(data, verdict)
    assert "<b>" not in page
    assert "&lt;b&gt;a" in page


def test_a_sweep_has_its_curves_and_the_capacities(pair: tuple[dict[str, Any], Verdict]) -> None:
    page = html(sweep(pair[0]), Verdict([], [], [], [], [], ["kv carries 9.5 requests/s."], measured=True))
    found = Page(page)
    assert found.crossed == []
    assert any("TTFT p95 by request rate" in alt for alt in found.alts)
    assert "Largest rate within ttft_ms.p95 ≤ 120 ms" in page
    assert "kv / random: at least 2.10" in page
    assert "<h2>Numbers</h2>" not in page
    assert "hollow" in page


def test_a_void_point_is_in_the_table_and_not_in_the_curve(pair: tuple[dict[str, Any], Verdict]) -> None:
    page = html(sweep(pair[0]), Verdict([], [], [], [], [], [], measured=True))
    alts = " ".join(Page(page).alts)
    assert "70.0 ms at 16" not in alts
    assert "<td class='open'>void</td>" in page


def test_a_hundred_thousand_requests_are_less_than_two_megabytes() -> None:
    data, verdict = large(rounds=5, count=10_000)
    assert sum(arm["requests"] for arm in data["arms"]) == 100_000
    assert len(html(data, verdict)) < 2_000_000


def test_many_workers_and_arms_stay_small() -> None:
    data, verdict = CASES["five arms"]()
    line = {f"w{i}": [(i * j) % 7 / 2 for j in range(96)] for i in range(300)}
    workers = [{"name": name, "requests": 1, "share": 1 / 300, "tokens": 1} for name in line]
    for arm in data["explanation"]["arms"]:
        arm["load"] = arm["load"] | {"time_line": {"rounds": [0, 1], "in_flight": line}, "workers": workers}
    assert len(html(data, verdict)) < 2_000_000
