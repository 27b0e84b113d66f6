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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from bench import experiment, guards, verdict
from bench.announce import announce_power, announce_rounds, announce_study, announce_workload, say
from bench.arms import Arm, Fleet, given_fleet, names_of, running_arms, simulated_fleet, started_routers
from bench.client.priority import raised_priority
from bench.design import Block, default_rounds, plan
from bench.experiment import BlockResult, Design, Experiment, RunOptions
from bench.explain.explain import explain, explanation_data
from bench.gate import parse_gate
from bench.outages import Outages
from bench.pilot import pilot_blocks, read_pilot, rounds_of
from bench.report.progress import Display
from bench.report.study import point_line
from bench.requests_file import RequestsFile, write_requests
from bench.result import Provenance, result, write
from bench.settings import Settings, check_workload, first_slices, make_workload, sim_options
from bench.study import Point, Study, study
from bench.study_run import Silent, check_gates, study_plan
from bench.study_verdict import reach_study, study_data
from bench.verdict import Verdict
from bench.workload.describe import describe
from bench.workload.model import Workload, WorkloadError

Found = TypeVar("Found")


@dataclass(slots=True)
class Outcome:
    """What a run came to. `data`: the content of result.json; `explanation`: the key of it. `study`: of a sweep or a
    search.
    """

    verdict: Verdict
    data: dict[str, object]
    study: Study | None = None
    explanation: dict[str, Any] | None = None


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
    check_gates(settings, gates)
    rounds = _rounds(settings, len(names))
    workload = make_workload(settings, rounds)
    check_workload(settings, workload)
    summary = describe(workload)
    if settings.out is not None:
        _make_folder(settings.out)
    announce_workload(console, workload, summary)
    pairs = aa_pairs(settings, len(names))
    if not settings.asks_study:
        announce_rounds(console, len(names), rounds, pairs, settings.auto)

    rates: Study | None = None
    with contextlib.ExitStack() as stack:
        if running:
            arms, fleet = running, Fleet("routers given with --url", [], None, {"simulated": False})
        else:
            fleet = _fleet(settings, workload, stack, console)
            arms = stack.enter_context(
                started_routers(settings.modes, fleet, settings.out and _logs(settings.out), settings.serve_args)
            )
        if settings.asks_study:
            rates = _study(settings, workload, arms, fleet, console)
            measured, reached = rates.experiment, reach_study(rates, gates)
        else:
            design = _design(settings, workload, len(names), rounds, pairs, console)
            measured = _measure(settings, workload, arms, design, fleet, console)
            if settings.auto is not None:
                workload = first_slices(workload, len({block.round for block in measured.plan}))
                summary = describe(workload)
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
    data = result(reached, measured, measured.plan, provenance)
    if rates is not None:
        data |= study_data(rates)
    explanation = None
    if rates is None:
        explanation = explanation_data(explain(reached, summary.bound, settings.seed))
        data["explanation"] = explanation
    if settings.out is not None:
        if rates is not None:
            write_requests(settings.out, measured.blocks)
        write(settings.out, data, reached)
        _reports(settings.out, data, reached)
    return Outcome(reached, data, rates, explanation)


def _rounds(settings: Settings, arms: int) -> int:
    """How many rounds the workload is made for."""
    if settings.asks_study:
        return 1
    if settings.auto is not None:
        return settings.auto.most
    return settings.blocks if isinstance(settings.blocks, int) else default_rounds(arms)


def aa_pairs(settings: Settings, arms: int) -> int:
    """How many A/A pairs come first: what the user says; else two, four where the number of rounds rests on them."""
    if arms < 2 or settings.asks_study:
        return 0
    if settings.aa is not None:
        return settings.aa
    return 2 if settings.auto is None else 4


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


def _design(settings: Settings, workload: Workload, arms: int, rounds: int, pairs: int, console: Console) -> Design:
    """The A/A pairs, and what follows from them."""

    def blocks(done: Sequence[BlockResult]) -> list[Block]:
        pilot = read_pilot(done, settings.seed)
        taken = rounds if settings.auto is None else rounds_of(settings.auto, pilot, arms)
        if pairs:
            announce_power(console, pilot, arms, taken, settings.auto)
        return plan(arms, taken, settings.seed)

    return Design(pilot_blocks(pairs, arms, workload.slices), blocks)


def _run_options(settings: Settings, workload: Workload, fleet: Fleet) -> RunOptions:
    outages = Outages(fleet.split, workload.actions) if fleet.split is not None and workload.actions else None
    return RunOptions(
        settings.model or fleet.model,
        settings.timeout,
        settings.body,
        settings.duration,
        prime=settings.prime,
        outages=outages,
        api=settings.api,
        words=settings.words,
        real_answers=settings.real_answers,
    )


def _measure(
    settings: Settings, workload: Workload, arms: Sequence[Arm], design: Design, fleet: Fleet, console: Console
) -> Experiment:
    spans = [workload.of_slice(index)[-1].at for index in range(workload.slices)]
    options = _run_options(settings, workload, fleet)
    with contextlib.ExitStack() as stack:
        if settings.out is not None:
            options = replace(options, on_block=stack.enter_context(RequestsFile(settings.out)).add)
        raised = stack.enter_context(raised_priority())
        display = stack.enter_context(Display(console, spans))
        measured = _run(lambda: experiment.run(workload, arms, design, options, display))
    if not any(not block.interrupted for block in measured.blocks):
        raise NothingMeasured("stopped before the first block was complete: nothing to report")
    measured.client_priority_raised = raised
    return measured


def _study(settings: Settings, workload: Workload, arms: Sequence[Arm], fleet: Fleet, console: Console) -> Study:
    wanted = study_plan(settings, workload)
    announce_study(console, wanted, [arm.name for arm in arms])
    options = _run_options(settings, workload, fleet)

    def tell(point: Point) -> None:
        say(console, point_line(point, bool(wanted.targets)))

    with raised_priority() as raised:
        found = _run(lambda: study(workload, arms, wanted, options, Silent(), tell))
    if not found.sweep and not found.probes:
        raise NothingMeasured("stopped before the first probe was complete: nothing to report")
    found.experiment.client_priority_raised = raised
    return found


def _run(main: Callable[[], Coroutine[Any, Any, Found]]) -> Found:
    """Runs the experiment on its own loop; the first SIGINT or SIGTERM cancels it, the next one kills."""

    async def guarded() -> Found:
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


def _reports(out: Path, data: dict[str, object], reached: Verdict) -> None:
    from bench.report.html import html
    from bench.report.markdown import markdown

    (out / "report.md").write_text(markdown(data), encoding="utf-8")
    (out / "report.html").write_text(html(data, reached), encoding="utf-8")
