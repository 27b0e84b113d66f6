"""What `kvctl bench compare` prints: a table a pair, gates, notes, sentences. Pure but for the console it is given."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console
from rich.text import Text

from bench.report.terminal import arms_table, render_verdict
from bench.two_results import Outcome


def show(outcome: Outcome, console: Console) -> None:
    """Prints everything, for 80 columns."""
    verdict = outcome.verdict
    by_name = {arm.arm.name: arm for arm in verdict.arms}
    for base, other in outcome.pairs:
        mine = [c for c in verdict.comparisons if (c.base, c.other) == (base, other)]
        console.print(Text(f"{other} / {base}", style="bold"))
        console.print(arms_table(replace(verdict, arms=[by_name[base], by_name[other]], comparisons=mine)))
        console.print()
    console.print(render_verdict(verdict))
