"""What a run leaves: the keys that scripts depend on, one row a request."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from bench.arms import Fleet
from bench.design import plan
from bench.guards import Limits
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
