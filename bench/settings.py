"""What the user asked `kvctl bench` for, and the workload and simulated engines that follow from it.

Reads at most the workload's file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from bench.arms import SimOptions
from bench.client.bodies import Api
from bench.metrics import Slo
from bench.pilot import Auto
from bench.slo import Target
from bench.workload.arrivals import Arrivals
from bench.workload.model import Workload, WorkloadError
from bench.workload.source import Wish, make
from bench.workload.tokens import Vocabulary

TRACE_SIM_SPEEDUP = 2.0
"""Simulated engines under a trace run this much faster: its answers are long, and a block waits for its last one."""
TOKEN_RATE = 1250.0
"""Output tokens a second, at engine speed 1, that a trace's arrivals are scaled to before simulated engines: with
the speed-up above what client, router and engines carry on two cores.
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user asked for; None: choose well. See the options of `kvctl bench` for the meaning of each.

    `aa`: A/A pairs before the run. `sweep`: rates; None: chosen here; empty: no sweep.
    """

    modes: tuple[str, ...] = ("kv", "random")
    workers: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    sim_workers: int = 8
    sim_speedup: float | None = None
    trace: Path | None = None
    workload: str = "multi-turn"
    requests: int | None = None
    rate: float | None = None
    speedup: float | None = None
    arrivals: str | None = None
    whole_trace: bool = False
    jitter: bool = True
    seed: int = 0
    blocks: int | Auto | None = None
    aa: int | None = None
    prime: bool = False
    capacity: bool = False
    sweep: tuple[float, ...] | None = ()
    targets: tuple[Target, ...] = ()
    precision: float = 0.05
    probe_seconds: float = 10.0
    duration: float | None = None
    timeout: float = 120.0
    model: str | None = None
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    body: dict[str, object] = field(default_factory=dict)
    api: Api = Api.COMPLETIONS
    words: bool = False
    real_answers: bool = False
    serve_args: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    slo: Slo | None = None
    out: Path | None = None
    version: str = ""
    argv: tuple[str, ...] = ()

    @property
    def asks_study(self) -> bool:
        """Whether rates are swept or searched, in place of the comparison."""
        return self.capacity or self.sweep is None or bool(self.sweep)

    @property
    def auto(self) -> Auto | None:
        """How the number of rounds is found, if it is not given."""
        return self.blocks if isinstance(self.blocks, Auto) else None

    @property
    def simulated(self) -> bool:
        """Whether the engines are started here."""
        return not self.workers and not self.urls


def make_workload(settings: Settings, rounds: int) -> Workload:
    """The workload, one slice a round."""
    return make(
        Wish(
            name=settings.workload,
            file=settings.trace,
            slices=rounds,
            requests=settings.requests,
            seed=settings.seed,
            rate=settings.rate,
            speedup=settings.speedup,
            arrivals=Arrivals.parse(settings.arrivals) if settings.arrivals else None,
            whole=settings.whole_trace,
            jitter=settings.jitter,
            token_rate=TOKEN_RATE * sim_options(settings).speedup if settings.simulated else None,
            workers=len(settings.workers) or settings.sim_workers,
            vocabulary=settings.vocabulary,
        )
    )


def first_slices(workload: Workload, slices: int) -> Workload:
    """The workload of the first rounds alone."""
    kept = tuple(request for request in workload.requests if request.slice < slices)
    return Workload(
        workload.name,
        kept,
        slices,
        workload.vocabulary,
        workload.facts,
        workload.notes,
        workload.users,
        workload.actions,
        workload.engine,
    )


def sim_options(settings: Settings) -> SimOptions:
    """The simulated fleet of a run without --worker and --url."""
    default = TRACE_SIM_SPEEDUP if settings.trace is not None else 1.0
    return SimOptions(settings.sim_workers, settings.sim_speedup or default)


def check_workload(settings: Settings, workload: Workload) -> None:
    """Raises WorkloadError where the workload cannot be run as asked."""
    if workload.actions and not settings.simulated:
        raise WorkloadError(
            f"workload {workload.name} kills engines: only those started here; leave out --worker, --url"
        )
    if settings.real_answers and settings.api is Api.COMPLETIONS:
        raise WorkloadError("--real-answers puts answers into messages: give --api chat or --api responses with it")
    if settings.real_answers and not any(request.after for request in workload.requests):
        raise WorkloadError(f"--real-answers: no turn of workload {workload.name} waits for the answer before it")
    if settings.asks_study and workload.actions:
        raise WorkloadError(f"workload {workload.name} kills engines: no rate of it is stable, so it has no capacity")
    if settings.asks_study and workload.users is not None:
        raise WorkloadError("a closed loop has no rate to sweep or search: leave out --arrivals closed")
