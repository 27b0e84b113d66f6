"""The twenty recordings of tests/fixtures/validate, judged by `kvctl validate --replay`: verdict, exit code and the
state of every check that does not pass, as tests/fixtures/validate/expected.yaml has them.

A check that is new, or that judges otherwise, changes that file: read what it says of each system before you write it.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvctl.main import main
from tests.fixtures.validate.make import record
from tests.fixtures.validate.systems import SYSTEMS

FOLDER = Path(__file__).parents[1] / "fixtures" / "validate"
EXPECTED: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "expected.yaml").read_text())
MOST_BYTES = 200_000


def replayed(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    """Exit code and report of one recording."""
    monkeypatch.setattr(sys, "argv", ["kvctl", "validate", "--replay", str(FOLDER / name), "-o", "json"])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert not err
    return int(ended.value.code or 0), json.loads(out)


def states(report: Any) -> dict[str, Any]:
    """By state the ids of it; of failures, warnings and errors with the id that explains them, of skips by reason."""
    bad: dict[str, dict[str, str]] = defaultdict(dict)
    skips: dict[str, set[str]] = defaultdict(set)
    for one in report["results"]:
        if one["status"] == "skip":
            skips[one["reason"]].add(one["id"])
        elif one["status"] != "pass":
            bad[one["status"]][one["id"]] = one["caused_by"] or "itself"
    return {**bad, "skip": {reason: " ".join(sorted(ids)) for reason, ids in sorted(skips.items())}}


def test_there_is_a_recording_of_each_system_and_of_no_other() -> None:
    folders = {path.name for path in FOLDER.iterdir() if (path / "index.jsonl").exists()}
    assert folders == set(SYSTEMS) == set(EXPECTED)


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_recording_of(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = replayed(name, monkeypatch, capsys)
    found = {"verdict": report["summary"]["verdict"], "exit": code, "stack": report["target"]["stack"]}
    assert found | states(report) == EXPECTED[name]


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_recording_is_small(name: str) -> None:
    assert sum(path.stat().st_size for path in (FOLDER / name).rglob("*") if path.is_file()) < MOST_BYTES


@pytest.mark.parametrize("name", ["healthy-ps-0.3.11", "healthy-hyperpod-0.4.3", "mp-reaped"])
def test_making_a_recording_again_leaves_the_same_bytes(name: str, tmp_path: Path) -> None:
    record(SYSTEMS[name], tmp_path / name)
    assert _contents(tmp_path / name) == _contents(FOLDER / name)


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
