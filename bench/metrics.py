"""An arm's numbers from its requests, and two arms' requests paired for a comparison. Pure.

Latencies are milliseconds. Failed requests are +inf in every percentile and left out of means. `itl_ms` is one
average a request, `icl_ms` all gaps between chunks pooled (long answers weigh more), `stall_ms` the longest gap of a
request. A request that the client aborted has a TTFT and no other latency. Works on columns: no object a request.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import overload

import numpy as np
import numpy.typing as npt

from bench.client.table import Table
from bench.client.timing import Events, Timing
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


_SECONDS = {
    "ttft_ms": "ttft",
    "ttft_send_ms": "ttft_send",
    "itl_ms": "itl",
    "e2e_ms": "e2e",
    "drain_ms": "drain",
    "stall_ms": "stall",
    "sched_lag_ms": "sched_lag",
}


@dataclass(frozen=True, slots=True)
class _Part:
    """One block: `decide_us` and `predicted` are float64, shape (requests,), NaN where the router did not say."""

    requests: Sequence[Request]
    table: Table
    decide_us: Floats
    predicted: Floats


class Measurements(Sequence[Measured]):
    """Measured requests held as columns, of one block or of several one after the other. An item is made when asked."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self._parts = parts
        self._ends = np.cumsum([len(part.table) for part in parts]) if parts else np.zeros(0, np.int64)

    @classmethod
    def block(
        cls, requests: Sequence[Request], timings: Sequence[Timing], decisions: Mapping[str, DecisionFacts]
    ) -> Measurements:
        """What a block measured. `decisions`: by the id that the answer's header names."""
        table = timings if isinstance(timings, Table) else Table.of(timings)
        known = [decisions.get(name) if name is not None else None for name in table.decisions]
        return cls([_Part(requests, table, *_of_decisions(known))])

    @classmethod
    def of(cls, measured: Sequence[Measured]) -> Measurements:
        """Columns of a list; columns stay what they are."""
        if isinstance(measured, Measurements):
            return measured
        table = Table.of([m.timing for m in measured])
        return cls([_Part([m.request for m in measured], table, *_of_decisions([m.decision for m in measured]))])

    @classmethod
    def join(cls, blocks: Iterable[Sequence[Measured]]) -> Measurements:
        """Several blocks as one sequence."""
        return cls([part for block in blocks for part in cls.of(block)._parts])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @overload
    def __getitem__(self, index: int) -> Measured: ...
    @overload
    def __getitem__(self, index: slice) -> list[Measured]: ...
    def __getitem__(self, index: int | slice) -> Measured | list[Measured]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        place = int(np.searchsorted(self._ends, index, side="right"))
        part = self._parts[place]
        row = index - int(self._ends[place] - len(part.table))
        decide, predicted = float(part.decide_us[row]), float(part.predicted[row])
        said = None
        if decide == decide or predicted == predicted:
            said = DecisionFacts(
                decide if decide == decide else None, round(predicted) if predicted == predicted else None
            )
        return Measured(part.requests[row], part.table[row], said)

    def requests(self) -> Iterator[Request]:
        """In the order of the items."""
        return chain.from_iterable(part.requests for part in self._parts)

    @property
    def tables(self) -> list[Table]:
        return [part.table for part in self._parts]

    def latency(self, metric: str) -> Floats:
        """`Measured.value(metric)` of each request, shape (n,)."""
        return self._each(lambda part: part.table.latency(_SECONDS[metric]) * 1000)

    def time(self, column: int) -> Floats:
        """A column of `Table.times`, shape (n,), seconds."""
        return self._each(lambda part: part.table.times[:, column])

    @property
    def ok(self) -> npt.NDArray[np.bool_]:
        return self._each(lambda part: part.table.ok.astype(np.float64)) > 0

    @property
    def aborted(self) -> npt.NDArray[np.bool_]:
        return self._each(lambda part: part.table.aborted.astype(np.float64)) > 0

    def cached_pairs(self) -> Floats:
        """(cached, prompt) tokens of whole answers, shape (n, 2); NaN of others. Not reported counts as 0."""
        cached = self._each(lambda part: np.maximum(part.table.counts[:, 2], 0).astype(np.float64))
        pairs = np.column_stack([cached, self._each(_prompts)])
        pairs[~self.ok | self.aborted] = np.nan
        return pairs

    def decide_us(self) -> Floats:
        """What the router's decisions took, where it says so."""
        found = self.decisions_us()
        return found[~np.isnan(found)]

    def decisions_us(self) -> Floats:
        """The same for each request, shape (n,); NaN where the router does not say."""
        return self._each(lambda part: part.decide_us)

    def predicted(self) -> Floats:
        """Prompt tokens that the router expected to be cached, shape (n,); NaN where it does not say."""
        return self._each(lambda part: part.predicted)

    def gaps_ms(self) -> Floats:
        """Gaps between content chunks of whole answers, pooled."""
        found = [part.table.gaps() for part in self._parts]
        return np.concatenate(found).astype(np.float64) * 1000 if found else np.empty(0)

    def output_tokens(self) -> Floats:
        """Of whole answers, shape (n,); 0 of others."""
        found = self._each(lambda part: np.maximum(part.table.counts[:, 3], 0).astype(np.float64))
        return np.where(self.ok & ~self.aborted, found, 0)

    def workers(self) -> Counter[str]:
        """Requests by the worker that the answer names."""
        return Counter(worker for part in self._parts for worker in part.table.workers if worker)

    def errors(self) -> dict[str, int]:
        """Failures by kind."""
        found: Counter[str] = Counter()
        for part in self._parts:
            found.update(part.table.errors())
        return dict(found)

    def sources(self) -> dict[str, int]:
        """Whole answers by where their token count comes from: `usage`, or `chunks` where the engine gave none."""
        found: Counter[str] = Counter()
        for part in self._parts:
            found.update(part.table.sources())
        return dict(found)

    def events(self) -> dict[str, int]:
        """How many events of each kind the streams held; `coalesced`: content that shared its read."""
        total = dict.fromkeys((*(item.name for item in fields(Events)), "coalesced"), 0)
        for part in self._parts:
            sums = [*part.table.events.sum(axis=0).tolist(), int(part.table.counts[:, 5].clip(0).sum())]
            for name, count in zip(total, sums, strict=True):
                total[name] += count
        return total

    def _each(self, column: Callable[[_Part], Floats]) -> Floats:
        return np.concatenate([column(part) for part in self._parts]) if self._parts else np.empty(0)


