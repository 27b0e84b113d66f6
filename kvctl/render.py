"""Tables for a person. Colours only on a terminal; widths follow it."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table


def _migration(found: dict[str, Any]) -> list[str]:
    """Where a stream that broke came from, and where it went on."""
    lines = []
    if found.get("decision"):
        lines.append(
            f"goes on with a stream that broke at {escape(found['from'])} ({escape(found['cause'])}), "
            f"{escape(found['decision'])}: {found['carried_tokens']} generated tokens are part of this prompt"
        )
    if found.get("went_on"):
        lines.append(f"its stream broke and went on as {escape(found['went_on'])}")
    return lines


def decision_report(decision: dict[str, Any]) -> None:
    """The decision as a short story and one row a candidate, cheapest first."""
    console = Console(highlight=False)
    winner = decision["winner"]
    console.print(
        f"[bold]{escape(decision['id'] or 'dry run')}[/bold]  mode {escape(decision['mode'])}, model "
        f"{escape(decision['model'] or '-')}: [bold]{escape(winner['worker'])}[/bold] (dp rank {winner['dp_rank']}), "
        f"because of {decision['reason'].replace('_', ' ')}"
    )
    read = bool(decision["prompt_tokens"])
    prompt = f"prompt {decision['prompt_tokens']} tokens in blocks of {decision['block_size']}; predicted cached "
    prompt += str(decision["predicted_cached_tokens"])
    if not read:
        prompt = "prompt not read: this mode does not look at blocks"
    console.print(
        f"{prompt}, engine reported {_or_dash(decision['engine_cached_tokens'])} cached; "
        f"decided in {decision['decide_us']:.0f} µs" + _waited(decision)
    )
    if decision["degraded"]:
        console.print(f"[yellow]degraded:[/yellow] {', '.join(decision['degraded'])}")
    for line in _migration(decision.get("migration") or {}):
        console.print(line)
    candidates = decision["candidates"]
    terms = [term["name"] for term in candidates[0]["terms"]] if candidates else []
    units = [term["unit"] for term in candidates[0]["terms"]] if candidates else []
    cost_unit = units[-1] if units else ""
    barred = any(not candidate["eligible"] for candidate in candidates)
    ranked = any(candidate["dp_rank"] for candidate in candidates)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    table.add_column("worker", overflow="fold", no_wrap=False)
    for heading in ("held", "to compute", "live", "requests"):
        table.add_column(heading, justify="right")
    added = _adds_up(candidates)
    for number, name in enumerate(terms):
        words = name.replace("_", " ")
        table.add_column(f"+ {words}" if number and added else words, justify="right")
    table.add_column("= cost" if added else "cost", justify="right")
    if barred:
        table.add_column("barred by", overflow="fold")
    for candidate in sorted(candidates, key=lambda row: (not row["eligible"], row["cost"])):
        mine = candidate["worker"] == winner["worker"] and candidate["dp_rank"] == winner["dp_rank"]
        overlap, load = candidate["overlap"], candidate["load"]
        table.add_row(
            "→" if mine else "",
            escape(candidate["worker"]) + (f"/{candidate['dp_rank']}" if ranked else ""),
            _held(overlap) if read else "-",
            str(load["prefill_tokens"]) if read else "-",
            str(load["decode_blocks"]),
            str(load["active_requests"]),
            *(f"{term['value']:.1f}" for term in candidate["terms"]),
            f"{candidate['cost']:.1f}",
            *([candidate["why_not"] or ""] if barred else []),
            style="bold" if mine else ("dim" if not candidate["eligible"] else ""),
        )
    console.print(table)
    console.print(
        f"[dim]held: its blocks cached there · to compute: prompt tokens, with those queued · live: blocks of running "
        f"requests, with its own{f' · cost in {escape(cost_unit)}' if units else ''}[/dim]"
    )


def refusal_report(refusal: dict[str, Any]) -> None:
    """Why a request was not placed, and what barred each candidate."""
    console = Console(highlight=False)
    refused = refusal["refused"]
    console.print(
        f"[bold]{escape(refusal['id'])}[/bold]  mode {escape(refusal['mode'])}, model "
        f"{escape(refusal['model'] or '-')}: [bold]refused[/bold] with {refused['status']} {escape(refused['code'])}"
    )
    console.print(escape(refused["message"]))
    if refusal["waited_ms"]:
        console.print(f"it had waited {refusal['waited_ms']:.0f} ms in the queue")
    if not refusal["candidates"]:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("worker", overflow="fold")
    for heading in ("to compute", "live", "requests"):
        table.add_column(heading, justify="right")
    table.add_column("barred by", overflow="fold")
    for row in refusal["candidates"]:
        load = row["load"]
        table.add_row(
            escape(f"{row['worker']}/{row['dp_rank']}" if row["dp_rank"] else row["worker"]),
            str(load["prefill_tokens"]),
            str(load["decode_blocks"]),
            str(load["active_requests"]),
            row["why_not"],
        )
    console.print(table)


def _held(overlap: dict[str, int]) -> str:
    """`38`, or with slower tiers `30 + 8 host`."""
    slower = [f"{blocks} {tier}" for tier, blocks in overlap.items() if tier != "device" and blocks]
    parts = [str(overlap["device"])] if overlap["device"] or not slower else []
    return " + ".join(parts + slower)


def _adds_up(candidates: list[dict[str, Any]]) -> bool:
    """Whether the terms are summands of the cost; some modes compare them one after the other."""
    return all(
        abs(sum(term["value"] for term in row["terms"]) - row["cost"]) <= 1e-6 * max(1.0, abs(row["cost"]))
        for row in candidates
    )


def _waited(decision: dict[str, Any]) -> str:
    return f" after {decision['waited_ms']:.0f} ms in the queue" if decision.get("waited_ms") else ""


def _or_dash(value: Any) -> str:
    return "-" if value is None else str(value)
