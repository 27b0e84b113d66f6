"""What was measured as Markdown, with each goal as met or missed by how much; into a marked block of a page. Pure but
for `write`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.decide.fleet import Cell
from bench.decide.memory import Taken
from bench.decide.timing import Microseconds, Times

GOAL_CELL = Cell(64, 8192)
_GOAL_SHARE = 0.1
_GOAL_SPREAD = 2.0
_GOAL_BLOCKS = 1_000_000.0
_GOAL_BYTES = 64.0


@dataclass(frozen=True, slots=True)
class Measured:
    """One cell. Dynamo's times are None where it could not be asked; `said` is why."""

    cell: Cell
    warm: Times
    cold: Times
    dynamo: Microseconds | None = None
    dynamo_cold: Microseconds | None = None
    ratios: tuple[float, ...] = ()
    """Ours over Dynamo's, medians of each round."""


@dataclass(frozen=True, slots=True)
class Ingested:
    """Blocks a second: the median of the rounds."""

    frame: str
    from_bytes: float
    over_zmq: float


@dataclass(frozen=True, slots=True)
class Results:
    cells: list[Measured]
    ingested: list[Ingested]
    taken: list[Taken]
    notes: list[str]


def _us(times: Microseconds) -> str:
    return f"{np.median(times):,.0f} ({np.percentile(times, 99):,.0f})"


def _p50(times: Microseconds | None) -> float:
    return float("nan") if times is None else float(np.median(times))


def _verdict(name: str, value: str, excess: float) -> str:
    """`excess`: how many times worse than the goal; up to 1 is met."""
    return f"- {name}: {value}, **{'met' if excess <= 1 else f'missed by {excess - 1:.0%}'}**"


def verdicts(results: Results) -> list[str]:
    """The four goals, one line each."""
    lines = []
    goal = next((one for one in results.cells if one.cell == GOAL_CELL), None)
    if goal is not None:
        total = goal.warm.total
        if goal.ratios:
            share = float(np.median(goal.ratios))
            text = f"{share:.3f} ({_p50(total):.0f} of {_p50(goal.dynamo):,.0f} µs)"
            lines.append(
                _verdict("8,192 tokens, 64 workers, share of Dynamo's time, at most 0.1", text, share / _GOAL_SHARE)
            )
        spread = float(np.percentile(total, 99)) / _p50(total)
        lines.append(_verdict("the same, p99 over p50, at most 2", f"{spread:.2f}", spread / _GOAL_SPREAD))
    if results.ingested:
        best = max(results.ingested, key=lambda one: one.from_bytes)
        lines.append(
            _verdict(
                "blocks a second into the index, at least 1,000,000",
                f"{best.from_bytes:,.0f} with {best.frame} blocks an event",
                _GOAL_BLOCKS / best.from_bytes,
            )
        )
    for one in results.taken:
        told = f"{one.arrays:.0f} bytes"
        name = f"bytes a (block, worker) with {one.holders} holder{'s' * (one.holders > 1)}, at most 64"
        lines.append(_verdict(name, told, one.arrays / _GOAL_BYTES))
    return lines


def markdown(results: Results) -> str:
    lines = [
        "| workers | prompt tokens | ids to decision, µs | keys alone | booking | release | cold | Dynamo |"
        " ours/Dynamo | Dynamo cold |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for one in results.cells:
        theirs = "–" if one.dynamo is None else _us(one.dynamo)
        share = f"{np.median(one.ratios):.3f}" if one.ratios else "–"
        cold = "–" if one.dynamo_cold is None else f"{_p50(one.dynamo_cold):,.0f}"
        lines.append(
            f"| {one.cell.workers:,} | {one.cell.tokens:,} | {_us(one.warm.total)} | {_p50(one.warm.keys):,.0f} | "
            f"{_us(one.warm.booking)} | {_p50(one.warm.release):,.0f} | {_p50(one.cold.total):,.0f} | {theirs} | "
            f"{share} | {cold} |"
        )
    if results.ingested:
        lines += [
            "",
            "| blocks an event | frame bytes to index, blocks/s | with the ZMQ socket between |",
            "|---:|---:|---:|",
        ]
        lines += [f"| {one.frame} | {one.from_bytes:,.0f} | {one.over_zmq:,.0f} |" for one in results.ingested]
    if results.taken:
        lines += [
            "",
            "| blocks | holders of each | arrays, bytes a pair | growth of the process |",
            "|---:|---:|---:|---:|",
        ]
        lines += [f"| {one.blocks:,} | {one.holders} | {one.arrays:.1f} | {one.process:.1f} |" for one in results.taken]
    lines += ["", *verdicts(results), *(f"- {note}" for note in results.notes)]
    return "\n".join(lines)
