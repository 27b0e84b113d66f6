"""`kvctl bench workload` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from kvctl.bench import group
from kvctl.errors import Problem

app = typer.Typer()
app.add_typer(group, name="bench")


def called(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", "workload", *arguments])


def refused(*arguments: str) -> str:
    found = called(*arguments)
    assert isinstance(found.exception, Problem), found.output
    assert found.exception.code == 2
    return str(found.exception)


def test_the_list_names_every_workload_with_its_parameters() -> None:
    found = json.loads(called("list", "-o", "json").stdout)
    names = [one["name"] for one in found]
    assert names == [
        "multi-turn", "no-sharing", "zipf", "hot-spot", "working-set", "burst", "worker-loss", "worker-join", "lora",
        "aborts",
    ]  # fmt: skip
    assert all(one["parameters"] for one in found)
    assert all(name in called("list").stdout for name in names)


def test_a_built_in_workload_is_described() -> None:
    found = json.loads(called("describe", "zipf:groups=2", "--requests", "40", "-o", "json").stdout)
    assert (found["requests"], found["groups"], found["block"]) == (40, 2, 16)


def test_the_table_has_the_curve_and_the_prefixes() -> None:
    text = called("describe", "hot-spot", "--requests", "40", "--cache-blocks", "10,1000").stdout
    for part in ("endless cache:", "LRU cache", "1,000", "hottest prefix of", "largest group", "arrivals (open loop)"):
        assert part in text


def test_a_trace_is_described_by_its_own_blocks_and_by_the_engines_if_asked(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [0, 1]}
    path = tmp_path / "t.jsonl"
    path.write_text(2 * (json.dumps(row) + "\n"))
    own = json.loads(called("describe", str(path), "-o", "json").stdout)
    engine = json.loads(called("describe", str(path), "--block-size", "16", "-o", "json").stdout)
    assert (own["block"], own["infinite"]) == (512, [0.5, 0.5])
    assert (engine["block"], engine["infinite"]) == (16, [0.5, 592 / 1200])


def test_what_is_made_can_be_described_and_is_the_same(tmp_path: Path) -> None:
    out = str(tmp_path / "s.jsonl")
    made = [
        json.loads(called("make", "burst", "--blocks", "2", "--requests", "30", "--out", out, "-o", "json").stdout)
        for _ in range(2)
    ]
    assert made[0] == made[1]
    assert json.loads(called("describe", out, "--blocks", "2", "-o", "json").stdout)["requests"] == 30


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("describe", "chess"), "unknown workload 'chess'"),
        (("describe", "absent.jsonl"), "cannot read trace absent.jsonl"),
        (("describe", "zipf:groups=x"), "groups: a whole number"),
        (("describe", "zipf", "--arrivals", "often"), "unknown process"),
        (("describe", "zipf", "--cache-blocks", "1,x"), "whole numbers by commas"),
        (("describe", "zipf", "-o", "xml"), "table or json"),
        (("make", "zipf", "--out", "absent/s.jsonl"), "cannot write absent/s.jsonl"),
    ],
)
def test_a_mistake_is_a_usage_error_that_names_it(arguments: tuple[str, ...], said: str) -> None:
    assert said in refused(*arguments)


def test_a_subcommand_starts_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVCTL_MODES", "kv,no-such-mode")
    assert called("list").exit_code == 0
    found = CliRunner().invoke(app, ["bench"])
    assert "no-such-mode" in str(found.exception)