def _of_decisions(known: Sequence[DecisionFacts | None]) -> tuple[Floats, Floats]:
    columns = np.array(
        [(math.nan, math.nan) if d is None else (_or_nan(d.decide_us), _or_nan(d.predicted)) for d in known]
    ).reshape(-1, 2)
    return columns[:, 0].copy(), columns[:, 1].copy()


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _prompts(part: _Part) -> Floats:
    """Prompt tokens as the engine counted them, else as planned."""
    found = part.table.counts[:, 1].astype(np.float64)
    for row in np.flatnonzero(found < 0).tolist():
        found[row] = part.requests[row].prompt_len
    return found


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

    def met(self, measured: Sequence[Measured]) -> npt.NDArray[np.bool_]:
        """Which requests meet all limits. A failed one does not; a metric that does not exist for a request (one token,
        aborted) is not asked.
        """
        every = Measurements.of(measured)
        good = every.ok
        for name, limit in (("ttft_ms", self.ttft_ms), ("itl_ms", self.itl_ms), ("e2e_ms", self.e2e_ms)):
            if limit is not None:
                good &= ~(every.latency(name) > limit)
        return good


def values(measured: Sequence[Measured], metric: str) -> Floats:
    """The metric of all requests for which it exists."""
    found = Measurements.of(measured).latency(metric)
    return found[~np.isnan(found)]


def distribution(found: Floats) -> dict[str, float | None]:
    """Mean and percentiles as result.json has them; None is +inf (failures reach it) or nothing to count."""
    row = {"mean": mean(found)} | {f"p{q:g}": percentile(found, q) for q in QUANTILES}
    return {name: _json_number(value) for name, value in row.items()}


