"""The charts of a comparison: distributions, pairs, load, calibration, where the difference comes from. Pure.

Each is a `Figure` for `html`. Points are thinned to what a screen can show, so the size does not grow with the run. Of
an arm that is unstable no pair is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.explain.words import signed
from bench.metrics import Measurements, values
from bench.report.svg import WIDTH, Chart, Point, Scale, open_svg, percent, plain, thinned
from bench.stats import mean
from bench.verdict import ArmResult, Verdict

CURVE_POINTS = 300
FIRST_SHARE = 0.005
"""A distribution is drawn from so much on: one early value must not take half the width."""
CLOUD_POINTS = 1500
LEVELS = 8
"""Steps of a heat map's colour."""
MOST_WORKERS = 64
"""Rows of a heat map; of more workers the first are shown."""
_HEADLINE = (("ttft_ms", "mean TTFT"), ("itl_ms", "mean ITL"))


@dataclass(frozen=True, slots=True)
class Figure:
    """`legend`: names of the series in the order of their colours; empty: the picture names them itself."""

    title: str
    svg: str
    legend: tuple[str, ...] = ()
    note: str = ""


def distributions(arms: Sequence[ArmResult]) -> list[Figure]:
    """Cumulative shares of TTFT and ITL; a curve ends below 100 % by the share that failed."""
    made = []
    for metric, title in (("ttft_ms", "TTFT: share of requests within"), ("itl_ms", "ITL: share of requests within")):
        curves = [_cdf(values(arm.measured, metric)) for arm in arms]
        if any(curves):
            chart = Chart(
                Scale.around((x for curve in curves for x, _ in curve), log=True),
                Scale(0, 1.02),
                "ms, logarithmic",
                f"{title} so many milliseconds. Medians: {_medians(arms, metric)}.",
                y_text=percent,
            )
            for index, curve in enumerate(curves):
                chart.line(curve, index, steps=True)
            made.append(Figure(title, chart.svg(), _names(arms)))
    return made


def _cdf(found: np.typing.NDArray[np.float64]) -> list[Point]:
    ordered = np.sort(found)
    finite = ordered[np.isfinite(ordered)]
    points = [(x, (i + 1) / len(found)) for i, x in enumerate(finite.tolist()) if x > 0]
    return thinned([point for point in points if len(found) < 1 / FIRST_SHARE or point[1] > FIRST_SHARE], CURVE_POINTS)


def _medians(arms: Sequence[ArmResult], metric: str) -> str:
    found = [(arm.arm.name, arm.value(f"{metric}.p50")) for arm in arms]
    return ", ".join(f"{name} {'none' if value is None else f'{value:.1f} ms'}" for name, value in found)


def pairs(verdict: Verdict) -> list[Figure]:
    """For each base that has a ratio: round by round, and request by request."""
    made = []
    by_name = {arm.arm.name: arm for arm in verdict.arms}
    for name in dict.fromkeys(c.base for c in verdict.comparisons):
        other, base = verdict.arms[0], by_name[name]
        rounds = _rounds(verdict, other, base)
        requests = _requests(other, base)
        made += [figure for figure in (rounds, requests) if figure is not None]
    return made


def _rounds(verdict: Verdict, other: ArmResult, base: ArmResult) -> Figure | None:
    series = [_round_ratios(other, base, metric) for metric, _ in _HEADLINE]
    if not any(series):
        return None
    found = {c.metric: c.found for c in verdict.comparisons if c.base == base.arm.name}
    bands = [one.ci95 if (one := found.get(f"{metric}.mean")) else None for metric, _ in _HEADLINE]
    heights = [y for points in series for _, y in points] + [end for band in bands if band for end in band] + [1.0]
    last = max(x for points in series for x, _ in points)
    chart = Chart(
        Scale(0.5, last + 0.5),
        Scale.around((y for y in heights if y > 0), log=True, room=0.08),
        "round",
        f"{other.arm.name} over {base.arm.name}, round by round. "
        + "; ".join(
            f"{label}: {sum(y < 1 for _, y in points)} of {len(points)} rounds below 1"
            for (_, label), points in zip(_HEADLINE, series, strict=True)
        ),
        x_text=lambda value: plain(value) if value == int(value) else "",
    )
    for index, (points, band) in enumerate(zip(series, bands, strict=True)):
        if band is not None:
            chart.band(band[0], band[1], index)
        chart.line(points, index)
        chart.dots(points, index)
    chart.rule((0.5, 1.0), (last + 0.5, 1.0))
    return Figure(
        f"Ratio {other.arm.name} / {base.arm.name} of each pair of blocks",
        chart.svg(),
        tuple(label for _, label in _HEADLINE),
        "Below 1 the candidate is faster. Bands: 95 % interval of all rounds.",
    )


