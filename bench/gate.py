"""Gates: `--gate 'ttft_ms.p95: kv <= 0.95*random'` -> pass, fail or inconclusive. Pure.

A gate on two arms is judged by the 95 % interval of their ratio: pass if all of it keeps the limit, fail if none of
it does, inconclusive between, and wherever there is no ratio. A gate on one arm and a number is judged by the arm's
own value. An inconclusive gate is not a pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from bench.metrics import COMPARED, QUANTILES
from bench.stats import Comparison

_FORM = re.compile(
    r"^\s*(?P<metric>[a-z0-9_.]+)\s*:\s*(?P<left>[^\s<>=*]+)\s*(?P<op><=|>=|<|>)\s*"
    r"(?:(?P<factor>[0-9.]+)\s*\*\s*)?(?P<right>[^\s<>=*()]+)\s*(?:\(non-inferior\))?\s*$"
)
_LATENCIES = ("ttft", "itl", "e2e")
_STATS = ("mean", *(f"p{q:g}" for q in QUANTILES))
_PLAIN = ("cached_token_ratio", "output_tok_s", "goodput", "load_cv")


class GateResult(StrEnum):
    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


class GateError(ValueError):
    """A gate that cannot be understood. The message quotes it."""


@dataclass(frozen=True, slots=True)
class Gate:
    """`left` and `right` are arms; `right` None: `factor` is the limit itself."""

    text: str
    metric: str
    left: str
    op: str
    factor: float
    right: str | None


@dataclass(frozen=True, slots=True)
class Judged:
    """What came of a gate, and why in a sentence."""

    gate: Gate
    result: GateResult
    why: str


def parse_gate(text: str, arms: list[str]) -> Gate:
    """A gate over the arms of this run.

    Raises:
        GateError: not of the form, an unknown metric or arm, or two arms by a metric for which there is no ratio.
    """
    found = _FORM.match(text)
    if found is None:
        raise GateError(f"gate {text!r}: METRIC: ARM <= [FACTOR*]ARM wanted, such as 'ttft_ms.p95: kv <= 0.95*random'")
    metric = _metric(found["metric"], text)
    left, right = found["left"], found["right"]
    if left not in arms:
        raise GateError(f"gate {text!r}: no arm {left!r}; the arms are {', '.join(arms)}")
    factor = float(found["factor"]) if found["factor"] else 1.0
    if right in arms:
        if metric not in COMPARED:
            raise GateError(
                f"gate {text!r}: arms are not compared by {metric}, only by {', '.join(COMPARED)}; "
                "give a number instead of the second arm"
            )
        return Gate(text, metric, left, found["op"], factor, right)
    try:
        return Gate(text, metric, left, found["op"], factor * float(right), None)
    except ValueError:
        raise GateError(f"gate {text!r}: {right!r} is neither a number nor an arm ({', '.join(arms)})") from None


def _metric(name: str, text: str) -> str:
    """The metric's one name: `ttft_p95` and `ttft_ms.p95` are the same."""
    if name in _PLAIN:
        return name
    base, _, stat = name.rpartition(".") if "." in name else name.rpartition("_")
    base = base.removesuffix("_ms")
    if base in _LATENCIES and stat in _STATS:
        return f"{base}_ms.{stat}"
    known = ", ".join([*(f"{latency}_ms.{{{','.join(_STATS)}}}" for latency in _LATENCIES), *_PLAIN])
    raise GateError(f"gate {text!r}: unknown metric {name!r}; known: {known}")


def judge(
    gate: Gate,
    compared: Callable[[str, str, str], Comparison | None],
    value: Callable[[str, str], float | None],
    void: list[str],
) -> Judged:
    """Judges one gate.

    Args:
        gate: the gate.
        compared: (metric, base, other) -> their comparison, None if there is none.
        value: (arm, metric) -> the arm's own value.
        void: reasons why nothing in this run counts.
    """
    if void:
        return Judged(gate, GateResult.INCONCLUSIVE, "the run is not valid: " + void[0])
    if gate.right is None:
        own = value(gate.left, gate.metric)
        if own is None:
            return Judged(gate, GateResult.INCONCLUSIVE, f"{gate.left} has no {gate.metric}")
        kept = _keeps(own, gate.op, gate.factor)
        return Judged(gate, GateResult.PASS if kept else GateResult.FAIL, f"{gate.metric} of {gate.left} is {own:.4g}")
    found = compared(gate.metric, gate.right, gate.left)
    if found is None or found.ratio is None or found.ci95 is None:
        return Judged(gate, GateResult.INCONCLUSIVE, f"there is no ratio of {gate.left} to {gate.right}")
    low, high = found.ci95
    why = f"{gate.left} is {found.ratio:.3f} times {gate.right}, 95 % interval {low:.3f} to {high:.3f}"
    ends = (_keeps(low, gate.op, gate.factor), _keeps(high, gate.op, gate.factor))
    if all(ends):
        return Judged(gate, GateResult.PASS, why)
    return Judged(gate, GateResult.INCONCLUSIVE if any(ends) else GateResult.FAIL, why)


def _keeps(value: float, op: str, limit: float) -> bool:
    return {"<=": value <= limit, "<": value < limit, ">=": value >= limit, ">": value > limit}[op]
