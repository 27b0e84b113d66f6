"""The options of `kvctl sim`: each an annotated type with its text, panel and environment twin."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from kvctl.options import option
from kvctl.sim_settings import TimingName

_PORTS = "Addresses"
_ENGINE = "Engine"
_TIMING = "Timing"
_TIERS = "Tiers behind the engine's own cache"
_FAULTS = "Faults and details"
_LOGS = "Logs and metrics of a vLLM worker with LMCache"


class OutputFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


Host = Annotated[str, option("--host", rich_help_panel=_PORTS, help="Address to listen on.")]
Port = Annotated[
    int,
    option(
        "--port",
        min=0,
        max=65535,
        rich_help_panel=_PORTS,
        help="HTTP port of the first engine; the others count up. 0 takes free ones.",
    ),
]
KvPort = Annotated[
    int,
    option(
        "--kv-port",
        min=0,
        max=65535,
        rich_help_panel=_PORTS,
        help="KV-event port of the first engine (ZMQ PUB); 0 takes free ones.",
    ),
]
ReplayPort = Annotated[
    int,
    option(
        "--replay-port",
        min=0,
        max=65535,
        rich_help_panel=_PORTS,
        help="Replay port of the first engine (ZMQ ROUTER); 0 takes free ones.",
    ),
]
Count = Annotated[int, option("--count", min=1, max=256, help="Engines in this process.")]
Model = Annotated[str, option("--model", rich_help_panel=_ENGINE, help="Served model name.")]
Lora = Annotated[
    list[str] | None,
    option("--lora", rich_help_panel=_ENGINE, metavar="NAME", help="A LoRA adapter it also serves. Repeatable."),
]
Tokenizer = Annotated[
    Path | None,
    option(
        "--tokenizer",
        rich_help_panel=_ENGINE,
        help="Folder with tokenizer.json and its config. Default: a small one that comes with kvctl.",
    ),
]
BlockSize = Annotated[
    int,
    option("--block-size", min=1, rich_help_panel=_ENGINE, help="Tokens a KV block."),
]
NumBlocks = Annotated[
    int,
    option("--num-blocks", min=1, rich_help_panel=_ENGINE, help="KV blocks."),
]
MaxNumSeqs = Annotated[
    int,
    option(
        "--max-num-seqs",
        min=1,
        rich_help_panel=_ENGINE,
        help="Sequences in a batch at most.",
    ),
]
MaxNumBatchedTokens = Annotated[
    int,
    option(
        "--max-num-batched-tokens",
        min=1,
        rich_help_panel=_ENGINE,
        help="Tokens a step computes at most; longer prompts take several steps.",
    ),
]
MaxModelLen = Annotated[
    int | None,
    option(
        "--max-model-len",
        min=2,
        rich_help_panel=_ENGINE,
        help="Prompt and answer together. Default: 131072, or what the cache holds if that is less.",
    ),
]
PrefixCaching = Annotated[
    bool,
    option(
        "--prefix-caching/--no-prefix-caching",
        rich_help_panel=_ENGINE,
        help="Reuse full blocks of earlier prompts.",
    ),
]
DefaultOutput = Annotated[
    int,
    option(
        "--default-output",
        min=1,
        rich_help_panel=_ENGINE,
        help="Tokens of an answer when the request sets no limit.",
    ),
]
Seed = Annotated[
    int,
    option(
        "--seed",
        min=0,
        rich_help_panel=_ENGINE,
        help="Of block hashes and of faults; answers depend on the prompt alone.",
    ),
]
Timing = Annotated[
    TimingName,
    option(
        "--timing",
        rich_help_panel=_TIMING,
        help="How long a step takes: polynomial (decode by cache use), fixed, batch (decode slows with it).",
    ),
]
PrefillMs = Annotated[
    float,
    option(
        "--prefill-ms",
        min=0,
        rich_help_panel=_TIMING,
        help="fixed: a step's prefill.",
    ),
]
DecodeMs = Annotated[
    float,
    option("--decode-ms", min=0, rich_help_panel=_TIMING, help="fixed: a step's decode."),
]
TimingParam = Annotated[
    list[str] | None,
    option(
        "--timing-param",
        rich_help_panel=_TIMING,
        metavar="NAME=VALUE",
        help="A coefficient of polynomial or batch, e.g. decode_base=4.8. Repeatable; a wrong name lists them.",
    ),
]
Speedup = Annotated[
    float,
    option(
        "--speedup",
        min=0,
        rich_help_panel=_TIMING,
        help="Divides every step's time; 0 is no delay at all.",
    ),
]
Slow = Annotated[
    float,
    option(
        "--slow",
        min=0.001,
        rich_help_panel=_TIMING,
        help="Multiplies every step's time: an engine that is slower than the others.",
    ),
]
HostBlocks = Annotated[
    int,
    option(
        "--host-blocks",
        min=0,
        rich_help_panel=_TIERS,
        help="Blocks of host memory (L1): what the engine's own cache gives up goes there; a hit loads it back.",
    ),
]
DiskBlocks = Annotated[
    int,
    option(
        "--disk-blocks",
        min=0,
        rich_help_panel=_TIERS,
        help="Blocks on disk, for what the host memory gives up.",
    ),
]
L2 = Annotated[
    str | None,
    option(
        "--l2",
        rich_help_panel=_TIERS,
        metavar="redis://HOST:PORT|memory",
        help="Store that engines share (L2): a Redis, also between processes, or one of this process.",
    ),
]
L2Ttl = Annotated[
    float,
    option("--l2-ttl", min=1, rich_help_panel=_TIERS, help="Seconds that a block lives in Redis."),
]
HostLoadUs = Annotated[
    float,
    option(
        "--host-load-us",
        min=0,
        rich_help_panel=_TIERS,
        help="Microseconds to load a block from host memory; --speedup and --slow scale it.",
    ),
]
DiskLoadUs = Annotated[
    float,
    option("--disk-load-us", min=0, rich_help_panel=_TIERS, help="The same from disk."),
]
L2LoadUs = Annotated[
    float,
    option("--l2-load-us", min=0, rich_help_panel=_TIERS, help="The same from the shared store."),
]
KvEvents = Annotated[
    bool,
    option(
        "--kv-events/--no-kv-events",
        rich_help_panel=_FAULTS,
        help="Publish KV events.",
    ),
]
DropEvents = Annotated[
    float,
    option(
        "--drop-events",
        min=0,
        max=1,
        rich_help_panel=_FAULTS,
        help="Share of KV-event frames that is lost (replay still has them).",
    ),
]
BufferSteps = Annotated[
    int,
    option(
        "--buffer-steps",
        min=0,
        rich_help_panel=_FAULTS,
        help="KV-event frames kept for replay.",
    ),
]
PromptTokensDetails = Annotated[
    bool,
    option(
        "--prompt-tokens-details/--no-prompt-tokens-details",
        rich_help_panel=_FAULTS,
        help="Report cached tokens in `usage`.",
    ),
]
StrictReset = Annotated[
    bool,
    option(
        "--strict-reset",
        rich_help_panel=_FAULTS,
        help="POST /reset_prefix_cache answers 409 while blocks are in use, instead of success: false.",
    ),
]
KeepAliveTimeout = Annotated[
    float,
    option(
        "--keep-alive-timeout",
        min=0,
        rich_help_panel=_FAULTS,
        help="Seconds after which an idle HTTP connection is closed; 0 is never.",
    ),
]
ExitWithParent = Annotated[
    bool,
    option(
        "--exit-with-parent",
        rich_help_panel=_FAULTS,
        help="End when standard input is closed or the parent process is gone.",
    ),
]
LogStyle = Annotated[
    str | None,
    option(
        "--log-style",
        rich_help_panel=_LOGS,
        metavar="STYLE",
        help="Stand beside LMCache, and write the log and export the metrics of that release: lmcache-0.3.14, "
        "lmcache-0.4.3, lmcache-0.5.6 or hyperpod. Numbers are those of the engine.",
    ),
]
Fault = Annotated[
    list[str] | None,
    option(
        "--fault",
        rich_help_panel=_LOGS,
        metavar="NAME[@N]",
        help="What is wrong with every engine, or with engine N (from 0): init-failure, l2-down, heartbeat-lost, "
        "none-hash-differs, registration-failed or no-lmcache-metrics. Repeatable; needs --log-style.",
    ),
]
LogFile = Annotated[
    Path | None,
    option(
        "--log-file",
        rich_help_panel=_LOGS,
        metavar="DIR",
        help="Folder for a log an engine (sim-0.log, …) and the LMCache controller's (controller.log); what is "
        "there is written over. Default: the standard error.",
    ),
]
LogTimestamps = Annotated[
    bool,
    option(
        "--log-timestamps",
        rich_help_panel=_LOGS,
        help="Begin each line with the kubelet's time, as kubectl logs --timestamps does.",
    ),
]
HeartbeatTime = Annotated[
    float,
    option(
        "--heartbeat-time",
        min=0.05,
        max=3600,
        rich_help_panel=_LOGS,
        help="Seconds between two heartbeats to the controller. After three times as long it drops a worker, and "
        "the worker gives up waiting for an answer.",
    ),
]
Output = Annotated[
    OutputFormat,
    option("--output", "-o", help="text, or one JSON line when ready."),
]
