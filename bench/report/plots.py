"""Pictures of a result as inline SVG: distributions, pairs, workers. matplotlib, imported only here, is optional."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from bench.metrics import values
from bench.verdict import ArmResult, Verdict

COLOURS = ("#0b7285", "#c2255c", "#e67700", "#2b8a3e", "#5f3dc4", "#495057")


class MissingLibrary(Exception):
    """matplotlib is not installed. The message says what to do."""


def pictures(verdict: Verdict) -> list[tuple[str, str]]:
    """(title, SVG) of each picture.

    Raises:
        MissingLibrary: there is no matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingLibrary("matplotlib is not installed (pip install matplotlib)") from error

    arms = [arm for arm in verdict.arms if arm.measured]
    made: list[tuple[str, str]] = []

    def draw(title: str, paint: Callable[[Any], None], height: float = 3.2) -> None:
        figure = Figure(figsize=(6.4, height), layout="constrained")
        axes = figure.add_subplot()
        paint(axes)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        made.append((title, _svg(figure, len(made))))

    draw("TTFT: share of requests answered within", lambda axes: _cdf(axes, arms, "ttft_ms", "TTFT, ms"))
    draw("ITL: share of requests at or below", lambda axes: _cdf(axes, arms, "itl_ms", "ITL, ms"))
    for base in arms[1:]:
        title = f"TTFT of the same request: {arms[0].arm.name} against {base.arm.name}"
        draw(title, lambda axes, base=base: _pairs(axes, arms[0], base), 4.2)  # type: ignore[misc]
    if any(arm.workers for arm in arms):
        draw("Requests by worker", lambda axes: _workers(axes, arms))
    draw("Requests in flight over a block (mean over blocks)", lambda axes: _in_flight(axes, arms))
    return made


def _svg(figure: Any, number: int) -> str:
    """The figure as an SVG element, its ids made unique on the page, its size left to the page."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": f"kvctl-{number}"}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = out.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'\bid="([^"]+)"', rf'id="p{number}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#p{number}-\1)", text)
    return re.sub(r'href="#([^"]+)"', rf'href="#p{number}-\1"', text)


def _cdf(axes: Any, arms: Sequence[ArmResult], metric: str, label: str) -> None:
    """Failures never arrive: a curve ends below 1 by their share."""
    for index, arm in enumerate(arms):
        found = sorted(values(arm.measured, metric))
        finite = [value for value in found if math.isfinite(value)]
        if finite:
            heights = [(i + 1) / len(found) for i in range(len(finite))]
            axes.step(finite, heights, where="post", label=arm.arm.name, color=COLOURS[index % len(COLOURS)])
    axes.set_ylim(0, 1.02)
    axes.set_xlabel(label)
    if metric == "ttft_ms":
        axes.set_xscale("log")
        _plain_numbers(axes.xaxis)
    axes.legend(frameon=False, loc="lower right")


def _plain_numbers(axis: Any) -> None:
    """20, 50, 100 on a logarithmic axis, in place of powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


def _pairs(axes: Any, other: ArmResult, base: ArmResult) -> None:
    below = {(b.block.round, m.request.id): m.value("ttft_ms") for b in base.blocks for m in b.facts.measured}
    points = [
        (below[key], m.value("ttft_ms"))
        for b in other.blocks
        for m in b.facts.measured
        if (key := (b.block.round, m.request.id)) in below
    ]
    points = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y) and x > 0 and y > 0]
    if points:
        low, high = min(min(p) for p in points), max(max(p) for p in points)
        axes.plot([low, high], [low, high], color="#868e96", linewidth=1)
        xs, ys = zip(*points, strict=True)
        axes.scatter(xs, ys, s=7, alpha=0.5, linewidths=0, color=COLOURS[0])
        axes.set_xscale("log")
        axes.set_yscale("log")
        _plain_numbers(axes.xaxis)
        _plain_numbers(axes.yaxis)
    axes.set_xlabel(f"{base.arm.name}, ms")
    axes.set_ylabel(f"{other.arm.name}, ms (below the line: sooner)")


def _workers(axes: Any, arms: Sequence[ArmResult]) -> None:
    names = sorted({name for arm in arms for name in arm.workers})
    width = 0.8 / len(arms)
    for index, arm in enumerate(arms):
        places = [i + index * width for i in range(len(names))]
        heights = [arm.workers.get(name, 0) for name in names]
        axes.bar(places, heights, width, label=arm.arm.name, color=COLOURS[index % len(COLOURS)])
    axes.set_xticks([i + 0.4 - width / 2 for i in range(len(names))], names, rotation=30, ha="right")
    axes.legend(frameon=False)


def _in_flight(axes: Any, arms: Sequence[ArmResult]) -> None:
    for index, arm in enumerate(arms):
        if arm.stability.curve:
            places = [(i + 0.5) for i in range(len(arm.stability.curve))]
            axes.plot(places, arm.stability.curve, label=arm.arm.name, color=COLOURS[index % len(COLOURS)])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("share of the arrivals, %")
    axes.legend(frameon=False)
