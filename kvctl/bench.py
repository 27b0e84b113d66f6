"""`kvctl bench`: parse, wire, render. The work is in `bench.run`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvctl import __version__, bench_client, bench_compare, bench_design, bench_workload
from kvctl.errors import INCONCLUSIVE, UNREACHABLE, Problem
from kvctl.options import ConfigFile, option

if TYPE_CHECKING:
    from bench.workload.tokens import Vocabulary

_ARMS = "Arms"
_LOAD = "Workload"
_DESIGN = "Design and verdict"


def bench(
    ctx: typer.Context,
    modes: Annotated[
        str,
        option(
            "--modes",
            rich_help_panel=_ARMS,
            help="Router modes to compare, by commas; the first is compared with each other. kv,kv is an A/A control.",
        ),
    ] = "kv,random",
    worker: Annotated[
        list[str] | None,
        option(
            "--worker",
            rich_help_panel=_ARMS,
            metavar="SPEC",
            help="An engine that runs already, as for `kvctl serve`. Repeatable. Without: simulated engines.",
        ),
    ] = None,
    url: Annotated[
        list[str] | None,
        option(
            "--url",
            rich_help_panel=_ARMS,
            metavar="NAME=URL[,KEY=VALUE]",
            help="A router that runs already, of any make, as an arm. Repeatable; in place of --modes. Keys: "
            "engines=[ID@]URL+URL (reset before each block), admin=URL (of kvctl), reset=none|URL, version=TEXT.",
        ),
    ] = None,
    workers: Annotated[
        int,
        option("--workers", min=1, max=64, rich_help_panel=_ARMS, help="Simulated engines to start."),
    ] = 8,
    sim_speedup: Annotated[
        float | None,
        option(
            "--sim-speedup",
            min=0.01,
            rich_help_panel=_ARMS,
            help="How much faster than its model a simulated engine runs (default 1; under a trace 2).",
        ),
    ] = None,
    serve_arg: Annotated[
        list[str] | None,
        option(
            "--serve-arg",
            rich_help_panel=_ARMS,
            metavar="ARG",
            help="One more argument for each `kvctl serve` that is started (--serve-arg=--seed --serve-arg=7).",
        ),
    ] = None,
    model: Annotated[
        str | None,
        option("--model", rich_help_panel=_ARMS, help="Model to ask for, if there are many."),
    ] = None,
    trace: Annotated[
        Path | None,
        option(
            "--trace",
            rich_help_panel=_LOAD,
            help="A Mooncake trace, ShareGPT conversations, an OpenAI batch, or a schedule; in place of --workload.",
        ),
    ] = None,
    workload: Annotated[
        str,
        option(
            "--workload",
            rich_help_panel=_LOAD,
            metavar="NAME[:KEY=VALUE,...]",
            help="A built-in workload; `kvctl bench workload list` shows them.",
        ),
    ] = "multi-turn",
    requests: Annotated[
        int | None,
        option(
            "--requests",
            min=1,
            rich_help_panel=_LOAD,
            help="Requests an arm, over all its blocks; of a trace the first so many.",
        ),
    ] = None,
    rate: Annotated[
        float | None,
        option("--rate", min=0.001, rich_help_panel=_LOAD, help="Requests/s of a built-in workload."),
    ] = None,
    speedup: Annotated[
        float | None,
        option(
            "--speedup",
            min=0.001,
            rich_help_panel=_LOAD,
            help="Arrivals faster than written. A trace before simulated engines: by default what two cores can carry.",
        ),
    ] = None,
    arrivals: Annotated[
        str | None,
        option(
            "--arrivals",
            rich_help_panel=_LOAD,
            metavar="PROCESS",
            help="poisson, gamma:SHAPE (below 1 burstier), constant, burst:SIZE, trace, closed:USERS (a closed loop).",
        ),
    ] = None,
    whole_trace: Annotated[
        bool,
        option(
            "--whole-trace",
            rich_help_panel=_LOAD,
            help="Replay the whole trace in every block, instead of dealing its sessions over the rounds.",
        ),
    ] = False,
    no_jitter: Annotated[
        bool,
        option(
            "--no-jitter",
            rich_help_panel=_LOAD,
            help="Send a trace's requests exactly on its time grid (a burst test).",
        ),
    ] = False,
    id_range: Annotated[
        str,
        option(
            "--token-ids",
            rich_help_panel=_LOAD,
            metavar="LOW-HIGH",
            help="Token ids to make prompts of; must lie in the engine's vocabulary.",
        ),
    ] = "100-2000",
    body: Annotated[
        str | None,
        option(
            "--body",
            rich_help_panel=_LOAD,
            metavar="JSON",
            help="More fields for each request body.",
        ),
    ] = None,
    api: bench_client.Api = bench_client.ApiName.COMPLETIONS,
    words: bench_client.Words = False,
    real_answers: bench_client.RealAnswers = False,
    seed: Annotated[int, option("--seed", rich_help_panel=_LOAD, help="Of workload and order.")] = 0,
    blocks: bench_design.Blocks = None,
    aa: bench_design.Aa = None,
    prime: bench_design.Prime = False,
    duration: Annotated[
        float | None,
        option(
            "--duration",
            min=1,
            rich_help_panel=_DESIGN,
            help="Seconds: begin no round that would end later.",
        ),
    ] = None,
    timeout: Annotated[
        float,
        option(
            "--timeout",
            min=0.1,
            rich_help_panel=_DESIGN,
            help="Seconds after its scheduled time at which a request has failed.",
        ),
    ] = 120.0,
    slo: bench_design.SloOption = None,
    gate: Annotated[
        list[str] | None,
        option(
            "--gate",
            rich_help_panel=_DESIGN,
            metavar="EXPR",
            help="'ttft_ms.p95: kv <= 0.95*random'. Repeatable. Exit code 0 pass, 1 fail, 4 inconclusive.",
        ),
    ] = None,
    capacity: bench_design.CapacityOption = False,
    rate_sweep: bench_design.RateSweep = None,
    capacity_precision: bench_design.Precision = 0.05,
    probe_seconds: bench_design.ProbeSeconds = 10.0,
    out: Annotated[
        Path | None,
        option(
            "--out",
            rich_help_panel=_DESIGN,
            help="Folder for result.json, requests.jsonl, summary.csv, report.md, report.html.",
        ),
    ] = None,
    output: Annotated[str, option("--output", "-o", help="table, or json: the result alone on stdout.")] = "table",
    config: ConfigFile = None,
) -> None:
    """Compare router modes on one workload: TTFT and ITL, an arm at a time, every block from a cold cache.

    Exit codes: 0 measured (and all gates passed); 1 a gate failed; 2 usage; 3 an arm cannot be reached;
    4 no verdict: interrupted, not provably cold, client too slow, all arms unstable, or a gate inconclusive.

    Examples:

      kvctl bench --modes kv,random

      kvctl bench --modes kv,random,round-robin --trace conversation.jsonl --requests 600 --out results

      kvctl bench --worker http://10.0.0.1:8000 --worker http://10.0.0.2:8000 --gate 'ttft_ms.p95: kv <=
      0.9*random'

      kvctl bench --url ours=http://127.0.0.1:8000 --url theirs=http://127.0.0.1:8100

      kvctl bench --modes kv,random --capacity --slo ttft_p95=500ms,itl_p95=50ms
    """
    if ctx.invoked_subcommand is not None:
        return
    if output not in ("table", "json"):
        raise Problem(f"-o must be table or json, not '{output}'")
    if url and worker:
        raise Problem("--url and --worker exclude each other: a running router has its own engines")

    from rich.console import Console

    from bench import run
    from bench.arms import ArmError
    from bench.client.bodies import Api
    from bench.gate import GateError
    from bench.metrics import Slo
    from bench.settings import Settings
    from bench.sim.fleet import FleetError
    from bench.workload.model import WorkloadError

    errors = Console(stderr=True)
    try:
        settings = Settings(
            modes=_modes(modes),
            workers=tuple(worker or ()),
            urls=tuple(url or ()),
            sim_workers=workers,
            sim_speedup=sim_speedup,
            trace=trace,
            workload=workload,
            requests=requests,
            rate=rate,
            speedup=speedup,
            arrivals=arrivals,
            whole_trace=whole_trace,
            jitter=not no_jitter,
            seed=seed,
            blocks=bench_design.blocks_of(blocks),
            aa=aa,
            prime=prime,
            capacity=capacity,
            sweep=bench_design.rates_of(rate_sweep),
            targets=bench_design.targets_of(slo, capacity),
            precision=capacity_precision,
            probe_seconds=probe_seconds,
            duration=duration,
            timeout=timeout,
            model=model,
            vocabulary=_vocabulary(id_range),
            body=_body(body),
            api=Api(api.value),
            words=words,
            real_answers=real_answers,
            serve_args=tuple(serve_arg or ()),
            gates=tuple(gate or ()),
            slo=Slo.parse(slo) if slo else None,
            out=out,
            version=__version__,
            argv=tuple(sys.argv[1:]),
        )
        outcome = run.bench(settings, errors)
    except (ArmError, FleetError) as error:
        raise Problem(str(error), code=UNREACHABLE) from error
    except run.NothingMeasured as error:
        raise Problem(str(error), code=INCONCLUSIVE) from error
    except (GateError, WorkloadError, ValueError) as error:
        raise Problem(str(error)) from error

    if output == "json":
        import msgspec

        sys.stdout.write(msgspec.json.format(msgspec.json.encode(outcome.data), indent=2).decode() + "\n")
    else:
        from bench.report.terminal import show

        show(outcome.verdict, Console(), outcome.study, outcome.explanation)
    if out is not None:
        errors.print(f"written to {out}; to look at: {out / 'report.html'}", highlight=False, soft_wrap=True)
    if outcome.verdict.exit_code:
        raise typer.Exit(outcome.verdict.exit_code)


def _modes(text: str) -> tuple[str, ...]:
    from router.policies.registry import mode_name

    modes = tuple(mode_name(part) for part in text.split(",") if part.strip())
    if not modes:
        raise Problem("--modes names no mode")
    if "direct" in modes:
        raise Problem("--modes: direct sends each request where its client says, so there is nothing to compare")
    return modes


def _vocabulary(text: str) -> Vocabulary:
    from bench.workload.tokens import Vocabulary

    low, dash, high = text.partition("-")
    if not dash or not low.isdecimal() or not high.isdecimal():
        raise Problem(f"--token-ids {text!r}: LOW-HIGH wanted, such as 100-2000")
    return Vocabulary(int(low), int(high))


def _body(text: str | None) -> dict[str, object]:
    if text is None:
        return {}
    import msgspec

    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except msgspec.DecodeError as error:
        raise Problem(f"--body is not a JSON object: {error}") from None


group = typer.Typer(invoke_without_command=True)
group.callback()(bench)
group.command("compare")(bench_compare.compare)
group.add_typer(bench_workload.group, name="workload")
