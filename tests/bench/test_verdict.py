"""From blocks to a verdict: what is claimed, what is not, what voids a run, and the exit code."""

from __future__ import annotations

import random

import pytest

from bench.client.timing import Timing
from bench.client.watch import SelfWatch
from bench.experiment import Experiment
from bench.gate import parse_gate
from bench.guards import Limits
from bench.verdict import Verdict, reach
from tests.bench.results import experiment, timing


def noisy(arm: str, round_: int, number: int) -> float:
    """The same request's TTFT differs a little from arm to arm."""
    return 0.1 * (1 + 0.1 * random.Random(f"{arm}/{round_}/{number}").uniform(-1, 1))


def half(arm: str, round_: int, number: int, sched: float) -> Timing:
    """kv answers in half the time and finds 80 of 100 tokens, the others 20."""
    scale = 0.5 if arm == "kv" else 1.0
    return timing(
        sched, ttft=noisy(arm, round_, number) * scale, cached=80 if arm == "kv" else 20, worker=f"w{number % 2}"
    )


def same(arm: str, round_: int, number: int, sched: float) -> Timing:
    return timing(sched, ttft=noisy(arm, round_, number), cached=20)


def growing(arm: str, round_: int, number: int, sched: float) -> Timing:
    return timing(sched, ttft=0.2 * number if arm == "random" else 0.1, cached=20)


def reached(make: object, *gates: str, names: tuple[str, ...] = ("kv", "random"), **how: object) -> Verdict:
    arms, found = experiment(names, make, **how)  # type: ignore[arg-type]
    return reach(arms, found, [parse_gate(text, list(names)) for text in gates], None, Limits(), 0, draws=200)


def test_a_real_difference_is_claimed_in_plain_words() -> None:
    verdict = reached(half)
    assert verdict.valid
    assert verdict.exit_code == 0
    assert verdict.sentences == [
        "kv against random: mean TTFT is 50% lower (50.0 ms, 100.8 ms); mean ITL: no difference shown (10.0 ms, "
        "10.0 ms, ratio 1.00); 80% of prompt tokens came from cache against 20%."
    ]


def test_the_candidate_is_the_first_arm_and_every_other_is_a_base() -> None:
    verdict = reached(half, names=("kv", "random", "round-robin"), rounds=6)
    assert {(c.other, c.base) for c in verdict.comparisons} == {("kv", "random"), ("kv", "round-robin")}


def test_equal_arms_claim_nothing() -> None:
    verdict = reached(same, names=("kv", "kv#2"))
    assert not any(c.claimed for c in verdict.comparisons)
    assert "no difference shown" in verdict.sentences[0]


def test_too_few_rounds_claim_nothing_and_say_how_many_would_do() -> None:
    verdict = reached(half, rounds=4)
    assert not any(c.claimed for c in verdict.comparisons)
    assert any("--blocks 7 can" in note for note in verdict.notes)


def test_an_unstable_arm_is_named_and_gets_no_ratio() -> None:
    verdict = reached(growing)
    assert verdict.comparisons == []
    assert verdict.sentences == ["kv against random: no ratio, random unstable at this rate."]
    assert any(note.startswith("random is unstable") for note in verdict.notes)
    assert verdict.exit_code == 4


def test_a_stable_base_is_still_compared_beside_an_unstable_one() -> None:
    verdict = reached(growing, names=("kv", "random", "round-robin"), rounds=6)
    assert {c.base for c in verdict.comparisons} == {"round-robin"}
    assert verdict.exit_code == 0


def test_a_block_that_was_not_cold_voids_the_run() -> None:
    arms, found = experiment(("kv", "random"), half)
    found.blocks[3].proof.reasons.append("w0: the cache survived its reset")
    verdict = reach(arms, found, [], None, Limits(), 0, draws=200)
    assert not verdict.valid
    assert "no proof of a cold cache" in verdict.reasons[0]
    assert verdict.exit_code == 4


def test_a_client_that_was_the_bottleneck_voids_the_run() -> None:
    verdict = reached(half, watch=SelfWatch(cpu=0.99, wall=1))
    assert verdict.exit_code == 4
    assert verdict.sentences[0].startswith("No verdict: kv: the client used 99%")


