"""Sweeps and searches against small engines: every arm gets the same probes, what is said, what a gate makes of it."""

from __future__ import annotations

import io
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench import run
from bench.capacity import Capacity, Outcome
from bench.client.watch import SelfWatch
from bench.cold import ColdProof
from bench.design import Block
from bench.experiment import BlockResult, Experiment
from bench.gate import GateResult, parse_gate
from bench.guards import BlockFacts
from bench.metrics import Measured, Slo
from bench.report.study import study_tables
from bench.settings import Settings
from bench.slo import targets
from bench.study import Point, Study, StudyPlan, point_of, request_count
from bench.study_run import Silent
from bench.study_verdict import capacity_ratio, reach_study, study_data
from tests.bench.fakes import FakeEngine
from tests.bench.results import arms, request, timing
from tests.bench.test_run import QUIET, routers

PLAN = StudyPlan(lambda rate, repeat: [], 10.0, targets=targets("ttft_p95=200ms"), slo=Slo(ttft_ms=200))


def point(
    how: float = 0.1, *, watch: SelfWatch | None = None, grows: bool = False, reasons: tuple[str, ...] = ()
) -> Point:
    """A probe of 80 requests that all had this TTFT (seconds)."""
    measured = [Measured(request(i), timing(0.1 * i, ttft=how + (0.2 * i if grows else 0.0))) for i in range(80)]
    facts = BlockFacts(measured, watch or SelfWatch(cpu=0.1))
    block = BlockResult(Block(3, 3, 0), arms("kv")[0], facts, ColdProof("reset", list(reasons)), 0.0)
    return point_of(block, 10.0, 0, PLAN)


def test_a_probe_within_the_objectives_is_met() -> None:
    found = point()
    assert (found.outcome, found.missed, found.void, found.block) == (Outcome.MET, (), (), 3)
    assert found.value("ttft_ms.p95") == pytest.approx(100)
    assert found.value("goodput") == 1


def test_a_probe_beyond_the_objectives_is_missed_and_says_what() -> None:
    found = point(0.3)
    assert found.outcome is Outcome.MISSED
    assert found.missed == ("ttft_ms.p95 is 300 ms, 200 allowed",)


def test_a_growing_queue_is_missed() -> None:
    found = point(grows=True)
    assert not found.stable
    assert found.outcome is Outcome.MISSED


def test_a_client_that_was_the_bottleneck_decides_nothing() -> None:
    assert point(watch=SelfWatch(cpu=0.95)).outcome is Outcome.VOID
    assert point(0.3, watch=SelfWatch(cpu=0.95)).outcome is Outcome.VOID


def test_a_probe_that_was_not_cold_decides_nothing() -> None:
    assert point(reasons=("w0: the cache survived",)).outcome is Outcome.VOID


def test_a_probe_has_enough_requests_for_a_p95_and_no_more_than_the_limit() -> None:
    assert [request_count(rate, 10.0) for rate in (0.1, 1.0, 5.0, 20.0, 1e6)] == [12, 40, 72, 200, 20_000]


def capacity(rate: float | None, upper: float | None, *, settled: bool = True) -> Capacity:
    return Capacity(rate, upper, settled, settled, "" if settled else "3 probes were not enough", ())


def studied(**found: Capacity) -> Study:
    return Study(PLAN, list(found), Experiment("m", "reset"), [], [point()], dict(found))


def test_a_ratio_of_capacities_is_what_the_brackets_leave_open() -> None:
    assert capacity_ratio(capacity(12, 13), capacity(8, 9)) == (12 / 9, 13 / 8)
    assert capacity_ratio(capacity(12, None), capacity(None, 9)) == (12 / 9, float("inf"))


def test_capacities_are_said_in_plain_words() -> None:
    said = reach_study(studied(kv=capacity(12, 12.5), random=capacity(8, 8.2)), []).sentences
    assert said == [
        "kv carries 12 requests/s (not 12.5; precision 5%).",
        "random carries 8 requests/s (not 8.2; precision 5%).",
        "kv carries 1.46 to 1.56 times the requests of random within the objectives.",
    ]


@pytest.mark.parametrize(
    ("random", "code"),
    [(capacity(8, 8.2), 0), (capacity(11.5, 12), 4), (capacity(13, 13.5), 1), (capacity(8, 8.2, settled=False), 4)],
)
def test_a_gate_on_capacity_decides_the_exit_code(random: Capacity, code: int) -> None:
    gates = [parse_gate("capacity: kv >= 1.03*random", ["kv", "random"])]
    assert reach_study(studied(kv=capacity(12, 12.5), random=random), gates).exit_code == code


