"""Tables for a person. Colours only on a terminal; widths follow it."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table


def decision_report(decision: dict[str, Any]) -> None:
    """The decision as a short story and one row a candidate, cheapest first."""
    console = Console(highlight=False)
    winner = decision["winner"]
    console.print(
        f"[bold]{escape(decision['id'] or 'dry run')}[/bold]  mode {escape(decision['mode'])}, model "
        f"{escape(decision['model'] or '-')}: [bold]{escape(winner['worker'])}[/bold] (dp rank {winner['dp_rank']}), "
        f"because of {decision['reason'].replace('_', ' ')}"
    )
    console.print(
        f"prompt {decision['prompt_tokens']} tokens in blocks of {decision['block_size']}; predicted cached "
        f"{decision['predicted_cached_tokens']}, engine reported {_or_dash(decision['engine_cached_tokens'])}; "
        f"decided in {decision['decide_us']:.0f} µs"
    )
    if decision["degraded"]:
        console.print(f"[yellow]degraded:[/yellow] {', '.join(decision['degraded'])}")
    candidates = decision["candidates"]
    terms = [term["name"] for term in candidates[0]["terms"]] if candidates else []
    units = {term["unit"] for candidate in candidates for term in candidate["terms"]}
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    table.add_column("worker", overflow="fold")
    for heading in ("cached", "prefill", "decode", "active"):
        table.add_column(heading, justify="right")
    for name in terms:
        table.add_column(f"+ {name}", justify="right")
    table.add_column(f"= cost ({', '.join(sorted(units)) or 'none'})", justify="right")
    table.add_column("not eligible", overflow="fold")
    for candidate in sorted(candidates, key=lambda row: (not row["eligible"], row["cost"])):
        mine = candidate["worker"] == winner["worker"] and candidate["dp_rank"] == winner["dp_rank"]
        overlap, load = candidate["overlap"], candidate["load"]
        rank = f"/{candidate['dp_rank']}" if any(row["dp_rank"] for row in candidates) else ""
        table.add_row(
            "→" if mine else "",
            escape(candidate["worker"]) + rank,
            str(sum(overlap.values())),
            str(load["prefill_tokens"]),
            str(load["decode_blocks"]),
            str(load["active_requests"]),
            *(f"{term['value']:.1f}" for term in candidate["terms"]),
            f"{candidate['cost']:.1f}",
            candidate["why_not"] or "",
            style="bold" if mine else ("dim" if not candidate["eligible"] else ""),
        )
    console.print(table)
    console.print(
        "[dim]cached: blocks held · prefill: tokens to compute there · decode: blocks of live requests, "
        "with this one[/dim]"
    )


def _or_dash(value: Any) -> str:
    return "-" if value is None else str(value)
