"""A result folder read back is what was measured; anything else is refused in one sentence."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.arms import Fleet
from bench.design import plan
from bench.guards import Limits
from bench.requests_file import write_requests
from bench.result import Provenance, result, write
from bench.stored import NotAResult, load
from bench.verdict import Verdict, reach
from bench.workload.describe import describe
from tests.bench.results import experiment, timing, workload


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    leave(tmp_path)
    return tmp_path


def leave(folder: Path, rounds: int = 4, count: int = 12) -> Verdict:
    def make(arm: str, round_: int, number: int, sched: float):  # type: ignore[no-untyped-def]
        if number == 7 and arm == "random":
            return timing(sched, error="http_503")
        if number == 3:
            return replace(timing(sched, ttft=0.07, cached=32), aborted=True)
        return timing(sched, ttft=0.05 + 0.001 * number, cached=64, worker=f"w{number % 2}")

    arms, found = experiment(("kv", "random"), make, rounds=rounds, count=count)
    found.blocks[-1].interrupted = True
    verdict = reach(arms, found, [], None, Limits(errors=0.5), 0, draws=50)
    made = workload(rounds, count)
    provenance = Provenance("0.1.0", ["bench"], 0, made, describe(made), Fleet("2 engines", []))
    write(folder, result(verdict, found, plan(2, rounds, 0), provenance), verdict)
    write_requests(folder, found.blocks)
    return verdict


def test_metrics_of_what_is_read_back_are_those_that_were_written(tmp_path: Path) -> None:
    verdict = leave(tmp_path)
    back = load(tmp_path)
    assert [arm.arm.name for arm in back.arms] == ["kv", "random"]
    for was, now in zip(verdict.arms, back.arms, strict=True):
        for name in ("ttft_ms", "itl_ms", "e2e_ms", "stall_ms", "sched_lag_ms", "decision_us"):
            for stat, value in was.metrics[name].items():  # type: ignore[attr-defined]
                found = now.metrics[name][stat]  # type: ignore[index]
                assert found is value or found == pytest.approx(value, abs=2e-3), (name, stat)
        for name in ("cached_token_ratio", "predicted_cached_ratio", "load_cv", "output_tok_s"):
            assert now.metrics[name] == pytest.approx(was.metrics[name], rel=1e-4)
        assert now.failures == was.failures
        assert now.stability.stable == was.stability.stable


def test_an_interrupted_block_is_left_out(folder: Path) -> None:
    assert sorted(len(arm.blocks) for arm in load(folder).arms) == [3, 4]


def test_aborted_requests_stay_aborted(folder: Path) -> None:
    every = load(folder).arms[0].measured
    assert np.flatnonzero(every.aborted).tolist() == list(range(3, len(every), 12))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("result.json", None, "No such file"),
        ("result.json", "{", "another form"),
        ("result.json", '{"schema_version": 1}', "another form"),
        ("result.json", "[]", "another form"),
        ("requests.jsonl", None, "cannot read"),
        ("requests.jsonl", "{}\n", "no list of requests"),
        ("requests.jsonl", "\x00\n", "no list of requests"),
    ],
)
def test_a_folder_that_is_no_result_is_named(folder: Path, name: str, text: str | None, said: str) -> None:
    if text is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(text)
    with pytest.raises(NotAResult, match=said) as found:
        load(folder)
    assert str(folder) in str(found.value)
    assert "\n" not in str(found.value)


def test_another_schema_version_is_refused(folder: Path) -> None:
    path = folder / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 2}))
    with pytest.raises(NotAResult, match="schema version 2"):
        load(folder)


def test_requests_of_an_arm_that_the_result_does_not_name_are_refused(folder: Path) -> None:
    path = folder / "requests.jsonl"
    path.write_text(path.read_text().replace('"arm":"kv"', '"arm":"other"'))
    with pytest.raises(NotAResult, match="'other'"):
        load(folder)


def test_a_sweep_has_nothing_to_compare(folder: Path) -> None:
    path = folder / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"arms": []}))
    with pytest.raises(NotAResult, match="no arms to compare"):
        load(folder)
