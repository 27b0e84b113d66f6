"""The table of `make compare` from a run's result.json. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.tables import milliseconds, one_line, percent, ratio, table, verdict_lines

HEAD = (
    "arm",
    "version",
    "TTFT mean",
    "p50",
    "p95",
    "ITL mean",
    "p95",
    "from cache",
    "failed",
    "TTFT: kv / arm",
    "ITL: kv / arm",
)


def markdown(
    data: Mapping[str, Any], titles: Mapping[str, str], absent: Mapping[str, str], command: str, prompts: str
) -> str:
    """What the block of docs/compare.md holds.

    Args:
        data: content of result.json.
        titles: of the arms, by name.
        absent: arms that are not in it, with the reason.
        command: that started the run.
        prompts: what kind of prompt was sent.
    """
    design, source = data["design"], data["provenance"]
    summary = source["workload"]["summary"]
    facts = (
        f"`{command}`: prompts as {prompts}, {design['rounds']} rounds, {data['arms'][0]['requests']} requests an arm, "
        f"{summary_rate(summary)} requests/s, cold start by {design['cold_start']}, {source['host']['cpus']} cores, "
        f"Python {source['host']['python']}. Milliseconds."
    )
    lines = [facts, "", *table(HEAD, [_row(arm, data, titles) for arm in data["arms"]], words=2)]
    if absent:
        lines += ["", "Not in the comparison:", "", *(f"- {name}: {one_line(why)}" for name, why in absent.items())]
    return "\n".join(lines + verdict_lines(data["verdict"])) + "\n"


def summary_rate(summary: Mapping[str, Any]) -> str:
    """Requests/s of the schedule."""
    rate = summary.get("rate")
    return f"{rate:.1f}" if isinstance(rate, int | float) else "?"


def _row(arm: Mapping[str, Any], data: Mapping[str, Any], titles: Mapping[str, str]) -> list[str]:
    name, metrics = arm["name"], arm["metrics"]
    return [
        titles.get(name, name) + ("" if arm["stable"] else " (unstable)"),
        str(data["provenance"]["versions"].get(name) or "unknown"),
        *(milliseconds(metrics["ttft_ms"][key]) for key in ("mean", "p50", "p95")),
        *(milliseconds(metrics["itl_ms"][key]) for key in ("mean", "p95")),
        percent(metrics["cached_token_ratio"]),
        str(arm["failed"]),
        *(ratio(data["comparisons"], name, metric) for metric in ("ttft_ms.mean", "itl_ms.mean")),
    ]
