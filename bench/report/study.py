"""The tables of a sweep and of a capacity search on the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.capacity import Outcome
from bench.study import Point, Study

_COLOURS = {Outcome.MET: "green", Outcome.MISSED: "red", Outcome.VOID: "yellow"}


def point_line(point: Point, judged: bool) -> str:
    """A probe in one line. `judged`: there are objectives."""
    said = (
        f"{point.arm} at {point.rate:.4g}/s: TTFT p95 {_ms(point, 'ttft_ms.p95')}, ITL p95 {_ms(point, 'itl_ms.p95')}"
    )
    said += f", {point.requests} requests, {point.failed} failed" + ("" if point.stable else ", UNSTABLE")
    if point.void:
        return f"{said}: does not count, {point.void[0].removeprefix(point.arm + ': ')}"
    if not judged:
        return said
    return f"{said}: {'met' if point.outcome is Outcome.MET else 'missed' + _why(point)}"


def _why(point: Point) -> str:
    return f" ({point.missed[0]})" if point.missed else " (the queue grew)"


def study_tables(study: Study) -> RenderableType:
    """The curve, then the capacities with every rate that was probed."""
    parts: list[RenderableType] = []
    if study.sweep:
        parts.append(_curve(study))
    if study.capacity:
        parts += [Text(""), _capacities(study)] if parts else [_capacities(study)]
    return Group(*parts)


def _curve(study: Study) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), show_edge=False)
    heads = ("req/s", "arm", "TTFT p50", "p95, ms", "ITL p50", "p95, ms", "tok/s", "in SLO", "")
    for head in heads:
        table.add_column(head, justify="left" if head in ("arm", "") else "right", no_wrap=head != "arm")
    for point in study.sweep:
        state = "void" if point.void else "" if point.stable else "UNSTABLE"
        table.add_row(
            f"{point.rate:.4g}",
            point.arm,
            _ms(point, "ttft_ms.p50", ""),
            _ms(point, "ttft_ms.p95", ""),
            _ms(point, "itl_ms.p50", ""),
            _ms(point, "itl_ms.p95", ""),
            _number(point.value("output_tok_s"), 0),
            _percent(point.value("goodput")),
            Text(state, style="yellow" if point.void else "red"),
        )
    return table


def _capacities(study: Study) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), show_edge=False)
    for head, side in (("arm", "left"), ("req/s", "right"), ("not met at", "right"), ("probes", "left")):
        table.add_column(head, justify=side)  # type: ignore[arg-type]
    for name, found in study.capacity.items():
        probes = Text()
        for rate, outcomes in found.probes:
            for outcome in outcomes:
                probes.append(f"{rate:.4g}", style=_COLOURS[outcome])
                probes.append({"met": "+ ", "missed": "- ", "void": "? "}[outcome])
        table.add_row(name, _number(found.rate, 2), _number(found.upper, 2), probes)
    return table


def _ms(point: Point, metric: str, unit: str = " ms") -> str:
    value = point.value(metric)
    if value is None:
        return "∞" if point.failed else "-"
    return f"{value:,.1f}{unit}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
