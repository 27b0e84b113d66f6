"""The figures of all rounds as Markdown: medians, ratios to vllm-router, and each goal as met or missed by how much.

Pure but for `write`. The main figure is the router's CPU time a request: it hardly depends on what else the machine
does, while requests a second do. A ratio is taken in each round, between arms measured minutes apart at most, and the
median of the rounds is shown.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from bench.proxy.load import Result
from bench.proxy.prompts import Load
from bench.proxy.routers import PEERS, Arm
from bench.proxy.run import CONNECTIONS, Measured, Outcome, Plan

_BUSY_CLIENT = 0.85
_IDLE_ROUTER = 0.9
_NOISY = 0.1
_LOADS = {
    Load.SMALL: "Small completions (no prompt is read for the decision)",
    Load.CHAT: "Growing chats as text, about 2,000 tokens",
    Load.IDS: "The same as token ids",
}

Figure = Callable[[Measured], float | None]


def _rate(one: Measured) -> float | None:
    return None if one.closed is None else one.closed.done / one.closed.seconds


def _cost(result: Result | None) -> float | None:
    """Microseconds of the router's CPU time for one answer or item."""
    return None if result is None or not result.router_cpu else result.router_cpu / result.done * 1e6


def _request_cost(one: Measured) -> float | None:
    return _cost(one.closed)


def _item_cost(one: Measured) -> float | None:
    return _cost(one.streams)


@dataclass(frozen=True, slots=True)
class Goal:
    """`figure` of `mine` over that of `theirs` must be at least (or at most) `bound`."""

    text: str
    mine: str
    theirs: str
    figure: str
    bound: float
    least: bool


GOALS = (
    Goal("round-robin: requests/s at least 1.2 times vllm-router's", "kvctl-rr", "vllm-rr", "rate", 1.2, True),
    Goal("kv, chats: requests/s at least kv_aware's", "kvctl-kv-chat", "vllm-kv-chat", "rate", 1.0, True),
    Goal("kv, token ids: requests/s at least kv_aware's", "kvctl-kv-ids", "vllm-kv-ids", "rate", 1.0, True),
    Goal("streams: CPU time an item at most Envoy's", "kvctl-rr", "envoy", "item", 1.0, False),
    Goal("added latency p50 at most half of vllm-router's", "kvctl-rr", "vllm-rr", "p50", 0.5, False),
    Goal("added latency p99 at most vllm-router's", "kvctl-rr", "vllm-rr", "p99", 1.0, False),
)


class Figures:
    """Looks figures up over the rounds; None where an arm has none."""

    def __init__(self, plan: Plan, outcome: Outcome) -> None:
        self._rounds = outcome.rounds
        self._arms = {arm.name: arm for arm in plan.arms}
        self._direct = {arm.load: arm.name for arm in plan.arms if arm.start is None}

    def median(self, name: str, figure: str) -> float | None:
        values = [value for value in self.each(name, figure) if value is not None]
        return statistics.median(values) if values else None

    def ratio(self, mine: str, theirs: str, figure: str) -> float | None:
        pairs = zip(self.each(mine, figure), self.each(theirs, figure), strict=False)
        ratios = [one / other for one, other in pairs if one is not None and other]
        return statistics.median(ratios) if ratios else None

    def each(self, name: str, figure: str) -> list[float | None]:
        rounds = self._rounds.get(name, [])
        plain: dict[str, Figure] = {"rate": _rate, "request": _request_cost, "item": _item_cost}
        if figure in plain:
            return [plain[figure](one) for one in rounds]
        arm = self._arms.get(name)
        direct = self._rounds.get(self._direct.get(arm.load, ""), []) if arm is not None else []
        return [_added(one, base, figure) for one, base in zip(rounds, direct, strict=False)]


def _added(one: Measured, direct: Measured, percentile: str) -> float | None:
    """Microseconds that the router adds to a percentile of the latency."""
    if one.paced is None or direct.paced is None:
        return None
    if percentile == "p50":
        return (one.paced.p50 - direct.paced.p50) * 1e6
    return (one.paced.p99 - direct.paced.p99) * 1e6


def markdown(plan: Plan, outcome: Outcome) -> str:
    figures = Figures(plan, outcome)
    parts = [_setup(plan, outcome)]
    for load, title in _LOADS.items():
        arms = [arm for arm in plan.arms if arm.load is load]
        if arms:
            parts.append(_requests(title, arms, figures))
    if any(arm.streams for arm in plan.arms):
        parts.append(_streams(plan, outcome, figures))
    parts.append(_goals(figures))
    notes = _notes(plan, outcome)
    if notes:
        parts.append("\n".join(f"- {note}" for note in notes))
    return "\n\n".join(parts) + "\n"


