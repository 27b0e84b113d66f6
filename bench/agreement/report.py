"""The table of `make agreement`, and what is out of bounds. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bench.agreement.tools import STATS, Report
from bench.tables import milliseconds, table

BOUND = 0.02
METRICS = {
    "ttft_send_ms": ("TTFT, from the sending", "`ttft_send_ms`", "time_to_first_token", "ttft"),
    "itl_ms": ("ITL, one average a request", "`itl_ms`", "inter_token_latency", "tpot"),
    "icl_ms": ("gap between chunks, pooled", "`icl_ms`", "inter_chunk_latency", "itl"),
    "e2e_send_ms": ("E2E, from the sending", "`t_last - t_send`", "request_latency", "e2el"),
}
"""Metric -> title, and what kvctl, aiperf and vLLM call it."""
OURS = "kvctl"
_THEIRS = ("aiperf", "vllm")


def difference(report: Report, ours: Report, metric: str, stat: str) -> float | None:
    """Relative difference of a tool's number from kvctl's; None where one of them has none."""
    theirs, base = report.numbers.get(metric, {}).get(stat), ours.numbers[metric][stat]
    return theirs / base - 1 if theirs is not None and base else None


def beyond(reports: Mapping[str, Report], bound: float = BOUND) -> list[str]:
    """What differs by more than the bound, or was not the same work; empty if all agree."""
    ours, found = reports[OURS], []
    for name, report in reports.items():
        if name == OURS:
            continue
        for what in ("requests", "prompt_tokens", "output_tokens"):
            mine, theirs = getattr(ours, what), getattr(report, what)
            if mine != theirs:
                found.append(f"{name}: {theirs} {what.replace('_', ' ')}, kvctl {mine}")
        for metric, (title, *_) in METRICS.items():
            for stat in STATS:
                off = difference(report, ours, metric, stat)
                if off is not None and abs(off) > bound:
                    found.append(f"{name}: {title}, {stat}: {off:+.1%}")
    return found


def spread(runs: Sequence[Report], metric: str, stat: str) -> float:
    """How far one tool's own runs lie apart, relative to the smallest."""
    values = [run.numbers[metric][stat] for run in runs if metric in run.numbers]
    known = sorted(value for value in values if value is not None)
    return known[-1] / known[0] - 1 if known and known[0] else 0.0


def unsteady(runs: Mapping[str, Sequence[Report]], bound: float = BOUND) -> list[str]:
    """The numbers that one tool alone did not repeat within the bound."""
    found = []
    for metric, (title, *_) in METRICS.items():
        for stat in STATS:
            apart = {name: spread(its, metric, stat) for name, its in runs.items()}
            if max(apart.values(), default=0.0) > bound:
                found.append(f"{title}, {stat}: " + ", ".join(f"{name} {one:.1%}" for name, one in apart.items()))
    return found


def markdown(
    reports: Mapping[str, Report],
    versions: Mapping[str, str],
    facts: str,
    missing: Mapping[str, str],
    runs: Mapping[str, Sequence[Report]] | None = None,
) -> str:
    """The block of docs/measuring.md.

    Args:
        reports: by tool, `kvctl` among them.
        versions: of the tools.
        facts: a sentence on the run.
        missing: tools that could not be run, with the reason.
        runs: all runs of each tool, to say which numbers one tool alone does not repeat.
    """
    ours = reports[OURS]
    others = [name for name in _THEIRS if name in reports]
    head = ["", "", f"{OURS} {versions[OURS]}", *(f"{name} {versions[name]}" for name in others)]
    rows = []
    for metric, (title, *_names) in METRICS.items():
        for stat in STATS:
            base = ours.numbers[metric][stat]
            cells = [title if stat == STATS[0] else "", stat, milliseconds(base, 2)]
            for name in others:
                off = difference(reports[name], ours, metric, stat)
                cells.append(
                    "-" if off is None else f"{milliseconds(reports[name].numbers[metric][stat], 2)} ({off:+.1%})"
                )
            rows.append(cells)
    facts_of: tuple[tuple[str, Callable[[Report], str]], ...] = (
        ("requests, tokens in, tokens out", lambda one: f"{one.requests}, {one.prompt_tokens}, {one.output_tokens}"),
        ("times of sending against the plan, at most, ms", lambda one: f"{one.drift_s * 1000:.1f}"),
        ("machine waited for a core", lambda one: f"{one.stalled:.0%}"),
    )
    for title, value in facts_of:
        rows.append([title, "", value(ours), *(value(reports[name]) for name in others)])
    lines = [facts, "", *table(head, rows, words=2)]
    lines += ["", *(f"- {name} could not be run: {why}" for name, why in missing.items())]
    apart = beyond(reports)
    lines.append(f"More than {BOUND:.0%} apart: {'; '.join(apart)}." if apart else f"All agrees within {BOUND:.0%}.")
    moving = unsteady(runs or {})
    if moving:
        lines += ["", f"How far the runs of one tool lie apart, where it is more than {BOUND:.0%}:", ""]
        lines += [f"- {one}" for one in moving]
    return "\n".join(lines) + "\n"