def _round_ratios(other: ArmResult, base: ArmResult, metric: str) -> list[Point]:
    above, below = (
        {b.block.round: mean(values(b.facts.measured, metric)) for b in arm.blocks} for arm in (other, base)
    )
    return [
        (round_ + 1, above[round_] / below[round_])
        for round_ in sorted(set(above) & set(below))
        if math.isfinite(above[round_]) and math.isfinite(below[round_]) and below[round_] > 0 and above[round_] > 0
    ]


def _requests(other: ArmResult, base: ArmResult) -> Figure | None:
    parts = []
    below = {b.block.round: Measurements.of(b.facts.measured).latency("ttft_ms") for b in base.blocks}
    for block in other.blocks:
        mine = Measurements.of(block.facts.measured).latency("ttft_ms")
        theirs = below.get(block.block.round)
        if theirs is not None and len(theirs) == len(mine):
            parts.append(np.column_stack([theirs, mine]))
    joined = np.concatenate(parts) if parts else np.empty((0, 2))
    joined = joined[np.isfinite(joined).all(axis=1) & (joined > 0).all(axis=1)]
    if not len(joined):
        return None
    scale = Scale.around(joined.ravel().tolist(), log=True)
    sooner = float((joined[:, 1] < joined[:, 0]).mean())
    chart = Chart(
        scale,
        scale,
        f"{base.arm.name}, ms",
        f"TTFT of the same request in both arms: {sooner:.0%} of {len(joined)} are sooner with {other.arm.name}.",
        height=360,
    )
    chart.rule((scale.low, scale.low), (scale.high, scale.high))
    chart.cloud(thinned([(x, y) for x, y in joined.tolist()], CLOUD_POINTS), 0)
    return Figure(
        f"TTFT of the same request: {other.arm.name} (up) against {base.arm.name}",
        chart.svg(),
        note=f"Below the line {other.arm.name} is sooner: {sooner:.0%} of {len(joined):,} requests.",
    )


def in_flight(arms: Sequence[ArmResult]) -> Figure | None:
    """Requests in flight over the arrivals of a block, averaged over the blocks."""
    curves = [arm.stability.curve for arm in arms]
    if not any(curves):
        return None
    chart = Chart(
        Scale(0, 100),
        Scale.around((y for curve in curves for y in curve), zero=True),
        "share of the arrivals, %",
        "Requests in flight over a block, mean over blocks. "
        + ", ".join(
            f"{a.arm.name}: {a.stability.middle:.1f} in the middle, {a.stability.end:.1f} at the end" for a in arms
        ),
    )
    for index, curve in enumerate(curves):
        chart.line([(place + 0.5, value) for place, value in enumerate(curve)], index)
    return Figure("Requests in flight over a block", chart.svg(), _names(arms), "An arm that keeps up stays level.")


