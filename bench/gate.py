"""Gates: `--gate 'ttft_ms.p95: kv <= 0.95*random'` -> pass, fail or inconclusive. Pure.

A gate on two arms is judged by the 95 % interval of their ratio: pass if all of it keeps the limit, fail if none of
it does, inconclusive between, and wherever there is no ratio. So `kv <= 1.05*random (non-inferior)` passes only if the
worst that the interval leaves open is inside the margin. A gate on one arm and a number is judged by the arm's own
value. `capacity` is judged by the brackets that the search left. An inconclusive gate is not a pass.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from bench.metrics import COMPARED, QUANTILES
from bench.slo import milliseconds
from bench.stats import Comparison

_FORM = re.compile(
    r"^\s*(?P<metric>[a-z0-9_.]+)\s*:\s*(?P<left>[^\s<>=*]+)\s*(?P<op><=|>=|<|>)\s*"
    r"(?:(?P<factor>[0-9.]+)\s*\*\s*)?(?P<right>[^\s<>=*()]+)\s*(?P<margin>\(non-inferior\))?\s*$"
)
_LATENCIES = ("ttft", "itl", "e2e")
_STATS = ("mean", *(f"p{q:g}" for q in QUANTILES))
CAPACITY = "capacity"
_PLAIN = ("cached_token_ratio", "output_tok_s", "goodput", "load_cv", CAPACITY)


class GateResult(StrEnum):
    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


class GateError(ValueError):
    """A gate that cannot be understood. The message quotes it."""


@dataclass(frozen=True, slots=True)
class Gate:
    """`left` and `right` are arms; `right` None: `factor` is the limit itself (a latency's in milliseconds)."""

    text: str
    metric: str
    left: str
    op: str
    factor: float
    right: str | None
    non_inferior: bool = False


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
    factor = _number(found["factor"] or "1", text)
    margin = found["margin"] is not None
    if right in arms:
        if metric not in (*COMPARED, CAPACITY):
            raise GateError(
                f"gate {text!r}: arms are not compared by {metric}, only by {', '.join((*COMPARED, CAPACITY))}; "
                "give a number instead of the second arm"
            )
        if margin and (factor <= 1 if found["op"] in ("<=", "<") else factor >= 1):
            raise GateError(f"gate {text!r}: (non-inferior) needs a margin, such as 1.05* with <= or 0.95* with >=")
        return Gate(text, metric, left, found["op"], factor, right, margin)
    if margin:
        raise GateError(f"gate {text!r}: (non-inferior) is for two arms; {right!r} is none of {', '.join(arms)}")
    try:
        limit = milliseconds(right) if metric.partition("_")[0] in _LATENCIES else float(right)
    except ValueError:
        raise GateError(f"gate {text!r}: {right!r} is neither a number nor an arm ({', '.join(arms)})") from None
    return Gate(text, metric, left, found["op"], factor * limit, None)


def _number(written: str, text: str) -> float:
    try:
        return float(written)
    except ValueError:
        raise GateError(f"gate {text!r}: {written!r} is not a number") from None


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
    """Judges one gate on a comparison. For `capacity` see `judge_capacity`.

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
        return _judged(gate, own, own, f"{gate.metric} of {gate.left} is {own:.4g}")
    found = compared(gate.metric, gate.right, gate.left)
    if found is None or found.ratio is None or found.ci95 is None:
        return Judged(gate, GateResult.INCONCLUSIVE, f"there is no ratio of {gate.left} to {gate.right}")
    low, high = found.ci95
    why = f"{gate.left} is {found.ratio:.3f} times {gate.right}, 95 % interval {low:.3f} to {high:.3f}"
    return _judged(gate, low, high, why)


def judge_capacity(gate: Gate, bracket: Callable[[str], tuple[float, float] | None]) -> Judged:
    """Judges a gate on capacity.

    Args:
        gate: the gate.
        bracket: arm -> the largest rate that met the objectives and the smallest that did not (+inf: none did not);
            None: not known.
    """
    left = bracket(gate.left)
    right = bracket(gate.right) if gate.right else (1.0, 1.0)
    if left is None or right is None:
        unknown = gate.left if left is None else gate.right
        return Judged(gate, GateResult.INCONCLUSIVE, f"the capacity of {unknown} is not known (--capacity --slo)")
    low = left[0] / right[1]
    high = left[1] / right[0] if right[0] > 0 else math.inf
    if gate.right:
        why = f"{gate.left} carries {low:.2f} to {high:.2f} times what {gate.right} does"
    else:
        why = f"{gate.left} carries {low:.4g} to {high:.4g} requests/s"
    return _judged(gate, low, high, why)


def _judged(gate: Gate, low: float, high: float, why: str) -> Judged:
    """By the two ends of what the value may be."""
    ends = (_keeps(low, gate.op, gate.factor), _keeps(high, gate.op, gate.factor))
    if all(ends):
        return Judged(gate, GateResult.PASS, why)
    return Judged(gate, GateResult.INCONCLUSIVE if any(ends) else GateResult.FAIL, why)


def _keeps(value: float, op: str, limit: float) -> bool:
    return {"<=": value <= limit, "<": value < limit, ">=": value >= limit, ">": value > limit}[op]
