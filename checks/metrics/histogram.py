"""Quantiles and means of histograms, and LMCache's hit-rate histogram with the requests it leaves out put back.

Pure. `lmcache:request_cache_hit_rate` observes only requests with a hit; those without are in
`lmcache:lookup_0_hit_requests`. Its own mean is therefore above zero whatever happens, and a cache that never hits
shows no sample at all. With Z requests without a hit beside N observed ones of sum T, the share without a hit is
Z/(Z+N), the true mean T/(Z+N), and a quantile is that of the buckets with Z observations of 0 added.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from checks.metrics.view import Metrics, Reading

Buckets = Sequence[tuple[float, float]]
"""(upper bound, observations at or below it), bounds ascending, the last one +Inf."""


def quantile(buckets: Buckets, q: float) -> float | None:
    """Interpolated within its bucket, as PromQL's histogram_quantile does for 0 <= q <= 1; None without observations.

    The lowest bucket begins at 0 where its bound is positive; for the +Inf bucket the highest finite bound is given.
    """
    if not 0.0 <= q <= 1.0:
        raise ValueError(f"a quantile is between 0 and 1, not {q}")
    if len(buckets) < 2 or not math.isinf(buckets[-1][0]) or buckets[-1][1] <= 0:
        return None
    rank = q * buckets[-1][1]
    at = next(index for index, (_, count) in enumerate(buckets) if count >= rank)
    if at == len(buckets) - 1:
        return buckets[-2][0]
    upper, count = buckets[at]
    lower, below = buckets[at - 1] if at else (min(0.0, upper), 0.0)
    if at == 0 and upper <= 0:
        return upper
    return lower if count == below else lower + (upper - lower) * (rank - below) / (count - below)


def buckets_of(metrics: Metrics, name: str, member: str | None = None, *, lifetime: bool = False) -> Buckets:
    """Buckets of a canonical histogram, summed over the series; growth over the window, or totals with `lifetime`.

    Empty where there is none. Bounds are made ascending and counts monotone: buckets of one scrape may be torn.
    """
    labels = metrics.one_rank(f"{name}_bucket", member)
    counts: dict[float, float] = {}
    for sample in metrics.find(f"{name}_bucket", member, **labels):
        number = sample.value if lifetime else sample.increase
        bound = _bound(sample.labels.get("le", ""))
        if number is not None and bound is not None:
            counts[bound] = counts.get(bound, 0.0) + number
    return _monotone(sorted(counts.items()))


def mean(metrics: Metrics, name: str, member: str | None = None) -> Reading:
    """Sum over count of a canonical histogram; missing with reason where nothing was observed."""
    labels = metrics.one_rank(f"{name}_count", member)
    total, count = metrics.grown((f"{name}_sum", f"{name}_count"), member, **labels)
    value = total.or_zero() / count.or_zero() if count.or_zero() > 0 else None
    missing = None if value is not None else count.missing
    return Reading(f"{name} mean", value, missing, count.window, total.reset or count.reset, member or "")


@dataclass(frozen=True, slots=True)
class HitRates:
    """LMCache's hit rate per request, corrected. Shares are 0..1."""

    zeros: float
    """Requests without a hit."""
    observed: float
    """Requests with one."""
    total: float
    """Sum of their hit rates."""
    buckets: Buckets
    window: str
    reset: bool = False

    @property
    def requests(self) -> float:
        return self.zeros + self.observed

    @property
    def zero_share(self) -> float | None:
        """None without a request."""
        return self.zeros / self.requests if self.requests > 0 else None

    @property
    def mean(self) -> float | None:
        """None without a request."""
        return self.total / self.requests if self.requests > 0 else None

    def quantile(self, q: float) -> float | None:
        """0 where that share of requests had no hit; None without a request, or without buckets where they matter."""
        if self.requests <= 0:
            return None
        if q * self.requests <= self.zeros:
            return 0.0
        return quantile([(0.0, self.zeros), *((bound, count + self.zeros) for bound, count in self.buckets)], q)


def hit_rates(metrics: Metrics, member: str | None = None, *, floor: float = 1) -> HitRates | None:
    """`HitRates` of one member or all, over one common span; None where neither counter nor histogram has a number.

    Where direct scrapes saw fewer than `floor` requests, the span is the process's lifetime.
    """
    histogram, zero_name = "lmcache_request_cache_hit_rate", "lmcache_lookup_0_hit_requests"
    zero_labels = metrics.one_rank(zero_name, member)
    labels = metrics.one_rank(f"{histogram}_count", member)
    zeros = metrics.increase(zero_name, member, **zero_labels)
    count = metrics.increase(f"{histogram}_count", member, **labels)
    total = metrics.increase(f"{histogram}_sum", member, **labels)
    lifetime = metrics.source == "scrape" and zeros.or_zero() + count.or_zero() < floor
    if lifetime:
        zeros = metrics.now(zero_name, member, **zero_labels)
        count = metrics.now(f"{histogram}_count", member, **labels)
        total = metrics.now(f"{histogram}_sum", member, **labels)
    if not zeros and not count:
        return None
    return HitRates(
        zeros=zeros.or_zero(),
        observed=count.or_zero(),
        total=total.or_zero(),
        buckets=buckets_of(metrics, histogram, member, lifetime=lifetime),
        window="lifetime" if lifetime else metrics.window,
        reset=zeros.reset or count.reset,
    )


def _bound(text: str) -> float | None:
    try:
        bound = float(text)
    except ValueError:
        return None
    return None if math.isnan(bound) else bound


def _monotone(counts: Iterable[tuple[float, float]]) -> Buckets:
    highest, out = 0.0, []
    for bound, count in counts:
        highest = max(highest, count)
        out.append((bound, highest))
    return out
