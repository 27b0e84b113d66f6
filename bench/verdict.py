"""From blocks to a verdict: per-arm numbers, comparisons, reasons why nothing counts, gates, one plain sentence.
Pure.

The first arm is the candidate; it is compared with each other arm, its base. An arm whose queue grew is named
unstable and gets no ratio. A difference is claimed only for the headline metrics, and only if Holm's corrected p is
at most 5 % and the interval of the ratio leaves out 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bench import guards
from bench.arms import Arm
from bench.design import HEADLINE, LEVEL, rounds_needed, smallest_p
from bench.experiment import BlockResult, Experiment
from bench.gate import Gate, GateResult, Judged, judge
from bench.metrics import COMPARED, QUANTILES, Measurements, Slo, arm_metrics, paired, values
from bench.pilot import Pilot, read_pilot
from bench.power import smallest_effect
from bench.stability import Stability, stability
from bench.stats import Comparison, Floats, compare, holm, numbered, percentile_interval

T_SCHED, T_END = 0, 5
"""Columns of `Table.times`."""

BUSY = 0.85
"""Share of all cores from which a note says so: real time on a full machine is not the arms' time."""

P99_NEEDS = 368
"""Values from which a 95 % interval of p99 has an upper end: 0.99**368 < 2.5 %."""


@dataclass(slots=True)
class ArmResult:
    """One arm's numbers over its complete blocks."""

    arm: Arm
    blocks: list[BlockResult]
    metrics: dict[str, object]
    stability: Stability
    workers: dict[str, int]
    failures: dict[str, int]

    @property
    def measured(self) -> Measurements:
        return Measurements.join(block.facts.measured for block in self.blocks)

    def intervals(self) -> dict[str, dict[str, tuple[float, float | None] | None]]:
        """Distribution-free 95 % intervals of the percentiles, milliseconds, requests taken as independent. None: n is
        too small for one; an upper end of None is +inf (failures reach it).
        """
        return {metric: _intervals(values(self.measured, metric)) for metric in ("ttft_ms", "itl_ms", "e2e_ms")}

    def value(self, metric: str) -> float | None:
        """`ttft_ms.p95`, `cached_token_ratio`, ... as a number."""
        name, _, stat = metric.partition(".")
        found = self.metrics.get(name)
        if isinstance(found, dict):
            found = found.get(stat)
        return float(found) if isinstance(found, int | float) else None


@dataclass(slots=True)
class Compared:
    """The candidate against one base, on one metric."""

    metric: str
    base: str
    other: str
    found: Comparison
    p_holm: float | None = None
    rounds: int = 0

    @property
    def claimed(self) -> bool:
        """Whether a difference is shown."""
        ci = self.found.ci95
        return self.p_holm is not None and self.p_holm <= LEVEL and ci is not None and not ci[0] <= 1 <= ci[1]


@dataclass(slots=True)
class Verdict:
    """`reasons`: why the run does not count (empty: it does). `notes`: what to know all the same. `pilot`: the A/A
    control. `measured`: what was asked for is no comparison, and it was measured.
    """

    arms: list[ArmResult]
    comparisons: list[Compared]
    reasons: list[str]
    notes: list[str]
    gates: list[Judged]
    sentences: list[str] = field(default_factory=list)
    pilot: Pilot | None = None
    measured: bool = False

    @property
    def valid(self) -> bool:
        return not self.reasons

    @property
    def exit_code(self) -> int:
        """0 good · 1 a gate failed · 4 nothing can be said, or a gate is inconclusive."""
        results = [judged.result for judged in self.gates]
        if GateResult.FAIL in results:
            return 1
        if not self.valid or GateResult.INCONCLUSIVE in results:
            return 4
        return 0 if self.comparisons or len(self.arms) == 1 or self.measured else 4


def reach(
    arms: Sequence[Arm],
    experiment: Experiment,
    gates: Sequence[Gate],
    slo: Slo | None,
    limits: guards.Limits,
    seed: int,
    draws: int = 1000,
) -> Verdict:
    """Everything that follows from what was measured. `draws`: of the bootstrap."""
    results = [_arm(arm, experiment, slo) for arm in arms]
    reasons, notes = _reasons(results, experiment, limits)
    reasons += _too_few(gates, results)
    comparisons = _comparisons(results, seed, draws)
    notes += _notes(results, comparisons)
    pilot = read_pilot(experiment.pilot, seed)
    notes += _power_notes(comparisons, pilot)
    found = {(c.metric, c.base, c.other): c.found for c in comparisons}
    by_name = {result.arm.name: result for result in results}
    judged = [
        judge(
            gate,
            lambda metric, base, other: found.get((metric, base, other)) or inverse(found.get((metric, other, base))),
            lambda arm, metric: by_name[arm].value(metric),
            reasons,
        )
        for gate in gates
    ]
    verdict = Verdict(results, comparisons, reasons, notes, judged, pilot=pilot)
    verdict.sentences = sentences(verdict)
    return verdict


