"""An arm's numbers from its requests, and two arms' requests paired for a comparison. Pure.

Latencies are milliseconds. Failed requests are +inf in every percentile and left out of means. `itl_ms` is one
average a request, `icl_ms` all gaps between chunks pooled (long answers weigh more), `stall_ms` the longest gap of a
request.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from bench.client.timing import Timing
from bench.control import DecisionFacts
from bench.slo import targets
from bench.stats import Floats, Paired, mean, percentile, share_of_sums, statistic
from bench.workload.model import Request

QUANTILES = (50.0, 90.0, 95.0, 99.0)
COMPARED = (
    *(f"{metric}.{stat}" for metric in ("ttft_ms", "itl_ms") for stat in ("mean", "p50", "p95", "p99")),
    *(f"e2e_ms.{stat}" for stat in ("mean", "p95")),
    "cached_token_ratio",
)


@dataclass(slots=True)
class Measured:
    """One request as an arm served it, with what the router said of its decision."""

    request: Request
    timing: Timing
    decision: DecisionFacts | None = None

    def value(self, metric: str) -> float:
        """A latency in milliseconds; +inf if failed, NaN where it does not exist."""
        timing = self.timing
        seconds = {
            "ttft_ms": timing.ttft,
            "ttft_send_ms": timing.ttft_send,
            "itl_ms": timing.itl,
            "e2e_ms": timing.e2e,
            "drain_ms": timing.drain,
            "stall_ms": timing.stall,
            "sched_lag_ms": timing.sched_lag,
        }[metric]
        return math.nan if seconds is None else seconds * 1000


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits in milliseconds; None is no limit."""

    ttft_ms: float | None = None
    itl_ms: float | None = None
    e2e_ms: float | None = None

    @classmethod
    def parse(cls, text: str) -> Slo:
        """`ttft=500ms,itl=50ms,e2e=2s`; `ttft_p95=` is the same here, of several statistics the widest limit counts.

        Raises:
            ValueError: not of that form.
        """
        limits: dict[str, float] = {}
        for target in targets(text):
            limits[target.metric] = max(target.limit, limits.get(target.metric, 0.0))
        return cls(**limits)

    def met(self, measured: Measured) -> bool:
        """A failed request meets none; a metric that does not exist for the request (one token) is not asked."""
        if not measured.timing.ok:
            return False
        limits = (("ttft_ms", self.ttft_ms), ("itl_ms", self.itl_ms), ("e2e_ms", self.e2e_ms))
        return not any(limit is not None and measured.value(name) > limit for name, limit in limits)


def values(measured: Iterable[Measured], metric: str) -> Floats:
    """The metric of all requests for which it exists."""
    found = np.array([m.value(metric) for m in measured], np.float64)
    return found[~np.isnan(found)]


def distribution(found: Floats) -> dict[str, float | None]:
    """Mean and percentiles as result.json has them; None is +inf (failures reach it) or nothing to count."""
    row = {"mean": mean(found)} | {f"p{q:g}": percentile(found, q) for q in QUANTILES}
    return {name: _json_number(value) for name, value in row.items()}


def arm_metrics(blocks: Sequence[Sequence[Measured]], workers: Sequence[str], slo: Slo | None) -> dict[str, object]:
    """All metrics of an arm. `workers`: every worker that could have served; empty: those that were seen."""
    every = [m for block in blocks for m in block]
    good = [m for m in every if m.timing.ok]
    met = sum(slo.met(m) for m in every) if slo else None
    schedule = sum(block[-1].request.at - block[0].request.at for block in blocks if block)
    gaps = np.array([gap * 1000 for m in good for gap in m.timing.gaps], np.float64)
    decide = [m.decision.decide_us for m in every if m.decision is not None and m.decision.decide_us is not None]
    return {
        "ttft_ms": distribution(values(every, "ttft_ms")),
        "itl_ms": distribution(values(every, "itl_ms")),
        "e2e_ms": distribution(values(every, "e2e_ms")),
        "ttft_send_ms": distribution(values(every, "ttft_send_ms")),
        "icl_ms": distribution(gaps),
        "stall_ms": distribution(values(every, "stall_ms")),
        "output_tok_s": _json_number(output_rate(blocks)),
        "goodput": met / len(every) if met is not None and every else None,
        "goodput_req_s": met / schedule if met is not None and schedule else None,
        "cached_token_ratio": cached_ratio(every),
        "predicted_cached_ratio": predicted_ratio(every),
        "load_cv": load_cv(blocks, workers),
        "sched_lag_ms": distribution(values(every, "sched_lag_ms")),
        "decision_us": distribution(np.array(decide, np.float64)),
    }


