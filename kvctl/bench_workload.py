"""`kvctl bench workload`: what there is to send, in numbers and as a file. Parse, wire, render."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvctl.errors import Problem
from kvctl.help_pages import HelpCommand, HelpGroup
from kvctl.options import option

if TYPE_CHECKING:
    from bench.workload.model import Workload
    from bench.workload.source import Wish

group = typer.Typer(
    cls=HelpGroup,
    no_args_is_help=True,
    help="List, describe and write down workloads.\n\nExample: kvctl bench workload describe zipf:groups=32",
)

_Output = Annotated[str, option("--output", "-o", help="table, or json: alone on stdout.")]
_What = Annotated[
    str, typer.Argument(metavar="FILE|NAME", help="A file, or a built-in workload: NAME[:key=value,...].")
]
_Blocks = Annotated[int, option("--blocks", min=1, max=10_000, help="Slices: the blocks an arm of the experiment.")]
_Requests = Annotated[int | None, option("--requests", min=1, help="Of all slices; of a file the first so many.")]
_Rate = Annotated[float | None, option("--rate", min=0.001, help="Requests/s, of what has no times of its own.")]
_Speedup = Annotated[float | None, option("--speedup", min=0.001, help="Arrivals faster than written.")]
_Arrivals = Annotated[
    str | None,
    option("--arrivals", metavar="PROCESS", help="poisson, gamma:SHAPE, constant, burst:SIZE, trace, closed:USERS."),
]
_Seed = Annotated[int, option("--seed", help="Of all that is drawn.")]
_Workers = Annotated[int, option("--workers", min=1, max=4096, help="Engines of the fleet that gets it.")]
_Jitter = Annotated[bool, option("--jitter/--no-jitter", help="Spread a trace's arrivals inside its time grid.")]


@group.command("list", cls=HelpCommand)
def list_workloads(output: _Output = "table") -> None:
    """The built-in workloads: what each is for, and its parameters.

    Example: kvctl bench workload list
    """
    _check(output)
    from bench.workload.catalogue import ENTRIES

    if output == "json":
        _json([{"name": e.name, "purpose": e.purpose, "parameters": e.parameters} for e in ENTRIES])
        return
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    for entry in ENTRIES:
        console.print(f"[bold]{entry.name}[/bold]  {entry.purpose}")
        for one in entry.parameters:
            console.print(f"  {one.name}={one.default}  {one.help} ({one.wanted})", markup=False)
    console.print("\nuse: kvctl bench --workload zipf:groups=32,system=512-1024", markup=False)


@group.command(cls=HelpCommand)
def describe(
    what: _What,
    blocks: _Blocks = 1,
    requests: _Requests = None,
    rate: _Rate = None,
    speedup: _Speedup = None,
    arrivals: _Arrivals = None,
    seed: _Seed = 0,
    workers: _Workers = 8,
    jitter: _Jitter = False,
    block_size: Annotated[
        int | None,
        option("--block-size", min=1, max=65536, help="Tokens of a block; default 16, of a trace its own 512."),
    ] = None,
    cache_tokens: Annotated[
        int, option("--cache-tokens", min=1, help="Tokens that one engine's cache holds.")
    ] = 262_144,
    cache_blocks: Annotated[
        str | None,
        option("--cache-blocks", metavar="N,N,...", help="Cache sizes of the LRU curve, in blocks."),
    ] = None,
    output: _Output = "table",
) -> None:
    """Lengths, arrivals, what caches could hold, hottest prefixes, sessions, copies.

    Examples:

      kvctl bench workload describe multi-turn

      kvctl bench workload describe conversation.jsonl --cache-blocks 1000,3000,10000,30000,50000
    """
    _check(output)
    wish = _wish(what, blocks, requests, rate, speedup, arrivals, seed, workers, jitter)
    from bench.workload import analysis, mooncake
    from bench.workload.source import Format, format_of

    workload = _made(wish)
    native = None
    if wish.file is not None and block_size is None and blocks == 1 and format_of(wish.file) is Format.MOONCAKE:
        native = mooncake.block_accesses(mooncake.load(wish.file, requests))
    if "num_blocks" in workload.engine:
        cache_tokens = int(workload.engine["num_blocks"]) * 16  # type: ignore[arg-type]
    found = analysis.analyse(
        workload,
        block=block_size or 16,
        workers=workers,
        cache_tokens=cache_tokens,
        sizes=_sizes(cache_blocks),
        native=native,
    )
    if output == "json":
        _json(found)
        return
    from rich.console import Console

    from bench.report.workload import show

    show(found, Console(highlight=False, soft_wrap=True))


@group.command(cls=HelpCommand)
def make(
    what: _What,
    out: Annotated[Path, option("--out", help="The schedule's file; `kvctl bench --trace` sends it.")],
    blocks: _Blocks = 6,
    requests: _Requests = None,
    rate: _Rate = None,
    speedup: _Speedup = None,
    arrivals: _Arrivals = None,
    seed: _Seed = 0,
    workers: _Workers = 8,
    jitter: _Jitter = True,
    output: _Output = "table",
) -> None:
    """Write a workload as a schedule: the same requests at the same times, for every arm and every machine.

    Example: kvctl bench workload make zipf --blocks 6 --out zipf.jsonl, then kvctl bench --trace zipf.jsonl --blocks 6
    """
    _check(output)
    workload = _made(_wish(what, blocks, requests, rate, speedup, arrivals, seed, workers, jitter))
    from bench.workload import schedule
    from bench.workload.model import WorkloadError

    try:
        schedule.write(workload, out)
    except WorkloadError as error:
        raise Problem(str(error)) from error
    if output == "json":
        _json({"file": str(out), "requests": len(workload.requests), "blocks": blocks, "sha256": workload.sha256})
    else:
        print(f"{out}: {len(workload.requests)} requests in {blocks} blocks, sha256 {workload.sha256}")


def _check(output: str) -> None:
    if output not in ("table", "json"):
        raise Problem(f"-o must be table or json, not '{output}'")


def _wish(
    what: str,
    blocks: int,
    requests: int | None,
    rate: float | None,
    speedup: float | None,
    arrivals: str | None,
    seed: int,
    workers: int,
    jitter: bool,
) -> Wish:
    from bench.workload.arrivals import Arrivals
    from bench.workload.model import WorkloadError
    from bench.workload.source import Wish

    try:
        process = Arrivals.parse(arrivals) if arrivals is not None else None
    except WorkloadError as error:
        raise Problem(str(error)) from error
    file = Path(what) if _is_file(what) else None
    return Wish(
        name=what, file=file, slices=blocks, requests=requests, rate=rate, speedup=speedup, arrivals=process,
        seed=seed, workers=workers, jitter=jitter,
    )  # fmt: skip


def _is_file(what: str) -> bool:
    """A name of a built-in workload wins over a file in this folder; `./NAME` is always a file."""
    from bench.workload.catalogue import ENTRIES

    name = what.partition(":")[0]
    return not any(entry.name == name for entry in ENTRIES) and (
        "/" in what or what.endswith((".jsonl", ".json")) or Path(what).exists()
    )


def _made(wish: Wish) -> Workload:
    from bench.workload.model import WorkloadError
    from bench.workload.source import make as made

    try:
        return made(wish)
    except WorkloadError as error:
        raise Problem(str(error)) from error


def _sizes(text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = text.split(",")
    if len(parts) > 100 or not all(part.strip().isdecimal() and 0 < int(part) < 2**40 for part in parts):
        raise Problem(f"--cache-blocks {text[:60]!r}: up to 100 whole numbers by commas wanted, such as 1000,10000")
    return sorted({int(part) for part in parts})


def _json(data: Any) -> None:
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(data), indent=2).decode() + "\n")
