"""Picking one row from costs: the minimum with ties broken evenly, or a draw from a softmax.

Pure; `rng` is the only source of chance, so that a seeded router repeats itself.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np

from router.model import BoolArray, Candidates, Decision, FloatArray, IntArray, Reason, Term


def lowest(cost: FloatArray | IntArray, rows: np.ndarray, rng: random.Random) -> tuple[int, bool]:
    """The cheapest of `rows` (indices into `cost`, at least one) and whether several were exactly as cheap.

    A tie is broken uniformly: on an empty fleet each row is as likely as any other.
    """
    values = cost[rows]
    tied = rows[values == values.min()]
    if len(tied) == 1:
        return int(tied[0]), False
    return int(tied[rng.randrange(len(tied))]), True


def softmax_probabilities(costs: FloatArray, temperature: float) -> FloatArray:
    """Min-max normalised softmax over costs: p_i ~ exp(-(c_i - min) / ((max - min) * T)); uniform if all are equal.

    Source: the rule of Dynamo's selector (spec routing 1.3). `temperature` > 0. Returns float64, same shape, sum 1.
    """
    low, high = float(costs.min()), float(costs.max())
    if high == low:
        return np.full(len(costs), 1.0 / len(costs))
    if not math.isfinite(high - low):
        scale = max(abs(low), abs(high))
        costs, low, high = costs / scale, low / scale, high / scale
    with np.errstate(over="ignore"):
        weights = np.exp(-(costs - low) / (high - low) / temperature)
    total: FloatArray = weights / weights.sum()
    return total


def sampled(cost: FloatArray, rows: np.ndarray, temperature: float, rng: random.Random) -> int:
    """A row drawn from the softmax over the costs of `rows`; the last one catches rounding."""
    reached = np.cumsum(softmax_probabilities(cost[rows], temperature))
    place = int(np.searchsorted(reached, rng.random()))
    return int(rows[min(place, len(rows) - 1)])


def chosen(cost: FloatArray, eligible: BoolArray, temperature: float, rng: random.Random) -> tuple[int, Reason]:
    """The row a cost picks among the eligible ones, and why: the cheapest, or a draw if there is a temperature."""
    rows = eligible_rows(eligible)
    if len(rows) == 1:
        return int(rows[0]), Reason.ONLY_CANDIDATE
    if temperature > 0:
        return sampled(cost, rows, temperature, rng), Reason.SAMPLED
    winner, tied = lowest(cost, rows, rng)
    return winner, Reason.TIE if tied else Reason.LOWEST_COST


@dataclass(frozen=True, slots=True)
class LoadBound:
    """Nobody is given more than max(floor, ceil(factor * (all in flight + 1) / candidates)) requests in flight.

    So one prefix that every request shares cannot sink one worker: what is above the bound goes to the cheapest of the
    others, which then hold the prefix too. Source of the idea: Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing
    with Bounded Loads", 2018.
    """

    factor: float = 1.25
    floor: int = 4

    def most(self, in_flight: int, candidates: int) -> int:
        """Requests in flight at which one of so many candidates gets no more; always above their mean."""
        return max(self.floor, math.ceil(self.factor * (in_flight + 1) / candidates))

    def below(self, candidates: Candidates) -> BoolArray:
        """The eligible rows that may be given one more request, shape (n,); never none: the bound is above the mean."""
        eligible = candidates.eligible
        active = candidates.active_requests
        most = self.most(int(active[eligible].sum()), int(eligible.sum()))
        below: BoolArray = eligible & (active < most)
        return below


def bounded(
    cost: FloatArray,
    candidates: Candidates,
    bound: LoadBound | None,
    temperature: float,
    rng: random.Random,
) -> tuple[int, Reason]:
    """What `chosen` picks; where that row is at its bound, the pick among the rows below theirs."""
    winner, reason = chosen(cost, candidates.eligible, temperature, rng)
    if bound is None or reason is Reason.ONLY_CANDIDATE or candidates.active_requests[winner] < bound.floor:
        return winner, reason
    return under(bound, winner, reason, cost, candidates, temperature, rng)


def under(
    bound: LoadBound,
    winner: int,
    reason: Reason,
    cost: FloatArray,
    candidates: Candidates,
    temperature: float,
    rng: random.Random,
) -> tuple[int, Reason]:
    """The picked row where it is below its bound, else the pick among those that are."""
    below = bound.below(candidates)
    if below[winner]:
        return winner, reason
    return chosen(cost, below, temperature, rng)[0], Reason.LOAD_BOUND


def by_terms(
    mode: str,
    terms: tuple[Term, ...],
    candidates: Candidates,
    bound: LoadBound | None,
    temperature: float,
    rng: random.Random,
) -> Decision:
    """The decision whose cost is the sum of at least two terms."""
    cost = terms[0].values + terms[1].values
    for term in terms[2:]:
        cost = cost + term.values
    winner, reason = bounded(cost, candidates, bound, temperature, rng)
    return Decision(mode=mode, winner=winner, reason=reason, terms=terms, cost=cost, candidates=candidates)


def eligible_rows(eligible: BoolArray) -> np.ndarray:
    rows: np.ndarray = eligible.nonzero()[0]
    return rows


def by_active_requests(mode: str, winner: int, reason: Reason, candidates: Candidates) -> Decision:
    """The decision of a policy whose only signal is the number of requests in flight."""
    active = candidates.active_requests.astype(np.float64)
    return Decision(
        mode=mode,
        winner=winner,
        reason=reason,
        terms=(Term("active_requests", "requests", active),),
        cost=active,
        candidates=candidates,
    )


def blind(mode: str, winner: int, reason: Reason, candidates: Candidates) -> Decision:
    """The decision of a policy that looks at nothing: no terms, every cost zero."""
    return Decision(
        mode=mode,
        winner=winner,
        reason=reason,
        terms=(),
        cost=np.zeros(len(candidates)),
        candidates=candidates,
    )
