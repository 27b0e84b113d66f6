"""`kvctl replay` as it is called: files, table, json, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from kvctl.errors import Problem
from kvctl.replay import replay

SMALL = ("--workload", "zipf", "--requests", "60", "--workers", "3")


def kvctl(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvctl", "replay", *words], capture_output=True, text=True, timeout=100, check=False
    )


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("replay")
    done = kvctl("--modes", "kv,random,oracle", *SMALL, "--out", str(folder / "one"))
    assert done.returncode == 0, done.stderr
    again = kvctl("--modes", "kv,random,oracle", *SMALL, "--out", str(folder / "two"), "-o", "json")
    assert again.returncode == 0, again.stderr
    (folder / "stdout.json").write_text(again.stdout)
    return folder, done.stdout


def test_two_runs_leave_the_same_requests_to_the_byte(left: tuple[Path, str]) -> None:
    folder, _ = left
    one, two = ((folder / name / "requests.jsonl").read_bytes() for name in ("one", "two"))
    assert one == two
    assert one.count(b"\n") == 3 * 60


def test_the_result_has_the_shape_of_a_bench_marked_as_simulated(left: tuple[Path, str]) -> None:
    folder, _ = left
    data = json.loads((folder / "one" / "result.json").read_text())
    assert data["simulated"] is True
    assert data["schema_version"] == 1
    assert [arm["mode"] for arm in data["arms"]] == ["kv", "random", "oracle"]
    for arm in data["arms"]:
        assert {"ttft_ms", "itl_ms", "e2e_ms", "icl_ms", "stall_ms", "cached_token_ratio", "load_cv"} <= arm[
            "metrics"
        ].keys()
        assert arm["requests"] == 60
        assert arm["failed"] == 0
    assert {c["base"] for c in data["comparisons"]} == {"random", "oracle"}
    assert (folder / "one" / "summary.csv").read_text().startswith("arm,metric,statistic,value")


def test_json_alone_goes_to_stdout(left: tuple[Path, str]) -> None:
    folder, _ = left
    assert json.loads((folder / "stdout.json").read_text()) == json.loads((folder / "two" / "result.json").read_text())


def test_the_gaps_in_the_result_are_those_of_the_rows(left: tuple[Path, str]) -> None:
    """Mean gap over all tokens, from each row's mean gap and number of tokens."""
    folder, _ = left
    data = json.loads((folder / "one" / "result.json").read_text())
    rows = [json.loads(line) for line in (folder / "one" / "requests.jsonl").read_text().splitlines()]
    for arm in data["arms"]:
        mine = [row for row in rows if row["arm"] == arm["name"] and row["itl_ms"] is not None]
        gaps = sum(row["output_tokens"] - 1 for row in mine)
        total = sum(row["itl_ms"] * (row["output_tokens"] - 1) for row in mine)
        assert arm["metrics"]["icl_ms"]["mean"] == pytest.approx(total / gaps, rel=1e-6)
        assert all(row["stall_ms"] >= row["itl_ms"] - 1e-5 for row in mine)


def test_the_table_fits_80_columns_and_has_a_row_a_mode(left: tuple[Path, str]) -> None:
    _, table = left
    assert all(len(line) <= 80 for line in table.splitlines())
    assert [line.split()[0] for line in table.splitlines()[2:5]] == ["kv", "random", "oracle"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--modes", "direct"), "direct sends each request where its client says"),
        (("--modes", "device-aware-weighted"), "two kinds of device"),
        (("--modes", "kv,nonsense"), "unknown router mode 'nonsense'"),
        (("--modes", "kv,kv"), "kv twice"),
        (("--modes", ","), "names no mode"),
        (("--speed", "1,fast"), "numbers from 0.001 to 1000"),
        (("--trace", "no-such-file.jsonl"), "no-such-file.jsonl"),
        (("--timing-param", "nonsense=1"), "polynomial has no nonsense"),
        (("--router-prefill-load-model", "magic"), "none, polynomial, fitted"),
        (("-o", "xml"), "-o must be table or json"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_way_out(words: tuple[str, ...], said: str) -> None:
    app = typer.Typer()
    app.command()(replay)
    found = CliRunner().invoke(app, words)
    assert isinstance(found.exception, Problem)
    assert found.exception.code == 2
    assert said in str(found.exception)
    assert "\n" not in str(found.exception)
    assert found.stdout == ""
