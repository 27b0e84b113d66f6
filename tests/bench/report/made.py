"""Results made by hand for the tests of the reports: a pair, many arms, one arm, nothing answered, stopped, unstable,
large, with a sweep."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console

from bench.arms import Fleet
from bench.client.table import Table
from bench.client.timing import Timing
from bench.design import plan
from bench.experiment import BlockResult, Experiment
from bench.explain.explain import explain, explanation_data
from bench.gate import parse_gate
from bench.guards import Limits
from bench.metrics import Measurements
from bench.report.terminal import render
from bench.result import Provenance, result
from bench.verdict import Verdict, reach
from bench.workload.describe import describe
from tests.bench.results import experiment, request, timing, workload

Make = Callable[[str, int, int, float], Timing]


def usual(arm: str, round_: int, number: int, sched: float) -> Timing:
    """kv is twice as fast and finds more; both use two workers."""
    fast = arm == "kv"
    return timing(
        sched,
        ttft=(0.05 if fast else 0.1) * (1 + 0.01 * (number % 7) + 0.005 * round_),
        itl=0.01 if fast else 0.012,
        cached=(16 * (number % 6)) if fast else 0,
        worker=f"w{number % 2}",
    )


def made(
    names: tuple[str, ...] = ("kv", "random"),
    make: Make = usual,
    *,
    rounds: int = 8,
    count: int = 20,
    gates: tuple[str, ...] = (),
    change: Callable[[Experiment], None] | None = None,
    draws: int = 100,
) -> tuple[dict[str, Any], Verdict]:
    """The content of result.json and the verdict. `change`: what happens to the experiment before it is judged."""
    arms, found = experiment(names, make, rounds=rounds, count=count)
    if change is not None:
        change(found)
    judged = [parse_gate(text, list(names)) for text in gates]
    verdict = reach(arms, found, judged, None, Limits(), 0, draws=draws)
    sent = workload(rounds, count)
    summary = describe(sent)
    provenance = Provenance("0.1.0", ["bench", "--modes", ",".join(names)], 0, sent, summary, Fleet("2 engines", []))
    data: dict[str, Any] = result(verdict, found, plan(len(names), rounds, 0), provenance)
    data["explanation"] = explanation_data(explain(verdict, 0.8, 0, draws=draws))
    return data, verdict


def failing(arm: str, round_: int, number: int, sched: float) -> Timing:
    return timing(sched, error="http_503", worker=None)


def growing(arm: str, round_: int, number: int, sched: float) -> Timing:
    """random's queue grows."""
    return timing(sched, ttft=0.2 * number if arm == "random" else 0.1, cached=64)


def stopped(found: Experiment) -> None:
    """Ctrl-C in the third block."""
    del found.blocks[3:]
    found.blocks[2].interrupted = True
    found.interrupted = True


def nothing_complete(found: Experiment) -> None:
    """Ctrl-C in the first."""
    del found.blocks[1:]
    found.blocks[0].interrupted = True
    found.interrupted = True


def one_side_only(found: Experiment) -> None:
    """The second arm never ran."""
    kept: list[BlockResult] = [block for block in found.blocks if block.block.arm == 0]
    found.blocks[:] = kept


def large(rounds: int, count: int) -> tuple[dict[str, Any], Verdict]:
    """Two arms of `rounds` blocks of `count` requests, every value different, written as columns."""
    rng = np.random.default_rng(0)
    sent = [[request(number, round_) for number in range(count)] for round_ in range(rounds)]

    def columns(found: Experiment) -> None:
        for block in found.blocks:
            table = Table(count)
            sched = block.start + 0.1 * np.arange(count)
            first = sched + rng.lognormal(-3, 0.5, count)
            last = first + 4 * rng.lognormal(-5, 0.2, count)
            table.times[:] = np.column_stack([sched, sched, first, first, last, last, last])
            table.counts[:] = np.column_stack(
                [
                    np.full(count, 200),
                    np.full(count, 100),
                    rng.integers(0, 100, count),
                    *np.tile([[5], [1], [0]], count),
                ]
            )
            table.workers[:] = [f"w{worker}" for worker in rng.integers(0, 2, count).tolist()]
            block.facts.measured = Measurements.block(sent[block.block.round], table, {})

    return made(rounds=rounds, count=1, change=columns, draws=5)


CASES: dict[str, Callable[[], tuple[dict[str, Any], Verdict]]] = {
    "a pair": lambda: made(gates=("ttft_ms.mean: kv <= 0.9*random", "itl_ms.mean: kv <= 0.5*random")),
    "one arm": lambda: made(("kv",)),
    "five arms": lambda: made(("kv", "random", "round-robin", "least-loaded", "power-of-two"), rounds=2),
    "nothing answered": lambda: made(make=failing, rounds=2),
    "stopped": lambda: made(change=stopped),
    "stopped in the first block": lambda: made(change=nothing_complete),
    "one side only": lambda: made(change=one_side_only),
    "unstable": lambda: made(make=growing),
    "two requests a block": lambda: made(rounds=1, count=2),
}


def shown(data: dict[str, Any], verdict: Verdict, width: int = 80) -> str:
    """The terminal's text."""
    console = Console(width=width, file=io.StringIO())
    console.print(render(verdict, None, data["explanation"]))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def sweep(data: dict[str, Any]) -> dict[str, Any]:
    """The content of result.json of a sweep with a search, as the study leaves it."""

    def point(
        arm: str, rate: float, p95: float | None, stable: bool = True, void: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        spread = {"mean": 1.0, "p50": 1.0, "p95": p95, "p99": p95}
        return {
            "arm": arm, "rate": rate, "block": 0, "repeat": 0, "requests": 72, "failed": 0 if p95 else 40,
            "stable": stable, "outcome": "met", "missed": [], "void": list(void), "ttft_ms": spread,
            "itl_ms": spread, "e2e_ms": spread, "output_tok_s": 100.0, "goodput": 0.9, "goodput_req_s": 3.0,
            "cached_token_ratio": 0.5, "load_cv": 0.1,
        }  # fmt: skip

    points = [
        point("kv", 4, 40), point("random", 4, 60), point("kv", 8, 50), point("random", 8, 900, stable=False),
        point("kv", 16, 70, void=("kv: the client was slow",)), point("random", 16, None),
    ]  # fmt: skip
    arms = [
        {"name": "kv", "rate": 9.5, "upper": 10.0, "confirmed": True, "precise": True, "reason": "",
         "probes": points[:1]},
        {"name": "random", "rate": 4.5, "upper": None, "confirmed": True, "precise": False,
         "reason": "the client could not send 12 requests/s well enough to judge", "probes": []},
    ]  # fmt: skip
    found = {key: value for key, value in data.items() if key != "explanation"}
    return found | {
        "arms": [],
        "comparisons": [],
        "sweep": {"probe_seconds": 4, "rates": [4, 8, 16], "points": points},
        "capacity": {
            "slo": {"ttft_ms.p95": 120.0}, "precision": 0.05, "probe_seconds": 4, "arms": arms,
            "ratios": [{"base": "random", "other": "kv", "low": 2.1, "high": None}],
        },
    }  # fmt: skip
