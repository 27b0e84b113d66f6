"""Each arm at several rates: the curve of `--rate-sweep`, the capacity of `--capacity`. Measures; `capacity` decides.

Every probe is a block from a proven cold start with a workload of its own: the same one for every arm at that rate.
Arms take turns, so that drift of the machine meets them alike. Touches the network through `experiment.Runner`. Costs
`seconds` of schedule a probe and about a second around it. Cancelling keeps what was measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bench import guards
from bench.arms import Arm, ArmError
from bench.capacity import Capacity, Outcome, Search, most_probes
from bench.control import Control, Unreachable
from bench.design import Block
from bench.experiment import BlockResult, Experiment, Observer, Runner, RunOptions
from bench.metrics import Measurements, Slo, arm_metrics
from bench.slo import Target, missed
from bench.stability import stability
from bench.verdict import T_END, T_SCHED
from bench.workload.model import Request, Workload

ENOUGH_REQUESTS = 72
"""Of a probe: from so many on, p95 has an upper end of its 95 % interval. A probe lasts longer to reach it."""
LONGER = 4.0
"""Times as long as asked for at most."""
LEAST_REQUESTS = 12
REACH = 64.0
"""No rate is probed that is more than so many times above or below the first."""
MOST_REQUESTS = 20_000
AUTO_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
CURVE = ("mean", "p50", "p95", "p99")


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """What to find out.

    Args:
        make: (rate, repeat) -> the requests of a probe; another repeat is another draw.
        start: the rate that a search begins at, and `auto` is laid around.
        rates: of the sweep; None: auto; empty: no sweep.
        targets: of the capacity search; empty: no search.
        slo: for goodput.
        precision: of the capacity, 0.05 is 5 %.
        seconds: of schedule that a probe lasts, longer at rates that give too few requests.
        limits: of the guards.
    """

    make: Callable[[float, int], list[Request]]
    start: float
    rates: tuple[float, ...] | None = ()
    targets: tuple[Target, ...] = ()
    slo: Slo | None = None
    precision: float = 0.05
    seconds: float = 10.0
    limits: guards.Limits = field(default_factory=guards.Limits)

    @property
    def sweep_rates(self) -> tuple[float, ...]:
        return tuple(self.start * factor for factor in AUTO_FACTORS) if self.rates is None else self.rates

    def search(self) -> Search:
        """A new search for one arm."""
        return Search(self.start, self.precision, self.start / REACH, self.start * REACH, most_probes(self.precision))

    def minutes(self, arms: int) -> float:
        """What the study takes at most, about."""
        sweep = sum(request_count(rate, self.seconds) / rate + 1.5 for rate in self.sweep_rates)
        search = most_probes(self.precision) * (request_count(self.start, self.seconds) / self.start + 1.5)
        return arms * (sweep + (search if self.targets else 0.0)) / 60


@dataclass(frozen=True, slots=True)
class Point:
    """One arm at one rate. `metrics`: as in result.json; `missed`: objectives; `void`: why it does not count."""

    arm: str
    rate: float
    repeat: int
    block: int
    requests: int
    failed: int
    metrics: dict[str, object]
    stable: bool
    missed: tuple[str, ...]
    void: tuple[str, ...]

    def value(self, metric: str) -> float | None:
        """`ttft_ms.p95`, `output_tok_s`; None where there is none."""
        name, _, stat = metric.partition(".")
        found = self.metrics.get(name)
        if isinstance(found, dict):
            found = found.get(stat)
        return float(found) if isinstance(found, int | float) else None

    @property
    def outcome(self) -> Outcome:
        """A client that fell behind decides nothing, except that an arm with a growing queue has missed in any case."""
        if self.stable and not self.missed and not self.void:
            return Outcome.MET
        return Outcome.VOID if self.void else Outcome.MISSED


@dataclass(slots=True)
class Study:
    """What was measured. `experiment` holds the blocks, `stopped` what ended it early; empty if nothing did."""

    plan: StudyPlan
    arms: list[str]
    experiment: Experiment
    sweep: list[Point] = field(default_factory=list)
    probes: list[Point] = field(default_factory=list)
    capacity: dict[str, Capacity] = field(default_factory=dict)
    stopped: str = ""


def request_count(rate: float, seconds: float) -> int:
    """Of a probe."""
    longer = min(ENOUGH_REQUESTS, round(rate * seconds * LONGER))
    return min(MOST_REQUESTS, max(LEAST_REQUESTS, longer, round(rate * seconds)))


async def study(
    workload: Workload,
    arms: Sequence[Arm],
    plan: StudyPlan,
    options: RunOptions,
    observer: Observer,
    on_point: Callable[[Point], None],
) -> Study:
    """Sweeps, then searches.

    Args:
        workload: whose vocabulary and longest prompt are the probes'.
        arms: the arms.
        plan: what to find out.
        options: as of an experiment.
        observer: told of each block.
        on_point: told of each probe when it is finished.

    Raises:
        ArmError: an arm cannot be reached or does not serve before the first probe.
    """
    async with Control() as control:
        runner = Runner(workload, arms, options, observer, control)
        found = Study(plan, [arm.name for arm in arms], runner.experiment)
        prober = _Prober(runner, arms, plan, on_point)
        searches: dict[str, Search] = {}
        try:
            await runner.prepare()
            await prober.sweep(found.sweep)
            if plan.targets:
                searches = {arm.name: plan.search() for arm in arms}
                await prober.search(searches, found.probes)
        except (asyncio.CancelledError, Stopped):
            found.stopped = "interrupted"
            runner.experiment.interrupted = True
        except Unreachable as error:
            if not found.sweep and not found.probes:
                raise ArmError(str(error)) from error
            found.stopped = f"ended early: {error}"
        finally:
            runner.generator.pool.close()
        found.capacity = {name: search.result(found.stopped) for name, search in searches.items()}
        return found


class Stopped(Exception):
    """The user stopped the study inside a probe."""


class _Prober:
    """Runs probes one after the other, numbered through."""

    def __init__(self, runner: Runner, arms: Sequence[Arm], plan: StudyPlan, on_point: Callable[[Point], None]) -> None:
        self._runner = runner
        self._arms = arms
        self._plan = plan
        self._on_point = on_point
        self._number = 0
        self._made: dict[tuple[float, int], list[Request]] = {}

    async def sweep(self, into: list[Point]) -> None:
        """All rates in ascending order; an auto sweep ends where no arm is stable or the client is at its end."""
        for number, rate in enumerate(sorted(self._plan.sweep_rates)):
            points = []
            order = range(len(self._arms)) if number % 2 == 0 else reversed(range(len(self._arms)))
            for arm in order:
                points.append(await self._probe(arm, rate, 0))
                into.append(points[-1])
            if self._plan.rates is None and not any(point.stable and not point.void for point in points):
                return

    async def search(self, searches: dict[str, Search], into: list[Point]) -> None:
        """The arms' searches in turn until none has a rate to probe."""
        busy = True
        while busy:
            busy = False
            for index, arm in enumerate(self._arms):
                search = searches[arm.name]
                rate = search.next_rate()
                if rate is None:
                    continue
                busy = True
                point = await self._probe(index, rate, len(search.votes.get(rate, [])))
                into.append(point)
                search.tell(rate, point.outcome)

    async def _probe(self, arm: int, rate: float, repeat: int) -> Point:
        if (rate, repeat) not in self._made:
            self._made[rate, repeat] = self._plan.make(rate, repeat)
        blocks = self._runner.experiment.blocks
        block = Block(self._number, self._number, arm)
        self._number += 1
        if not await self._runner.block(block, self._made[rate, repeat], blocks):
            raise Stopped
        point = point_of(blocks[-1], rate, repeat, self._plan)
        self._on_point(point)
        return point


def point_of(block: BlockResult, rate: float, repeat: int, plan: StudyPlan) -> Point:
    """What a finished probe says."""
    measured = Measurements.of(block.facts.measured)
    metrics = arm_metrics([measured], [engine.id for engine in block.arm.engines], plan.slo)
    queue = (measured.time(T_SCHED), np.where(measured.ok, measured.time(T_END), np.inf))
    name, facts = block.arm.name, [block.facts]
    void = [
        *guards.client(name, facts, plan.limits),
        *guards.delivered(name, facts, plan.limits),
        *guards.lengths(name, facts, plan.limits),
        *(f"no proof of a cold cache: {reason}" for reason in block.proof.reasons),
    ]
    failed = int((~measured.ok).sum())
    stable = stability([queue]).stable
    point = Point(name, rate, repeat, block.block.index, len(measured), failed, metrics, stable, (), tuple(void))
    return replace(point, missed=tuple(missed(plan.targets, point.value)))
