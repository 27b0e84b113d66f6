"""One whole run of `kvctl bench`: workload, arms, experiment, verdict, files. Wires the parts; decides nothing
itself.

Starts child processes and ends them; Ctrl-C (or SIGTERM) ends the measurement at once and still reaches the verdict,
which then says "interrupted". Needs the main thread, for its signal handlers.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import experiment, guards, verdict
from bench.arms import Arm, Fleet, SimOptions, given_fleet, names_of, running_arms, simulated_fleet, started_routers
from bench.client.priority import raised_priority
from bench.design import HEADLINE, LEVEL, Block, default_rounds, plan, rounds_needed, smallest_p, williams
from bench.experiment import Experiment, RunOptions
from bench.gate import parse_gate
from bench.metrics import Slo
from bench.outages import Outages
from bench.report.progress import Display
from bench.result import Provenance, result, write
from bench.verdict import Verdict
from bench.workload.arrivals import Arrivals
from bench.workload.describe import Summary, describe
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
    """What the user asked for; None: choose well. See the options of `kvctl bench` for the meaning of each."""

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
    blocks: int | None = None
    duration: float | None = None
    timeout: float = 120.0
    model: str | None = None
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    body: dict[str, object] = field(default_factory=dict)
    serve_args: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    slo: Slo | None = None
    out: Path | None = None
    version: str = ""
    argv: tuple[str, ...] = ()


@dataclass(slots=True)
class Outcome:
    """What a run came to. `data`: the content of result.json."""

    verdict: Verdict
    data: dict[str, object]


class OutError(ValueError):
    """The folder for the results cannot be written to."""


class NothingMeasured(Exception):
    """The run was stopped before its first block."""


def bench(settings: Settings, console: Console) -> Outcome:
    """Runs everything. `console`: where progress goes (stderr).

    Raises:
        WorkloadError, ArmError, ArmSpelling, GateError, OutError, NothingMeasured: with a message for the user.
    """
    running = running_arms(settings.urls)
    names = [arm.name for arm in running] if running else names_of(settings.modes)
    gates = [parse_gate(text, names) for text in settings.gates]
    rounds = settings.blocks or default_rounds(len(names))
    workload = make_workload(settings, rounds)
    if workload.actions and not _simulated(settings):
        raise WorkloadError(
            f"workload {workload.name} kills engines: only those started here; leave out --worker, --url"
        )
    summary = describe(workload)
    blocks = plan(len(names), rounds, settings.seed)
    if settings.out is not None:
        _make_folder(settings.out)
    _announce(console, workload, summary, names, rounds)

    with contextlib.ExitStack() as stack:
        if running:
            arms, fleet = running, Fleet("routers given with --url", [], None, {"simulated": False})
        else:
            fleet = _fleet(settings, workload, stack, console)
            arms = stack.enter_context(
                started_routers(settings.modes, fleet, settings.out and _logs(settings.out), settings.serve_args)
            )
        measured = _measure(settings, workload, arms, blocks, fleet, console)
    limits = guards.Limits(errors=1.0) if workload.actions else guards.Limits()
    reached = verdict.reach(arms, measured, gates, settings.slo, limits, settings.seed)
    provenance = Provenance(
        settings.version,
        list(settings.argv),
        settings.seed,
        workload,
        summary,
        fleet,
        {"timeout_s": settings.timeout, "body": settings.body, "serve_args": list(settings.serve_args)},
    )
    data = result(reached, measured, blocks, provenance)
    if settings.out is not None:
        write(settings.out, data, measured, reached)
        _reports(settings.out, data, reached, console)
    return Outcome(reached, data)


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
            token_rate=TOKEN_RATE * sim_options(settings).speedup if _simulated(settings) else None,
            workers=len(settings.workers) or settings.sim_workers,
            vocabulary=settings.vocabulary,
        )
    )


def sim_options(settings: Settings) -> SimOptions:
    """The simulated fleet of a run without --worker and --url."""
    default = TRACE_SIM_SPEEDUP if settings.trace is not None else 1.0
    return SimOptions(settings.sim_workers, settings.sim_speedup or default)


def _simulated(settings: Settings) -> bool:
    return not settings.workers and not settings.urls


def _fleet(settings: Settings, workload: Workload, stack: contextlib.ExitStack, console: Console) -> Fleet:
    if settings.workers:
        return given_fleet(settings.workers)
    sim = sim_options(settings)
    speed = f", {sim.speedup:g} times as fast as their model" if sim.speedup != 1 else ""
    console.print(
        f"no --worker and no --url: starting {sim.count} simulated engines{speed} for this run",
        highlight=False,
        soft_wrap=True,
    )
    apart = frozenset(action.worker for action in workload.actions)
    if apart and max(apart) >= sim.count:
        raise WorkloadError(f"workload {workload.name} acts on engine {max(apart)}: give --workers {max(apart) + 1}")
    return stack.enter_context(simulated_fleet(replace(sim, engine=workload.engine, apart=apart)))


def _make_folder(out: Path) -> None:
    """Before anything is measured: a run must not end without a place for its results."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise OutError(f"--out {out}: {error.strerror or error}; name a folder that can be written to") from None