def output_rate(blocks: Sequence[Sequence[Measured]]) -> float:
    """Tokens of good answers a second, from each block's first intended send to its last token."""
    tokens, seconds = 0, 0.0
    for block in blocks:
        good = [m.timing for m in block if m.timing.ok]
        if good:
            tokens += sum(t.n_out or 0 for t in good)
            seconds += max(t.t_last for t in good) - min(m.timing.t_sched for m in block)
    return tokens / seconds if seconds > 0 else math.nan


def cached_pair(measured: Measured) -> tuple[float, float]:
    """(cached, prompt) tokens of a good answer; NaN if it failed. Not reported counts as 0, see `reports_cached`."""
    timing = measured.timing
    if not timing.ok:
        return math.nan, math.nan
    return float(timing.cached_tokens or 0), float(timing.prompt_tokens or measured.request.prompt_len)


def reports_cached(measured: Iterable[Measured]) -> bool:
    """Whether any answer named its cached tokens (vLLM leaves the field out where they are 0)."""
    return any(m.timing.cached_tokens is not None for m in measured)


def cached_ratio(every: Sequence[Measured]) -> float | None:
    """Cached prompt tokens over all prompt tokens, as the engines report them; None if they report none."""
    if not reports_cached(every):
        return None
    pairs = np.array([cached_pair(m) for m in every if m.timing.ok])
    return _json_number(share_of_sums(pairs))


def predicted_ratio(every: Sequence[Measured]) -> float | None:
    """What the router expected to be cached, over all prompt tokens; None if it does not say."""
    known = [m for m in every if m.timing.ok and m.decision is not None and m.decision.predicted is not None]
    if not known:
        return None
    pairs = np.array([(float(m.decision.predicted or 0), cached_pair(m)[1]) for m in known if m.decision is not None])
    return _json_number(share_of_sums(pairs))


def load_cv(blocks: Sequence[Sequence[Measured]], workers: Sequence[str]) -> float | None:
    """Standard deviation over mean of the requests a worker got, averaged over blocks; None if no answer named one."""
    found = []
    for block in blocks:
        counts = Counter(m.timing.worker for m in block if m.timing.worker)
        names = set(workers) | set(counts)
        if counts:
            shares = np.array([counts[name] for name in names], np.float64)
            found.append(float(shares.std() / shares.mean()))
    return sum(found) / len(found) if found else None


def paired(base: Sequence[Measured], other: Sequence[Measured], name: str) -> Paired:
    """`name`: one of COMPARED. The two sequences are the same requests in the same order."""
    if name == "cached_token_ratio":
        below, above = np.array([cached_pair(m) for m in base]), np.array([cached_pair(m) for m in other])
        gone = np.isnan(below).any(axis=1) | np.isnan(above).any(axis=1)
        below[gone] = above[gone] = np.nan
        return Paired(below, above, share_of_sums)
    metric, _, stat = name.partition(".")
    below = np.array([m.value(metric) for m in base], np.float64)
    above = np.array([m.value(metric) for m in other], np.float64)
    gone = np.isnan(below) | np.isnan(above)
    below[gone] = above[gone] = np.nan
    return Paired(below, above, statistic(stat))


def _json_number(value: float) -> float | None:
    return value if math.isfinite(value) else None
