"""The rows that both reports and no other file need: an arm's numbers, ratios, what could have spoiled the run. Pure;
reads the content of result.json.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

STATS = ("mean", "p50", "p90", "p95", "p99")
LATENCIES = (("TTFT", "ttft_ms", 1), ("ITL", "itl_ms", 2), ("E2E", "e2e_ms", 1))
DOES_NOT_COUNT = (
    "The numbers are shown, but nothing follows from them. If the machine was busy, run it again when it is idle, or "
    "with a lower --rate; docs/bench.md says what each reason means."
)


@dataclass(frozen=True, slots=True)
class Row:
    """`metric`: its name in `comparisons`, empty if it is not compared. `cells`: one an arm."""

    label: str
    metric: str
    cells: tuple[str, ...]


def legend(tests: int) -> str:
    """What the star means."""
    return (
        f"* a difference is shown: p of the exact test over rounds, corrected for {tests} test{'s' * (tests != 1)} "
        "(Holm), is at most 5 %, and the 95 % interval leaves out 1. Only mean TTFT and mean ITL are tested for that."
    )


def headline_tests(comparisons: list[dict[str, Any]]) -> int:
    return sum(row["p_holm"] is not None for row in comparisons)


def metric_rows(arms: list[dict[str, Any]], stats: tuple[str, ...] = STATS) -> list[Row]:
    """Latencies, caches, throughput, load, requests, in the order of the tables."""
    rows = [
        Row(f"{label} {stat}, ms", f"{metric}.{stat}", tuple(latency(arm, metric, stat, digits) for arm in arms))
        for label, metric, digits in LATENCIES
        for stat in stats
    ]
    rows.append(Row("longest gap p95, ms", "", tuple(latency(arm, "stall_ms", "p95", 1) for arm in arms)))
    for label, name, compared in (
        ("prompt tokens from cache", "cached_token_ratio", True),
        ("predicted by the router", "predicted_cached_ratio", False),
        ("requests within SLO", "goodput", False),
    ):
        found = [arm["metrics"].get(name) for arm in arms]
        if any(value is not None for value in found):
            rows.append(Row(label, name if compared else "", tuple(map(share, found))))
    for label, name, stat, digits in (
        ("output tokens/s", "output_tok_s", "", 0),
        ("load CV over workers", "load_cv", "", 2),
        ("decision p50, µs", "decision_us", "p50", 0),
        ("sent late p99, ms", "sched_lag_ms", "p99", 2),
    ):
        found = [arm["metrics"][name].get(stat) if stat else arm["metrics"][name] for arm in arms]
        if any(value is not None for value in found):
            rows.append(Row(label, "", tuple(number(value, digits) for value in found)))
    rows.append(Row("requests (failed)", "", tuple(f"{arm['requests']:,} ({arm['failed']:,})" for arm in arms)))
    rows.append(Row("queue stable", "", tuple("yes" if arm["stable"] else "no" for arm in arms)))
    return rows


def ratio_cells(row: dict[str, Any] | None) -> tuple[str, str, str]:
    """Ratio, interval, p of an entry of `comparisons`."""
    if row is None:
        return "", "", ""
    ratio = "–" if row["ratio"] is None else f"{row['ratio']:.3f}" + (" *" if row["claimed"] else "")
    interval = "n too small" if row["ci95"] is None else f"{row['ci95'][0]:.3f} to {row['ci95'][1]:.3f}"
    p = "–" if row["p"] is None else f"{row['p']:.3f}"
    return ratio, interval, p if row["p_holm"] is None else f"{p}, Holm {row['p_holm']:.3f}"


def latency(arm: dict[str, Any], metric: str, stat: str, digits: int) -> str:
    """∞ where failures reach the percentile, – where there is none."""
    value = arm["metrics"][metric].get(stat)
    if value is None and arm["failed"] and stat != "mean":
        return "∞"
    return number(value, digits)


def number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
