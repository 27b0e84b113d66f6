"""report.md: the result as it goes into a pull request, for GitHub's rendering. Verdict, one table, gates; the rest is
folded away. Pure; reads the content of result.json.
"""

from __future__ import annotations

import re
from typing import Any

from bench.explain.words import explanation_lines
from bench.report.rows import DOES_NOT_COUNT, headline_tests, legend, metric_rows, number

_STATS = ("mean", "p50", "p95", "p99")
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~])")


def markdown(data: dict[str, Any]) -> str:
    """`data`: the content of result.json."""
    verdict = data["verdict"]
    lines = ["# kvctl bench", ""]
    if not verdict["valid"]:
        lines += [
            "> [!WARNING]",
            "\n>\n".join(f"> {_text(said)}" for said in (*verdict["summary"], DOES_NOT_COUNT)),
            "",
        ]
    else:
        for sentence in verdict["summary"]:
            lines += [f"**{_text(sentence)}**", ""]
    for gate in verdict["gates"]:
        lines.append(f"- gate {_code(gate['gate'])}: **{gate['result']}** ({_text(gate['why'])})")
    if verdict["gates"]:
        lines.append("")
    if data["arms"]:
        lines += [*_table(data), ""]
    elif data.get("capacity"):
        lines += [*_capacities(data["capacity"]), ""]
    elif data.get("sweep"):
        lines += [*_points(data["sweep"]["points"]), ""]
    found = data.get("explanation")
    why = explanation_lines(found) if found else []
    for title, items in (
        ("Why", why), ("Why the run does not count", verdict["reasons"]), ("Notes", verdict["notes"]),
    ):  # fmt: skip
        if items:
            lines += [
                f"<details><summary>{title}</summary>",
                "",
                *(f"- {_text(one)}" for one in items),
                "",
                "</details>",
                "",
            ]
    return "\n".join([*lines, _made(data), ""])


def _table(data: dict[str, Any]) -> list[str]:
    """A row a metric. Each base has its value and, where there is one, the candidate's ratio to it."""
    arms, comparisons = data["arms"], data["comparisons"]
    bases = [arm["name"] for arm in arms[1:] if any(row["base"] == arm["name"] for row in comparisons)]
    known = {(row["metric"], row["base"]): row for row in comparisons}
    head = ["", *(_text(arm["name"]) for arm in arms)]
    head += [f"{_text(arms[0]['name'])} / {_text(base)} (95 %)" for base in bases]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    lines[0] = lines[0].replace("|  |", "| |", 1)
    for row in metric_rows(arms, _STATS):
        cells = [row.label, *row.cells, *(_ratio(known.get((row.metric, base))) for base in bases)]
        lines.append("| " + " | ".join(cells) + " |")
    if bases:
        lines += ["", "<sub>" + legend(headline_tests(comparisons)).replace("*", "\\*", 1) + "</sub>"]
    return lines


def _ratio(row: dict[str, Any] | None) -> str:
    if row is None or row["ratio"] is None:
        return ""
    interval = "n too small" if row["ci95"] is None else f"{row['ci95'][0]:.2f}–{row['ci95'][1]:.2f}"
    star = r" \*" if row["claimed"] else ""
    return f"{row['ratio']:.2f}{star} ({interval})"


def _capacities(found: dict[str, Any]) -> list[str]:
    lines = ["| arm | requests/s | not met at | |", "|---|---:|---:|---|"]
    for arm in found["arms"]:
        lines.append(
            f"| {_text(arm['name'])} | {number(arm['rate'], 2)} | {number(arm['upper'], 2)} | {_text(arm['reason'])} |"
        )
    return lines


def _points(points: list[dict[str, Any]]) -> list[str]:
    lines = ["| requests/s | arm | TTFT p95, ms | ITL p95, ms | |", "|---:|---|---:|---:|---|"]
    for one in points:
        state = "void" if one["void"] else "" if one["stable"] else "unstable"
        p95 = [number(one[metric]["p95"], 1) for metric in ("ttft_ms", "itl_ms")]
        lines.append(f"| {one['rate']:.4g} | {_text(one['arm'])} | {p95[0]} | {p95[1]} | {state} |")
    return lines


def _made(data: dict[str, Any]) -> str:
    source, design = data["provenance"], data["design"]
    workload = source["workload"]
    order = " ".join(design["order"])
    blocks = f"{design['rounds']} rounds, order {_text(order)}, " if order and len(order) < 200 else ""
    return (
        f"<sub>Workload {_text(workload['name'])}, sha256 `{source['workload_sha256'][:16]}`, seed {source['seed']}, "
        f"{workload['summary']['requests']:,} requests an arm, {blocks}cold start by {design['cold_start']}. "
        f"{_text(source['fleet']['description'])}. kvctl {source['kvctl']}.</sub>"
    )


def _text(words: str) -> str:
    """Words of others: nothing in them is markup, and they are one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(words.split()))


def _code(words: str) -> str:
    fence = "``" if "`" in words else "`"
    return f"{fence}{words}{fence}"
