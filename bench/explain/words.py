"""The explanation in a few lines of plain words, for a terminal and for the reports. Pure; reads result.json's
`explanation`.
"""

from __future__ import annotations

from typing import Any

WEAK = 0.5
"""Share of explained variance below which the split is called weak."""


def signed(value: float) -> str:
    """One decimal with its sign; no sign before 0.0."""
    text = f"{value:+.1f}"
    return "0.0" if text[1:] == "0.0" else text


def explanation_lines(found: dict[str, Any]) -> list[str]:
    """A line a base on TTFT, one on caches, on predictions, on the router's own time; those that are known."""
    lines = [ttft_line(pair) for pair in found["ttft"]]
    arms = found["arms"]
    return [line for line in (*lines, _reached(arms), _predicted(arms), _outside(arms)) if line]


def ttft_line(pair: dict[str, Any]) -> str:
    if pair["difference_ms"] is None or not pair["effects"]:
        return f"where the TTFT of {pair['other']} against {pair['base']} comes from cannot be told: {pair['reason']}"
    parts = ", ".join(f"{one['name']} {signed(one['ms'])}" for one in pair["effects"] if one["ms"] is not None)
    weak = f"; the model explains little (R² {min(pair['r2']):.2f})" if min(pair["r2"]) < WEAK else ""
    return f"mean TTFT, {pair['other']} - {pair['base']}: {signed(pair['difference_ms'])} ms = {parts}{weak}"


def _reached(arms: list[dict[str, Any]]) -> str:
    known = [(arm["name"], arm["cache"]) for arm in arms if arm["cache"]["reached"] is not None]
    if not known:
        return ""
    parts = ", ".join(f"{name} {cache['reached']:.0%}" for name, cache in known)
    return f"of the tokens that an endless cache would hold ({known[0][1]['bound']:.0%} of all) from cache: {parts}"


def _predicted(arms: list[dict[str, Any]]) -> str:
    known = [(arm["name"], arm["cache"]["calibration"]) for arm in arms if arm["cache"]["calibration"]]
    if not known:
        return ""
    parts = ", ".join(
        f"{name} {signed(one['bias'])} ({one['exact']:.0%} exact)"
        if any(bin_["predicted"] for bin_ in one["bins"])
        else f"{name} predicts none"
        for name, one in known
    )
    return f"predicted less reported cached tokens a request, mean: {parts}"


def _outside(arms: list[dict[str, Any]]) -> str:
    parts = []
    for arm in arms:
        own = arm["overhead_ms"]
        if own["outside"] is not None:
            inner = [
                f"{name} {own[key]:.2f}" for name, key in (("decide", "decide"), ("tokenise", "tokenize")) if own[key]
            ]
            parts.append(f"{arm['name']} {own['outside']:.1f} ms" + (f" ({', '.join(inner)})" if inner else ""))
    return f"TTFT outside the engines (router, hops, HTTP), mean: {', '.join(parts)}" if parts else ""
