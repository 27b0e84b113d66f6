"""The explanation of a run: of each arm its cache, load and overhead, of each pair the parts of the TTFT difference.
Pure.

Needs what the router says of its decisions, the cached tokens that engines report and the workers that answers name; a
part that lacks its source is left out, with the reason.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from bench.explain.cache import CacheUse, cache_use
from bench.explain.columns import all_columns
from bench.explain.load import LoadSpread, load_spread
from bench.explain.overhead import Overhead, overhead
from bench.explain.ttft import Decomposition, Side, decompose
from bench.verdict import ArmResult, Verdict


@dataclass(frozen=True, slots=True)
class ArmExplained:
    name: str
    cache: CacheUse
    load: LoadSpread
    overhead: Overhead


@dataclass(frozen=True, slots=True)
class Explanation:
    """`ttft`: the candidate against each base."""

    arms: tuple[ArmExplained, ...] = ()
    ttft: tuple[Decomposition, ...] = field(default=())


def explain(verdict: Verdict, bound: float | None, seed: int, draws: int = 1000) -> Explanation:
    """Explains an experiment.

    Args:
        verdict: with the arms' blocks.
        bound: what an endless cache would hold, as a share of the workload's prompt tokens.
        seed: of the bootstrap.
        draws: of the bootstrap, for each base.
    """
    arms, sides = [], []
    for arm in verdict.arms:
        workers = sorted(arm.workers)
        blocks = all_columns([(b.block.round, b.facts.measured) for b in arm.blocks], workers)
        sides.append(Side(arm.arm.name, blocks, len(workers)))
        arms.append(
            ArmExplained(
                arm.arm.name,
                cache_use(blocks, bound),
                load_spread(blocks, workers),
                overhead(blocks, [b.clocks for b in arm.blocks]),
            )
        )
    rng = np.random.default_rng(seed)
    pairs = [
        _pair(sides[0], sides[i], verdict.arms[0], verdict.arms[i], rng, draws) for i in range(1, len(verdict.arms))
    ]
    return Explanation(tuple(arms), tuple(pairs))


def _pair(
    other: Side, base: Side, other_arm: ArmResult, base_arm: ArmResult, rng: np.random.Generator, draws: int
) -> Decomposition:
    shaky = [arm.arm.name for arm in (other_arm, base_arm) if not arm.stability.stable]
    if shaky:
        reason = f"{' and '.join(shaky)} unstable at this rate: TTFT grows with the length of the run"
        return Decomposition(base.name, other.name, 0, None, (), reason=reason)
    return decompose(other, base, rng, draws)


def explanation_data(found: Explanation) -> dict[str, Any]:
    """The key `explanation` of result.json. Times are milliseconds, shares 0 to 1."""
    return {"arms": [_arm(arm) for arm in found.arms], "ttft": [_ttft(pair) for pair in found.ttft]}


def _arm(arm: ArmExplained) -> dict[str, Any]:
    load = arm.load
    line = None
    if load.line is not None:
        grid = np.round(load.line.in_flight, 2).tolist()
        line = {
            "rounds": list(load.line.rounds),
            "in_flight": {worker.name: row for worker, row in zip(load.workers, grid, strict=True)},
        }
    return {
        "name": arm.name,
        "cache": asdict(arm.cache),
        "load": {
            "workers": [asdict(worker) for worker in load.workers],
            "cv": load.cv,
            "jain": load.jain,
            "in_flight_cv": load.in_flight_cv,
            "time_line": line,
        },
        "overhead_ms": asdict(arm.overhead),
    }


def _ttft(pair: Decomposition) -> dict[str, Any]:
    return {
        "base": pair.base,
        "other": pair.other,
        "pairs": pair.pairs,
        "difference_ms": pair.difference_ms,
        "effects": [asdict(effect) for effect in pair.effects],
        "slopes_ms": asdict(pair.slopes) if pair.slopes else None,
        "r2": list(pair.r2) if pair.r2 else None,
        "reason": pair.reason,
    }
