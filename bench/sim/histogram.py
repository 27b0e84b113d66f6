"""A histogram that costs a binary search and two additions an observation. No I/O."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts below ascending bounds, and a sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, with the last at +Inf, as the exposition wants them."""
        out: list[tuple[str, float]] = []
        below = 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            below += count
            out.append((repr(float(bound)), below))
        out.append(("+Inf", below + self.counts[-1]))
        return out