def _arm(arm: Arm, experiment: Experiment, slo: Slo | None) -> ArmResult:
    mine = [block for block in experiment.blocks if block.arm.name == arm.name]
    return arm_result(arm, mine, [engine.id for engine in arm.engines], slo)


def arm_result(arm: Arm, blocks: Sequence[BlockResult], engines: Sequence[str], slo: Slo | None = None) -> ArmResult:
    """An arm's numbers over those of its blocks that are complete. `engines`: all that could have served."""
    blocks = [block for block in blocks if not block.interrupted]
    parts = [Measurements.of(b.facts.measured) for b in blocks]
    every = Measurements.join(parts)
    queues = [(part.time(T_SCHED), np.where(part.ok, part.time(T_END), np.inf)) for part in parts]
    return ArmResult(
        arm,
        blocks,
        arm_metrics(parts, engines, slo),
        stability(queues),
        dict.fromkeys(engines, 0) | every.workers(),
        every.errors(),
    )


def _reasons(
    results: Sequence[ArmResult], experiment: Experiment, limits: guards.Limits
) -> tuple[list[str], list[str]]:
    """Why the run does not count."""
    reasons: list[str] = []
    if experiment.interrupted:
        reasons.append("interrupted: only the blocks that were complete are counted")
    if experiment.broken:
        reasons.append(f"the run ended early: {experiment.broken}")
    facts = {result.arm.name: [b.facts for b in result.blocks] for result in results}
    for name, blocks in facts.items():
        reasons += guards.client(name, blocks, limits)
        reasons += guards.delivered(name, blocks, limits)
        reasons += guards.lengths(name, blocks, limits)
        if not experiment.actions_planned:
            reasons += guards.same_workers(name, blocks)
    reasons += guards.errors(dict(facts), limits)
    reasons += guards.reporting(dict(facts))
    for block in experiment.blocks:
        if not block.proof.proven and not block.interrupted:
            why = "; ".join(block.proof.reasons[:2])
            reasons.append(f"block {block.block.index + 1} ({block.arm.name}): no proof of a cold cache: {why}")
    return reasons, [experiment.stopped] if experiment.stopped else []


def _too_few(gates: Sequence[Gate], results: Sequence[ArmResult]) -> list[str]:
    """Percentiles that a gate asks for, and that an arm has too few requests for."""
    reasons: list[str] = []
    for gate in gates:
        metric = gate.metric.partition(".")[0]
        for result in results:
            if metric.endswith("_ms") and result.arm.name in (gate.left, gate.right) and result.blocks:
                reasons += guards.enough(result.arm.name, gate.metric, len(values(result.measured, metric)))
    return list(dict.fromkeys(reasons))


def _power_notes(comparisons: Sequence[Compared], pilot: Pilot | None) -> list[str]:
    """What the run could have shown, where it shows nothing; what the A/A control says against it."""
    notes = []
    tests = sum(c.metric in HEADLINE for c in comparisons)
    for c in comparisons:
        if c.metric in HEADLINE and not c.claimed and c.found.sd is not None:
            least = smallest_effect(c.found.sd, c.rounds, tests)
            if least is not None:
                notes.append(
                    f"{c.metric}, {c.other} against {c.base}: by the noise of these {c.rounds} rounds a difference of "
                    f"{least:.1%} or more would have been found with 80 %"
                )
    for name in pilot.carry_over if pilot else []:
        notes.append(
            f"A/A control: the second of two equal blocks differs in {name} in every pair, the same way: something is "
            "carried over, or the machine drifts"
        )
    return notes


def _comparisons(results: Sequence[ArmResult], seed: int, draws: int) -> list[Compared]:
    if len(results) < 2 or not results[0].stability.stable:
        return []
    other = results[0]
    rng = np.random.default_rng(seed)
    made: list[Compared] = []
    for base in results[1:]:
        if base.stability.stable:
            made += compare_arms(base, other, rng, draws)
    headline = [c for c in made if c.metric in HEADLINE]
    for comparison, p in zip(headline, holm([c.found.p for c in headline]), strict=True):
        comparison.p_holm = p
    return made


def compare_arms(base: ArmResult, other: ArmResult, rng: np.random.Generator, draws: int) -> list[Compared]:
    """All metrics of two arms, over the rounds that both completed."""
    below = {b.block.round: b.facts.measured for b in base.blocks}
    above = {b.block.round: b.facts.measured for b in other.blocks}
    rounds = sorted(set(below) & set(above))
    if not rounds:
        return []
    base_all = Measurements.join(below[r] for r in rounds)
    other_all = Measurements.join(above[r] for r in rounds)
    sessions = [numbered([request.session for request in Measurements.of(below[r]).requests()]) for r in rounds]
    names = [name for name in COMPARED if name != "cached_token_ratio" or base.value(name) is not None]
    found = compare({name: paired(base_all, other_all, name) for name in names}, sessions, rng, draws)
    return [Compared(name, base.arm.name, other.arm.name, found[name], rounds=len(rounds)) for name in names]


