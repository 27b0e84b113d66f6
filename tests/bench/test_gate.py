"""Gates: what they may say, and when they pass, fail or cannot tell."""

from __future__ import annotations

import pytest

from bench.gate import Gate, GateError, GateResult, judge, judge_capacity, parse_gate
from bench.stats import Comparison

ARMS = ["kv", "random", "kv#2"]


def judged(text: str, ci: tuple[float, float] | None, void: list[str] | None = None) -> GateResult:
    ratio = None if ci is None else sum(ci) / 2
    return judge(
        parse_gate(text, ARMS), lambda m, b, o: Comparison(ratio, ci, 0.01), lambda a, m: 400.0, void or []
    ).result


def test_a_gate_on_two_arms_is_read() -> None:
    assert parse_gate("ttft_ms.p95: kv <= 0.95*random", ARMS) == Gate(
        "ttft_ms.p95: kv <= 0.95*random", "ttft_ms.p95", "kv", "<=", 0.95, "random"
    )


@pytest.mark.parametrize("text", ["itl_p95: kv <= 1.05*random (non-inferior)", "itl_ms.p95:kv<=1.05 * random"])
def test_other_spellings_mean_the_same(text: str) -> None:
    gate = parse_gate(text, ARMS)
    assert (gate.metric, gate.factor, gate.right) == ("itl_ms.p95", 1.05, "random")


def test_a_gate_on_a_number() -> None:
    gate = parse_gate("ttft_ms.p95: kv <= 500", ARMS)
    assert (gate.factor, gate.right) == (500, None)


def test_a_numbered_arm_can_be_named() -> None:
    assert parse_gate("ttft_ms.mean: kv#2 < kv", ARMS).left == "kv#2"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ttft_ms.p95 kv <= random", "wanted"),
        ("speed: kv <= random", "unknown metric"),
        ("ttft_ms.p42: kv <= random", "unknown metric"),
        ("ttft_ms.p95: nobody <= random", "no arm 'nobody'"),
        ("ttft_ms.p95: kv <= 2*nobody", "neither a number nor an arm"),
    ],
)
def test_a_gate_that_is_not_understood_says_why(text: str, said: str) -> None:
    with pytest.raises(GateError, match=said):
        parse_gate(text, ARMS)


@pytest.mark.parametrize(
    ("ci", "result"),
    [
        ((0.5, 0.9), GateResult.PASS),
        ((0.96, 1.2), GateResult.FAIL),
        ((0.9, 1.0), GateResult.INCONCLUSIVE),
        (None, GateResult.INCONCLUSIVE),
    ],
)
def test_the_whole_interval_decides(ci: tuple[float, float] | None, result: GateResult) -> None:
    assert judged("ttft_ms.p95: kv <= 0.95*random", ci) is result


def test_a_lower_limit_is_judged_from_the_other_end() -> None:
    assert judged("cached_token_ratio: kv >= 2*random", (2.1, 3.0)) is GateResult.PASS
    assert judged("cached_token_ratio: kv >= 2*random", (1.1, 1.9)) is GateResult.FAIL


def test_a_limit_on_one_arm_is_judged_by_its_value() -> None:
    assert judged("ttft_ms.p95: kv <= 500", None) is GateResult.PASS
    assert judged("ttft_ms.p95: kv <= 300", None) is GateResult.FAIL


def test_nothing_passes_in_a_run_that_is_not_valid() -> None:
    assert judged("ttft_ms.p95: kv <= 0.95*random", (0.1, 0.2), ["interrupted"]) is GateResult.INCONCLUSIVE


@pytest.mark.parametrize("metric", ["load_cv", "output_tok_s", "goodput", "ttft_ms.p90", "e2e_ms.p50"])
def test_two_arms_cannot_be_gated_by_a_metric_without_a_ratio(metric: str) -> None:
    with pytest.raises(GateError, match="arms are not compared by"):
        parse_gate(f"{metric}: kv <= 0.9*random", ["kv", "random"])
    assert parse_gate(f"{metric}: kv <= 3", ["kv", "random"]).right is None


@pytest.mark.parametrize(("text", "limit"), [("500ms", 500), ("0.5s", 500), ("500", 500)])
def test_a_limit_may_have_a_unit(text: str, limit: float) -> None:
    assert parse_gate(f"ttft_p95: kv <= {text}", ARMS).factor == limit


@pytest.mark.parametrize(
    ("ci", "result"),
    [((0.9, 1.04), GateResult.PASS), ((0.9, 1.06), GateResult.INCONCLUSIVE), ((1.06, 1.2), GateResult.FAIL)],
)
def test_non_inferior_passes_only_with_the_whole_interval_inside_the_margin(
    ci: tuple[float, float], result: GateResult
) -> None:
    assert judged("itl_ms.mean: kv <= 1.05*random (non-inferior)", ci) is result


@pytest.mark.parametrize("text", ["kv <= random", "kv <= 0.9*random", "kv >= 1.1*random", "kv <= 500"])
def test_non_inferior_without_a_margin_is_refused(text: str) -> None:
    with pytest.raises(GateError, match="non-inferior"):
        parse_gate(f"ttft_ms.mean: {text} (non-inferior)", ARMS)


def test_a_factor_that_is_no_number_is_refused() -> None:
    with pytest.raises(GateError, match=r"'1\.2\.3' is not a number"):
        parse_gate("ttft_ms.mean: kv <= 1.2.3*random", ARMS)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("capacity: kv >= 1.1*random", GateResult.PASS),
        ("capacity: kv >= 1.5*random", GateResult.INCONCLUSIVE),
        ("capacity: kv >= 2*random", GateResult.FAIL),
        ("capacity: kv >= 12", GateResult.PASS),
        ("capacity: kv >= 12.5", GateResult.INCONCLUSIVE),
        ("capacity: kv#2 >= 1", GateResult.INCONCLUSIVE),
    ],
)
def test_a_gate_on_capacity_is_judged_by_the_worst_that_the_brackets_leave_open(text: str, result: GateResult) -> None:
    """kv carries 12 to 13, random 8 to 9: between 12/9 = 1.33 and 13/8 = 1.63 times as much."""
    brackets = {"kv": (12.0, 13.0), "random": (8.0, 9.0)}
    assert judge_capacity(parse_gate(text, ARMS), brackets.get).result is result


def test_an_arm_that_never_failed_may_carry_any_multiple() -> None:
    brackets = {"kv": (12.0, float("inf")), "random": (8.0, 9.0)}
    assert judge_capacity(parse_gate("capacity: kv >= 1.3*random", ARMS), brackets.get).result is GateResult.PASS
    assert judge_capacity(parse_gate("capacity: kv <= 2*random", ARMS), brackets.get).result is GateResult.INCONCLUSIVE
