"""`kvctl sim`: simulated engines that speak vLLM's HTTP and KV-event wire. The work is in `bench.sim`."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from kvctl.errors import Problem
from kvctl.options import ConfigFile, option
from kvctl.sim_settings import TimingName, imitation_of, l2_of, tiers_of, timing_of

if TYPE_CHECKING:
    from bench.sim.process import EngineAddress

_PORTS = "Addresses"
_ENGINE = "Engine"
_TIMING = "Timing"
_TIERS = "Tiers behind the engine's own cache"
_FAULTS = "Faults and details"
_LOGS = "Logs and metrics of a vLLM worker with LMCache"


class OutputFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


def sim(
    host: Annotated[str, option("--host", rich_help_panel=_PORTS, help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int,
        option(
            "--port",
            min=0,
            max=65535,
            rich_help_panel=_PORTS,
            help="HTTP port of the first engine; the others count up. 0 takes free ones.",
        ),
    ] = 8100,
    kv_port: Annotated[
        int,
        option(
            "--kv-port",
            min=0,
            max=65535,
            rich_help_panel=_PORTS,
            help="KV-event port of the first engine (ZMQ PUB); 0 takes free ones.",
        ),
    ] = 0,
    replay_port: Annotated[
        int,
        option(
            "--replay-port",
            min=0,
            max=65535,
            rich_help_panel=_PORTS,
            help="Replay port of the first engine (ZMQ ROUTER); 0 takes free ones.",
        ),
    ] = 0,
    count: Annotated[int, option("--count", min=1, max=256, help="Engines in this process.")] = 1,
    model: Annotated[str, option("--model", rich_help_panel=_ENGINE, help="Served model name.")] = "sim",
    tokenizer: Annotated[
        Path | None,
        option(
            "--tokenizer",
            rich_help_panel=_ENGINE,
            help="Folder with tokenizer.json and its config. Default: a small one that comes with kvctl.",
        ),
    ] = None,
    block_size: Annotated[
        int,
        option("--block-size", min=1, rich_help_panel=_ENGINE, help="Tokens a KV block."),
    ] = 16,
    num_blocks: Annotated[
        int,
        option("--num-blocks", min=1, rich_help_panel=_ENGINE, help="KV blocks."),
    ] = 16384,
    max_num_seqs: Annotated[
        int,
        option(
            "--max-num-seqs",
            min=1,
            rich_help_panel=_ENGINE,
            help="Sequences in a batch at most.",
        ),
    ] = 256,
    max_num_batched_tokens: Annotated[
        int,
        option(
            "--max-num-batched-tokens",
            min=1,
            rich_help_panel=_ENGINE,
            help="Tokens a step computes at most; longer prompts take several steps.",
        ),
    ] = 8192,
    max_model_len: Annotated[
        int | None,
        option(
            "--max-model-len",
            min=2,
            rich_help_panel=_ENGINE,
            help="Prompt and answer together. Default: 131072, or what the cache holds if that is less.",
        ),
    ] = None,
    prefix_caching: Annotated[
        bool,
        option(
            "--prefix-caching/--no-prefix-caching",
            rich_help_panel=_ENGINE,
            help="Reuse full blocks of earlier prompts.",
        ),
    ] = True,
    default_output: Annotated[
        int,
        option(
            "--default-output",
            min=1,
            rich_help_panel=_ENGINE,
            help="Tokens of an answer when the request sets no limit.",
        ),
    ] = 128,
    seed: Annotated[
        int,
        option(
            "--seed",
            min=0,
            rich_help_panel=_ENGINE,
            help="Of block hashes and of faults; answers depend on the prompt alone.",
        ),
    ] = 0,
    timing: Annotated[
        TimingName,
        option(
            "--timing",
            rich_help_panel=_TIMING,
            help="How long a step takes: polynomial (decode by cache use), fixed, batch (decode slows with it).",
        ),
    ] = TimingName.POLYNOMIAL,
    prefill_ms: Annotated[
        float,
        option(
            "--prefill-ms",
            min=0,
            rich_help_panel=_TIMING,
            help="fixed: a step's prefill.",
        ),
    ] = 20.0,
    decode_ms: Annotated[
        float,
        option("--decode-ms", min=0, rich_help_panel=_TIMING, help="fixed: a step's decode."),
    ] = 10.0,
    timing_param: Annotated[
        list[str] | None,
        option(
            "--timing-param",
            rich_help_panel=_TIMING,
            metavar="NAME=VALUE",
            help="A coefficient of polynomial or batch, e.g. decode_base=4.8. Repeatable; a wrong name lists them.",
        ),
    ] = None,
    speedup: Annotated[
        float,
        option(
            "--speedup",
            min=0,
            rich_help_panel=_TIMING,
            help="Divides every step's time; 0 is no delay at all.",
        ),
    ] = 1.0,
    slow: Annotated[
        float,
        option(
            "--slow",
            min=0.001,
            rich_help_panel=_TIMING,
            help="Multiplies every step's time: an engine that is slower than the others.",
        ),
    ] = 1.0,
    host_blocks: Annotated[
        int,
        option(
            "--host-blocks",
            min=0,
            rich_help_panel=_TIERS,
            help="Blocks of host memory (L1): what the engine's own cache gives up goes there; a hit loads it back.",
        ),
    ] = 0,
    disk_blocks: Annotated[
        int,
        option(
            "--disk-blocks",
            min=0,
            rich_help_panel=_TIERS,
            help="Blocks on disk, for what the host memory gives up.",
        ),
    ] = 0,
    l2: Annotated[
        str | None,
        option(
            "--l2",
            rich_help_panel=_TIERS,
            metavar="redis://HOST:PORT|memory",
            help="Store that engines share (L2): a Redis, also between processes, or one of this process.",
        ),
    ] = None,
    l2_ttl: Annotated[
        float,
        option("--l2-ttl", min=1, rich_help_panel=_TIERS, help="Seconds that a block lives in Redis."),
    ] = 3600.0,
    host_load_us: Annotated[
        float,
        option(
            "--host-load-us",
            min=0,
            rich_help_panel=_TIERS,
            help="Microseconds to load a block from host memory; --speedup and --slow scale it.",
        ),
    ] = 105.0,
    disk_load_us: Annotated[
        float,
        option("--disk-load-us", min=0, rich_help_panel=_TIERS, help="The same from disk."),
    ] = 420.0,
    l2_load_us: Annotated[
        float,
        option("--l2-load-us", min=0, rich_help_panel=_TIERS, help="The same from the shared store."),
    ] = 1050.0,
    kv_events: Annotated[
        bool,
        option(
            "--kv-events/--no-kv-events",
            rich_help_panel=_FAULTS,
            help="Publish KV events.",
        ),
    ] = True,
    drop_events: Annotated[
        float,
        option(
            "--drop-events",
            min=0,
            max=1,
            rich_help_panel=_FAULTS,
            help="Share of KV-event frames that is lost (replay still has them).",
        ),
    ] = 0.0,
    buffer_steps: Annotated[
        int,
        option(
            "--buffer-steps",
            min=0,
            rich_help_panel=_FAULTS,
            help="KV-event frames kept for replay.",
        ),
    ] = 10_000,
    prompt_tokens_details: Annotated[
        bool,
        option(
            "--prompt-tokens-details/--no-prompt-tokens-details",
            rich_help_panel=_FAULTS,
            help="Report cached tokens in `usage`.",
        ),
    ] = True,
    strict_reset: Annotated[
        bool,
        option(
            "--strict-reset",
            rich_help_panel=_FAULTS,
            help="POST /reset_prefix_cache answers 409 while blocks are in use, instead of success: false.",
        ),
    ] = False,
    keep_alive_timeout: Annotated[
        float,
        option(
            "--keep-alive-timeout",
            min=0,
            rich_help_panel=_FAULTS,
            help="Seconds after which an idle HTTP connection is closed; 0 is never.",
        ),
    ] = 5.0,
    exit_with_parent: Annotated[
        bool,
        option(
            "--exit-with-parent",
            rich_help_panel=_FAULTS,
            help="End when standard input is closed or the parent process is gone.",
        ),
    ] = False,
    log_style: Annotated[
        str | None,
        option(
            "--log-style",
            rich_help_panel=_LOGS,
            metavar="STYLE",
            help="Stand beside LMCache, and write the log and export the metrics of that release: lmcache-0.3.14, "
            "lmcache-0.4.3, lmcache-0.5.6 or hyperpod. Numbers are those of the engine.",
        ),
    ] = None,
    fault: Annotated[
        list[str] | None,
        option(
            "--fault",
            rich_help_panel=_LOGS,
            metavar="NAME[@N]",
            help="What is wrong with every engine, or with engine N (from 0): init-failure, l2-down, heartbeat-lost, "
            "none-hash-differs, registration-failed or no-lmcache-metrics. Repeatable; needs --log-style.",
        ),
    ] = None,
    log_file: Annotated[
        Path | None,
        option(
            "--log-file",
            rich_help_panel=_LOGS,
            metavar="DIR",
            help="Folder for a log an engine (sim-0.log, …) and the LMCache controller's (controller.log); what is "
            "there is written over. Default: the standard error.",
        ),
    ] = None,
    log_timestamps: Annotated[
        bool,
        option(
            "--log-timestamps",
            rich_help_panel=_LOGS,
            help="Begin each line with the kubelet's time, as kubectl logs --timestamps does.",
        ),
    ] = False,
    heartbeat_time: Annotated[
        float,
        option(
            "--heartbeat-time",
            min=0.05,
            max=3600,
            rich_help_panel=_LOGS,
            help="Seconds between two heartbeats to the controller. After three times as long it drops a worker, and "
            "the worker gives up waiting for an answer.",
        ),
    ] = 10.0,
    output: Annotated[
        OutputFormat,
        option("--output", "-o", help="text, or one JSON line when ready."),
    ] = OutputFormat.TEXT,
    config: ConfigFile = None,
) -> None:
    """Run simulated engines: no GPU, vLLM's HTTP endpoints, metrics and KV events, timing of a real one.

    Example: [bold]kvctl sim --count 4 --speedup 5[/bold], then
    [bold]kvctl serve --worker http://127.0.0.1:8100 --worker http://127.0.0.1:8101[/bold] (and so on), or
    [bold]curl http://127.0.0.1:8100/v1/completions -H 'content-type: application/json'
    -d '{"prompt": "def main", "max_tokens": 8}'[/bold]

    To look at a sick fleet:
    [bold]kvctl sim --count 2 --log-style lmcache-0.5.6 --fault l2-down@1 --log-file logs[/bold]
    """
    from kvctl.kernels import ensure_cache

    ensure_cache()
    from bench.sim.api import ApiConfig
    from bench.sim.engine import EngineConfig
    from bench.sim.events import PublisherConfig
    from bench.sim.process import HostConfig, PortError, run
    from bench.sim.text import BUNDLED, TextError
    from bench.sim.worker import LogError

    for name, first in (("--port", port), ("--kv-port", kv_port), ("--replay-port", replay_port)):
        if first and first + count - 1 > 65535:
            raise Problem(f"{name} {first} leaves no room for {count} engines below 65536: choose a lower one")
    capacity = num_blocks * block_size
    shared = l2_of(l2)
    tiers = tiers_of(host_blocks, disk_blocks, host_load_us, disk_load_us, l2_load_us, l2=shared is not None)
    if tiers is not None and not prefix_caching:
        raise Problem("--host-blocks, --disk-blocks and --l2 need --prefix-caching")
    if tiers is not None and log_style is not None:
        raise Problem("--log-style brings LMCache's own tiers: leave out --host-blocks, --disk-blocks and --l2")
    try:
        engine = EngineConfig(
            block_size=block_size,
            num_blocks=num_blocks,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len if max_model_len is not None else min(131072, capacity),
            prefix_caching=prefix_caching,
            seed=seed,
        )
        settings = HostConfig(
            timing=timing_of(timing, prefill_ms, decode_ms, timing_param or [], speedup, slow),
            count=count,
            host=host,
            port=port,
            kv_port=kv_port,
            replay_port=replay_port,
            engine=engine,
            api=ApiConfig(model, default_output, prompt_tokens_details, strict_reset),
            publisher=PublisherConfig(drop=drop_events, buffer_steps=buffer_steps, seed=seed),
            kv_events=kv_events and prefix_caching,
            keep_alive=keep_alive_timeout,
            tokenizer=tokenizer or BUNDLED,
            imitation=imitation_of(log_style, fault or [], count, log_file, log_timestamps, heartbeat_time),
            tiers=tiers,
            l2=shared,
            l2_ttl=l2_ttl,
        )
    except ValueError as error:
        raise Problem(str(error)) from None

    def ready(engines: list[EngineAddress]) -> None:
        if output is OutputFormat.JSON:
            _print_json(model, block_size, engines)
        else:
            _print_table(model, engines)

    try:
        run(settings, ready, exit_with_parent=exit_with_parent)
    except PortError as error:
        raise Problem(f"{error}; choose another port, or 0 for a free one") from None
    except TextError as error:
        raise Problem(f"--tokenizer: {error}") from None
    except LogError as error:
        raise Problem(f"--log-file: {error}") from None


def _print_json(model: str, block_size: int, engines: list[EngineAddress]) -> None:
    import json

    rows: list[dict[str, Any]] = [
        {"id": engine.id, "url": engine.url, "kv": engine.kv, "replay": engine.replay}
        | ({"instance": engine.instance, "log": engine.log} if engine.instance is not None else {})
        for engine in engines
    ]
    print(json.dumps({"event": "ready", "model": model, "block_size": block_size, "engines": rows}), flush=True)


def _print_table(model: str, engines: list[EngineAddress]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("engine", "url", "KV events", "replay"):
        table.add_column(heading, no_wrap=True)
    for engine in engines:
        table.add_row(engine.id, engine.url, engine.kv or "off", engine.replay or "off")
    console.print(table)
    first = engines[0].url
    body = f'{{"model": "{model}", "prompt": "def main", "max_tokens": 8}}'
    workers = " ".join(f"--worker {engine.url}" for engine in engines)
    console.print(f"\nask one:   curl {first}/v1/completions -H 'content-type: application/json' -d '{body}'")
    console.print(f"route:     kvctl serve {workers}", soft_wrap=True)
    console.print("end:       Ctrl-C")
    sys.stdout.flush()
