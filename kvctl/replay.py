"""`kvctl replay`: parse, wire, render. The work is in `bench.replay`."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvctl import __version__, sim_options
from kvctl.errors import FAILED, Problem
from kvctl.options import ConfigFile, option
from kvctl.serve_options import routing_options
from kvctl.sim_settings import TimingName, timing_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from bench.replay.prompts import Prompts
    from bench.replay.run import FleetShape, Replayed
    from bench.result import Provenance
    from bench.workload.model import Workload
    from router.core_settings import CoreSettings

_LOAD = "Workload"
_FLEET = "Fleet"
_OUT = "Output"
_NOT_HERE = {
    "direct": "direct sends each request where its client says, so there is nothing to compare",
    "device-aware-weighted": "device-aware-weighted needs workers of two kinds of device, which a replay has not",
}


class OnOff(StrEnum):
    ON = "on"
    OFF = "off"


def replay(
    modes: Annotated[
        str,
        option(
            "--modes",
            help="Router modes to compare, by commas; the first is compared with each other. Those of `kvctl serve` "
            "but direct and device-aware-weighted, and oracle, which sees all caches, queues and lengths.",
        ),
    ] = "kv,random",
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
        option("--requests", min=1, rich_help_panel=_LOAD, help="How many; of a trace the first so many."),
    ] = None,
    rate: Annotated[
        float | None,
        option("--rate", min=0.001, rich_help_panel=_LOAD, help="Requests/s of a built-in workload."),
    ] = None,
    speedup: Annotated[
        float,
        option("--speedup", min=0.001, rich_help_panel=_LOAD, help="Arrivals faster than written."),
    ] = 1.0,
    arrivals: Annotated[
        str | None,
        option(
            "--arrivals",
            rich_help_panel=_LOAD,
            metavar="PROCESS",
            help="poisson, gamma:SHAPE (below 1 burstier), constant, burst:SIZE, trace, closed:USERS (a closed loop).",
        ),
    ] = None,
    jitter: Annotated[
        OnOff,
        option(
            "--jitter",
            rich_help_panel=_LOAD,
            help="Spread a trace's arrivals inside its time grid; off is a burst test.",
        ),
    ] = OnOff.ON,
    seed: Annotated[
        int, option("--seed", min=0, max=2**63 - 1, help="Of the workload and of all that the router draws.")
    ] = 0,
    workers: Annotated[int, option("--workers", min=1, max=512, rich_help_panel=_FLEET, help="Engines.")] = 8,
    blocks_per_worker: Annotated[
        int | None,
        option(
            "--blocks-per-worker",
            min=1,
            rich_help_panel=_FLEET,
            help="KV blocks of an engine. Default: what the workload says, else 16384.",
        ),
    ] = None,
    block_size: sim_options.BlockSize = 16,
    max_num_seqs: sim_options.MaxNumSeqs = 256,
    max_batched_tokens: Annotated[
        int,
        option(
            "--max-batched-tokens",
            min=1,
            rich_help_panel=_FLEET,
            help="Tokens a step computes at most; longer prompts take several steps.",
        ),
    ] = 8192,
    timing: sim_options.Timing = TimingName.POLYNOMIAL,
    prefill_ms: sim_options.PrefillMs = 20.0,
    decode_ms: sim_options.DecodeMs = 10.0,
    timing_param: sim_options.TimingParam = None,
    speed: Annotated[
        str,
        option(
            "--speed",
            rich_help_panel=_FLEET,
            metavar="FACTOR,…",
            help="How fast each engine is, in turn: 1,1,0.5 makes every third half as fast.",
        ),
    ] = "1",
    kv_event_lag: Annotated[
        float,
        option(
            "--kv-event-lag",
            min=0,
            max=3_600_000,
            rich_help_panel=_FLEET,
            help="Milliseconds from the end of a step until the router knows of its KV events.",
        ),
    ] = 0.0,
    kv_cost: routing_options.KvCost = "blocks",
    overlap_score_credit: routing_options.OverlapScoreCredit = 1.0,
    overlap_score_credit_decay: routing_options.OverlapScoreCreditDecay = 0.0,
    prefill_load_scale: routing_options.PrefillLoadScale = 1.0,
    decode_active_request_weight: routing_options.DecodeActiveRequestWeight = 0.0,
    router_temperature: routing_options.RouterTemperature = 0.0,
    router_track_prefill_tokens: routing_options.RouterTrackPrefillTokens = True,
    router_assume_kv_reuse: routing_options.RouterAssumeKvReuse = True,
    router_track_output_blocks: routing_options.RouterTrackOutputBlocks = False,
    router_prefill_load_model: routing_options.RouterPrefillLoadModel = "none",
    predict_ttl: routing_options.PredictTtl = 5.0,
    truth_loop: routing_options.TruthLoop = True,
    load_bound: routing_options.LoadBound = 1.25,
    session_affinity_ttl: routing_options.SessionAffinityTtl = None,
    session_affinity_mode: routing_options.SessionAffinityMode = "hard",
    balance_factor: routing_options.BalanceFactor = 1.25,
    prefix_limit: routing_options.PrefixLimit = 1_000_000,
    min_match_tokens: routing_options.MinMatchTokens = 0,
    kvaware_threshold: routing_options.KvawareThreshold = 2000,
    kvaware_fallback: routing_options.KvawareFallback = "session",
    out: Annotated[
        Path | None,
        option("--out", rich_help_panel=_OUT, help="Folder for result.json, requests.jsonl and summary.csv."),
    ] = None,
    output: Annotated[
        str, option("--output", "-o", rich_help_panel=_OUT, help="table, or json: the result alone on stdout.")
    ] = "table",
    config: ConfigFile = None,
) -> None:
    """Compare router modes in virtual time: the policies of `serve` before the engines of `sim`, an hour in seconds.

    Engines, router and arrivals are simulated in one process; the same seed gives the same result, bit for bit.
    Exit codes: 0 done; 1 no request of some mode succeeded; 2 usage.

    Examples:

      kvctl replay --modes kv,round-robin,oracle --trace conversation.jsonl --block-size 64 --workers 8

      kvctl replay --modes kv,random --workload zipf --workers 64 --timing batch --speed 1,1,0.5

      kvctl replay --trace conversation.jsonl --prefill-load-scale 16 --kv-event-lag 200 --out results
    """
    if output not in ("table", "json"):
        raise Problem(f"-o must be table or json, not '{output}'")
    from kvctl.kernels import ensure_cache

    ensure_cache()
    from rich.console import Console

    from bench.replay import result
    from bench.replay.prompts import prepare
    from bench.replay.run import FleetShape, speeds
    from bench.sim.engine import EngineConfig
    from bench.workload.arrivals import Arrivals
    from bench.workload.model import WorkloadError
    from bench.workload.source import Wish, make
    from router.affinity import AffinityMode, AffinitySettings
    from router.core_settings import CoreSettings
    from router.engine_time import PrefillModel
    from router.policies.kv import KvWeights
    from router.policies.settings import PolicySettings
    from router.truth import TruthSettings

    errors = Console(stderr=True)
    names = modes_of(modes)
    engine_timing = timing_of(timing, prefill_ms, decode_ms, timing_param or [], 1.0, 1.0)
    factors = factors_of(speed)
    try:
        settings = CoreSettings(
            policies=PolicySettings(
                weights=KvWeights(
                    overlap_score_credit=overlap_score_credit,
                    overlap_score_credit_decay=overlap_score_credit_decay,
                    prefill_load_scale=prefill_load_scale,
                    decode_active_request_weight=decode_active_request_weight,
                    router_temperature=router_temperature,
                    track_prefill_tokens=router_track_prefill_tokens,
                ),
                kv_cost=kv_cost,
                load_bound=load_bound,
                balance_factor=balance_factor,
                prefix_limit=prefix_limit,
                min_match_tokens=min_match_tokens,
                kvaware_threshold=kvaware_threshold,
                kvaware_fallback=kvaware_fallback,
            ),
            affinity=None
            if session_affinity_ttl is None
            else AffinitySettings(
                session_affinity_ttl, _named(AffinityMode, session_affinity_mode, "--session-affinity-mode")
            ),
            prefill_model=_named(PrefillModel, router_prefill_load_model, "--router-prefill-load-model"),
            track_output=router_track_output_blocks,
            assume_kv_reuse=router_assume_kv_reuse,
            predict_ttl=predict_ttl,
            truth=TruthSettings() if truth_loop else None,
            seed=seed,
        )
        wish = Wish(
            name=workload,
            file=trace,
            requests=requests,
            seed=seed,
            rate=rate,
            speedup=speedup,
            arrivals=Arrivals.parse(arrivals) if arrivals else None,
            jitter=jitter is OnOff.ON,
            workers=workers,
        )
        with errors.status("reading the workload …"):
            made = make(wish)
            prompts = prepare(made, block_size)
        blocks = blocks_per_worker or blocks_of(made)
        shape = FleetShape(
            EngineConfig(
                block_size=block_size,
                num_blocks=blocks,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_batched_tokens,
                max_model_len=blocks * block_size,
            ),
            speeds(engine_timing, factors, workers),
            adapters_of(made),
        )
    except (WorkloadError, ValueError) as error:
        raise Problem(str(error)) from error

    replayed = _run(names, prompts, shape, settings, kv_event_lag / 1000, errors)
    arms = [result.arm(number, one, prompts, workers) for number, one in enumerate(replayed)]
    found = result.study(arms, {one.mode: one.counts for one in replayed}, prompts.bound)
    if out is not None or output == "json":
        with errors.status("hashing the workload …"):
            data = result.content(found, _provenance(made, shape, seed, prompts.bound), kv_event_lag)
    if output == "json":
        import msgspec

        sys.stdout.write(msgspec.json.format(msgspec.json.encode(data), indent=2).decode() + "\n")
    else:
        result.show(found, prompts, Console())
    if out is not None:
        try:
            result.write(out, data, found)
        except OSError as error:
            raise Problem(f"--out {out}: {error.strerror or error}", code=FAILED) from error
        errors.print(f"written to {out}", highlight=False, soft_wrap=True)
    if any(len(one.measured) == sum(one.failures.values()) for one in arms):
        raise typer.Exit(FAILED)


def modes_of(text: str) -> tuple[str, ...]:
    """Names of modes, as the registry spells them.

    Raises:
        Problem: none, one that there is not, or one that a replay has no use for.
    """
    from bench.replay.oracle import MODE as ORACLE
    from router.policies.registry import UnknownMode, mode_name

    names: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if not part:
            continue
        try:
            name = ORACLE if part.lower() == ORACLE else mode_name(part)
        except UnknownMode as error:
            raise Problem(f"--modes: {error}; a replay has oracle as well") from None
        if name in _NOT_HERE:
            raise Problem(f"--modes: {_NOT_HERE[name]}")
        if name in names:
            raise Problem(f"--modes: {name} twice; the same mode gives the same result")
        names.append(name)
    if not names:
        raise Problem("--modes names no mode")
    return tuple(names)


def factors_of(text: str) -> list[float]:
    """How fast engines are.

    Raises:
        Problem: not numbers above 0 by commas.
    """
    try:
        factors = [float(part) for part in text.split(",")]
    except ValueError:
        factors = []
    if not factors or not all(0.001 <= factor <= 1000 for factor in factors):
        raise Problem(f"--speed {text[:60]!r}: numbers from 0.001 to 1000 by commas wanted, such as 1,1,0.5")
    return factors


def blocks_of(workload: Workload) -> int:
    """KV blocks of an engine: what the workload needs to mean something, else the default of `kvctl sim`."""
    wanted = workload.engine.get("num_blocks")
    return wanted if isinstance(wanted, int) else 16384


def adapters_of(workload: Workload) -> tuple[str, ...]:
    wanted = workload.engine.get("lora")
    return tuple(wanted) if isinstance(wanted, list) else ()


def _named(kind: type[StrEnum], value: str, name: str):  # type: ignore[no-untyped-def]
    try:
        return kind(value)
    except ValueError:
        raise Problem(f"{name} must be {', '.join(kind)}, not '{value}'") from None


def _run(
    names: tuple[str, ...], prompts: Prompts, shape: FleetShape, settings: CoreSettings, lag: float, console: Console
) -> list[Replayed]:
    """All modes, one after the other, with a bar on a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from bench.replay.run import replay

    columns = TextColumn("{task.description:>14}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    done: list[Replayed] = []
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        for name in names:
            task = progress.add_task(name, total=len(prompts.all))

            def tell(ended: int, task: TaskID = task) -> None:
                progress.update(task, completed=ended)

            done.append(replay(prompts, shape, name, settings, lag=lag, on_progress=tell))
            progress.update(task, completed=len(prompts.all))
    return done


def _provenance(workload: Workload, shape: FleetShape, seed: int, bound: float) -> Provenance:
    from dataclasses import asdict

    from bench.arms import Fleet
    from bench.replay.result import summary
    from bench.result import Provenance

    slow = [timing.slow for timing in shape.timings]
    facts: dict[str, object] = {
        "engine": asdict(shape.config),
        "timing": {"model": type(shape.timings[0].model).__name__, **asdict(shape.timings[0].model)},  # type: ignore[call-overload]
        "slow": slow if len(set(slow)) > 1 else slow[0],
        "adapters": list(shape.adapters),
    }
    fleet = Fleet(f"{len(slow)} simulated engines in virtual time", [], facts=facts)
    return Provenance(__version__, sys.argv[1:], seed, workload, summary(workload, bound), fleet)
