"""What a run leaves: the keys that scripts depend on, one row a request, reports that stand alone."""

from __future__ import annotations

import csv
import io
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.arms import Fleet
from bench.design import plan
from bench.guards import Limits
from bench.report import plots
from bench.report.html import html
from bench.report.markdown import markdown
from bench.report.terminal import render
from bench.requests_file import write_requests
from bench.result import Provenance, result, write
from bench.verdict import Verdict, reach
from bench.workload.describe import describe
from tests.bench.results import experiment, timing, workload


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Verdict]:
    folder = tmp_path_factory.mktemp("out") / "deep" / "er"

    def make(arm: str, round_: int, number: int, sched: float) -> Any:
        if number == 7 and arm == "random":
            return timing(sched, error="http_503")
        return timing(sched, ttft=0.05 if arm == "kv" else 0.1, cached=64)

    arms, found = experiment(("kv", "random"), make)
    verdict = reach(arms, found, [], None, Limits(errors=0.1), 0, draws=200)
    made = workload()
    provenance = Provenance("0.1.0", ["bench"], 0, made, describe(made), Fleet("2 engines", []))
    write(folder, result(verdict, found, plan(2, 8, 0), provenance), verdict)
    write_requests(folder, found.blocks)
    return folder, verdict


@pytest.fixture(scope="module")
def data(written: tuple[Path, Verdict]) -> dict[str, Any]:
    return dict(json.loads((written[0] / "result.json").read_text()))


def test_result_json_has_the_contracts_keys(data: dict[str, Any]) -> None:
    assert data["schema_version"] == 1
    assert {"kvctl", "workload_sha256", "seed", "argv", "host", "packages"} <= set(data["provenance"])
    arm = data["arms"][0]
    assert {"mode", "blocks", "requests", "failed", "metrics", "stable"} <= set(arm)
    metrics = {
        "ttft_ms", "itl_ms", "e2e_ms", "output_tok_s", "goodput", "cached_token_ratio", "load_cv", "sched_lag_ms",
        "decision_us",
    }  # fmt: skip
    assert metrics <= set(arm["metrics"])
    for name in ("ttft_ms", "itl_ms", "e2e_ms"):
        assert {"mean", "p50", "p90", "p95", "p99"} <= set(arm["metrics"][name])
    assert {"metric", "base", "other", "ratio", "ci95", "p"} <= set(data["comparisons"][0])
    assert {"valid", "reasons", "gates"} <= set(data["verdict"])


def test_the_numbers_are_those_of_the_arms(data: dict[str, Any]) -> None:
    kv, other = data["arms"]
    assert (kv["mode"], kv["blocks"], kv["requests"], kv["failed"]) == ("kv", 8, 160, 0)
    assert (other["mode"], other["failed"]) == ("random", 8)
    assert kv["metrics"]["ttft_ms"]["p50"] == pytest.approx(50)
    assert kv["metrics"]["decision_us"]["p50"] == 20
    assert kv["events"]["content"] == 160 * 5


def test_a_percentile_that_failures_reach_is_null(data: dict[str, Any]) -> None:
    assert data["arms"][1]["metrics"]["ttft_ms"]["p99"] is None
    assert data["arms"][1]["metrics"]["ttft_ms"]["p50"] == pytest.approx(100)


def test_there_is_one_row_a_request_with_its_times(written: tuple[Path, Verdict]) -> None:
    rows = [json.loads(line) for line in (written[0] / "requests.jsonl").read_text().splitlines()]
    assert len(rows) == 320
    good = next(row for row in rows if row["arm"] == "kv")
    assert good["ttft_ms"] == pytest.approx(50)
    assert good["t_first"] - good["t_sched"] == pytest.approx(0.05)
    bad = next(row for row in rows if not row["ok"])
    assert (bad["error"], bad["ttft_ms"], bad["t_first"]) == ("http_503", None, None)