def arm_metrics(blocks: Sequence[Sequence[Measured]], workers: Sequence[str], slo: Slo | None) -> dict[str, object]:
    """All metrics of an arm. `workers`: every worker that could have served; empty: those that were seen."""
    every = Measurements.join(blocks)
    met = int(slo.met(every).sum()) if slo else None
    schedule = sum(_span(block) for block in blocks)
    return {
        "ttft_ms": distribution(values(every, "ttft_ms")),
        "itl_ms": distribution(values(every, "itl_ms")),
        "e2e_ms": distribution(values(every, "e2e_ms")),
        "ttft_send_ms": distribution(values(every, "ttft_send_ms")),
        "icl_ms": distribution(every.gaps_ms()),
        "stall_ms": distribution(values(every, "stall_ms")),
        "drain_ms": distribution(values(every, "drain_ms")),
        "output_tok_s": _json_number(output_rate(blocks)),
        "goodput": met / len(every) if met is not None and len(every) else None,
        "goodput_req_s": met / schedule if met is not None and schedule else None,
        "cached_token_ratio": cached_ratio(every),
        "predicted_cached_ratio": predicted_ratio(every),
        "load_cv": load_cv(blocks, workers),
        "sched_lag_ms": distribution(values(every, "sched_lag_ms")),
        "decision_us": distribution(every.decide_us()),
    }


def _span(block: Sequence[Measured]) -> float:
    """Seconds of the schedule, as it went: where turns wait for answers it is longer than planned."""
    moments = Measurements.of(block).time(0)
    return float(moments.max() - moments.min()) if len(moments) else 0.0


def output_rate(blocks: Sequence[Sequence[Measured]]) -> float:
    """Tokens of whole answers a second, from each block's first intended send to its last token."""
    tokens, seconds = 0.0, 0.0
    for block in blocks:
        every = Measurements.of(block)
        whole = every.ok & ~every.aborted
        if whole.any():
            tokens += float(every.output_tokens().sum())
            seconds += float(every.time(4)[whole].max() - every.time(0).min())
    return tokens / seconds if seconds > 0 else math.nan


def reports_cached(measured: Sequence[Measured]) -> bool:
    """Whether any answer named its cached tokens (vLLM leaves the field out where they are 0)."""
    return any(bool((table.counts[:, 2] >= 0).any()) for table in Measurements.of(measured).tables)


def cached_ratio(measured: Sequence[Measured]) -> float | None:
    """Cached prompt tokens over all prompt tokens, as the engines report them; None if they report none."""
    every = Measurements.of(measured)
    if not reports_cached(every):
        return None
    pairs = every.cached_pairs()
    return _json_number(share_of_sums(pairs[~np.isnan(pairs[:, 0])]))


def predicted_ratio(measured: Sequence[Measured]) -> float | None:
    """What the router expected to be cached, over all prompt tokens; None if it does not say."""
    every = Measurements.of(measured)
    pairs = np.column_stack([every.predicted(), every.cached_pairs()[:, 1]])
    pairs = pairs[~np.isnan(pairs).any(axis=1)]
    return _json_number(share_of_sums(pairs)) if len(pairs) else None


def load_cv(blocks: Sequence[Sequence[Measured]], workers: Sequence[str]) -> float | None:
    """Standard deviation over mean of the requests a worker got, averaged over blocks; None if no answer named one."""
    found = []
    for block in blocks:
        counts = Measurements.of(block).workers()
        names = set(workers) | set(counts)
        if counts:
            shares = np.array([counts[name] for name in names], np.float64)
            found.append(float(shares.std() / shares.mean()))
    return sum(found) / len(found) if found else None


def paired(base: Sequence[Measured], other: Sequence[Measured], name: str) -> Paired:
    """`name`: one of COMPARED. The two sequences are the same requests in the same order."""
    if name == "cached_token_ratio":
        below, above = Measurements.of(base).cached_pairs(), Measurements.of(other).cached_pairs()
        gone = np.isnan(below).any(axis=1) | np.isnan(above).any(axis=1)
        below[gone] = above[gone] = np.nan
        return Paired(below, above, share_of_sums)
    metric, _, stat = name.partition(".")
    below, above = Measurements.of(base).latency(metric), Measurements.of(other).latency(metric)
    gone = np.isnan(below) | np.isnan(above)
    below[gone] = above[gone] = np.nan
    return Paired(below, above, statistic(stat))


def _json_number(value: float) -> float | None:
    return value if math.isfinite(value) else None
