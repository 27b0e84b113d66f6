"""The final table and the verdict, for a terminal of 80 columns."""

from __future__ import annotations

from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.design import HEADLINE
from bench.explain.words import explanation_lines
from bench.gate import GateResult
from bench.report.rows import DOES_NOT_COUNT, legend
from bench.report.study import study_tables
from bench.study import Study
from bench.verdict import ArmResult, Compared, Verdict

_LATENCIES = (("TTFT", "ttft_ms"), ("ITL", "itl_ms"))
_STATS = ("mean", "p50", "p95", "p99")


def show(
    verdict: Verdict, console: Console, study: Study | None = None, explanation: dict[str, Any] | None = None
) -> None:
    """Prints table, gates, notes and verdict.

    Args:
        verdict: what the run came to.
        console: where to.
        study: of a sweep or a capacity search, in place of the arms.
        explanation: the key of result.json.
    """
    console.print(render(verdict, study, explanation))


def render(verdict: Verdict, study: Study | None = None, explanation: dict[str, Any] | None = None) -> RenderableType:
    parts: list[RenderableType] = [arms_table(verdict) if study is None else study_tables(study)]
    if len(verdict.arms) > 2 and verdict.comparisons:
        parts.append(ratios_table(verdict))
    return Group(*parts, render_verdict(verdict, explanation))


def render_verdict(verdict: Verdict, explanation: dict[str, Any] | None = None) -> RenderableType:
    """All but the tables: the star's legend, gates, why, notes, reasons, sentences."""
    parts: list[RenderableType] = []
    tests = sum(c.p_holm is not None for c in verdict.comparisons)
    if tests:
        parts.append(Text(legend(tests), style="dim"))
    for judged in verdict.gates:
        colour = {GateResult.PASS: "green", GateResult.FAIL: "red"}.get(judged.result, "yellow")
        line = Text(f"{judged.result:>12}  ", style=colour)
        parts.append(line + Text(f"{judged.gate.text}  ({judged.why})", style="default"))
    parts += [Text(f"why: {line}") for line in (explanation_lines(explanation) if explanation else [])]
    parts += [Text(f"note: {note}", style="dim") for note in verdict.notes]
    parts += [Text(f"void: {reason}", style="yellow") for reason in verdict.reasons]
    parts.append(Text(""))
    parts += [Text(sentence, style="bold") for sentence in verdict.sentences]
    if not verdict.valid:
        parts.append(Text(DOES_NOT_COUNT, style="yellow"))
    return Group(*parts)


def arms_table(verdict: Verdict) -> Table:
    """A column an arm; with two arms also their ratio, its interval and p."""
    table = Table(box=None, pad_edge=False, padding=(0, 1), show_edge=False)
    table.add_column("", no_wrap=True)
    for arm in verdict.arms:
        table.add_column(arm.arm.name, justify="right", overflow="fold")
    pair = len(verdict.arms) == 2 and bool(verdict.comparisons)
    if pair:
        table.add_column("ratio", justify="right")
        table.add_column("95 % interval", justify="right")
        table.add_column("p", justify="right")
    known = {c.metric: c for c in verdict.comparisons} if pair else {}
    for label, metric in _LATENCIES:
        for stat in _STATS:
            name = f"{metric}.{stat}"
            cells = [_latency(arm, name) for arm in verdict.arms]
            table.add_row(f"{label} {stat}, ms", *cells, *(_ratio_cells(known.get(name)) if pair else ()))
    cached = [_percent(arm.value("cached_token_ratio")) for arm in verdict.arms]
    ratio = _ratio_cells(known.get("cached_token_ratio")) if pair else ()
    table.add_row("prompt tokens from cache", *cached, *ratio)
    table.add_row("output tokens/s", *(_plain(arm.value("output_tok_s"), 0) for arm in verdict.arms))
    if any(arm.value("goodput") is not None for arm in verdict.arms):
        table.add_row("requests within SLO", *(_percent(arm.value("goodput")) for arm in verdict.arms))
    table.add_row("load CV over workers", *(_plain(arm.value("load_cv"), 2) for arm in verdict.arms))
    table.add_row("decision p50, µs", *(_plain(arm.value("decision_us.p50"), 0) for arm in verdict.arms))
    table.add_row(
        "requests (failed)",
        *(f"{len(arm.measured)} ({sum(not m.timing.ok for m in arm.measured)})" for arm in verdict.arms),
    )
    table.add_row("stable", *(_stable(arm) for arm in verdict.arms))
    return table


def ratios_table(verdict: Verdict) -> Table:
    """For more than two arms: the candidate's ratio to each base."""
    table = Table(box=None, pad_edge=False, padding=(0, 1), show_edge=False)
    candidate = verdict.arms[0].arm.name
    table.add_column(f"\n{candidate} /", no_wrap=True)
    bases = list(dict.fromkeys(c.base for c in verdict.comparisons))
    for base in bases:
        table.add_column(f"\n{base}", justify="right")
    known = {(c.metric, c.base): c for c in verdict.comparisons}
    shown = [f"{metric}.{stat}" for _, metric in _LATENCIES for stat in ("mean", "p95")] + ["cached_token_ratio"]
    for name in shown:
        cells = []
        for base in bases:
            ratio, interval, p = _ratio_cells(known.get((name, base)))
            star = " *" if p.endswith("*") else ""
            cells.append(f"{ratio}{star}  {interval}" if interval else ratio)
        table.add_row(name, *cells)
    return table


def _latency(arm: ArmResult, name: str) -> str:
    value = arm.value(name)
    if value is not None:
        return _plain(value, 2 if name.startswith("itl") else 1)
    return "∞" if any(not m.timing.ok for m in arm.measured) else "-"


def _ratio_cells(compared: Compared | None) -> tuple[str, str, str]:
    if compared is None:
        return "", "", ""
    found = compared.found
    interval = f"{found.ci95[0]:.2f} to {found.ci95[1]:.2f}" if found.ci95 else "n too small"
    p = f"{found.p:.3f}" if found.p is not None else "-"
    if compared.metric in HEADLINE and compared.claimed:
        p += " *"
    return ("-" if found.ratio is None else f"{found.ratio:.2f}"), interval, p


def _plain(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _stable(arm: ArmResult) -> Text:
    return Text("yes", style="green") if arm.stability.stable else Text("UNSTABLE", style="red")
