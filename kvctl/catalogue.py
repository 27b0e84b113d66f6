"""`kvctl validate --list-checks` and `--explain`: what the checks are, without looking at any system."""

from __future__ import annotations

import json
import sys
import textwrap
from itertools import groupby

from rich.console import Console
from rich.text import Text

from checks.catalogue.registry import ALL, UnknownCheck, by_id, select
from checks.metrics.queries import expressions
from checks.report.explain import explains, in_order, parts, row, stacks
from checks.report.shape import page
from kvctl.errors import Problem


def show_checks(include: list[str], skip: list[str], *, as_json: bool) -> None:
    """A line a check, by section; all fields as JSON."""
    try:
        chosen = select(ALL, include, skip)
    except UnknownCheck as error:
        raise Problem(str(error)) from None
    if as_json:
        _write([row(check) for check in chosen])
        return
    console = Console(highlight=False, soft_wrap=True)
    for group, checks in groupby(in_order(chosen), key=lambda check: check.group):
        console.print(Text(f"\n{group}", style="bold"))
        for check in checks:
            fitting = "" if check.stacks is None else f"  ({stacks(check)})"
            console.print(Text.assemble((check.id, "bold"), f" {check.worst:<5} {check.title}", (fitting, "dim")))
    console.print(Text(f"\n{len(chosen)} checks, each with the worst it may say; --explain ID tells more", style="dim"))


def explain_check(name: str, *, namespace: str = "", as_json: bool) -> None:
    """What one check reads, its rule, its hint; `namespace` is put into what can be applied."""
    try:
        check = by_id(name)
    except UnknownCheck as error:
        raise Problem(str(error)) from None
    if as_json:
        _write({**row(check), "explains": explains(check, ALL)})
        return
    console = Console(highlight=False)
    width = min(console.width, 100)
    console.print(Text(f"{check.id} {check.title}", style="bold"))
    console.print(Text(f"{check.group}; at worst {check.worst}; stacks: {stacks(check)}", style="dim"), soft_wrap=True)
    for heading, text in parts(check, ALL, namespace or "prod"):
        console.print(Text(f"\n{heading}", style="bold"))
        for paragraph in text.split("\n\n"):
            literal = "\n" in paragraph
            shown = paragraph if literal else textwrap.fill(paragraph, width, break_on_hyphens=False)
            console.print(Text(shown.strip("\n")), soft_wrap=True)
    if queries := expressions(check.id):
        console.print(Text("\nPromQL, for a dashboard", style="bold"))
        for one in queries:
            console.print(Text(f"{one.title}:\n  {one.promql}"), soft_wrap=True)
    console.print(Text(f"\nsee {page(check.id)}", style="dim"))


def _write(data: object) -> None:
    sys.stdout.write(json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
