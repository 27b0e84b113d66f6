"""docs/results.md: pictures that stand alone, their files, and a table with every arm."""

from __future__ import annotations

import xml.dom.minidom
from pathlib import Path
from typing import Any

from bench.results_page import figures, markdown, write_pictures

PAGE = (
    "<style>.line{stroke:red}b>i{x:y}</style><figure><figcaption>TTFT &amp; <b>more</b></figcaption><div class=legend>"
    '<span><svg viewBox="0 0 26 8"><path d="M0 4H26"/></svg>kv</span></div>'
    '<svg viewBox="0 0 480 290" role="img"><path class="line" d="M1 2H3"/><text>a label of the picture</text></svg>'
    "</figure><figure><figcaption>nothing drawn</figcaption></figure>"
)


def test_a_picture_keeps_its_title_drawing_legend_and_style() -> None:
    [(title, svg)] = figures(PAGE)
    document = xml.dom.minidom.parseString(svg)
    assert title == "TTFT & more"
    assert document.documentElement is not None
    assert document.documentElement.getAttribute("viewBox") == "0 0 480 308"
    texts = [node.firstChild.nodeValue for node in document.getElementsByTagName("text") if node.firstChild]
    assert texts == ["kv", "a label of the picture"]
    style = document.getElementsByTagName("style")[0].firstChild
    assert style is not None
    assert style.nodeValue == ".line{stroke:red}b>i{x:y}"


def test_a_page_without_pictures_has_none() -> None:
    assert figures("<p>no pictures</p>") == []


def test_pictures_of_an_earlier_run_go_and_others_stay(tmp_path: Path) -> None:
    (tmp_path / "results-old.svg").write_text("<svg/>")
    (tmp_path / "demo.svg").write_text("<svg/>")
    written = write_pictures([("A: b / c", "<svg/>"), ("A: b / c", "<svg/>")], tmp_path)
    assert written == [("A: b / c", "results-a-b-c.svg"), ("A: b / c", "results-a-b-c-2.svg")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo.svg", "results-a-b-c-2.svg", "results-a-b-c.svg"]


def arm(name: str, ttft: float | None, **further: Any) -> dict[str, Any]:
    latency = {"mean": ttft, "p50": ttft, "p95": ttft}
    metrics = {"ttft_ms": latency, "itl_ms": {"mean": 7.125, "p50": 7.0, "p95": None}, "output_tok_s": 1234.4}
    metrics |= {"cached_token_ratio": 0.256, "load_cv": None}
    return {"name": name, "requests": 40, "failed": 2, "stable": True, "metrics": metrics} | further


DATA: dict[str, Any] = {
    "provenance": {
        "kvctl": "1.2",
        "workload_sha256": "0123456789abcdef",
        "host": {"python": "3.11", "cpus": 2},
        "workload": {"name": "trace", "summary": {"rate": 8.25}},
        "fleet": {"description": "8 engines"},
    },
    "design": {"rounds": 10, "cold_start": "reset"},
    "arms": [arm("kv", 50.04), arm("random", None, stable=False)],
    "comparisons": [
        {"metric": "ttft_ms.mean", "base": "random", "other": "kv", "ratio": 0.5, "ci95": [0.4, 0.6], "claimed": True}
    ],
    "verdict": {"valid": False, "reasons": ["random: too\nlate"], "notes": [], "summary": ["No verdict."]},
}


def test_each_arm_is_a_line_and_the_ratio_stands_at_the_arm_it_is_against() -> None:
    lines = markdown(DATA, [], "kvctl bench").splitlines()
    rows = [line for line in lines if line.startswith(("| kv ", "| random"))]
    assert rows[0] == "| kv | 50.0 | 50.0 | 50.0 | 7.12 | 7.00 | - | 1,234 | 26% | ? | 2 |  |  |"
    assert rows[1].startswith("| random (unstable) | - | - | - |")
    assert rows[1].endswith("| 0.50 [0.40, 0.60]* |  |")


def test_a_run_that_does_not_count_says_why() -> None:
    assert "- random: too late" in markdown(DATA, [], "kvctl bench").splitlines()


def test_pictures_are_shown_with_their_titles() -> None:
    assert "![T](img/results-t.svg)" in markdown(DATA, [("T", "img/results-t.svg")], "kvctl bench")