def _setup(plan: Plan, outcome: Outcome) -> str:
    peers = ", ".join(f"{name} {version}" for name, version in PEERS.items())
    return (
        f"{plan.rounds} rounds, {plan.seconds:g} s a measurement, {os.cpu_count()} cores ({outcome.cores}). {peers}. "
        f"{CONNECTIONS} keep-alive connections; added latency is over the engines alone, at {plan.rate:g} requests/s. "
        "Medians of the rounds; in brackets the ratio to vllm-router of the same load."
    )


def _requests(title: str, arms: list[Arm], figures: Figures) -> str:
    rows = [
        f"**{title}**",
        "",
        "| | requests/s | router CPU, µs a request | added p50, µs | added p99, µs |",
        "|---|---:|---:|---:|---:|",
    ]
    for arm in arms:
        cells = [_cell(figures, arm, figure) for figure in ("rate", "request", "p50", "p99")]
        if arm.start is None:
            cells[1:] = ["", "", ""]
        rows.append(f"| {arm.title} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _cell(figures: Figures, arm: Arm, figure: str) -> str:
    value = figures.median(arm.name, figure)
    if value is None:
        return "failed" if figure == "rate" else ""
    shown = f"{value:,.0f}" if abs(value) >= 100 or figure != "item" else f"{value:.1f}"
    ratio = None if arm.start is None else figures.ratio(arm.name, arm.against, figure)
    return shown if ratio is None else f"{shown} ({ratio:.2f})"


def _streams(plan: Plan, outcome: Outcome, figures: Figures) -> str:
    rows = [
        f"**{plan.streams} streams of 64 items a second each**, and memory with {plan.held:,} streams that keep still",
        "",
        "| | items/s delivered | router CPU, µs an item | so streams a core | memory a held stream, kB |",
        "|---|---:|---:|---:|---:|",
    ]
    for arm in plan.arms:
        if not arm.streams:
            continue
        rounds = [one.streams for one in outcome.rounds.get(arm.name, []) if one.streams is not None]
        if not rounds:
            rows.append(f"| {arm.title} | failed | | | |")
            continue
        rate = statistics.median(one.done / one.seconds for one in rounds)
        cost = figures.median(arm.name, "item")
        streams = "" if cost is None else f"{1e6 / cost / 64:,.0f}"
        held = next((one for one in outcome.rounds[arm.name] if one.held is not None), None)
        memory = (
            "" if held is None or held.held is None else f"{(held.held.memory - held.memory) / plan.held / 1e3:.1f}"
        )
        rows.append(f"| {arm.title} | {rate:,.0f} | {_cell(figures, arm, 'item')} | {streams} | {memory} |")
    return "\n".join(rows)


def _goals(figures: Figures) -> str:
    rows = ["| goal | measured | | by CPU time |", "|---|---:|---|---:|"]
    for goal in GOALS:
        ratio = figures.ratio(goal.mine, goal.theirs, goal.figure)
        costs = figures.ratio(goal.theirs, goal.mine, "request") if goal.figure == "rate" else None
        if ratio is None:
            verdict, shown = "not measured", ""
        else:
            met = ratio >= goal.bound if goal.least else ratio <= goal.bound
            missing = goal.bound / ratio if goal.least else ratio / goal.bound
            verdict, shown = "met" if met else f"missed by a factor of {missing:.2f}", f"{ratio:.2f}"
        rows.append(f"| {goal.text} | {shown} | {verdict} | {'' if costs is None else f'{costs:.2f}'} |")
    return "\n".join(rows)


def _notes(plan: Plan, outcome: Outcome) -> list[str]:
    """What the reader must know: arms that failed, a client that was the limit, a core that was not the router's."""
    notes = []
    for arm in plan.arms:
        if arm.name in outcome.failed:
            kept = sum(one.closed is not None for one in outcome.rounds.get(arm.name, []))
            why = outcome.failed[arm.name]
            notes.append(f"{arm.title} ({arm.name}): measured in {kept} of {plan.rounds} rounds; last failure: {why}")
        rounds = outcome.rounds.get(arm.name, [])
        if any(_client_bound(arm, one) for one in rounds):
            notes.append(
                f"{arm.title} ({arm.name}): client and engines were the limit of requests/s, not the router; read its "
                "CPU time instead"
            )
        foreign = max((one.foreign for one in rounds), default=0.0)
        if arm.start is not None and foreign > _NOISY:
            notes.append(f"{arm.title} ({arm.name}): other programs took up to {foreign:.0%} of the router's core")
    return notes


def _client_bound(arm: Arm, one: Measured) -> bool:
    closed = one.closed
    if closed is None:
        return False
    if arm.start is None:
        return closed.client_cpu / closed.seconds > _BUSY_CLIENT
    return closed.router_cpu / closed.seconds + one.foreign < _IDLE_ROUTER
