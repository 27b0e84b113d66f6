"""Two result folders: paired where the workload is the same, never tested where it is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bench.arms import Fleet
from bench.client.timing import Timing
from bench.design import plan
from bench.experiment import Experiment
from bench.gate import GateError, GateResult
from bench.guards import Limits
from bench.requests_file import write_requests
from bench.result import Provenance, result, write
from bench.stored import NotAResult, Stored, load
from bench.two_results import NothingShared, Outcome, compare_data, compare_results
from bench.verdict import reach
from bench.workload.describe import describe
from tests.bench.results import experiment, timing, workload

ROUNDS, COUNT = 8, 20


def leave(
    folder: Path,
    *,
    factor: float = 1.0,
    names: tuple[str, ...] = ("kv", "random"),
    name: str = "by hand",
    rounds: int = ROUNDS,
    fleet: str = "2 engines",
    make: Callable[[str, int, int, float], Timing] | None = None,
    change: Callable[[Experiment], None] | None = None,
) -> Stored:
    """A result in which kv's TTFT is 50 ms times `factor`, and random's 100 ms; both vary a little by request."""

    def usual(arm: str, round_: int, number: int, sched: float) -> Timing:
        base = 0.05 * factor if arm == "kv" else 0.1
        return timing(sched, ttft=base * (1 + 0.01 * number), cached=64 if arm == "kv" else 32)

    arms, found = experiment(names, make or usual, rounds=rounds, count=COUNT)
    if change is not None:
        change(found)
    verdict = reach(arms, found, [], None, Limits(), 0, draws=20)
    sent = replace(workload(rounds, COUNT), name=name)
    provenance = Provenance("0.1.0", ["bench"], 0, sent, describe(sent), Fleet(fleet, []))
    write(folder, result(verdict, found, plan(len(names), rounds, 0), provenance), verdict)
    write_requests(folder, found.blocks)
    return load(folder)


def other_workload(folder: Path, **options: float) -> Stored:
    """The same requests under another sha256."""
    found = leave(folder, **options)  # type: ignore[arg-type]
    found.data["provenance"]["workload_sha256"] = "0" * 64
    return found


def compared(a: Stored, b: Stored, *gates: str) -> Outcome:
    return compare_results(a, b, gates, draws=200)


def ratio(outcome: Outcome, metric: str, other: str = "B:kv") -> float | None:
    return next(c.found.ratio for c in outcome.verdict.comparisons if (c.metric, c.other) == (metric, other))


def test_the_same_arm_of_both_is_compared_and_a_is_the_base(tmp_path: Path) -> None:
    found = compared(leave(tmp_path / "a"), leave(tmp_path / "b", factor=0.8))
    assert found.same
    assert found.pairs == (("A:kv", "B:kv"), ("A:random", "B:random"))
    assert ratio(found, "ttft_ms.mean") == pytest.approx(0.8, abs=1e-3)
    assert ratio(found, "ttft_ms.mean", "B:random") == pytest.approx(1.0, abs=1e-3)


def test_a_difference_is_claimed_after_correction_for_all_arms(tmp_path: Path) -> None:
    found = compared(leave(tmp_path / "a"), leave(tmp_path / "b", factor=0.8))
    mine = next(c for c in found.verdict.comparisons if (c.metric, c.other) == ("ttft_ms.mean", "B:kv"))
    assert mine.found.p == pytest.approx(2 / 2**ROUNDS)
    assert mine.p_holm == pytest.approx(4 * 2 / 2**ROUNDS)
    assert mine.claimed
    assert "B:kv against A:kv: mean TTFT is 20% lower" in " ".join(found.verdict.sentences)


def test_of_two_workloads_there_is_a_ratio_and_no_test(tmp_path: Path) -> None:
    found = compared(leave(tmp_path / "a"), other_workload(tmp_path / "b", factor=0.8))
    assert not found.same
    assert ratio(found, "ttft_ms.mean") == pytest.approx(0.8, abs=1e-3)
    assert ratio(found, "ttft_ms.p95") == pytest.approx(0.8, abs=1e-3)
    assert ratio(found, "cached_token_ratio") == pytest.approx(1.0)
    assert all(c.found.p is None and not c.claimed for c in found.verdict.comparisons)
    assert found.verdict.notes[0].startswith("WARNING: different workloads")


def test_an_unpaired_interval_holds_the_ratio(tmp_path: Path) -> None:
    found = compared(leave(tmp_path / "a"), other_workload(tmp_path / "b", factor=0.8))
    one = next(c.found for c in found.verdict.comparisons if c.metric == "ttft_ms.mean")
    assert one.ci95 is not None
    assert one.ratio is not None
    assert one.ci95[0] <= one.ratio <= one.ci95[1]


def test_a_gate_between_two_workloads_is_inconclusive(tmp_path: Path) -> None:
    found = compared(
        leave(tmp_path / "a"), other_workload(tmp_path / "b", factor=0.8),
        "ttft_ms.mean: B:kv <= A:kv", "ttft_ms.mean: B:kv <= 100ms",
    )  # fmt: skip
    assert [judged.result for judged in found.verdict.gates] == [GateResult.INCONCLUSIVE, GateResult.PASS]
    assert found.verdict.exit_code == 4


@pytest.mark.parametrize(
    ("gate", "wanted", "code"),
    [
        ("ttft_ms.mean: B:kv <= 0.9*A:kv", GateResult.PASS, 0),
        ("ttft_ms.mean: A:kv <= B:kv", GateResult.FAIL, 1),
        ("ttft_ms.mean: B:kv <= 0.5*A:random", GateResult.PASS, 0),
        ("ttft_ms.mean: A:kv <= 0.4*A:random", GateResult.FAIL, 1),
        ("itl_ms.mean: B:kv <= 1.05*A:kv (non-inferior)", GateResult.PASS, 0),
    ],
)
def test_a_gate_is_judged_also_on_arms_that_are_no_pair(
    tmp_path: Path, gate: str, wanted: GateResult, code: int
) -> None:
    found = compared(leave(tmp_path / "a"), leave(tmp_path / "b", factor=0.8), gate)
    assert [judged.result for judged in found.verdict.gates] == [wanted]
    assert found.verdict.exit_code == code


def test_a_gate_without_a_side_says_how_arms_are_named(tmp_path: Path) -> None:
    with pytest.raises(GateError, match="named with its side"):
        compared(leave(tmp_path / "a"), leave(tmp_path / "b"), "ttft_ms.mean: kv <= random")


def test_one_arm_each_is_compared_whatever_the_names(tmp_path: Path) -> None:
    found = compared(leave(tmp_path / "a", names=("kv",)), leave(tmp_path / "b", names=("random",)))
    assert found.pairs == (("A:kv", "B:random"),)
    assert ratio(found, "ttft_ms.mean", "B:random") == pytest.approx(2.0, abs=1e-3)


def test_results_without_a_common_arm_are_refused_with_their_arms(tmp_path: Path) -> None:
    a, b = leave(tmp_path / "a"), leave(tmp_path / "b", names=("session", "kvaware"))
    with pytest.raises(NothingShared, match=r"kv, random.*session, kvaware"):
        compared(a, b)


def test_only_rounds_that_both_completed_are_compared(tmp_path: Path) -> None:
    def stopped(found: Experiment) -> None:
        del found.blocks[6:]
        found.blocks[-1].interrupted = True
        found.interrupted = True

    found = compared(leave(tmp_path / "a"), leave(tmp_path / "b", change=stopped))
    assert {c.rounds for c in found.verdict.comparisons} == {2, 3}
    assert any(reason.startswith("B: interrupted") for reason in found.verdict.reasons)
    assert found.verdict.exit_code == 4


def test_an_arm_that_is_unstable_in_one_has_no_ratio(tmp_path: Path) -> None:
    def growing(arm: str, round_: int, number: int, sched: float) -> Timing:
        return timing(sched, ttft=0.2 * number if arm == "kv" else 0.1, cached=64)

    found = compared(leave(tmp_path / "a"), leave(tmp_path / "b", make=growing))
    unstable = [arm.arm.name for arm in found.verdict.arms if not arm.stability.stable]
    assert unstable == ["B:kv"]
    assert {c.other for c in found.verdict.comparisons} == {"B:random"}
    assert "B:kv against A:kv: no ratio, B:kv unstable at this rate." in found.verdict.sentences


def test_nothing_answered_has_no_ratio_and_no_verdict(tmp_path: Path) -> None:
    def failing(arm: str, round_: int, number: int, sched: float) -> Timing:
        return timing(sched, error="http_503", worker=None)

    for b in (leave(tmp_path / "b", make=failing), other_workload(tmp_path / "c", make=failing)):  # type: ignore[arg-type]
        found = compared(leave(tmp_path / "a"), b, "ttft_ms.mean: B:kv <= A:kv")
        assert all(c.found.ratio is None for c in found.verdict.comparisons)
        assert found.verdict.exit_code == 4


def test_a_condition_that_differs_is_named(tmp_path: Path) -> None:
    found = compared(leave(tmp_path / "a"), leave(tmp_path / "b", fleet="8 engines"))
    assert "the fleet differs: 2 engines in A, 8 engines in B" in found.verdict.notes
    assert not any(note.startswith("the host differs") for note in found.verdict.notes)


def test_changed_requests_of_the_same_workload_are_refused(tmp_path: Path) -> None:
    a, b = leave(tmp_path / "a"), leave(tmp_path / "b")
    path = tmp_path / "b" / "requests.jsonl"
    path.write_text(path.read_text().replace('"id":"r0-3"', '"id":"other"'))
    with pytest.raises(NotAResult, match="other requests in round 0"):
        compared(a, load(tmp_path / "b"))
    assert compared(a, b).same


def test_the_json_has_the_keys_of_a_result(tmp_path: Path) -> None:
    a, b = leave(tmp_path / "a"), leave(tmp_path / "b", factor=0.8)
    data = compare_data(compared(a, b), a, b)
    assert data["same_workload"] is True
    assert data["pairs"][0] == {"base": "A:kv", "other": "B:kv"}
    assert {"metric", "base", "other", "ratio", "ci95", "p"} <= set(data["comparisons"][0])
    assert data["verdict"]["exit_code"] == 0
