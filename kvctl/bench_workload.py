"""`kvctl bench workload`: what there is to send, in numbers and as a file. Parse, wire, render."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from kvctl.errors import Problem
from kvctl.options import option

group = typer.Typer(no_args_is_help=True, help="List, describe and materialise workloads.")


@group.command("list")
def list_workloads(
    output: Annotated[str, option("--output", "-o", help="table or json.")] = "table",
) -> None:
    """The built-in workloads, what each is for, and its parameters."""
    if output not in ("table", "json"):
        raise Problem(f"-o must be table or json, not '{output}'")
    from bench.workload.synthetic import WORKLOADS

    sys.stdout.write("".join(f"{name}\n" for name in WORKLOADS))