def interrupted() -> tuple[list[object], Experiment]:
    arms, found = experiment(("kv", "random"), half)
    found.blocks = found.blocks[:7]
    found.blocks[-1].interrupted = True
    found.interrupted = True
    return arms, found  # type: ignore[return-value]


def test_an_interrupted_run_keeps_its_complete_blocks_and_is_not_valid() -> None:
    arms, found = interrupted()
    verdict = reach(arms, found, [], None, Limits(), 0, draws=200)  # type: ignore[arg-type]
    assert sum(len(arm.blocks) for arm in verdict.arms) == 6
    assert verdict.comparisons
    assert verdict.reasons[0].startswith("interrupted")
    assert verdict.exit_code == 4


@pytest.mark.parametrize(
    ("gates", "code"),
    [
        (["ttft_ms.mean: kv <= 0.95*random"], 0),
        (["ttft_ms.mean: kv <= 0.4*random"], 1),
        (["ttft_ms.mean: kv <= 0.95*random", "ttft_ms.mean: kv <= 0.4*random"], 1),
        (["goodput: kv >= 0.9"], 4),
        (["cached_token_ratio: kv >= 2*random"], 0),
        (["ttft_ms.mean: random >= 1.5*kv"], 0),
    ],
)
def test_gates_decide_the_exit_code(gates: list[str], code: int) -> None:
    assert reached(half, *gates).exit_code == code


def test_a_gate_in_a_void_run_is_inconclusive_not_failed() -> None:
    verdict = reached(half, "ttft_ms.mean: kv <= 0.4*random", watch=SelfWatch(cpu=0.99, wall=1))
    assert [str(judged.result) for judged in verdict.gates] == ["inconclusive"]
    assert verdict.exit_code == 4


def test_one_arm_alone_is_measured_without_a_comparison() -> None:
    verdict = reached(half, names=("kv",), rounds=1)
    assert verdict.comparisons == []
    assert verdict.exit_code == 0


def test_failures_are_counted_by_kind() -> None:
    def failing(arm: str, round_: int, number: int, sched: float) -> Timing:
        return timing(sched, error="http_503") if number == 3 else half(arm, round_, number, sched)

    verdict = reached(failing)
    assert verdict.arms[0].failures == {"http_503": 8}
    assert verdict.arms[0].value("ttft_ms.p99") is None
    assert verdict.arms[0].value("ttft_ms.p50") is not None


def test_a_gate_on_a_percentile_with_too_few_requests_voids_the_run() -> None:
    verdict = reached(half, "ttft_ms.p99: kv <= 0.95*random")
    assert verdict.reasons == [
        "n too small: kv has 160 values of ttft_ms.p99, an interval of it needs 368",
        "n too small: random has 160 values of ttft_ms.p99, an interval of it needs 368",
    ]
    assert verdict.exit_code == 4
    assert reached(half, "ttft_ms.p95: kv <= 0.95*random").valid


def test_percentile_intervals_of_an_arm_say_where_n_is_too_small() -> None:
    intervals = reached(half).arms[0].intervals()["ttft_ms"]
    low, high = intervals["p95"] or (0, 0)
    assert high is not None
    assert low < 55 < high + 1
    assert intervals["p99"] is None


def test_an_interval_that_failures_reach_has_no_upper_end() -> None:
    def failing(arm: str, round_: int, number: int, sched: float) -> Timing:
        return timing(sched, error="cut") if number < 2 else half(arm, round_, number, sched)

    ends = reached(failing).arms[0].intervals()["ttft_ms"]["p90"]
    assert ends is not None
    assert ends[1] is None


def test_a_run_that_shows_nothing_says_what_it_could_have_shown() -> None:
    verdict = reached(same, names=("kv", "kv#2"))
    note = next(note for note in verdict.notes if note.startswith("ttft_ms.mean, kv against kv#2"))
    assert "or more would have been found with 80 %" in note


def test_engines_that_go_and_come_as_the_workload_says_do_not_void_the_run() -> None:
    arms, found = experiment(("kv", "random"), half)
    found.blocks[3].facts.workers_after = frozenset({"w0"})
    assert "set of workers changed" in reach(arms, found, [], None, Limits(), 0, draws=200).reasons[0]
    found.actions_planned = True
    assert reach(arms, found, [], None, Limits(), 0, draws=200).valid
