"""Workloads in which the fleet changes under load: an engine dies and comes back, an engine joins. Pure.

The prompts are those of `zipf`. What is done to the fleet is part of the workload (`Workload.actions`), at the same
times in every block of every arm.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from bench.workload.arrivals import Process
from bench.workload.frame import Frame, assemble
from bench.workload.model import Deed, FleetAction, Workload, WorkloadError
from bench.workload.parameters import number
from bench.workload.prefixes import LONGEST, MOST_GROUPS, system_prompts


@dataclass(frozen=True, slots=True)
class WorkerLoss:
    """An engine is killed under load and comes back, empty, at the same ports."""

    worker: int = number(0, 0, 4095, "number of the engine that dies")
    at: float = number(0.3, 0, 1, "when it is killed (SIGKILL), as a share of the block")
    back: float = number(0.6, 0, 1, "when it is started again; 0: only after the block")
    rate: float = number(10.0, 0.001, 1e6, "requests a second")
    groups: int = number(16, 1, MOST_GROUPS, "system prompts")
    zipf: float = number(1.0, 0, 5, "exponent of their popularity; 0 is uniform")
    system: tuple[int, int] = number((1024, 1536), 1, LONGEST, "tokens of a system prompt")
    user: tuple[int, int] = number((128, 512), 1, LONGEST, "tokens of a request's own part")
    answer: tuple[int, int] = number((8, 24), 1, LONGEST, "tokens of an answer")


@dataclass(frozen=True, slots=True)
class WorkerJoin:
    """A block begins with one engine missing; it joins under load."""

    worker: int = number(0, 0, 4095, "number of the engine that joins")
    at: float = number(0.4, 0, 1, "when it is started, as a share of the block")
    rate: float = number(10.0, 0.001, 1e6, "requests a second")
    groups: int = number(16, 1, MOST_GROUPS, "system prompts")
    zipf: float = number(1.0, 0, 5, "exponent of their popularity; 0 is uniform")
    system: tuple[int, int] = number((1024, 1536), 1, LONGEST, "tokens of a system prompt")
    user: tuple[int, int] = number((128, 512), 1, LONGEST, "tokens of a request's own part")
    answer: tuple[int, int] = number((8, 24), 1, LONGEST, "tokens of an answer")


def worker_loss(spec: WorkerLoss, frame: Frame) -> Workload:
    if spec.back and spec.back <= spec.at:
        raise WorkloadError(f"workload worker-loss: back={spec.back:g} must be later than at={spec.at:g}, or 0")
    return _with(spec, "worker-loss", frame, [(spec.at, Deed.KILL)] + ([(spec.back, Deed.START)] if spec.back else []))


def worker_join(spec: WorkerJoin, frame: Frame) -> Workload:
    return _with(spec, "worker-join", frame, [(0.0, Deed.KILL), (spec.at, Deed.START)])


def _with(spec: WorkerLoss | WorkerJoin, name: str, frame: Frame, deeds: list[tuple[float, Deed]]) -> Workload:
    if spec.worker >= frame.workers or frame.workers < 2:
        raise WorkloadError(
            f"workload {name}: worker={spec.worker} in a fleet of {frame.workers}: it needs a number below that, and "
            "another engine that stays"
        )
    if frame.arrivals is not None and frame.arrivals.process is Process.CLOSED:
        raise WorkloadError(f"workload {name}: times of a closed loop are not known before: choose another --arrivals")
    workload = assemble(name, frame, system_prompts(name, spec, frame), rate=spec.rate, facts=asdict(spec))
    span = max(request.at for request in workload.requests)
    workload.actions = tuple(FleetAction(share * span, deed, spec.worker) for share, deed in deeds)
    return workload
