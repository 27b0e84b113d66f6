"""What a replay leaves: the shapes of `bench.result` and `bench.requests_file`, marked as simulated; its final table.

`icl_ms` comes from the engines' steps: gaps are pooled over all answers and weighted, a percentile is the smallest gap
that so large a share of them does not exceed. One run of a deterministic simulation has no noise, so ratios come
without interval and p.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from bench import result
from bench.arms import Arm
from bench.client.watch import SelfWatch
from bench.cold import ColdProof
from bench.control import DecisionFacts
from bench.design import Block
from bench.experiment import BlockResult, Experiment
from bench.guards import BlockFacts
from bench.metrics import COMPARED, QUANTILES, Measurements, arm_metrics, distribution
from bench.replay.engines import Gaps
from bench.replay.oracle import MODE as ORACLE
from bench.replay.prompts import Prompts
from bench.replay.run import Replayed
from bench.requests_file import write_requests
from bench.stability import stability
from bench.stats import Comparison
from bench.verdict import T_END, T_SCHED, ArmResult, Compared, Verdict
from bench.workload.describe import Summary
from bench.workload.model import Workload

COLD = "fresh"
"""Every mode begins with new engines and a new router."""


@dataclass(slots=True)
class Study:
    """All modes of a replay. `bound`: share of prompt tokens that an endless cache would hold."""

    verdict: Verdict
    experiment: Experiment
    plan: list[Block]
    bound: float
    counts: dict[str, dict[str, int]] = field(default_factory=dict)


def arm(number: int, replayed: Replayed, prompts: Prompts, workers: int) -> ArmResult:
    """A mode's numbers."""
    table = replayed.table
    facts = {
        name: DecisionFacts(None, predicted)
        for name, predicted in zip(table.decisions, replayed.predicted, strict=True)
        if name is not None
    }
    measured = Measurements.block([prompt.request for prompt in prompts.all], table, facts)
    block = BlockResult(
        Block(number, 0, number),
        Arm(replayed.mode, replayed.mode, ""),
        BlockFacts(measured, SelfWatch()),
        ColdProof(COLD),
        0.0,
    )
    metrics = arm_metrics([measured], [f"w{n}" for n in range(workers)], None)
    metrics["icl_ms"] = gap_distribution(replayed.gaps)
    times = table.times
    ends = np.where(table.ok, times[:, T_END], np.inf)
    steady = stability([(times[:, T_SCHED], ends)])
    return ArmResult(block.arm, [block], metrics, steady, dict(sorted(measured.workers().items())), measured.errors())


def gap_distribution(gaps: Gaps) -> dict[str, float | None]:
    """Milliseconds."""
    seconds, weights = gaps.pooled()
    if not len(seconds):
        return distribution(np.empty(0))
    total = np.cumsum(weights)
    shares = np.array(QUANTILES) / 100 * total[-1]
    at = np.minimum(np.searchsorted(total, shares * (1 - 1e-12)), len(seconds) - 1)
    found: dict[str, float | None] = {"mean": float((seconds * weights).sum() / total[-1]) * 1000}
    for quantile, value in zip(QUANTILES, seconds[at].tolist(), strict=True):
        found[f"p{quantile:g}"] = value * 1000
    return found


def study(arms: Sequence[ArmResult], counts: dict[str, dict[str, int]], bound: float) -> Study:
    """The first mode against each other."""
    candidate = arms[0]
    compared = [
        Compared(
            name, base.arm.name, candidate.arm.name, Comparison(_ratio(candidate, base, name), None, None), rounds=1
        )
        for base in arms[1:]
        for name in COMPARED
    ]
    notes = ["simulated in virtual time: ratios hold for this workload and engine model, without an interval"]
    notes += [
        f"{a.arm.name} could not keep up: its latencies grow with the length of the run"
        for a in arms
        if not a.stability.stable
    ]
    if any(a.arm.mode == ORACLE for a in arms):
        notes.append("oracle knows caches and lengths, but not requests to come: greedy, so no proven bound")
    plan = [block.block for a in arms for block in a.blocks]
    experiment = Experiment("", COLD, [block for a in arms for block in a.blocks], plan=plan)
    return Study(Verdict(list(arms), compared, [], notes, [], measured=True), experiment, plan, bound, counts)


def _ratio(other: ArmResult, base: ArmResult, name: str) -> float | None:
    above, below = other.value(name), base.value(name)
    return above / below if above is not None and below else None


def content(found: Study, provenance: result.Provenance, lag_ms: float) -> dict[str, object]:
    """Of result.json. Cost: the workload's hash needs every token once."""
    data = result.result(found.verdict, found.experiment, found.plan, provenance)
    design = data["design"]
    assert isinstance(design, dict)
    for block in design["blocks"]:
        block["client"] = None
    return data | {
        "simulated": True,
        "replay": {"infinite_cache_bound": found.bound, "kv_event_lag_ms": lag_ms, "counts": found.counts},
    }


def write(folder: Path, data: dict[str, object], found: Study) -> None:
    """result.json, summary.csv and requests.jsonl."""
    result.write(folder, data, found.verdict)
    write_requests(folder, found.experiment.blocks)


def summary(workload: Workload, bound: float) -> Summary:
    """Lengths and rates; the bound as replay counts it, in the engines' blocks."""
    requests = workload.requests
    outputs = sum(request.output_len for request in requests)
    prompts = [request.prompt_len for request in requests]
    span = (requests[-1].at - requests[0].at) or 1.0
    return Summary(
        requests=len(requests),
        sessions=len({request.session for request in requests}),
        slices=1,
        prompt_mean=sum(prompts) / len(prompts),
        prompt_max=max(prompts),
        output_mean=outputs / len(requests),
        rate=len(requests) / span,
        token_rate=outputs / span,
        bound=bound,
    )


def show(found: Study, prompts: Prompts, console: Console) -> None:
    """Table and notes."""
    console.print(render(found, prompts))


def render(found: Study, prompts: Prompts) -> RenderableType:
    """A row a mode, for 80 columns."""
    grid = Grid(box=None, pad_edge=False, padding=(0, 1), show_edge=False)
    grid.add_column("\nmode", no_wrap=True)
    for name in (
        "TTFT ms\nmean",
        "\np50",
        "\np95",
        "\np99",
        "ITL ms\nmean",
        "gap\nmean",
        "\np99",
        "from\ncache",
        "load\nCV",
    ):
        grid.add_column(name, justify="right", no_wrap=True)
    for one in found.verdict.arms:
        cells = [_plain(one.value(f"ttft_ms.{stat}"), 0) for stat in ("mean", "p50", "p95", "p99")]
        cells += [_plain(one.value(name), 1) for name in ("itl_ms.mean", "icl_ms.mean", "icl_ms.p99")]
        cached = one.value("cached_token_ratio")
        cells += ["-" if cached is None else f"{cached:.1%}", _plain(one.value("load_cv"), 2)]
        grid.add_row(one.arm.name, *cells)
    parts: list[RenderableType] = [grid, Text("")]
    parts.append(
        Text(f"a cache without end would hold {found.bound:.1%} of the prompt tokens (blocks of {prompts.block_size})")
    )
    failed = {a.arm.name: a.failures for a in found.verdict.arms if a.failures}
    parts += [
        Text(f"{name}: failed: " + ", ".join(f"{count} {kind}" for kind, count in kinds.items()), style="yellow")
        for name, kinds in failed.items()
    ]
    parts += [Text(f"note: {note}", style="dim") for note in found.verdict.notes]
    return Group(*parts)


def _plain(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
