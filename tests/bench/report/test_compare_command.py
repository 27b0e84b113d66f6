"""`kvctl bench compare` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from kvctl.bench import group
from kvctl.errors import Problem
from tests.bench.test_two_results import leave

app = typer.Typer()
app.add_typer(group, name="bench")


def call(*arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["bench", "compare", *arguments], env={"COLUMNS": "80"})
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found.exit_code, found.stdout


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    leave(tmp_path / "a")
    leave(tmp_path / "b", factor=0.8)
    return [str(tmp_path / "a"), str(tmp_path / "b")]


def test_a_table_a_pair_in_80_columns(folders: list[str]) -> None:
    code, text = call(*folders)
    assert code == 0
    assert "B:kv / A:kv" in text
    assert "B:random / A:random" in text
    assert "0.80" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text


def test_json_is_alone_on_stdout(folders: list[str]) -> None:
    code, text = call(*folders, "-o", "json")
    assert code == 0
    assert json.loads(text)["comparisons"]


def test_a_failed_gate_is_exit_code_1(folders: list[str]) -> None:
    code, text = call(*folders, "--gate", "ttft_ms.mean: B:kv <= 0.5*A:kv")
    assert code == 1
    assert "fail" in text


def test_a_folder_that_is_no_result_is_a_usage_error_that_names_it(folders: list[str], tmp_path: Path) -> None:
    with pytest.raises(Problem, match=r"elsewhere is no result of kvctl bench") as found:
        call(folders[0], str(tmp_path / "elsewhere"))
    assert found.value.code == 2


def test_a_bad_output_is_refused(folders: list[str]) -> None:
    with pytest.raises(Problem, match="table or json"):
        call(*folders, "-o", "xml")