def test_the_summary_has_a_row_for_each_number(written: tuple[Path, Verdict]) -> None:
    with (written[0] / "summary.csv").open() as file:
        rows = {(r["arm"], r["metric"], r["statistic"]): r["value"] for r in csv.DictReader(file)}
    assert float(rows["kv", "ttft_ms", "p50"]) == pytest.approx(50)
    assert float(rows["kv", "cached_token_ratio", "value"]) == pytest.approx(0.64)


def test_the_table_fits_80_columns_and_shows_both_arms(written: tuple[Path, Verdict]) -> None:
    from rich.console import Console

    console = Console(width=80, record=True, file=Path("/dev/null").open("w"))  # noqa: SIM115
    console.print(render(written[1]))
    text = console.export_text()
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
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_table_of_five_arms_still_names_them_all() -> None:
    from rich.console import Console

    names = ("kv", "random", "round-robin", "least-loaded", "power-of-two")
    arms, found = experiment(names, lambda arm, r, n, sched: timing(sched), rounds=2)
    console = Console(width=80, record=True, file=Path("/dev/null").open("w"))  # noqa: SIM115
    console.print(render(reach(arms, found, [], None, Limits(), 0, draws=100)))
    text = console.export_text()
    assert all(name.split("-")[0] in text for name in names)
    assert max(map(len, text.splitlines())) <= 80


class Links(HTMLParser):
    """Collects what a page would load, and checks that its tags are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and value and not value.startswith("#"):
                self.loads.append(value)
            if name == "id" and value:
                self.ids.append(value)


def test_the_page_stands_alone(data: dict[str, Any], written: tuple[Path, Verdict]) -> None:
    page, missing = html(data, written[1])
    seen = Links()
    seen.feed(page)
    assert missing is None
    assert seen.loads == []
    assert "script" not in seen.tags
    assert "@import" not in page
    assert seen.tags.count("svg") == 5
    assert len(seen.ids) == len(set(seen.ids))


def test_the_page_is_written_without_matplotlib_and_says_what_is_missing(
    data: dict[str, Any], written: tuple[Path, Verdict], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(plots.MissingLibrary):
        plots.pictures(written[1])
    page, missing = html(data, written[1])
    assert "<svg" not in page
    assert missing is not None
    assert "matplotlib" in missing


def test_text_from_outside_is_escaped(data: dict[str, Any], written: tuple[Path, Verdict]) -> None:
    evil = data | {"verdict": data["verdict"] | {"summary": ["<script>alert(1)</script>"]}}
    assert "<script>" not in html(evil, written[1])[0]


def test_the_markdown_has_the_verdict_and_a_column_an_arm(data: dict[str, Any]) -> None:
    text = markdown(data)
    assert "**kv against random: mean TTFT is 50% lower" in text
    assert "| | kv | random |" in text
    assert "| TTFT p99, ms | 50.0 | ∞ |" in text


def test_no_output_has_a_ratio_of_an_unstable_arm() -> None:
    def growing(arm: str, round_: int, number: int, sched: float) -> Any:
        return timing(sched, ttft=0.2 * number if arm == "random" else 0.1, cached=64)

    arms, found = experiment(("kv", "random"), growing)
    verdict = reach(arms, found, [], None, Limits(), 0, draws=200)
    made = workload()
    provenance = Provenance("0.1.0", ["bench"], 0, made, describe(made), Fleet("2 engines", []))
    data: Any = result(verdict, found, plan(2, 8, 0), provenance)
    assert data["comparisons"] == []
    assert [arm["stable"] for arm in data["arms"]] == [True, False]
    console = Console(width=200, file=io.StringIO())
    console.print(render(verdict))
    shown = [markdown(data), html(data, verdict)[0], console.file.getvalue()]  # type: ignore[attr-defined]
    for text in shown:
        assert "unstable at this rate" in text
        assert "95 % interval" not in text
        assert "Comparisons" not in text
