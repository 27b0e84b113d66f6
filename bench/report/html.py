"""report.html: one file that needs nothing else, no network, no script. Verdict first, then numbers, then why.

Pure: result.json's content and the verdict's requests to a page. Its size does not grow with the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from bench.explain.words import explanation_lines
from bench.report import charts
from bench.report.charts import Figure
from bench.report.page_parts import capacity_table, guard_table, noise_table, overhead_table, provenance, sweep_table
from bench.report.page_style import STYLE
from bench.report.rows import DOES_NOT_COUNT, headline_tests, legend, metric_rows, ratio_cells
from bench.report.svg import DASHES, MARKS
from bench.report.tables import Cell, table
from bench.verdict import Verdict

_WORDS = (
    "TTFT: from the scheduled time to the first token. ITL: mean time between tokens, one value a request. "
    "E2E: from the scheduled time to the last token. Load CV: spread of requests over workers, 0 is even. "
    "∞: failed requests reach this percentile."
)


def html(data: dict[str, Any], verdict: Verdict) -> str:
    """The page.

    Args:
        data: the content of result.json.
        verdict: what the pictures are drawn from.
    """
    arms = [arm["name"] for arm in data["arms"]] or [arm["name"] for arm in data.get("capacity", {}).get("arms", [])]
    names = " · ".join(arms or dict.fromkeys(point["arm"] for point in data.get("sweep", {}).get("points", [])))
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width,initial-scale=1'>",
        "<meta name=color-scheme content='light dark'>",
        "<link rel=icon href='data:,'>",
        f"<title>kvctl bench: {escape(names)}</title><style>{STYLE}</style></head><body><main>",
        f"<h1>kvctl bench: {escape(names)}</h1>",
        *_verdict(data["verdict"]),
        *_section("Capacity", *capacity_table(data.get("capacity"))),
        *_section("Rate sweep", *sweep_table(data.get("sweep")), *_figures(_curves(data))),
        *_section("Numbers", *_numbers(data)),
        *_section("Why", *_why(data)),
        *_section("Distributions", *_figures(charts.distributions([a for a in verdict.arms if len(a.measured)]))),
        *_section("Pair by pair", *_figures(charts.pairs(verdict))),
        *_section("Workers over time", *_figures(_load(data, verdict))),
        *_section("Noise", *noise_table(data)),
        *_section("What could have spoiled it", *guard_table(data)),
        *_section("How it was measured", *provenance(data)),
        "</main></body></html>",
    ]
    return "\n".join(parts)


def _verdict(said: dict[str, Any]) -> list[str]:
    failed = any(gate["result"] == "fail" for gate in said["gates"])
    kind = "verdict failed" if failed else "verdict" if said["valid"] else "verdict void"
    parts = [f"<div class='{kind}'>", *(f"<p>{escape(sentence)}</p>" for sentence in said["summary"])]
    if not said["valid"]:
        parts.append(f"<p>{escape(DOES_NOT_COUNT)}</p>")
    parts.append("</div>")
    if said["gates"]:
        style = {"pass": "pass", "fail": "fail"}
        rows = [
            [g["gate"], Cell(g["result"], style.get(g["result"], "open")), Cell(g["why"], "words")]
            for g in said["gates"]
        ]
        parts += ["<h2>Gates</h2>", table(["gate", "result", "why"], rows)]
    for title, items in (("Why the run does not count", said["reasons"]), ("Notes", said["notes"])):
        if items:
            parts += [f"<h2>{title}</h2><ul>", *(f"<li>{escape(item)}</li>" for item in items), "</ul>"]
    return parts


def _section(title: str, *content: str) -> list[str]:
    """Nothing where there is no content."""
    return [f"<h2>{escape(title)}</h2>", *content] if content else []


def _numbers(data: dict[str, Any]) -> list[str]:
    """One table: values of the arms, with two arms also their ratio; with more a table of ratios for each base."""
    arms, comparisons = data["arms"], data["comparisons"]
    if not arms:
        return []
    pair = len(arms) == 2 and bool(comparisons)
    known = {row["metric"]: row for row in comparisons} if pair else {}
    rows: list[list[str | Cell]] = []
    for row in metric_rows(arms):
        rows.append([row.label, *row.cells, *(ratio_cells(known.get(row.metric)) if pair else ())])
    head = ["", *(arm["name"] for arm in arms), *(("ratio", "95 % interval", "p") if pair else ())]
    parts = [table(head, rows)]
    for base in () if pair else dict.fromkeys(row["base"] for row in comparisons):
        mine = [row for row in comparisons if row["base"] == base]
        name = f"{mine[0]['other']} / {base}"
        parts.append(table([name, "ratio", "95 % interval", "p"], [[r["metric"], *ratio_cells(r)] for r in mine]))
    if comparisons:
        words = f"Ratio: {comparisons[0]['other']} over the other arm, below 1 is faster. " + legend(
            headline_tests(comparisons)
        )
        parts.append(f"<p class=faint>{escape(words)}</p>")
    parts.append(f"<p class=faint>{escape(_WORDS)}</p>")
    return parts


def _why(data: dict[str, Any]) -> list[str]:
    found = data.get("explanation")
    if not found or not found["arms"]:
        return []
    lines = explanation_lines(found)
    parts = ["<ul>", *(f"<li>{escape(line)}</li>" for line in lines), "</ul>"] if lines else []
    figures = [charts.decomposition(pair) for pair in found["ttft"]]
    parts += _figures([*figures, charts.calibrations(found["arms"])])
    if any(pair["effects"] for pair in found["ttft"]):
        parts.append(f"<p class=faint>{escape(_MODEL)}</p>")
    return [*parts, *overhead_table(found["arms"])]


_MODEL = (
    "Hits: uncached prompt tokens of the request itself. Queueing: uncached tokens without a first token yet, and "
    "requests in flight, as an average over the workers when it was sent. Imbalance: how much more of both its own "
    "worker had. One linear model with a constant an arm and the same slopes for both; decision and late sends are "
    "measured. Unexplained is the difference of the constants. A description, no proof of causes: a hit also shortens "
    "the queue."
)


def _curves(data: dict[str, Any]) -> list[Figure]:
    slo = data.get("capacity", {}).get("slo", {})
    return charts.curves(data["sweep"]["points"], slo) if data.get("sweep") else []


def _load(data: dict[str, Any], verdict: Verdict) -> Sequence[Figure | None]:
    heats = charts.heats((data.get("explanation") or {}).get("arms", []))
    return [*heats, charts.in_flight(verdict.arms)] if verdict.arms else heats


def _figures(found: Sequence[Figure | None]) -> list[str]:
    drawn = [_figure(figure) for figure in found if figure is not None]
    return ["<div class=charts>", *drawn, "</div>"] if drawn else []


def _figure(figure: Figure) -> str:
    names = "".join(f"<span>{_key(index)}{escape(name)}</span>" for index, name in enumerate(figure.legend))
    key = f"<div class=legend>{names}</div>" if names else ""
    note = f"<p>{escape(figure.note)}</p>" if figure.note else ""
    return f"<figure><figcaption>{escape(figure.title)}</figcaption>{key}{figure.svg}{note}</figure>"


def _key(series: int) -> str:
    dash = DASHES[series % MARKS]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<svg viewBox="0 0 26 8" aria-hidden="true"><path class="line c{series % MARKS}"{dashed} d="M0 4H26"/></svg>'
    )
