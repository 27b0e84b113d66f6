"""Parts of report.html below the verdict: capacities, noise, guards, overhead, provenance. Pure; reads result.json's
content.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from bench.report.rows import number, share
from bench.report.tables import Cell, table

MOST_POINTS = 100
"""Rows of the table of a sweep."""


def capacity_table(found: dict[str, Any] | None) -> list[str]:
    if not found:
        return []
    slo = ", ".join(f"{metric} ≤ {limit:g} ms" for metric, limit in found["slo"].items())
    rows: list[list[str | Cell]] = [
        [
            arm["name"],
            number(arm["rate"], 2),
            number(arm["upper"], 2),
            str(len(arm["probes"])),
            Cell(arm["reason"] or "both edges confirmed", "words"),
        ]
        for arm in found["arms"]
    ]
    caption = f"Largest rate within {slo} and a queue that does not grow, to {found['precision']:.0%}"
    parts = [table(["arm", "requests/s", "not met at", "probes", ""], rows, caption)]
    for ratio in found["ratios"]:
        high = "" if ratio["high"] is None else f" to {ratio['high']:.2f}"
        least = "at least " if ratio["high"] is None else ""
        parts.append(
            f"<p>{escape(ratio['other'])} / {escape(ratio['base'])}: {least}{ratio['low']:.2f}{high}, by what the "
            "brackets leave open.</p>"
        )
    return parts


def sweep_table(found: dict[str, Any] | None) -> list[str]:
    if not found:
        return []
    rows: list[list[str | Cell]] = [
        [
            f"{point['rate']:.4g}",
            point["arm"],
            *(_reached(point, metric, stat) for metric in ("ttft_ms", "itl_ms") for stat in ("p50", "p95")),
            number(point["output_tok_s"], 0),
            share(point["goodput"]),
            Cell("void" if point["void"] else "" if point["stable"] else "unstable", "open"),
        ]
        for point in found["points"][:MOST_POINTS]
    ]
    head = ["req/s", "arm", "TTFT p50", "p95, ms", "ITL p50", "p95, ms", "tok/s", "in SLO", ""]
    return [table(head, rows)]


def _reached(point: dict[str, Any], metric: str, stat: str) -> str:
    value = point[metric][stat]
    return "∞" if value is None and point["failed"] else number(value, 1)


def noise_table(data: dict[str, Any]) -> list[str]:
    """The A/A control, and what the run can show by it."""
    pilot = data["design"].get("pilot")
    parts = []
    if pilot and pilot["noise"]:
        rows: list[list[str | Cell]] = [
            [
                metric,
                f"{one['round_sd']:.1%}",
                f"{one['interval90'][0]:.1%} to {one['interval90'][1]:.1%}",
                "none" if one["detectable"] is None else f"{one['detectable']:.1%}",
            ]
            for metric, one in pilot["noise"].items()
        ]
        caption = f"A/A control: {len(pilot['pairs'])} pairs of equal blocks, before the run"
        head = ["metric", "noise of a round", "could be (90 %)", "smallest difference found with 80 %"]
        parts.append(table(head, rows, caption))
        if pilot["carry_over"]:
            carried = ", ".join(pilot["carry_over"])
            parts.append(
                f"<p>The second of two equal blocks differed the same way in every pair: {escape(carried)}.</p>"
            )
    measured = [row for row in data["comparisons"] if row.get("round_sd") is not None and row["p_holm"] is not None]
    if measured:
        rows = [
            [f"{r['metric']}, {r['other']} / {r['base']}", f"{r['round_sd']:.1%}", str(r["rounds"])] for r in measured
        ]
        parts.append(table(["metric", "noise of a round in the run", "rounds"], rows))
    return parts


def guard_table(data: dict[str, Any]) -> list[str]:
    """The client and the machine while it measured, by arm; each of these can void a run."""
    blocks = data["design"]["blocks"]
    if not blocks:
        return []
    arms = {arm["name"]: arm for arm in data["arms"]}
    rows: list[list[str | Cell]] = []
    for name in dict.fromkeys(block["arm"] for block in blocks):
        mine = [block for block in blocks if block["arm"] == name]
        clients = [block["client"] for block in mine]
        machine = [c["machine_cpu"] for c in clients if c["machine_cpu"] is not None]
        proven = sum(block["cold"]["proven"] for block in mine)
        arm = arms.get(name)
        rows.append(
            [
                name,
                f"{max(c['cpu'] for c in clients):.0%}",
                share(sum(machine) / len(machine)) if machine else "–",
                number(max(c["loop_lag_max_ms"] for c in clients), 1),
                number(arm["metrics"]["sched_lag_ms"].get("p99"), 2) if arm else "–",
                f"{proven} of {len(mine)}",
                f"{max(c['connections_peak'] for c in clients):,}",
                f"{arm['failed']:,}" if arm else "–",
                "–" if arm is None else "yes" if arm["stable"] else "no",
            ]
        )
    head = [
        "arm", "client CPU, most", "machine CPU", "loop late, most, ms", "sent late p99, ms", "blocks proven cold",
        "connections, most", "failed", "queue stable",
    ]  # fmt: skip
    return [table(head, rows)]


def overhead_table(arms: Sequence[dict[str, Any]]) -> list[str]:
    """Mean milliseconds a request, by three clocks."""
    named = (
        ("TTFT from the send, client's clock", "client_ttft"),
        ("TTFT, engines' clocks", "engine_ttft"),
        ("outside the engines", "outside"),
        ("client to router", "to_router"),
        ("tokenise", "tokenize"),
        ("decide", "decide"),
        ("router to engine", "to_engine"),
        ("queue inside the engines", "queue"),
        ("prefill inside the engines", "prefill"),
    )
    rows: list[list[str | Cell]] = [
        [label, *(number(arm["overhead_ms"][key], 2) for arm in arms)]
        for label, key in named
        if any(arm["overhead_ms"][key] is not None for arm in arms)
    ]
    if not rows:
        return []
    return [table(["", *(arm["name"] for arm in arms)], rows, "Mean milliseconds of a request before its first token")]


def provenance(data: dict[str, Any]) -> list[str]:
    """Everything that is needed to run it again."""
    source, design = data["provenance"], data["design"]
    workload = source["workload"]
    proven = sum(block["cold"]["proven"] for block in design["blocks"])
    facts = {
        "workload": f"{workload['name']}, sha256 {source['workload_sha256']}, seed {source['seed']}",
        "made with": ", ".join(f"{name} {value}" for name, value in workload["facts"].items()),
        "requests": ", ".join(f"{name} {value:,.4g}" for name, value in workload["summary"].items()),
        "engines": source["fleet"]["description"],
        "model": str(source.get("model") or ""),
        "order of blocks": " ".join(design["order"]),
        "cold start": f"{design['cold_start']}, {proven} of {len(design['blocks'])} blocks proven",
        "host": ", ".join(f"{name} {value}" for name, value in source["host"].items()),
        "versions": ", ".join([f"kvctl {source['kvctl']}", *(f"{n} {v}" for n, v in source["packages"].items())]),
        "routers": ", ".join(f"{name} {version or 'unknown'}" for name, version in source.get("versions", {}).items()),
        "command": "kvctl " + " ".join(source["argv"]),
    }
    rows = [f"<dt>{escape(name)}</dt><dd><code>{escape(value)}</code></dd>" for name, value in facts.items() if value]
    return ["<dl>", *rows, "</dl>"]
