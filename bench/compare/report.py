"""The table of `make compare` from a run's result.json. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
    rows = [_row(arm, data, titles) for arm in data["arms"]]
    lines = [facts, "", _line(HEAD), _line(["---"] * 2 + ["---:"] * (len(HEAD) - 2)), *map(_line, rows)]
    if absent:
        lines += ["", "Not in the comparison:", "", *(f"- {name}: {_plain(why)}" for name, why in absent.items())]
    verdict = data["verdict"]
    if not verdict["valid"]:
        lines += ["", "The run does not count:", "", *(f"- {_plain(reason)}" for reason in verdict["reasons"])]
    elif verdict["notes"]:
        lines += ["", *(f"- {_plain(note)}" for note in verdict["notes"])]
    return "\n".join(lines) + "\n"


def summary_rate(summary: Mapping[str, Any]) -> str:
    """Requests/s of the schedule."""
    rate = summary.get("rate")
    return f"{rate:.1f}" if isinstance(rate, int | float) else "?"


def _row(arm: Mapping[str, Any], data: Mapping[str, Any], titles: Mapping[str, str]) -> list[str]:
    name, metrics = arm["name"], arm["metrics"]
    cached = metrics["cached_token_ratio"]
    return [
        titles.get(name, name) + ("" if arm["stable"] else " (unstable)"),
        str(data["provenance"]["versions"].get(name) or "unknown"),
        *(_ms(metrics["ttft_ms"][key]) for key in ("mean", "p50", "p95")),
        *(_ms(metrics["itl_ms"][key]) for key in ("mean", "p95")),
        "?" if cached is None else f"{cached:.0%}",
        str(arm["failed"]),
        *(_ratio(data["comparisons"], name, metric) for metric in ("ttft_ms.mean", "itl_ms.mean")),
    ]


def _ratio(comparisons: Sequence[Mapping[str, Any]], base: str, metric: str) -> str:
    for one in comparisons:
        if one["base"] == base and one["metric"] == metric and one["ratio"] is not None:
            interval = one["ci95"]
            span = f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else ""
            return f"{one['ratio']:.2f}{span}{'*' if one['claimed'] else ''}"
    return ""


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _plain(text: str) -> str:
    """One line, as it stands in a list."""
    return " ".join(text.split())