def _logs(out: Path) -> Path:
    folder = out / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _announce(console: Console, workload: Workload, summary: Summary, names: Sequence[str], rounds: int) -> None:
    console.print(
        f"workload {workload.name}: {summary.requests} requests an arm, {summary.prompt_mean:,.0f} prompt and "
        f"{summary.output_mean:.0f} output tokens each, {summary.rate:.1f} requests/s; an endless cache would hold "
        f"{summary.bound:.0%} of the prompt tokens",
        highlight=False,
        soft_wrap=True,
    )
    if "jitter_cell_ms" in workload.facts:
        facts = workload.facts
        console.print(
            f"trace at {facts['speedup']} times its own rate; "
            f"jitter {facts['jitter']} ({facts['jitter_cell_ms']:,} ms)",
            highlight=False,
            soft_wrap=True,
        )
    for note in workload.notes:
        console.print(f"note: {note}", highlight=False, soft_wrap=True)
    if len(names) > 1:
        tests = len(HEADLINE) * (len(names) - 1)
        least = min(1.0, smallest_p(rounds) * tests)
        enough = "" if least <= LEVEL else f": too few to claim a difference, --blocks {rounds_needed(tests)} can"
        console.print(
            f"{rounds} rounds of {len(names)} blocks: the smallest p that they can reach is {least:.3g}, corrected for "
            f"{tests} tests{enough}",
            highlight=False,
            soft_wrap=True,
        )
    period = len(williams(len(names)))
    if rounds % period:
        console.print(
            f"note: the order is balanced only for a multiple of {period} rounds", highlight=False, soft_wrap=True
        )


def _measure(
    settings: Settings,
    workload: Workload,
    arms: Sequence[Arm],
    blocks: Sequence[Block],
    fleet: Fleet,
    console: Console,
) -> Experiment:
    spans = [workload.of_slice(index)[-1].at for index in range(workload.slices)]
    outages = Outages(fleet.split, workload.actions) if fleet.split is not None and workload.actions else None
    options = RunOptions(
        settings.model or fleet.model, settings.timeout, settings.body, settings.duration, outages=outages
    )
    with raised_priority() as raised, Display(console, spans) as display:
        measured = _run(lambda: experiment.run(workload, arms, blocks, options, display))
    if not any(not block.interrupted for block in measured.blocks):
        raise NothingMeasured("stopped before the first block was complete: nothing to report")
    measured.client_priority_raised = raised
    return measured


def _run(main: Callable[[], Coroutine[Any, Any, Experiment]]) -> Experiment:
    """Runs the experiment on its own loop; the first SIGINT or SIGTERM cancels it, the next one kills."""

    async def guarded() -> Experiment:
        loop = asyncio.get_running_loop()
        task = loop.create_task(main())

        def stop() -> None:
            task.cancel()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        return await task

    try:
        import uvloop
    except ImportError:
        return asyncio.run(guarded())
    return uvloop.run(guarded())


def _reports(out: Path, data: dict[str, object], reached: Verdict, console: Console) -> None:
    from bench.report.html import html
    from bench.report.markdown import markdown

    (out / "report.md").write_text(markdown(data), encoding="utf-8")
    page, missing = html(data, reached)
    (out / "report.html").write_text(page, encoding="utf-8")
    if missing:
        console.print(f"note: {missing}", highlight=False, soft_wrap=True)