def _intervals(found: Floats) -> dict[str, tuple[float, float | None] | None]:
    row: dict[str, tuple[float, float | None] | None] = {}
    for q in QUANTILES:
        ends = percentile_interval(found, q)
        finite = ends is not None and np.isfinite(ends[0])
        row[f"p{q:g}"] = (ends[0], ends[1] if np.isfinite(ends[1]) else None) if finite and ends else None
    return row


def inverse(found: Comparison | None) -> Comparison | None:
    """The same comparison with the arms changed over."""
    if found is None or not found.ratio:
        return None
    ci = found.ci95
    return Comparison(1 / found.ratio, (1 / ci[1], 1 / ci[0]) if ci and ci[0] > 0 else None, found.p)


def _notes(results: Sequence[ArmResult], comparisons: Sequence[Compared]) -> list[str]:
    notes = []
    for result in results:
        queue = result.stability
        if not queue.stable:
            notes.append(
                f"{result.arm.name} is unstable at this rate: {queue.middle:.1f} requests in flight in the middle of a "
                f"block, {queue.end:.1f} at its end; no ratio is given, lower --rate or --speedup"
            )
    busy = [b.facts.watch.machine for r in results for b in r.blocks if b.facts.watch.machine is not None]
    if busy and sum(busy) / len(busy) > BUSY:
        notes.append(
            f"the machine was {sum(busy) / len(busy):.0%} busy: client, router and engines compete for it, or "
            "something else runs here"
        )
    fewest = min((len(result.measured) for result in results), default=0)
    if fewest < P99_NEEDS:
        notes.append(f"{fewest} requests an arm are too few for an interval of p99 ({P99_NEEDS} needed)")
    tests = sum(c.metric in HEADLINE for c in comparisons)
    if tests:
        rounds = min(len(result.blocks) for result in results)
        least = smallest_p(rounds) * tests
        if least > LEVEL:
            notes.append(
                f"{rounds} rounds cannot show a difference: even if all of them favour one side, p is "
                f"{smallest_p(rounds):.3g}, {min(1.0, least):.3g} corrected for {tests} tests, and up to {LEVEL:g} is "
                f"claimed; --blocks {rounds_needed(tests)} can"
            )
    return notes


def sentences(verdict: Verdict) -> list[str]:
    """What the run says, in plain words; first what matters most."""
    said: list[str] = []
    if not verdict.valid:
        said.append("No verdict: " + verdict.reasons[0] + ".")
    by_name = {result.arm.name: result for result in verdict.arms}
    candidate = verdict.arms[0]
    for base in verdict.arms[1:]:
        pair = {c.metric: c for c in verdict.comparisons if c.base == base.arm.name}
        if pair:
            said.append(_sentence(pair, candidate, by_name[base.arm.name]))
        else:
            shaky = [r.arm.name for r in (candidate, base) if not r.stability.stable]
            why = f"{' and '.join(shaky)} unstable at this rate" if shaky else "no round is complete in both arms"
            said.append(f"{candidate.arm.name} against {base.arm.name}: no ratio, {why}.")
    return said


def _sentence(pair: dict[str, Compared], other: ArmResult, base: ArmResult) -> str:
    parts = [_effect(pair[metric], other, base) for metric in HEADLINE if metric in pair]
    mine, theirs = other.value("cached_token_ratio"), base.value("cached_token_ratio")
    if mine is not None and theirs is not None:
        parts.append(f"{mine:.0%} of prompt tokens came from cache against {theirs:.0%}")
    return f"{other.arm.name} against {base.arm.name}: " + "; ".join(parts) + "."


def _effect(compared: Compared, other: ArmResult, base: ArmResult) -> str:
    name = {"ttft_ms.mean": "mean TTFT", "itl_ms.mean": "mean ITL"}[compared.metric]
    found = compared.found
    if found.ratio is None:
        return f"{name}: no ratio"
    unit = f"{other.value(compared.metric) or 0:.1f} ms, {base.value(compared.metric) or 0:.1f} ms"
    size = f"{abs(1 - found.ratio):.0%} {'lower' if found.ratio < 1 else 'higher'}"
    if compared.claimed:
        return f"{name} is {size} ({unit})"
    shown = "not tested" if found.p is None else "no difference shown"
    return f"{name}: {shown} ({unit}, ratio {found.ratio:.2f})"
