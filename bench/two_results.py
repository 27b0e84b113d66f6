"""Two result folders against each other: the same arm before and after a change. Pure.

An arm is named by its side and its name, `A:kv` and `B:kv`; A is the base. Of one workload the requests are paired by
round and id, and compared exactly as the arms of one run are. Of two workloads only pooled statistics are compared,
each side's rounds resampled on their own: no test, no claim, and no gate between arms can pass. Nothing cancels the
drift between two runs, which the notes say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from bench.design import HEADLINE
from bench.experiment import BlockResult
from bench.gate import Gate, GateError, GateResult, Judged, judge, parse_gate
from bench.metrics import COMPARED, Measurements, paired
from bench.result import comparison_rows, verdict_row
from bench.stats import Comparison, Floats, Paired, Statistic, expanded_interval, holm
from bench.stored import NotAResult, Stored
from bench.verdict import ArmResult, Compared, Verdict, compare_arms, inverse, sentences

SIDES = ("A", "B")
DRAWS, FEWEST_DRAWS = 1000, 200
MOST_DRAWN = 20_000_000
"""Values that the bootstrap draws of one metric, which keeps large results to a minute or two."""


class NothingShared(ValueError):
    """The two results have no arm in common. The message names the arms."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`pairs`: (base, other) arms that were compared, by name. `same`: both results are of one workload."""

    verdict: Verdict
    pairs: tuple[tuple[str, str], ...]
    same: bool


def compare_results(a: Stored, b: Stored, gates: Sequence[str], seed: int = 0, draws: int = DRAWS) -> Outcome:
    """Compares every arm that both have; where each has one, these two whatever their names.

    Args:
        a: the base.
        b: what is compared with it.
        gates: as of a run, with arms `A:NAME` and `B:NAME`.
        seed: of the bootstrap.
        draws: of the bootstrap.

    Raises:
        NothingShared: no arm is in both.
        NotAResult: a round of the same workload holds other requests.
        GateError: a gate that is not understood.
    """
    named = {
        side: {arm.arm.name: _renamed(arm, side) for arm in one.arms} for side, one in zip(SIDES, (a, b), strict=True)
    }
    pairs = _pairs(named["A"], named["B"], a, b)
    arms = {arm.arm.name: arm for side in SIDES for arm in named[side].values()}
    wanted = [_gate(text, list(arms)) for text in gates]
    pairs += [pair for gate in wanted if (pair := _asked(gate, pairs)) is not None]
    same = a.sha256 == b.sha256
    for base, other in pairs if same else ():
        _check_rounds(arms[base], arms[other])
    rng = np.random.default_rng(seed)
    found = [one for base, other in pairs for one in _compare(arms[base], arms[other], same, rng, draws)]
    if same:
        headline = [one for one in found if one.metric in HEADLINE]
        for one, p in zip(headline, holm([c.found.p for c in headline]), strict=True):
            one.p_holm = p
    reasons = [f"{side}: {reason}" for side, one in zip(SIDES, (a, b), strict=True) for reason in _reasons(one)]
    used = [arms[name] for name in dict.fromkeys(name for pair in pairs for name in pair)]
    verdict = Verdict(used, found, reasons, _notes(a, b, same), _judged(wanted, found, arms, reasons, same))
    verdict.sentences = _sentences(verdict, pairs, arms)
    return Outcome(verdict, tuple(pairs), same)


def _renamed(arm: ArmResult, side: str) -> ArmResult:
    return replace(arm, arm=replace(arm.arm, name=f"{side}:{arm.arm.name}"))


def _pairs(a: dict[str, ArmResult], b: dict[str, ArmResult], first: Stored, second: Stored) -> list[tuple[str, str]]:
    shared = [name for name in a if name in b]
    if not shared and len(a) == len(b) == 1:
        return [(next(iter(a.values())).arm.name, next(iter(b.values())).arm.name)]
    if not shared:
        raise NothingShared(
            f"no arm is in both results: {first.folder} has {', '.join(a)}, {second.folder} has {', '.join(b)}"
        )
    return [(f"A:{name}", f"B:{name}") for name in shared]


def _gate(text: str, arms: list[str]) -> Gate:
    try:
        return parse_gate(text, arms)
    except GateError as error:
        if "A:" in text or "B:" in text:
            raise
        raise GateError(f"{error}; an arm is named with its side here, as in 'ttft_ms.p95: B:kv <= A:kv'") from None


