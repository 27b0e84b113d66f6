"""What follows from a sweep or a capacity search: sentences, gates, the exit code, the JSON. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bench.capacity import Capacity
from bench.gate import Gate, judge_capacity
from bench.study import CURVE, Point, Study
from bench.verdict import Verdict


def reach_study(study: Study, gates: Sequence[Gate]) -> Verdict:
    """The verdict. A run counts if it was not stopped and no arm's capacity was left open by noise; a capacity beyond
    what the client can send is a result (a lower bound), not a failure.
    """
    reasons = [f"{study.stopped}: only the probes that were complete are counted"] if study.stopped else []
    for name, found in study.capacity.items():
        if found.rate is not None and found.upper is not None and not (found.precise and found.confirmed):
            reasons.append(f"the capacity of {name} is not settled: {found.reason}")
    void = [point for point in study.sweep if point.void]
    notes = [
        f"{point.arm} at {point.rate:g} requests/s does not count: {point.void[0].removeprefix(point.arm + ': ')}"
        for point in void
    ]
    if void and len(void) == len(study.sweep):
        reasons.append("no point of the sweep counts: " + notes[0])
    brackets = {name: found.bracket for name, found in study.capacity.items()}
    judged = [judge_capacity(gate, brackets.get) for gate in gates]
    verdict = Verdict([], [], reasons, notes, judged, measured=True)
    verdict.sentences = _sentences(study, verdict)
    return verdict


def _sentences(study: Study, verdict: Verdict) -> list[str]:
    said = [] if verdict.valid else [f"No verdict: {verdict.reasons[0]}."]
    for name, found in study.capacity.items():
        said.append(_of_arm(name, found, study.plan.precision))
    if len(study.arms) > 1 and study.capacity:
        candidate = study.arms[0]
        for base in study.arms[1:]:
            low, high = capacity_ratio(study.capacity[candidate], study.capacity[base])
            if low > 0 or math.isfinite(high):
                reach = f"{low:.2f} to {high:.2f}" if math.isfinite(high) else f"at least {low:.2f}"
                said.append(f"{candidate} carries {reach} times the requests of {base} within the objectives.")
            else:
                said.append(f"{candidate} against {base}: no ratio of capacities.")
    return said


def _of_arm(name: str, found: Capacity, precision: float) -> str:
    if found.rate is None:
        return f"{name}: no capacity found, {found.reason}."
    if found.upper is None:
        return f"{name} carries at least {found.rate:.4g} requests/s; {found.reason}."
    if found.precise and found.confirmed:
        return f"{name} carries {found.rate:.4g} requests/s (not {found.upper:.4g}; precision {precision:.0%})."
    return f"{name} carries {found.rate:.4g} requests/s, not {found.upper:.4g}; {found.reason}."


def capacity_ratio(other: Capacity, base: Capacity) -> tuple[float, float]:
    """The ends of what other / base may be, by their brackets; +inf where nothing bounds it."""
    low, high = other.bracket
    base_low, base_high = base.bracket
    return low / base_high, high / base_low if base_low > 0 else math.inf


def study_data(study: Study) -> dict[str, object]:
    """The keys `sweep` and `capacity` of result.json; only those that were asked for."""
    data: dict[str, object] = {}
    plan = study.plan
    if plan.rates is None or plan.rates:
        data["sweep"] = {
            "probe_seconds": plan.seconds,
            "rates": sorted({point.rate for point in study.sweep}),
            "points": [_point(point) for point in study.sweep],
        }
    if plan.targets:
        candidate = study.arms[0]
        data["capacity"] = {
            "slo": {f"{target.metric}.{target.stat}": target.limit for target in plan.targets},
            "precision": plan.precision,
            "probe_seconds": plan.seconds,
            "arms": [
                {
                    "name": name,
                    "rate": found.rate,
                    "upper": found.upper,
                    "confirmed": found.confirmed,
                    "precise": found.precise,
                    "reason": found.reason,
                    "probes": [_point(point) for point in study.probes if point.arm == name],
                }
                for name, found in study.capacity.items()
            ],
            "ratios": [
                {"base": base, "other": candidate, "low": low, "high": high if math.isfinite(high) else None}
                for base in study.arms[1:]
                if study.capacity
                for low, high in [capacity_ratio(study.capacity[candidate], study.capacity[base])]
            ],
        }
    return data


def _point(point: Point) -> dict[str, object]:
    metrics = point.metrics
    row: dict[str, object] = {
        "arm": point.arm,
        "rate": point.rate,
        "block": point.block,
        "repeat": point.repeat,
        "requests": point.requests,
        "failed": point.failed,
        "stable": point.stable,
        "outcome": str(point.outcome),
        "missed": list(point.missed),
        "void": list(point.void),
    }
    for name in ("ttft_ms", "itl_ms", "e2e_ms"):
        row[name] = {stat: point.value(f"{name}.{stat}") for stat in CURVE}
    plain = ("output_tok_s", "goodput", "goodput_req_s", "cached_token_ratio", "load_cv")
    return row | {name: metrics.get(name) for name in plain}
