"""`kvctl bench` as a user calls it: what is refused before anything starts, and with which exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from kvctl.bench import bench
from kvctl.errors import Problem
from tests.bench.fakes import FakeEngine
from tests.bench.test_run import routers

app = typer.Typer()
app.command()(bench)


def refused(*arguments: str) -> Problem:
    found = CliRunner().invoke(app, list(arguments))
    assert isinstance(found.exception, Problem), found.output
    return found.exception


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--modes", "kv,fastest"), "unknown router mode 'fastest'"),
        (("--modes", "kv,direct"), "nothing to compare"),
        (("--modes", ","), "names no mode"),
        (("--url", "a=http://127.0.0.1:1", "--worker", "http://127.0.0.1:2"), "exclude each other"),
        (("--workload", "chess"), "unknown workload 'chess'"),
        (("--trace", "absent.jsonl"), "cannot read trace absent.jsonl"),
        (("--gate", "ttft_ms.p95: kv < nobody"), "neither a number nor an arm"),
        (("--slo", "ttft=soon"), "not a time"),
        (("--token-ids", "7"), "LOW-HIGH"),
        (("--token-ids", "9-7"), "low < high"),
        (("--body", "[1]"), "--body is not a JSON object"),
        (("-o", "xml"), "table or json"),
        (("--worker", "ftp://h:1"), "only http:// and https:// engines"),
        (("--requests", "3"), "cannot fill"),
        (("--blocks", "many"), "auto:5%"),
        (("--blocks", "0"), "auto:5%"),
        (("--rate-sweep", "2,x"), "2,4,8 wanted"),
        (("--rate-sweep", "0"), "2,4,8 wanted"),
        (("--capacity",), "--slo ttft_p95=500ms"),
        (("--gate", "capacity: kv >= 2*random"), "needs --capacity"),
        (("--capacity", "--slo", "ttft=1s", "--gate", "ttft_ms.p95: kv <= random"), "needs the comparison"),
        (("--capacity", "--slo", "ttft=1s", "--arrivals", "closed:4"), "closed loop"),
        (("--url", "http://127.0.0.1:1"), "NAME=http://HOST:PORT"),
        (("--out", __file__), "name a folder"),
    ],
)
def test_a_mistake_is_a_usage_error_that_names_it(arguments: tuple[str, ...], said: str) -> None:
    problem = refused(*arguments)
    assert said in str(problem)
    assert problem.code == 2


def test_a_router_that_is_not_there_is_exit_code_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.experiment.READY_PATIENCE", 0.2)
    assert refused("--url", "a=http://127.0.0.1:9", "--requests", "8").code == 3


def test_json_is_alone_on_stdout(tmp_path: Path) -> None:
    with routers(FakeEngine(), FakeEngine()) as urls:
        arguments = ["-o", "json", "--blocks", "1", "--requests", "8", "--rate", "40"]
        for name, url in zip("ab", urls, strict=True):
            arguments += ["--url", f"{name}={url}"]
        found = CliRunner().invoke(app, arguments)
    assert json.loads(found.stdout)["schema_version"] == 1
    assert "workload multi-turn" in found.stderr