def decomposition(pair: dict[str, Any]) -> Figure | None:
    """`pair`: an entry of `explanation.ttft`."""
    rows = [one for one in pair["effects"] if one["ms"] is not None]
    if not rows:
        return None
    rows = [{"name": "together", "ms": pair["difference_ms"], "ci95": None}, *reversed(rows)]
    ends = [end for one in rows for end in (one["ms"], *(one["ci95"] or ()))]
    chart = Chart(
        Scale.around([*ends, 0.0], room=0.1),
        Scale(-0.6, len(rows) - 0.4),
        f"ms of mean TTFT, {pair['other']} − {pair['base']}",
        "Mean TTFT differs by " + ", ".join(f"{one['name']} {one['ms']:+.1f} ms" for one in reversed(rows)),
        height=52 + 28 * len(rows),
        left=104,
        right=62,
        y_ticks=False,
    )
    for place, one in enumerate(rows):
        chart.bar(0.0, one["ms"], place, 15, 0 if one["ms"] < 0 else 1)
        if one["ci95"]:
            chart.whisker(one["ci95"][0], one["ci95"][1], place)
        chart.text(chart.left - 8, chart.py(place) + 4, one["name"], "end")
        chart.text(WIDTH - 6, chart.py(place) + 4, signed(one["ms"]), "end")
    chart.rule((0.0, -0.6), (0.0, len(rows) - 0.4))
    return Figure(
        f"Where the difference in TTFT comes from: {pair['other']} − {pair['base']}",
        chart.svg(),
        note="Left of 0: sooner. Thin lines: 95 % interval over rounds.",
    )


def calibrations(arms: Sequence[dict[str, Any]]) -> Figure | None:
    """`arms`: of `explanation`. Predicted against reported share of the prompt that was cached, in bins."""
    known = [(index, arm) for index, arm in enumerate(arms) if arm["cache"]["calibration"]]
    if not known:
        return None
    chart = Chart(
        Scale(0, 1.02),
        Scale(0, 1.02),
        "share of the prompt that the router expected in cache",
        "Cached share of the prompt: predicted by the router against reported by the engine. "
        + ", ".join(
            f"{arm['name']}: bias {arm['cache']['calibration']['bias']:+.1f} tokens a request" for _, arm in known
        ),
        x_text=percent,
        y_text=percent,
    )
    chart.rule((0.0, 0.0), (1.0, 1.0))
    for index, arm in known:
        found = arm["cache"]["calibration"]
        points = [(one["predicted"], one["actual"]) for one in found["bins"]]
        chart.line(points, index)
        most = max(one["requests"] for one in found["bins"])
        for one, point in zip(found["bins"], points, strict=True):
            chart.dots([point], index, 2.5 + 5 * math.sqrt(one["requests"] / most))
    return Figure(
        "Cached share of the prompt: reported (up) against predicted",
        chart.svg(),
        tuple(arm["name"] for arm in arms),
        "On the line the prediction is right; larger dots are more requests.",
    )


def heats(arms: Sequence[dict[str, Any]]) -> list[Figure]:
    """`arms`: of `explanation`. One for each that names its workers, all on one scale of colour."""
    lines = [arm["load"]["time_line"] for arm in arms if arm["load"]["time_line"]]
    most = max((value for line in lines for row in line["in_flight"].values() for value in row), default=0.0)
    drawn = [_heat(arm, index, most or 1.0) for index, arm in enumerate(arms)]
    return [figure for figure in drawn if figure is not None]


