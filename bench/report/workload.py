"""What `kvctl bench workload describe` prints. Pure but for the console it is given."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from bench.workload.analysis import Analysis, Spread


def show(found: Analysis, console: Console) -> None:
    """An analysis as text: tables that stay readable in a pipe."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("tokens", "mean", *(f"p{p}" if 0 < p < 100 else ("min", "max")[p > 0] for p in found.prompt.at)):
        table.add_column(heading, justify="left" if heading == "tokens" else "right", no_wrap=True)
    for name, spread in (("prompt", found.prompt), ("answer", found.output), ("turns a session", found.turns)):
        table.add_row(name, *_row(spread))
    slices = f" in {found.slices} blocks" if found.slices > 1 else ""
    console.print(
        f"{found.name}: {found.requests:,} requests{slices}, {found.sessions:,} sessions, {found.groups:,} groups; "
        f"{found.duplicates:,} prompts are copies of one before",
        markup=False,
    )
    console.print(table)
    console.print(_arriving(found), markup=False)
    blocks, tokens = found.infinite
    console.print(f"endless cache: {blocks:.1%} of blocks of {found.block}, {tokens:.1%} of tokens", markup=False)
    curve = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("LRU cache, blocks", "tokens", "blocks found", "tokens found"):
        curve.add_column(heading, justify="right", no_wrap=True)
    for cache in found.curve:
        curve.add_row(f"{cache.blocks:,}", f"{cache.tokens:,}", f"{cache.block_hits:.1%}", f"{cache.token_hits:.1%}")
    console.print(curve)
    for prefix in found.hottest:
        console.print(
            f"hottest prefix of {prefix.tokens:,} tokens: {prefix.requests:,} requests ({prefix.share:.1%})",
            markup=False,
        )
    group = found.largest
    console.print(
        f"largest group {group.name}: {group.share:.1%} of requests, {group.fair_shares:.2f} fair shares of one of "
        f"{found.workers} engines; {group.tokens:,} different tokens, {group.of_cache:.2f} times one engine's "
        f"cache of {found.cache_tokens:,}",
        markup=False,
    )
    if found.aborted:
        console.print(f"aborts: {found.aborted:,} clients hang up in the middle of the answer", markup=False)
    for action in found.actions:
        console.print(f"action: {action}", markup=False)
    for note in found.notes:
        console.print(f"note: {note}", markup=False)


def _row(spread: Spread) -> list[str]:
    return [f"{spread.mean:,.1f}", *(f"{value:,.0f}" for value in spread.at.values())]


def _arriving(found: Analysis) -> str:
    arriving = found.arriving
    cv = "" if arriving.cv is None else f", gaps vary by {arriving.cv:.2f} (Poisson 1)"
    return (
        f"arrivals ({arriving.loop} loop): {arriving.rate:.2f} requests/s over {arriving.span_s:,.1f} s{cv}; at most "
        f"{arriving.peak:,} in a second, {arriving.moments:,} different times, at most {arriving.together:,} at one"
    )
