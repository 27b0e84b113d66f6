"""The rounds: our decisions and Dynamo's in turns on the same prompts, then KV events and memory."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.decide import ingest, memory
from bench.decide.fleet import Cell, core_of, prompt_of
from bench.decide.peer import Peer, PeerError
from bench.decide.report import Ingested, Measured, Results
from bench.decide.timing import joined, measure

CELLS = tuple(Cell(workers, tokens) for workers in (8, 64, 1024) for tokens in (512, 8192, 65536))
SHAPES = (ingest.Shape(1, 512), ingest.Shape(1, 128), ingest.Shape(1, 32), ingest.Shape(64, 1), ingest.Shape(1, 1))
FILLS = ((1_000_000, 1), (1_400_000, 1), (700_000, 2), (400_000, 4))


@dataclass(frozen=True, slots=True)
class Plan:
    """`repeat` decisions a round of ours, a quarter as many of Dynamo's; a tenth as many cold ones."""

    rounds: int = 3
    repeat: int = 400
    blocks: int = 1 << 18
    peer: Path | None = None


def run(plan: Plan, say: Callable[[str], None]) -> Results:
    notes = busy(os.getloadavg()[0], os.cpu_count() or 1)
    cells = []
    for cell in CELLS:
        say(f"{cell.workers} workers, {cell.tokens} tokens")
        try:
            cells.append(_cell(cell, plan, plan.peer))
        except PeerError as error:
            notes.append(f"{cell.workers} workers, {cell.tokens} tokens: {error}")
            cells.append(_cell(cell, plan, None))
    ingested = []
    for shape in SHAPES:
        say(f"KV events, {shape.name} blocks an event")
        total = plan.blocks if shape.blocks > 1 else plan.blocks // 8
        ingested.append(
            Ingested(
                shape.name,
                statistics.median(ingest.from_bytes(shape, total) for _ in range(plan.rounds)),
                statistics.median(ingest.over_zmq(shape, total) for _ in range(plan.rounds)),
            )
        )
    say("memory")
    return Results(cells, ingested, [memory.taken(*fill) for fill in FILLS], notes)


def busy(load: float, cores: int) -> list[str]:
    """What to say where other programs run: a median of many survives that, a p99 does not. Half a core is nobody."""
    if load < 0.5:
        return []
    return [f"load average {load:.1f} on {cores} cores at the start: other programs ran, so read ratios and no p99"]


def _cell(cell: Cell, plan: Plan, python: Path | None) -> Measured:
    core, prompt = core_of(cell), prompt_of(cell)
    few = max(plan.repeat // 10, 5)
    warm, cold = [], []
    if python is None:
        for _ in range(plan.rounds):
            warm.append(measure(core, prompt, plan.repeat))
            cold.append(measure(core, prompt, few, cold=True))
        return Measured(cell, joined(warm), joined(cold))
    theirs, theirs_cold, ratios = [], [], []
    with Peer(python, cell) as peer:
        peer.set_up()
        peer.measure(few)
        measure(core, prompt, few)
        for _ in range(plan.rounds):
            warm.append(measure(core, prompt, plan.repeat))
            theirs.append(peer.measure(max(plan.repeat // 4, 5)))
            ratios.append(float(np.median(warm[-1].total) / np.median(theirs[-1])))
            cold.append(measure(core, prompt, few, cold=True))
            theirs_cold.append(peer.measure(max(few // 2, 5), cold=True))
    return Measured(
        cell, joined(warm), joined(cold), np.concatenate(theirs), np.concatenate(theirs_cold), tuple(ratios)
    )
