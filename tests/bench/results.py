"""Experiments made by hand for the tests of metrics, guards, verdict and reports: no network, every time chosen."""

from __future__ import annotations

from collections.abc import Callable

from bench.arms import Arm
from bench.client.timing import Events, Timing
from bench.client.watch import SelfWatch
from bench.cold import ColdProof, Engine
from bench.control import DecisionFacts
from bench.design import plan
from bench.experiment import BlockResult, Experiment
from bench.guards import BlockFacts
from bench.metrics import Measured
from bench.workload.model import Request, Workload
from bench.workload.tokens import Piece, Vocabulary

ENGINES = (Engine("w0", "http://127.0.0.1:1"), Engine("w1", "http://127.0.0.1:2"))


def arms(*names: str) -> list[Arm]:
    return [Arm(name, name.split("#")[0], "http://127.0.0.1:9", "http://127.0.0.1:8", ENGINES) for name in names]


def request(number: int, round_: int = 0, session: str | None = None, output: int = 5) -> Request:
    return Request(
        f"r{round_}-{number}", session or f"s{number // 2}", 0, "g", round_, 0.1 * number, output, (Piece(number, 100),)
    )


def timing(
    sched: float,
    *,
    ttft: float = 0.1,
    itl: float = 0.01,
    tokens: int = 5,
    lag: float = 0.0,
    cached: int | None = 0,
    worker: str | None = "w0",
    error: str | None = None,
) -> Timing:
    """A request that was sent `lag` late and answered in `tokens` even steps."""
    if error:
        return Timing(sched, t_send=sched + lag, status=500, error=error, worker=worker)
    first = sched + ttft
    last = first + itl * (tokens - 1)
    return Timing(
        sched, sched + lag, first, first, last, last + 0.001, 200, worker, f"d{sched}", 100, cached, tokens, "usage",
        events=Events(content=tokens, usage=1, done=1), gaps=[itl] * (tokens - 1),
    )  # fmt: skip


def experiment(
    names: tuple[str, ...],
    make: Callable[[str, int, int, float], Timing],
    *,
    rounds: int = 8,
    count: int = 20,
    watch: SelfWatch | None = None,
) -> tuple[list[Arm], Experiment]:
    """`make(arm, round, number, sched)` is each request's timing."""
    sides = arms(*names)
    found = Experiment("m", "reset")
    for block in plan(len(sides), rounds, 0):
        arm = sides[block.arm]
        start = 1000.0 * (block.index + 1)
        measured = []
        for number in range(count):
            sent = request(number, block.round)
            answer = make(arm.name, block.round, number, start + sent.at)
            measured.append(Measured(sent, answer, DecisionFacts(20.0, 64)))
        workers = frozenset(engine.id for engine in ENGINES)
        facts = BlockFacts(measured, watch or SelfWatch(cpu=0.1, wall=2.0), workers, workers)
        found.blocks.append(BlockResult(block, arm, facts, ColdProof("reset"), start))
    return sides, found


def workload(rounds: int = 8, count: int = 20) -> Workload:
    made = tuple(request(number, round_) for round_ in range(rounds) for number in range(count))
    return Workload("by hand", made, rounds, Vocabulary(), {"source": "test"})
