"""What can void a run: the client was the bottleneck, the load was not delivered, the arms did different work.

Each guard is one function from what was measured to sentences; a sentence is a reason why the verdict is not valid.
Pure. The thresholds are fields of `Limits`, so that a user who knows better can say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.client.watch import SelfWatch
from bench.metrics import Measured, Measurements, reports_cached
from bench.stats import percentile, values_needed


@dataclass(frozen=True, slots=True)
class Limits:
    """Lags are shares of the arm's median TTFT, `lag_floor` (seconds) is never too much.

    `rate`: by how much the achieved request rate may miss the schedule; `errors`: how far the arms' error rates may
    be apart; `lengths`: share of answers of another length than asked for; `files`: share of the open files allowed to
    this process that its connections may take.
    """

    cpu: float = 0.8
    lag_mean: float = 0.05
    lag_p99: float = 0.5
    lag_floor: float = 0.002
    rate: float = 0.02
    errors: float = 0.01
    lengths: float = 0.01
    files: float = 0.9


@dataclass(slots=True)
class BlockFacts:
    """What the guards need to know of one block."""

    measured: Sequence[Measured]
    watch: SelfWatch
    workers_before: frozenset[str] | None = None
    workers_after: frozenset[str] | None = None


def client(name: str, blocks: Sequence[BlockFacts], limits: Limits) -> list[str]:
    """The load generator: CPU, sending lag, loop lag."""
    reasons = []
    cpu = max((block.watch.cpu for block in blocks), default=0.0)
    if cpu > limits.cpu:
        reasons.append(f"{name}: the client used {cpu:.0%} of a core in one block (limit {limits.cpu:.0%})")
    crowded = [b.watch for b in blocks if b.watch.files is not None and b.watch.peak > limits.files * b.watch.files]
    if crowded:
        worst = max(crowded, key=lambda watch: watch.peak)
        reasons.append(
            f"{name}: {worst.peak} connections were open at once, and this process may open {worst.files} files "
            "(ulimit -n)"
        )
    every = _every(blocks)
    refused = every.errors().get("client_limit", 0)
    if refused:
        reasons.append(f"{name}: {refused} requests met this machine's own limits (open files, ports), unsent")
    lags = every.latency("sched_lag_ms") / 1000
    lags = lags[~np.isnan(lags)]
    ttfts = every.latency("ttft_ms") / 1000
    if not len(lags) or not len(ttfts):
        return reasons
    median = percentile(ttfts, 50)
    mean, p99 = float(lags.mean()), percentile(lags, 99)
    if mean > max(limits.lag_floor, limits.lag_mean * median):
        reasons.append(f"{name}: requests were sent {mean * 1000:.1f} ms late on average (median TTFT {_ms(median)})")
    if p99 > max(limits.lag_floor, limits.lag_p99 * median):
        reasons.append(f"{name}: 1 % of requests were sent over {p99 * 1000:.1f} ms late (median TTFT {_ms(median)})")
    loop = np.concatenate([np.asarray(block.watch.loop_lag, np.float64) for block in blocks])
    if len(loop) and percentile(loop, 99) > max(limits.lag_floor, limits.lag_p99 * median):
        late = percentile(loop, 99)
        reasons.append(f"{name}: the client's event loop was over {late * 1000:.1f} ms late 1 % of the time")
    return reasons


def delivered(name: str, blocks: Sequence[BlockFacts], limits: Limits) -> list[str]:
    """The load: as many requests in the time that the schedule says."""
    planned = achieved = 0.0
    for block in blocks:
        every = Measurements.of(block.measured)
        due, sent = every.time(0), every.time(1)
        known = ~np.isnan(sent)
        if known.sum() > 1:
            planned += float(np.ptp(due[known]))
            achieved += float(np.ptp(sent[known]))
    if planned <= 0:
        return []
    off = achieved / planned - 1
    return [f"{name}: the request rate missed the schedule by {off:+.1%}"] if abs(off) > limits.rate else []


def lengths(name: str, blocks: Sequence[BlockFacts], limits: Limits) -> list[str]:
    """The work: answers of the length asked for. One that the client broke off has none to judge."""
    every = _every(blocks)
    whole = every.ok & ~every.aborted
    good = int(whole.sum())
    wanted = np.array([request.output_len for request in every.requests()])
    wrong = int((every.output_tokens() != wanted)[whole].sum()) if good else 0
    if wrong <= limits.lengths * good:
        return []
    why = "is ignore_eos honoured?"
    uncounted = good - every.sources().get("usage", 0)
    if uncounted:
        why = f"{uncounted} came without a token count: their chunks were counted"
    return [f"{name}: {wrong} of {good} answers had another length than asked for ({why})"]


def same_workers(name: str, blocks: Sequence[BlockFacts]) -> list[str]:
    """The fleet: the same workers before and after each block, and from block to block; nobody else answered."""
    seen = {w for block in blocks for w in (block.workers_before, block.workers_after) if w is not None}
    if len(seen) > 1:
        return [f"{name}: the set of workers changed during the run"]
    if seen:
        known = next(iter(seen))
        strangers = set(_every(blocks).workers()) - known
        if strangers:
            return [f"{name}: {', '.join(sorted(strangers)[:3])} answered, not among the workers before and after"]
    return []


def enough(name: str, metric: str, found: int) -> list[str]:
    """The sample: large enough for the percentile that was asked for, `ttft_ms.p99`."""
    stat = metric.rpartition(".")[2]
    if not stat.startswith("p"):
        return []
    needed = values_needed(float(stat[1:]))
    if found < needed:
        return [f"n too small: {name} has {found} values of {metric}, an interval of it needs {needed}"]
    return []


def errors(arms: dict[str, Sequence[BlockFacts]], limits: Limits) -> list[str]:
    """Failures: not so many more in one arm that its percentiles mean something else."""
    rates = {}
    for name, blocks in arms.items():
        good = _every(blocks).ok
        if len(good):
            rates[name] = float((~good).mean())
    if not rates:
        return []
    worst, best = max(rates, key=lambda n: rates[n]), min(rates, key=lambda n: rates[n])
    if rates[worst] - rates[best] > limits.errors:
        return [f"{worst} failed {rates[worst]:.1%} of its requests, {best} {rates[best]:.1%}"]
    if rates[best] > 0.5:
        return [f"more than half of all requests failed ({rates[best]:.0%} in {best})"]
    return []


def reporting(arms: dict[str, Sequence[BlockFacts]]) -> list[str]:
    """Cached tokens: every arm's engines report them, else there is no proof of a cold start."""
    return [
        f"{name}: no answer reports cached tokens (vLLM: --enable-prompt-tokens-details)"
        for name, blocks in arms.items()
        if blocks and not reports_cached(_every(blocks))
    ]


def _every(blocks: Sequence[BlockFacts]) -> Measurements:
    return Measurements.join(block.measured for block in blocks)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
