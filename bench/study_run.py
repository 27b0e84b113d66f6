"""A sweep or a search as the user asks for it: what it may be combined with, and the workload of each probe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bench.arms import Arm
from bench.client.timing import Timing
from bench.design import Block
from bench.experiment import BlockResult
from bench.gate import CAPACITY, Gate, GateError
from bench.settings import Settings, make_workload
from bench.study import StudyPlan, request_count
from bench.workload.model import Request, Workload

SEED_STEP = 1_000_003
"""Between the seeds of a probe and of its repeat."""


class Silent:
    """Watches nothing: a study prints a line a probe itself."""

    def piloted(self, arms: Sequence[Arm], blocks: Sequence[Block], way: str) -> None:
        """There is no pilot."""

    def planned(self, arms: Sequence[Arm], blocks: Sequence[Block], way: str) -> None:
        """There is no plan: the next probe follows from the last."""

    def block_started(self, block: Block, requests: Sequence[Request]) -> None:
        """Not shown."""

    def request_done(self, block: Block, timing: Timing) -> None:
        """Not shown."""

    def block_ended(self, result: BlockResult) -> None:
        """Not shown."""


def check_gates(settings: Settings, gates: Sequence[Gate]) -> None:
    """Raises GateError for a gate that this kind of run cannot answer."""
    for gate in gates:
        if gate.metric == CAPACITY and not settings.capacity:
            raise GateError(f"gate {gate.text!r}: needs --capacity and --slo")
        if gate.metric != CAPACITY and settings.asks_study:
            raise GateError(
                f"gate {gate.text!r}: needs the comparison, which --capacity and --rate-sweep take the place of; "
                "run it apart"
            )


def study_plan(settings: Settings, workload: Workload) -> StudyPlan:
    """The plan; `workload` is one slice of it at its own rate.

    A built-in workload is made anew for each rate. A file's requests are sent faster or slower: all its times are
    scaled, the mix stays.
    """
    requests = workload.of_slice(0)
    span = requests[-1].at - requests[0].at
    own = len(requests) / span if span > 0 else 1.0
    start = settings.rate or own

    def drawn(rate: float, repeat: int) -> list[Request]:
        wish = replace(
            settings,
            rate=rate,
            requests=request_count(rate, settings.probe_seconds),
            seed=settings.seed + SEED_STEP * repeat,
        )
        return make_workload(wish, 1).of_slice(0)

    def scaled(rate: float, repeat: int) -> list[Request]:
        wish = replace(
            settings,
            requests=min(settings.requests or request_count(rate, settings.probe_seconds), len(requests)),
            seed=settings.seed + SEED_STEP * repeat,
        )
        made = make_workload(wish, 1).of_slice(0)
        length = made[-1].at - made[0].at
        factor = len(made) / length / rate if length > 0 else 1.0
        return [replace(request, at=request.at * factor, think=request.think * factor) for request in made]

    return StudyPlan(
        drawn if settings.trace is None else scaled,
        start,
        settings.sweep,
        settings.targets if settings.capacity else (),
        settings.slo,
        settings.precision,
        settings.probe_seconds,
    )
