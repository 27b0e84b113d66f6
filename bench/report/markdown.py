"""report.md: the result as it goes into a pull request."""

from __future__ import annotations

from typing import Any

_STATS = ("mean", "p50", "p95", "p99")
DOES_NOT_COUNT = (
    "The numbers are shown, but nothing follows from them. If the machine was busy, run it again when it is idle, or "
    "with a lower --rate; docs/bench.md says what each reason means."
)


def markdown(data: dict[str, Any]) -> str:
    """`data`: the content of result.json."""
    verdict, source = data["verdict"], data["provenance"]
    lines = ["# kvctl bench", ""]
    for sentence in verdict["summary"]:
        lines += [f"**{sentence}**", ""]
    if not verdict["valid"]:
        lines += [DOES_NOT_COUNT, ""]
    arms = data["arms"]
    lines.append("| | " + " | ".join(arm["name"] for arm in arms) + " |")
    lines.append("|---|" + "---:|" * len(arms))
    for label, metric, digits in (("TTFT", "ttft_ms", 1), ("ITL", "itl_ms", 2), ("E2E", "e2e_ms", 1)):
        for stat in _STATS:
            cells = [_cell(arm["metrics"][metric].get(stat), digits, arm["failed"]) for arm in arms]
            lines.append(f"| {label} {stat}, ms | " + " | ".join(cells) + " |")
    lines.append("| prompt tokens from cache | " + " | ".join(_share(arm, "cached_token_ratio") for arm in arms) + " |")
    lines.append(
        "| output tokens/s | " + " | ".join(_cell(arm["metrics"]["output_tok_s"], 0, 0) for arm in arms) + " |"
    )
    lines.append("| requests (failed) | " + " | ".join(f"{arm['requests']} ({arm['failed']})" for arm in arms) + " |")
    lines.append("| stable | " + " | ".join("yes" if arm["stable"] else "**no**" for arm in arms) + " |")
    if data["comparisons"]:
        lines += ["", "| metric | ratio | 95 % interval | p | claimed |", "|---|---:|---:|---:|---|"]
        for row in data["comparisons"]:
            ratio = "-" if row["ratio"] is None else f"{row['ratio']:.3f}"
            ci = "n too small" if row["ci95"] is None else f"{row['ci95'][0]:.3f} to {row['ci95'][1]:.3f}"
            p = "-" if row["p"] is None else f"{row['p']:.3f}"
            claimed = "yes" if row["claimed"] else ""
            lines.append(f"| {row['metric']}, {row['other']} / {row['base']} | {ratio} | {ci} | {p} | {claimed} |")
    for gate in verdict["gates"]:
        lines += ["", f"- gate `{gate['gate']}`: **{gate['result']}** ({gate['why']})"]
    if verdict["reasons"]:
        lines += ["", "Why the run does not count:", ""] + [f"- {reason}" for reason in verdict["reasons"]]
    if verdict["notes"]:
        lines += ["", "Notes:", ""] + [f"- {note}" for note in verdict["notes"]]
    workload = source["workload"]
    lines += [
        "",
        f"Workload {workload['name']}, sha256 `{source['workload_sha256'][:16]}`, seed {source['seed']}, "
        f"{workload['summary']['requests']} requests an arm in {data['design']['rounds']} rounds, order "
        f"{' '.join(data['design']['order'])}, cold start by {data['design']['cold_start']}. "
        f"{source['fleet']['description']}. kvctl {source['kvctl']}.",
        "",
    ]
    return "\n".join(lines)


def _cell(value: float | None, digits: int, failed: int) -> str:
    if value is None:
        return "∞" if failed else "-"
    return f"{value:,.{digits}f}"


def _share(arm: dict[str, Any], name: str) -> str:
    value = arm["metrics"][name]
    return "-" if value is None else f"{value:.1%}"
