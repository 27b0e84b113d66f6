"""The arithmetic behind a comparison: percentiles with failures, hierarchical bootstrap, exact sign-flip test, Holm.

The independent unit is the round (one block of each arm on the same slice); sessions are resampled inside it, the
same ones for both arms. With few rounds a plain percentile interval is too narrow, so its ends are moved out as far
as Student's t with as many rounds would move them (T. Hesterberg, "What teachers should know about the bootstrap",
2015: expanded percentile interval). A claim needs the exact test and the interval. Pure; `rng` is passed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr, ndtr, stdtrit

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Statistic = Callable[[Floats], float]

EXACT_LIMIT = 16
"""Up to so many rounds all sign patterns are enumerated; above, 65,536 are drawn."""


def percentile(values: Floats, q: float) -> float:
    """The q-th percentile (0 to 100), linear between ranks; +inf counts as a value. NaN where there is none."""
    if len(values) == 0:
        return math.nan
    ordered = np.sort(values)
    place = (len(ordered) - 1) * q / 100
    low, high = math.floor(place), math.ceil(place)
    below, above = float(ordered[low]), float(ordered[high])
    if low == high or below == above:
        return below
    if math.isinf(above):
        return math.inf
    return below + (above - below) * (place - low)


def mean(values: Floats) -> float:
    """The mean of the finite values (a failure has no time to average; it is counted, and in every percentile). NaN
    where there is none.
    """
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else math.nan


def share_of_sums(values: Floats) -> float:
    """Sum of the first column over the sum of the second; NaN where that is 0."""
    total = float(values[:, 1].sum())
    return float(values[:, 0].sum()) / total if total else math.nan


def statistic(name: str) -> Statistic:
    """`mean`, `p50`, `p99`, `p99.9`, ... as a function.

    Raises:
        ValueError: not one of these.
    """
    if name == "mean":
        return mean
    if name.startswith("p"):
        q = float(name[1:])
        if 0 <= q <= 100:
            return lambda values: percentile(values, q)
    raise ValueError(f"{name!r} is not mean or p0 to p100")


def percentile_interval(values: Floats, q: float, level: float = 0.95) -> tuple[float, float] | None:
    """A distribution-free confidence interval of a percentile, from order statistics; None if n is too small.

    The ends are the order statistics whose binomial tails are at most (1 - level) / 2 each. An upper end for p99 at
    95 % needs 368 values, for p99.9 3,688.
    """
    n = len(values)
    p = q / 100
    tail = (1 - level) / 2
    ordered = np.sort(values)
    cumulative = np.minimum(1.0, bdtr(np.arange(n + 1), n, p))
    lower = int(np.searchsorted(cumulative, tail, side="right")) - 1
    upper = int(np.searchsorted(cumulative, 1 - tail, side="left"))
    if lower < 0 or upper > n - 1:
        return None
    return float(ordered[lower]), float(ordered[upper])


def values_needed(q: float, level: float = 0.95) -> int:
    """From how many values on a percentile has such an interval: both ends exist."""
    nearest = max(q, 100 - q) / 100
    return math.ceil(math.log((1 - level) / 2) / math.log(nearest)) if 0 < nearest < 1 else 1


@dataclass(frozen=True, slots=True)
class Paired:
    """One metric of the same requests in two arms, all rounds one after the other.

    Shape (n,), or (n, 2) for a ratio of sums. +inf: the request failed; NaN in both: the metric does not exist for
    it.
    """

    base: Floats
    other: Floats
    stat: Statistic


@dataclass(frozen=True, slots=True)
class Comparison:
    """`ratio` = other / base of the pooled statistic; None where it does not exist. `p`: exact sign-flip. `sd`: of the
    rounds' log ratios; None where a round has none, or there is one round.
    """

    ratio: float | None
    ci95: tuple[float, float] | None
    p: float | None
    sd: float | None = None


def compare(
    metrics: Mapping[str, Paired],
    rounds: Sequence[Ints],
    rng: np.random.Generator,
    draws: int = 2000,
) -> dict[str, Comparison]:
    """Compares two arms on several metrics at once: every bootstrap draw serves all of them.

    Args:
        metrics: the values, n requests each.
        rounds: for each round the session number of each of its requests; together n.
        rng: of the bootstrap.
        draws: of the bootstrap.

    Returns:
        For each metric: the pooled ratio; its 95 % expanded percentile interval, rounds resampled first, then sessions
        inside each (None with fewer than two rounds, or where one draw in twenty has no ratio); p of the sign-flip
        test over the rounds' log ratios (None where a round has none).
    """
    starts = np.cumsum([0, *(len(sessions) for sessions in rounds)])
    drawn: dict[str, list[float]] = {name: [] for name in metrics}
    if len(rounds) > 1:
        members = [_by_session(sessions, int(start)) for sessions, start in zip(rounds, starts, strict=False)]
        for _ in range(draws):
            rows = _draw(members, rng)
            for name, metric in metrics.items():
                value = _ratio(metric, rows)
                if value is not None:
                    drawn[name].append(value)
    found = {}
    for name, metric in metrics.items():
        each = [_ratio(metric, np.arange(a, b)) for a, b in pairwise(starts.tolist())]
        logs = [math.log(ratio) for ratio in each if ratio is not None and ratio > 0]
        values = np.array(drawn[name])
        complete = len(logs) == len(rounds)
        enough = len(rounds) > 1 and len(values) >= 0.95 * draws
        found[name] = Comparison(
            _ratio(metric, np.arange(starts[-1])),
            expanded_interval(values, len(rounds)) if enough else None,
            sign_flip(logs, rng) if logs and complete else None,
            float(np.std(logs, ddof=1)) if len(logs) > 1 and complete else None,
        )
    return found


def session_spread(
    metric: Paired, sessions: Ints, rng: np.random.Generator, draws: int = 200
) -> tuple[float | None, float]:
    """The ratio of two blocks, and the standard deviation of its logarithm when sessions are drawn anew. (None, 0.0)
    where the ratio, or too many of the draws, do not exist.
    """
    ratio = _ratio(metric, np.arange(len(sessions)))
    members = [_by_session(sessions, 0)]
    drawn = [_ratio(metric, _draw(members, rng)) for _ in range(draws)]
    logs = [math.log(one) for one in drawn if one is not None and one > 0]
    if ratio is None or len(logs) < 0.95 * draws:
        return None, 0.0
    return ratio, float(np.std(logs))


def numbered(names: Sequence[str]) -> Ints:
    """A number for each name, the same for the same name, in the order of first appearance."""
    known: dict[str, int] = {}
    return np.array([known.setdefault(name, len(known)) for name in names], np.int64)


def expanded_interval(draws: Floats, units: int, level: float = 0.95) -> tuple[float, float]:
    """The percentile interval of bootstrap draws over `units` (at least 2) independent units, expanded as above."""
    moved = math.sqrt(units / (units - 1)) * float(stdtrit(units - 1, (1 - level) / 2))
    tail = 100 * float(ndtr(moved))
    return percentile(draws, tail), percentile(draws, 100 - tail)


def _ratio(metric: Paired, rows: Ints) -> float | None:
    above, below = metric.stat(_existing(metric.other[rows])), metric.stat(_existing(metric.base[rows]))
    if not (math.isfinite(above) and math.isfinite(below)) or below <= 0:
        return None
    return above / below


def _existing(values: Floats) -> Floats:
    gone = np.isnan(values) if values.ndim == 1 else np.isnan(values).any(axis=1)
    return values[~gone] if gone.any() else values


def _by_session(sessions: Ints, start: int) -> list[Ints]:
    """The rows of each session of a round."""
    order = np.argsort(sessions, kind="stable")
    cuts = np.flatnonzero(np.diff(sessions[order])) + 1
    return list(np.split(order + start, cuts))


def _draw(members: Sequence[list[Ints]], rng: np.random.Generator) -> Ints:
    rows: list[Ints] = []
    for pick in rng.integers(0, len(members), len(members)):
        groups = members[pick]
        rows += [groups[chosen] for chosen in rng.integers(0, len(groups), len(groups))]
    return np.concatenate(rows)


def sign_flip(differences: Sequence[float], rng: np.random.Generator) -> float:
    """The two-sided p of "the signs are random": the share of sign patterns whose |sum| is at least the observed.

    Exact up to 16 differences: the smallest p is 2 / 2**n. Above, 65,536 patterns are drawn, the observed one added.
    """
    values = np.asarray(differences, np.float64)
    n = len(values)
    observed = abs(values.sum())
    slack = 1e-9 * max(1.0, float(np.abs(values).sum()))
    if n <= EXACT_LIMIT:
        patterns = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
        sums = np.abs((patterns * 2 - 1) @ values)
        return float(np.mean(sums >= observed - slack))
    signs = rng.integers(0, 2, (65_536, n)) * 2 - 1
    hits = int(np.sum(np.abs(signs @ values) >= observed - slack))
    return (hits + 1) / (65_536 + 1)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down adjustment; None stays None and does not count as a test."""
    known = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, i) in enumerate(known):
        highest = max(highest, min(1.0, p * (len(known) - rank)))
        adjusted[i] = highest
    return adjusted
