"""`kvctl bench compare`: two result folders against each other. Parse, wire, render."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvctl.errors import Problem
from kvctl.options import option


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="Folder that `kvctl bench --out` left: the base.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The one that is compared with it.")],
    gate: Annotated[
        list[str] | None,
        option(
            "--gate",
            metavar="EXPR",
            help="'ttft_ms.p95: B:kv <= 1.05*A:kv'. Repeatable. Exit code 0 pass, 1 fail, 4 inconclusive.",
        ),
    ] = None,
    seed: Annotated[int, option("--seed", help="Of the bootstrap.")] = 0,
    output: Annotated[str, option("--output", "-o", help="table, or json: alone on stdout.")] = "table",
) -> None:
    """Compare two results, arm by arm of the same name: what a change of router, engine or setting did.

    Of one workload (same sha256) requests are paired; of two there is no test, and no gate between arms passes.

    Exit codes: 0 compared (and all gates passed); 1 a gate failed; 2 a folder is no result, or no arm is in both; 4 a
    result does not count, no ratio, or a gate inconclusive.

    Examples:

      kvctl bench compare before after

      kvctl bench compare before after --gate 'ttft_ms.mean: B:kv <= 1.05*A:kv (non-inferior)'
    """
    if output not in ("table", "json"):
        raise Problem(f"-o must be table or json, not '{output}'")
    from bench.gate import GateError
    from bench.stored import NotAResult, load
    from bench.two_results import NothingShared, compare_data, compare_results

    try:
        first, second = load(a), load(b)
        outcome = compare_results(first, second, gate or [], seed)
    except (NotAResult, NothingShared, GateError) as error:
        raise Problem(str(error)) from error
    if output == "json":
        import msgspec

        data = compare_data(outcome, first, second)
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(data), indent=2).decode() + "\n")
    else:
        from rich.console import Console

        from bench.report.comparison import show

        show(outcome, Console())
    if outcome.verdict.exit_code:
        raise typer.Exit(outcome.verdict.exit_code)
