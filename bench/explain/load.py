"""How an arm's requests and load lay on its workers, in total and over time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.explain.columns import BlockColumns
from bench.stats import Floats

COLUMNS = 96
"""Of the time line: divided among the blocks; with more blocks than that the first ones are shown."""
SAMPLES = 8
"""Moments at which a column's load is read."""


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """`tokens`: prompt tokens that it had to compute, None if engines report no cached ones."""

    name: str
    requests: int
    share: float
    tokens: int | None


@dataclass(frozen=True, slots=True)
class TimeLine:
    """Requests in flight at each worker, means over equal spans of a block's schedule, one block after the other.

    `in_flight`: shape (workers, columns). `rounds`: the round of each block shown; each has columns / len(rounds).
    """

    rounds: tuple[int, ...]
    in_flight: Floats


@dataclass(frozen=True, slots=True)
class LoadSpread:
    """Over the workers. `cv`: standard deviation over mean of the requests a worker got in a block, averaged over
    blocks; `jain`: Jain's index of the same, 1 is even, 1/workers is all on one. `in_flight_cv`: as `cv`, of the
    requests in flight, over time and blocks. None: no answer names its worker.
    """

    workers: tuple[WorkerShare, ...]
    cv: float | None
    jain: float | None
    in_flight_cv: float | None
    line: TimeLine | None


def load_spread(blocks: Sequence[BlockColumns], workers: Sequence[str]) -> LoadSpread:
    """Of an arm's blocks."""
    counts = [np.bincount(b.worker[b.worker >= 0], minlength=len(workers)).astype(np.float64) for b in blocks]
    counts = [one for one in counts if one.sum() > 0]
    if not counts:
        return LoadSpread((), None, None, None, None)
    each = max(1, COLUMNS // len(blocks))
    grids = [in_flight(b, len(workers), each) for b in blocks]
    total = np.sum(counts, axis=0)
    shares = tuple(
        WorkerShare(name, int(total[index]), float(total[index] / total.sum()), _computed(blocks, index))
        for index, name in enumerate(workers)
    )
    spread = sum(float(grid.std(axis=0).sum()) for grid in grids)
    level = sum(float(grid.mean(axis=0).sum()) for grid in grids)
    shown = max(1, COLUMNS // each)
    return LoadSpread(
        shares,
        float(np.mean([one.std() / one.mean() for one in counts])),
        float(np.mean([one.sum() ** 2 / (len(one) * float((one**2).sum())) for one in counts])),
        spread / level if level > 0 else None,
        TimeLine(tuple(b.round for b in blocks[:shown]), np.hstack(grids[:shown])),
    )


def in_flight(block: BlockColumns, workers: int, spans: int) -> Floats:
    """Mean requests in flight at each worker in equal spans of the schedule, shape (workers, spans)."""
    start, stop = float(block.sched.min()), float(block.sched.max())
    at = start + (stop - start) * (np.arange(spans * SAMPLES) + 0.5) / (spans * SAMPLES)
    found = np.zeros((workers, spans))
    for worker in range(workers):
        mine = (block.worker == worker) & ~np.isnan(block.send)
        opened = np.searchsorted(np.sort(block.send[mine]), at, side="right")
        closed = np.searchsorted(np.sort(block.over[mine]), at, side="right")
        found[worker] = (opened - closed).reshape(spans, SAMPLES).mean(axis=1)
    return found


def _computed(blocks: Sequence[BlockColumns], worker: int) -> int | None:
    known = [b.uncached[(b.worker == worker) & ~np.isnan(b.uncached)] for b in blocks]
    reported = any((~np.isnan(b.cached)).any() for b in blocks)
    return round(float(sum(part.sum() for part in known))) if reported else None
