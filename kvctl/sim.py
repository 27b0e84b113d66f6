"""`kvctl sim`: simulated engines that speak vLLM's HTTP and KV-event wire. The work is in `bench.sim`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from kvctl import sim_options
from kvctl.errors import Problem
from kvctl.options import ConfigFile
from kvctl.sim_options import OutputFormat
from kvctl.sim_settings import TimingName, imitation_of, l2_of, tiers_of, timing_of

if TYPE_CHECKING:
    from bench.sim.process import EngineAddress


def sim(
    host: sim_options.Host = "127.0.0.1",
    port: sim_options.Port = 8100,
    kv_port: sim_options.KvPort = 0,
    replay_port: sim_options.ReplayPort = 0,
    count: sim_options.Count = 1,
    model: sim_options.Model = "sim",
    lora: sim_options.Lora = None,
    tokenizer: sim_options.Tokenizer = None,
    block_size: sim_options.BlockSize = 16,
    num_blocks: sim_options.NumBlocks = 16384,
    max_num_seqs: sim_options.MaxNumSeqs = 256,
    max_num_batched_tokens: sim_options.MaxNumBatchedTokens = 8192,
    max_model_len: sim_options.MaxModelLen = None,
    prefix_caching: sim_options.PrefixCaching = True,
    default_output: sim_options.DefaultOutput = 128,
    seed: sim_options.Seed = 0,
    timing: sim_options.Timing = TimingName.POLYNOMIAL,
    prefill_ms: sim_options.PrefillMs = 20.0,
    decode_ms: sim_options.DecodeMs = 10.0,
    timing_param: sim_options.TimingParam = None,
    speedup: sim_options.Speedup = 1.0,
    slow: sim_options.Slow = 1.0,
    host_blocks: sim_options.HostBlocks = 0,
    disk_blocks: sim_options.DiskBlocks = 0,
    l2: sim_options.L2 = None,
    l2_ttl: sim_options.L2Ttl = 3600.0,
    host_load_us: sim_options.HostLoadUs = 105.0,
    disk_load_us: sim_options.DiskLoadUs = 420.0,
    l2_load_us: sim_options.L2LoadUs = 1050.0,
    kv_events: sim_options.KvEvents = True,
    drop_events: sim_options.DropEvents = 0.0,
    buffer_steps: sim_options.BufferSteps = 10_000,
    prompt_tokens_details: sim_options.PromptTokensDetails = True,
    strict_reset: sim_options.StrictReset = False,
    keep_alive_timeout: sim_options.KeepAliveTimeout = 5.0,
    exit_with_parent: sim_options.ExitWithParent = False,
    log_style: sim_options.LogStyle = None,
    fault: sim_options.Fault = None,
    log_file: sim_options.LogFile = None,
    log_timestamps: sim_options.LogTimestamps = False,
    heartbeat_time: sim_options.HeartbeatTime = 10.0,
    output: sim_options.Output = OutputFormat.TEXT,
    config: ConfigFile = None,
) -> None:
    """Run simulated engines: no GPU, vLLM's HTTP endpoints, metrics and KV events, timing of a real one.

    Examples, the second and third for the engines of the first, the last a sick fleet to look at:

      kvctl sim --count 2 --speedup 5

      kvctl serve --worker http://127.0.0.1:8100 --worker http://127.0.0.1:8101

      curl http://127.0.0.1:8100/v1/completions -H 'content-type: application/json' -d '{"prompt": "def main"}'

      kvctl sim --count 2 --log-style lmcache-0.5.6 --fault l2-down@1 --log-file logs
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
    names = [model, *(lora or [])]
    if not all(names) or len(set(names)) != len(names):
        raise Problem("--lora and --model: names that are not empty and differ from one another wanted")
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
            api=ApiConfig(model, default_output, prompt_tokens_details, strict_reset, tuple(lora or ())),
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
