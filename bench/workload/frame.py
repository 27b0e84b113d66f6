"""From drafts of prompts to a workload: times, ids and slices. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.workload.arrivals import Arrivals, Process, rearranged
from bench.workload.model import Request, Workload, WorkloadError
from bench.workload.tokens import Piece, Vocabulary

MOST_REQUESTS = 5_000_000


@dataclass(frozen=True, slots=True)
class Frame:
    """What a run gives to any workload that is drawn.

    Args:
        slices: one a round of the experiment, each drawn on its own.
        requests: of all slices together.
        seed: of everything drawn.
        rate: requests a second over a slice; None: the workload's own.
        speedup: divides all times.
        arrivals: None: the workload's own process.
        workers: engines of the fleet; what a fleet's cache is follows from it.
        vocabulary: which ids to use.
    """

    slices: int
    requests: int
    seed: int = 0
    rate: float | None = None
    speedup: float = 1.0
    arrivals: Arrivals | None = None
    workers: int = 8
    vocabulary: Vocabulary = field(default_factory=Vocabulary)

    def __post_init__(self) -> None:
        if self.slices < 1:
            raise WorkloadError(f"{self.slices} blocks: at least 1 wanted")
        if self.requests < self.slices:
            raise WorkloadError(
                f"{self.requests} requests cannot fill {self.slices} blocks: give --requests {self.slices} or more"
            )
        if self.requests > MOST_REQUESTS:
            raise WorkloadError(f"{self.requests} requests are more than the {MOST_REQUESTS} that one run may have")
        if self.speedup <= 0 or (self.rate is not None and self.rate <= 0):
            raise WorkloadError("rate and speedup must be above 0")

    def count(self, index: int) -> int:
        """Requests of slice `index`."""
        return self.requests // self.slices + (index < self.requests % self.slices)


@dataclass(frozen=True, slots=True)
class Draft:
    """A request of a session of its own, before it has a time."""

    group: str
    output: int
    pieces: tuple[Piece, ...]
    model: str | None = None
    abort_after: int | None = None


Draw = Callable[[int, int], Sequence[Draft]]
"""(slice, number of requests) -> the drafts in the order in which they are sent."""

POISSON = Arrivals(Process.POISSON)


def assemble(
    name: str, frame: Frame, draw: Draw, *, rate: float, arrivals: Arrivals = POISSON, facts: dict[str, object]
) -> Workload:
    """A workload of single requests.

    `rate` and `arrivals` are the workload's own; the frame's stand before them.
    """
    process = frame.arrivals or arrivals
    rate = (frame.rate or rate) * frame.speedup
    made: list[Request] = []
    for index in range(frame.slices):
        count = frame.count(index)
        times = _times(process, count, rate, frame.seed, index)
        for draft, at in zip(draw(index, count), times, strict=True):
            number = len(made)
            made.append(
                Request(
                    id=f"r{number:06d}", session=f"{index}.{number}", turn=0, group=draft.group, slice=index, at=at,
                    output_len=draft.output, pieces=draft.pieces, model=draft.model, abort_after=draft.abort_after,
                )
            )  # fmt: skip
    own = {"source": "built-in", "seed": frame.seed, "speedup": frame.speedup, "arrivals": str(process)}
    workload = Workload(name, tuple(made), frame.slices, frame.vocabulary, own | facts | {"rate": rate / frame.speedup})
    return rearranged(workload, process, None, frame.seed) if process.process is Process.CLOSED else workload


def _times(process: Arrivals, count: int, rate: float, seed: int, index: int) -> list[float]:
    if process.process is Process.TRACE:
        raise WorkloadError("--arrivals trace: a built-in workload has no times of its own, only a file has")
    if process.process is Process.CLOSED:
        return [0.0] * count
    offsets: list[float] = process.offsets(count, rate, np.random.default_rng([seed, index, 0xA441])).tolist()
    return offsets