def test_a_lower_bound_by_the_client_is_a_result() -> None:
    assert reach_study(studied(kv=capacity(12, None)), []).exit_code == 0


def test_a_stopped_study_is_inconclusive_and_keeps_its_numbers() -> None:
    study = studied(kv=capacity(12, 12.5))
    study.stopped = "interrupted"
    verdict = reach_study(study, [])
    assert verdict.exit_code == 4
    assert "kv carries 12 requests/s" in " ".join(verdict.sentences)
    assert study_data(study)["capacity"]["arms"][0]["probes"][0]["outcome"] == "met"  # type: ignore[index]


def test_the_json_of_a_capacity_names_objectives_bracket_and_ratio() -> None:
    data: Any = study_data(studied(kv=capacity(12, None), random=capacity(8, 9)))["capacity"]
    assert data["slo"] == {"ttft_ms.p95": 200}
    assert [(arm["name"], arm["rate"], arm["upper"]) for arm in data["arms"]] == [("kv", 12, None), ("random", 8, 9)]
    assert data["ratios"] == [{"base": "random", "other": "kv", "low": 12 / 9, "high": None}]
    json.dumps(data)


def test_the_tables_fit_eighty_columns() -> None:
    study = studied(kv=capacity(12, 12.5), **{"least-loaded": capacity(8, 8.2)})
    study.sweep = [point(), point(grows=True)]
    console = Console(width=80, file=io.StringIO(), force_terminal=False)
    console.print(study_tables(study))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in text
    assert "UNSTABLE" in text


def settings(urls: list[str], **how: Any) -> Settings:
    fields: dict[str, Any] = {"urls": tuple(f"{n}={u}" for n, u in zip("ab", urls, strict=False)), "rate": 200.0}
    return Settings(**(fields | {"probe_seconds": 0.4} | how))


def test_a_sweep_sends_every_arm_the_same_requests_at_every_rate(tmp_path: Path) -> None:
    engines = FakeEngine(), FakeEngine()
    with routers(*engines) as urls:
        outcome = run.bench(settings(urls, sweep=(150.0, 300.0), out=tmp_path), QUIET)
    data: Any = json.loads((tmp_path / "result.json").read_text())
    assert [(p["arm"], p["rate"]) for p in data["sweep"]["points"]] == [("a", 150), ("b", 150), ("b", 300), ("a", 300)]
    assert data["sweep"]["rates"] == [150, 300]
    assert "capacity" not in data
    sent = [sorted(json.dumps(body["prompt"][512:]) for body in e.seen if len(body["prompt"]) > 512) for e in engines]  # type: ignore[index,arg-type]
    assert sent[0] == sent[1]
    assert {p["block"] for p in data["sweep"]["points"]} == {0, 1, 2, 3}
    rows = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert {row["block"] for row in rows} == {0, 1, 2, 3}
    assert outcome.data["arms"] == []


def test_a_search_for_a_capacity_probes_both_arms_and_judges_its_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The objective is out of reach for one arm at any rate, and met by the other."""
    monkeypatch.setattr("bench.study.REACH", 2.0)
    with routers(FakeEngine(), FakeEngine(answer_delay=0.4)) as urls:
        outcome = run.bench(
            settings(
                urls,
                capacity=True,
                targets=targets("ttft_p95=300ms"),
                precision=1.0,
                probe_seconds=0.2,
                gates=("capacity: a >= 1.1*b",),
            ),
            QUIET,
        )
    assert outcome.study is not None
    assert outcome.study.capacity["b"].rate is None
    assert {found.arm for found in outcome.study.probes} == {"a", "b"}
    assert "b: no capacity found" in " ".join(outcome.verdict.sentences)
    assert outcome.verdict.gates[0].result in (GateResult.PASS, GateResult.INCONCLUSIVE)


def test_ctrl_c_keeps_the_probes_that_were_complete(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ended: list[int] = []

    def block_ended(self: Silent, result: BlockResult) -> None:
        ended.append(result.block.index)
        if len(ended) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Silent, "block_ended", block_ended)
    with routers(FakeEngine(), FakeEngine()) as urls:
        outcome = run.bench(settings(urls, sweep=(150.0, 200.0, 300.0), out=tmp_path), QUIET)
    data: Any = json.loads((tmp_path / "result.json").read_text())
    assert len(data["sweep"]["points"]) == 2
    assert data["verdict"]["reasons"][0].startswith("interrupted")
    assert outcome.verdict.exit_code == 4
