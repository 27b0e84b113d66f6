"""The largest rate that an arm carries within its objectives: where to probe next, and when to stop. Pure.

Doubling or halving finds a rate that meets the objectives and one that does not; geometric bisection narrows the two
to a stated ratio; then both are probed again until two probes agree. A rate's verdict is the majority of its probes,
so one unlucky probe is outvoted, and the bracket moves. An outcome is monotone by construction: only rates between
the largest that met and the smallest that did not are ever probed, and these two again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

AGREE = 2
"""Probes of one edge that have to say the same; the third decides."""
VOIDS = 3
"""Void probes of a rate after which it counts as more than the client can send."""
STEP = 2.0


class Outcome(StrEnum):
    """Of one probe. VOID: the client, not the arm, was the bottleneck."""

    MET = "met"
    MISSED = "missed"
    VOID = "void"


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a search found. Rates are requests a second.

    Args:
        rate: the largest that met the objectives; None: none did.
        upper: the smallest that did not; None: none that the client could send did not.
        confirmed: both were probed until two probes agreed.
        precise: upper / rate is within the precision asked for.
        reason: why it is not both; empty if it is.
        probes: outcomes by rate, in ascending order of the rates.
    """

    rate: float | None
    upper: float | None
    confirmed: bool
    precise: bool
    reason: str
    probes: tuple[tuple[float, tuple[Outcome, ...]], ...]

    @property
    def bracket(self) -> tuple[float, float]:
        """(rate, upper) with 0 and +inf for what is not known."""
        return self.rate or 0.0, math.inf if self.upper is None else self.upper


@dataclass(slots=True)
class Search:
    """One arm's search. Ask `next_rate`, probe it, `tell` the outcome, until it is None.

    Args:
        start: the first rate.
        precision: 0.05: stop when the rates around the capacity are within 5 %.
        lowest: no rate below is probed.
        highest: no rate above is probed.
        most: probes at most.
    """

    start: float
    precision: float = 0.05
    lowest: float = 0.05
    highest: float = 10_000.0
    most: int = 16
    votes: dict[float, list[Outcome]] = field(default_factory=dict)

    def tell(self, rate: float, outcome: Outcome) -> None:
        self.votes.setdefault(rate, []).append(outcome)

    @property
    def count(self) -> int:
        return sum(len(outcomes) for outcomes in self.votes.values())

    def next_rate(self) -> float | None:
        """The rate to probe next; None: finished, or no probe is left."""
        if self.count >= self.most:
            return None
        if not self.votes:
            return self.start
        undecided = next((rate for rate in self.votes if self._verdict(rate) is None), None)
        if undecided is not None:
            return undecided
        low, high = self._low(), self._high()
        if low is None:
            assert high is not None
            return high / STEP if high / STEP >= self.lowest else self._unsure(high)
        if high is None:
            return low * STEP if low * STEP <= self.highest else self._unsure(low)
        if high / low > 1 + self.precision:
            return math.sqrt(low * high)
        return self._unsure(low) or self._unsure(high)

    def result(self, stopped: str = "") -> Capacity:
        """What is known now. `stopped`: why the search ended early, if something from outside ended it."""
        low, high = self._low(), self._high()
        client = high is not None and self._verdict(high) is Outcome.VOID
        upper = None if client else high
        precise = low is not None and high is not None and not client and high / low <= 1 + self.precision + 1e-9
        confirmed = all(rate is None or self._unsure(rate) is None for rate in (low, high))
        reason = ""
        if not self.votes:
            reason = "nothing was probed"
        elif client:
            reason = f"the client could not send {high:.4g} requests/s well enough to judge"
        elif low is None:
            reason = f"the objectives are not met at {high:.4g} requests/s, the lowest rate tried"
        elif high is None:
            reason = f"the objectives are met at {low:.4g} requests/s, the highest rate tried"
        elif not precise or not confirmed:
            reason = f"{self.count} probes were not enough"
        if stopped and not (precise and confirmed):
            reason = stopped
        probes = tuple((rate, tuple(self.votes[rate])) for rate in sorted(self.votes))
        return Capacity(low, upper, bool(self.votes) and confirmed, precise, reason, probes)

    def _verdict(self, rate: float) -> Outcome | None:
        """Of the majority; None: one more probe is needed. Void probes do not vote, but `VOIDS` are final."""
        outcomes = self.votes[rate]
        met, missed = outcomes.count(Outcome.MET), outcomes.count(Outcome.MISSED)
        if met != missed:
            return Outcome.MET if met > missed else Outcome.MISSED
        return Outcome.VOID if outcomes.count(Outcome.VOID) >= VOIDS else None

    def _low(self) -> float | None:
        return max((rate for rate in self.votes if self._verdict(rate) is Outcome.MET), default=None)

    def _high(self) -> float | None:
        """Also a rate that the client could not send: nothing above it can be judged."""
        low = self._low() or 0.0
        bad = (Outcome.MISSED, Outcome.VOID)
        return min((rate for rate in self.votes if rate > low and self._verdict(rate) in bad), default=None)

    def _unsure(self, rate: float) -> float | None:
        """`rate` if its verdict rests on a single probe."""
        verdict = self._verdict(rate)
        return None if verdict is Outcome.VOID or self.votes[rate].count(verdict or Outcome.MET) >= AGREE else rate


def most_probes(precision: float) -> int:
    """Probes that a search is given: four to bracket, the bisection, two for each edge, and as many again for edges
    that turn out otherwise.
    """
    bisection = math.ceil(math.log2(math.log(STEP) / math.log1p(precision)))
    return 4 + bisection + 2 + 4
