"""docs/results.md from a run's folder: its table between marks, and the pictures of its report.html as files.

`python -m bench.results_page FOLDER --page docs/results.md --images docs/img --command '...'`. Reads result.json and
report.html; writes the page's block and `results-*.svg`, those of an earlier run are removed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from html import escape, unescape
from pathlib import Path
from typing import Any

from bench.marked import NoMarks, replace_block
from bench.tables import milliseconds, percent, ratio, table, verdict_lines

PREFIX = "results-"
MOST_PICTURES = 30
LEGEND_COLUMNS = 3
_FIGURE = re.compile(r"<figure[^>]*>(.*?)</figure>", re.DOTALL)
_CAPTION = re.compile(r"<figcaption[^>]*>(.*?)</figcaption>", re.DOTALL)
_LEGEND = re.compile(r"<span><svg[^>]*>(.*?)</svg>(.*?)</span>", re.DOTALL)
_SVG = re.compile(r"<svg\b([^>]*)>(.*?)</svg>", re.DOTALL)
_BOX = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')
_STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)
_TAG = re.compile(r"<[^>]+>")
_HEAD = (
    "arm", "TTFT mean", "p50", "p95", "ITL mean", "p50", "p95", "tokens/s", "from cache", "load CV", "failed",
    "TTFT: {} / arm", "ITL: {} / arm",
)  # fmt: skip


def figures(page: str) -> list[tuple[str, str]]:
    """(title, SVG) of each picture in a report.html. Each SVG stands alone: it has the page's style and its legend."""
    style = _STYLE.search(page)
    found = []
    for figure in _FIGURE.finditer(page):
        drawn = max(_SVG.finditer(figure[1]), key=lambda one: len(one[0]), default=None)
        box = _BOX.search(drawn[1]) if drawn is not None else None
        caption = _CAPTION.search(figure[1])
        if drawn is None or box is None or caption is None:
            continue
        title = unescape(_TAG.sub("", caption[1])).strip()
        found.append((title, _alone(drawn, box, _LEGEND.findall(figure[1]), style[1] if style else "")))
    return found[:MOST_PICTURES]


def _alone(drawn: re.Match[str], box: re.Match[str], legend: Sequence[tuple[str, str]], style: str) -> str:
    width, height = float(box[1]), float(box[2])
    top = 18.0 * -(-len(legend) // LEGEND_COLUMNS)
    items = []
    for index, (mark, label) in enumerate(legend):
        x, y = (index % LEGEND_COLUMNS) * width / LEGEND_COLUMNS, (index // LEGEND_COLUMNS) * 18.0 + 5
        items.append(f'<g transform="translate({x:g} {y:g})">{mark}<text x="32" y="8">{label}</text></g>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height + top:g}" role="img">'
        f"<style>{escape(style, quote=False)}</style>"
        f'<rect width="{width:g}" height="{height + top:g}" style="fill:var(--paper)"/>{"".join(items)}'
        f'<g transform="translate(0 {top:g})">{drawn[2]}</g></svg>'
    )


def write_pictures(pictures: Sequence[tuple[str, str]], folder: Path) -> list[tuple[str, str]]:
    """Writes each into `folder`; (title, file name) of each. Pictures of an earlier run go."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{PREFIX}*.svg"):
        old.unlink()
    written: dict[str, str] = {}
    for title, svg in pictures:
        slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:40].strip("-") or "picture"
        name = f"{PREFIX}{slug}.svg"
        number = 2
        while name in written:
            name, number = f"{PREFIX}{slug}-{number}.svg", number + 1
        (folder / name).write_text(svg + "\n", "utf-8")
        written[name] = title
    return [(title, name) for name, title in written.items()]


def markdown(data: Mapping[str, Any], pictures: Sequence[tuple[str, str]], command: str) -> str:
    """The block of the page. `pictures`: (title, path from the page); `command`: that made the run."""
    source, design = data["provenance"], data["design"]
    summary = source["workload"]["summary"]
    first = data["arms"][0]["name"]
    head = [cell.format(first) for cell in _HEAD]
    facts = (
        f"{source['workload']['name']}: {data['arms'][0]['requests']} requests an arm in {design['rounds']} rounds, "
        f"{_rate(summary)} requests/s, {source['fleet']['description']}, cold start by {design['cold_start']}. "
        f"kvctl {source['kvctl']}, Python {source['host']['python']}, {source['host']['cpus']} cores, workload "
        f"`{source['workload_sha256'][:12]}`. Milliseconds."
    )
    lines = [f"`{command}`", "", facts, "", *table(head, [_row(arm, data) for arm in data["arms"]])]
    lines += ["", *data["verdict"]["summary"], *verdict_lines(data["verdict"])]
    for title, path in pictures:
        lines += ["", f"**{title}**", "", f"![{title}]({path})"]
    if not pictures:
        lines += ["", "report.html had no pictures."]
    return "\n".join(lines) + "\n"


def _rate(summary: Mapping[str, Any]) -> str:
    rate = summary.get("rate")
    return f"{rate:.1f}" if isinstance(rate, int | float) else "?"


def _row(arm: Mapping[str, Any], data: Mapping[str, Any]) -> list[str]:
    name, metrics = arm["name"], arm["metrics"]
    tokens, cv = metrics["output_tok_s"], metrics["load_cv"]
    return [
        name + ("" if arm["stable"] else " (unstable)"),
        *(milliseconds(metrics["ttft_ms"][key]) for key in ("mean", "p50", "p95")),
        *(milliseconds(metrics["itl_ms"][key], 2) for key in ("mean", "p50", "p95")),
        "-" if tokens is None else f"{tokens:,.0f}",
        percent(metrics["cached_token_ratio"]),
        "?" if cv is None else f"{cv:.2f}",
        str(arm["failed"]),
        *(ratio(data["comparisons"], name, metric) for metric in ("ttft_ms.mean", "itl_ms.mean")),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes docs/results.md from a folder of kvctl bench.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--page", type=Path, required=True)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--command", required=True, help="shown on the page")
    given = parser.parse_args()
    try:
        data = json.loads((given.folder / "result.json").read_text("utf-8"))
        pictures = figures((given.folder / "report.html").read_text("utf-8"))
        written = write_pictures(pictures, given.images)
        where = Path(given.images).resolve().relative_to(given.page.resolve().parent)
        shown = [(title, f"{where.as_posix()}/{name}") for title, name in written]
        replace_block(given.page, "results", markdown(data, shown, given.command))
    except (OSError, NoMarks, ValueError, KeyError) as error:
        sys.exit(f"results: {type(error).__name__}: {error}")
    print(f"written: {given.page}, {len(written)} pictures in {given.images}")


if __name__ == "__main__":
    main()