def _heat(arm: dict[str, Any], series: int, most: float) -> Figure | None:
    """Requests in flight at each worker over the blocks, one after the other."""
    line = arm["load"]["time_line"]
    if not line:
        return None
    names = list(line["in_flight"])[:MOST_WORKERS]
    grid = np.array([line["in_flight"][name] for name in names])
    shares = {worker["name"]: worker["share"] for worker in arm["load"]["workers"]}
    left, right, top = 92.0, 48.0, 6.0
    row = 20.0 if len(names) <= 16 else 14.0
    height, across = top + row * len(names) + 24, WIDTH - left - right
    step = across / grid.shape[1]
    alt = (
        f"Requests in flight at each worker of {arm['name']} over time, at most {grid.max():.1f}. Shares of requests: "
    )
    parts = [open_svg(height, alt + ", ".join(f"{name} {shares[name]:.0%}" for name in names))]
    cells: dict[int, list[str]] = {}
    for index, levels in enumerate(np.ceil(grid / most * LEVELS).astype(int)):
        y = top + row * index
        for start, stop, level in _runs(levels.tolist()):
            if level:
                x, wide = left + start * step, (stop - start) * step
                cells.setdefault(level, []).append(f"M{x:.1f} {y:.1f}h{wide:.1f}v{row - 2:.0f}H{x:.1f}z")
        parts.append(
            f'<text x="{left - 6:.1f}" y="{y + row / 2 + 3:.1f}" text-anchor="end">{_short(names[index])}</text>'
        )
        parts.append(f'<text x="{WIDTH - right + 6:.1f}" y="{y + row / 2 + 3:.1f}">{shares[names[index]]:.0%}</text>')
    for level, drawn in sorted(cells.items()):
        parts.append(f'<path class="cell c{series % 6}" fill-opacity="{level / LEVELS:.2f}" d="{"".join(drawn)}"/>')
    each = grid.shape[1] / len(line["rounds"])
    for border in range(1, len(line["rounds"])):
        x = left + border * each * step
        parts.append(f'<path class="rule" d="M{x:.1f} {top:.1f}V{top + row * len(names):.1f}"/>')
    label = f"{len(line['rounds'])} blocks, one after the other"
    parts.append(f'<text x="{left + across / 2:.1f}" y="{height - 6:.1f}" text-anchor="middle">{label}</text></svg>')
    return Figure(
        f"{arm['name']}: requests in flight at each worker",
        "".join(parts),
        note=f"Full colour: {most:.1f} in flight. Right: share of the arm's requests.",
    )


def _runs(levels: list[int]) -> list[tuple[int, int, int]]:
    """(start, stop, level) of neighbours that are equal."""
    found: list[tuple[int, int, int]] = []
    for place, level in enumerate(levels):
        if found and found[-1][2] == level:
            found[-1] = (found[-1][0], place + 1, level)
        else:
            found.append((place, place + 1, level))
    return found


def _short(name: str) -> str:
    from html import escape

    return escape(name if len(name) <= 12 else "…" + name[-11:])


def curves(points: Sequence[dict[str, Any]], slo: dict[str, float]) -> list[Figure]:
    """`points`: of `sweep`. p95 of TTFT and ITL against the rate; hollow: the queue grew; void points are left out."""
    made = []
    names = tuple(dict.fromkeys(point["arm"] for point in points))
    for metric, title in (("ttft_ms", "TTFT p95 by request rate"), ("itl_ms", "ITL p95 by request rate")):
        good = [p for p in points if p[metric]["p95"] is not None and not p["void"]]
        if not good:
            continue
        limit = slo.get(f"{metric}.p95")
        highs = [p[metric]["p95"] for p in good] + ([limit] if limit else [])
        chart = Chart(
            Scale.around((p["rate"] for p in good), log=True, room=0.06),
            Scale.around(highs, log=True, room=0.06),
            "requests/s, logarithmic",
            f"{title}: "
            + "; ".join(
                f"{name} " + ", ".join(f"{p[metric]['p95']:.1f} ms at {p['rate']:g}" for p in good if p["arm"] == name)
                for name in names
            ),
        )
        if limit:
            chart.rule((chart.x.low, limit), (chart.x.high, limit))
        for index, name in enumerate(names):
            mine = [(p["rate"], p[metric]["p95"], p["stable"]) for p in good if p["arm"] == name]
            chart.line([(x, y) for x, y, _ in mine], index)
            chart.dots([(x, y) for x, y, stable in mine if stable], index, 4)
            chart.dots([(x, y) for x, y, stable in mine if not stable], index, 4, hollow=True)
        note = "Hollow: the queue grew, so the value says how long one measured."
        made.append(Figure(f"{title}, ms", chart.svg(), names, note + (" Thin line: the objective." if limit else "")))
    return made


def _names(arms: Sequence[ArmResult]) -> tuple[str, ...]:
    return tuple(arm.arm.name for arm in arms)
