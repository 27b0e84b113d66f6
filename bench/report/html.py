"""report.html: one file that needs nothing else, no network, no script. Pictures where matplotlib is installed."""

from __future__ import annotations

from html import escape
from typing import Any

from bench.report.markdown import DOES_NOT_COUNT
from bench.report.plots import MissingLibrary, pictures
from bench.verdict import Verdict

_STATS = ("mean", "p50", "p90", "p95", "p99")
_WORDS = (
    "TTFT: from the scheduled time to the first token. ITL: mean time between tokens, one value a request. "
    "E2E: from the scheduled time to the last token. Load CV: spread of requests over workers, 0 is even. "
    "Stable: the queue did not grow over a block."
)
_STYLE = """
:root{color-scheme:light}*{box-sizing:border-box}
body{font:16px/1.5 system-ui,sans-serif;color:#212529;background:#fff;max-width:68rem;margin:0 auto;padding:1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
.verdict{border-left:4px solid #0b7285;padding:.25rem 1rem;background:#f1f3f5}.void{border-color:#e67700}
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.2rem .7rem;text-align:right;border-bottom:1px solid #dee2e6;white-space:nowrap}
th:first-child,td:first-child{text-align:left}
figure{margin:1.5rem 0}figcaption{font-weight:600;margin-bottom:.3rem}svg{width:100%;height:auto;max-width:44rem}
code{overflow-wrap:anywhere}dt{font-weight:600}dd{margin:0 0 .4rem}.small{font-size:.9rem;color:#495057}
@media(max-width:36rem){table{font-size:.85rem}th,td{padding:.15rem .3rem}}
"""


def html(data: dict[str, Any], verdict: Verdict) -> tuple[str, str | None]:
    """The page, and a sentence on what is missing from it (None: nothing).

    Args:
        data: the content of result.json.
        verdict: what the pictures are drawn from.
    """
    missing = None
    drawn: list[tuple[str, str]] = []
    try:
        drawn = pictures(verdict) if verdict.arms else []
    except MissingLibrary as error:
        missing = f"report.html has no pictures: {error}"
    said = data["verdict"]
    names = " · ".join(arm["name"] for arm in data["arms"])
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width,initial-scale=1'>",
        f"<title>kvctl bench: {escape(names)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>kvctl bench: {escape(names)}</h1>",
        f"<div class='verdict{'' if said['valid'] else ' void'}'>",
        *(f"<p>{escape(sentence)}</p>" for sentence in said["summary"]),
        *([] if said["valid"] else [f"<p>{escape(DOES_NOT_COUNT)}</p>"]),
        "</div>",
        *_list("Why the run does not count", said["reasons"]),
        *_list("Notes", said["notes"]),
        *_gates(said["gates"]),
        "<h2>Arms</h2>",
        _table(["", *(arm["name"] for arm in data["arms"])], _arm_rows(data["arms"])),
        f"<p class=small>{escape(_WORDS)}</p>",
        *_comparisons(data["comparisons"]),
        *(f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>" for title, svg in drawn),
        "<h2>How it was measured</h2>",
        *_provenance(data),
        "</body></html>",
    ]
    return "\n".join(parts), missing


def _table(head: list[str], rows: list[list[str]]) -> str:
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class=wide><table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>"


def _list(title: str, items: list[str]) -> list[str]:
    if not items:
        return []
    return [f"<h2>{escape(title)}</h2><ul>", *(f"<li>{escape(item)}</li>" for item in items), "</ul>"]


def _gates(gates: list[dict[str, str]]) -> list[str]:
    if not gates:
        return []
    return ["<h2>Gates</h2>", _table(["gate", "result", "why"], [[g["gate"], g["result"], g["why"]] for g in gates])]


def _arm_rows(arms: list[dict[str, Any]]) -> list[list[str]]:
    rows = []
    for label, metric, digits in (("TTFT", "ttft_ms", 1), ("ITL", "itl_ms", 2), ("E2E", "e2e_ms", 1)):
        for stat in _STATS:
            cells = [_number(arm["metrics"][metric].get(stat), digits, arm["failed"]) for arm in arms]
            rows.append([f"{label} {stat}, ms", *cells])
    rows.append(["longest gap p95, ms", *(_number(arm["metrics"]["stall_ms"].get("p95"), 1, 0) for arm in arms)])
    for label, name in (
        ("prompt tokens from cache", "cached_token_ratio"),
        ("predicted by the router", "predicted_cached_ratio"),
    ):
        rows.append([label, *(_share(arm["metrics"][name]) for arm in arms)])
    rows.append(["output tokens/s", *(_number(arm["metrics"]["output_tok_s"], 0, 0) for arm in arms)])
    if any(arm["metrics"]["goodput"] is not None for arm in arms):
        rows.append(["requests within SLO", *(_share(arm["metrics"]["goodput"]) for arm in arms)])
    rows.append(["load CV over workers", *(_number(arm["metrics"]["load_cv"], 2, 0) for arm in arms)])
    rows.append(["decision p50, µs", *(_number(arm["metrics"]["decision_us"].get("p50"), 0, 0) for arm in arms)])
    rows.append(["sent late p99, ms", *(_number(arm["metrics"]["sched_lag_ms"].get("p99"), 2, 0) for arm in arms)])
    rows.append(["requests (failed)", *(f"{arm['requests']} ({arm['failed']})" for arm in arms)])
    rows.append(["stable", *("yes" if arm["stable"] else "no" for arm in arms)])
    return rows


def _comparisons(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    made = [
        [
            f"{row['metric']}, {row['other']} / {row['base']}",
            _number(row["ratio"], 3, 0),
            f"{row['ci95'][0]:.3f} to {row['ci95'][1]:.3f}" if row["ci95"] else "n too small",
            _number(row["p"], 3, 0),
            _number(row["p_holm"], 3, 0),
            "yes" if row["claimed"] else "",
        ]
        for row in rows
    ]
    return ["<h2>Comparisons</h2>", _table(["metric", "ratio", "95 % interval", "p", "p, Holm", "claimed"], made)]


def _provenance(data: dict[str, Any]) -> list[str]:
    source, design = data["provenance"], data["design"]
    workload = source["workload"]
    facts = {
        "workload": f"{workload['name']}, sha256 {source['workload_sha256']}, seed {source['seed']}",
        "made with": ", ".join(f"{name} {value}" for name, value in workload["facts"].items()),
        "requests": ", ".join(f"{name} {value:,.4g}" for name, value in workload["summary"].items()),
        "engines": source["fleet"]["description"],
        "order of blocks": " ".join(design["order"]),
        "cold start": f"{design['cold_start']}, "
        f"{sum(block['cold']['proven'] for block in design['blocks'])} of {len(design['blocks'])} blocks proven",
        "host": ", ".join(f"{name} {value}" for name, value in source["host"].items()),
        "versions": ", ".join([f"kvctl {source['kvctl']}", *(f"{n} {v}" for n, v in source["packages"].items())]),
        "command": "kvctl " + " ".join(source["argv"]),
    }
    rows = [f"<dt>{escape(name)}</dt><dd><code>{escape(str(value))}</code></dd>" for name, value in facts.items()]
    return ["<dl>", *rows, "</dl>"]


def _number(value: float | None, digits: int, failed: int) -> str:
    if value is None:
        return "∞" if failed else "–"
    return f"{value:,.{digits}f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