def _asked(gate: Gate, pairs: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
    """The pair that a gate needs and that is not compared anyway."""
    if gate.right is None or (gate.right, gate.left) in pairs or (gate.left, gate.right) in pairs:
        return None
    return gate.right, gate.left


def _compare(base: ArmResult, other: ArmResult, same: bool, rng: np.random.Generator, draws: int) -> list[Compared]:
    if not (base.stability.stable and other.stability.stable):
        return []
    draws = max(FEWEST_DRAWS, min(draws, MOST_DRAWN // max(1, len(base.measured) + len(other.measured))))
    return compare_arms(base, other, rng, draws) if same else _unpaired(base, other, rng, draws)


def _check_rounds(base: ArmResult, other: ArmResult) -> None:
    """Raises NotAResult where a round of one workload is not the same requests in both: a file was changed."""
    below = {block.block.round: _ids(block) for block in base.blocks}
    for block in other.blocks:
        if below.get(block.block.round, ids := _ids(block)) != ids:
            raise NotAResult(
                f"{base.arm.name} and {other.arm.name} have the same workload, but other requests in round "
                f"{block.block.round}: one of the files requests.jsonl is not what the run wrote"
            )


def _ids(block: BlockResult) -> list[str]:
    return [request.id for request in Measurements.of(block.facts.measured).requests()]


def _unpaired(base: ArmResult, other: ArmResult, rng: np.random.Generator, draws: int) -> list[Compared]:
    """Ratios of pooled statistics; intervals from rounds drawn anew on each side. No p."""
    if not base.blocks or not other.blocks:
        return []
    below, above = _values(base), _values(other)
    starts = [np.cumsum([0, *(len(block.facts.measured) for block in arm.blocks)]).tolist() for arm in (base, other)]
    rounds = min(len(base.blocks), len(other.blocks))
    made = []
    for name in COMPARED:
        values, stat = below[name]
        others, _ = above[name]
        drawn = []
        for _ in range(draws if rounds > 1 else 0):
            sides = [_redrawn(v, s, rng) for v, s in ((values, starts[0]), (others, starts[1]))]
            ratio = _ratio(sides[1], sides[0], stat)
            if ratio is not None:
                drawn.append(ratio)
        interval = expanded_interval(np.array(drawn), rounds) if len(drawn) >= max(1, 0.95 * draws) else None
        pooled = _ratio(others, values, stat)
        if pooled is not None or name != "cached_token_ratio":
            made.append(
                Compared(name, base.arm.name, other.arm.name, Comparison(pooled, interval, None), rounds=rounds)
            )
    return made


def _values(arm: ArmResult) -> dict[str, tuple[Floats, Statistic]]:
    every = arm.measured
    found: dict[str, Paired] = {name: paired(every, every, name) for name in COMPARED}
    return {name: (one.base, one.stat) for name, one in found.items()}


def _redrawn(values: Floats, starts: Sequence[int], rng: np.random.Generator) -> Floats:
    blocks = [values[a:b] for a, b in pairwise(starts)]
    return np.concatenate([blocks[i] for i in rng.integers(0, len(blocks), len(blocks))])


def _ratio(other: Floats, base: Floats, stat: Statistic) -> float | None:
    above, below = (stat(v[~np.isnan(v if v.ndim == 1 else v[:, 0])]) for v in (other, base))
    return above / below if np.isfinite([above, below]).all() and below > 0 else None


def _reasons(one: Stored) -> list[str]:
    return [str(reason) for reason in one.data["verdict"]["reasons"]]


def _judged(
    gates: Sequence[Gate], found: Sequence[Compared], arms: dict[str, ArmResult], reasons: list[str], same: bool
) -> list[Judged]:
    known = {(c.metric, c.base, c.other): c.found for c in found}
    judged = []
    for gate in gates:
        if gate.right is not None and not same:
            why = "the results are of different workloads: a ratio of them may be theirs"
            judged.append(Judged(gate, GateResult.INCONCLUSIVE, why))
            continue
        judged.append(
            judge(
                gate,
                lambda m, base, other: known.get((m, base, other)) or inverse(known.get((m, other, base))),
                lambda arm, metric: arms[arm].value(metric),
                reasons,
            )
        )
    return judged


def _notes(a: Stored, b: Stored, same: bool) -> list[str]:
    notes = []
    if not same:
        notes.append(
            f"WARNING: different workloads ({_workload(a)}; {_workload(b)}): requests are not paired and nothing is "
            "tested; run both with the same workload, seed, --blocks and --requests"
        )
    notes.append(
        "the two runs were not made in turn: what changed on the machine between them is in the ratio; an arm that is "
        "the same in both shows how much"
    )
    for what, get in _CONDITIONS:
        was, now = get(a.data), get(b.data)
        if was != now:
            notes.append(f"{what} differs: {was} in A, {now} in B")
    return notes


_CONDITIONS = (
    ("the fleet", lambda data: data["provenance"].get("fleet", {}).get("description")),
    ("the model", lambda data: data["provenance"].get("model")),
    ("the host", lambda data: _facts(data["provenance"].get("host", {}))),
    ("the way to a cold start", lambda data: data.get("design", {}).get("cold_start")),
    ("kvctl", lambda data: data["provenance"].get("kvctl")),
    ("the options", lambda data: _facts(data["provenance"].get("options", {}))),
)


def _facts(found: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in found.items())


def _workload(one: Stored) -> str:
    name = one.data["provenance"].get("workload", {}).get("name", "")
    return f"{name} {one.sha256[:8]}, seed {one.data['provenance'].get('seed')}".strip()


def _sentences(verdict: Verdict, pairs: Sequence[tuple[str, str]], arms: dict[str, ArmResult]) -> list[str]:
    """As of a run, a pair at a time."""
    said = [] if verdict.valid else [f"No verdict: {verdict.reasons[0]}."]
    for base, other in pairs:
        part = replace(
            verdict, arms=[arms[other], arms[base]], reasons=[],
            comparisons=[c for c in verdict.comparisons if (c.base, c.other) == (base, other)],
        )  # fmt: skip
        said += sentences(part)
    return said


def compare_data(outcome: Outcome, a: Stored, b: Stored) -> dict[str, Any]:
    """What `-o json` prints: `comparisons` and `verdict` as in result.json."""
    verdict = outcome.verdict
    return {
        "schema_version": 1,
        "results": {side: str(one.folder) for side, one in zip(SIDES, (a, b), strict=True)},
        "workload_sha256": {side: one.sha256 for side, one in zip(SIDES, (a, b), strict=True)},
        "same_workload": outcome.same,
        "pairs": [{"base": base, "other": other} for base, other in outcome.pairs],
        "arms": [
            {
                "name": arm.arm.name,
                "requests": len(arm.measured),
                "stable": arm.stability.stable,
                "metrics": arm.metrics,
            }
            for arm in verdict.arms
        ],
        "comparisons": comparison_rows(verdict),
        "verdict": verdict_row(verdict),
    }
