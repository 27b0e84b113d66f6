"""Picking one row from costs: the minimum with ties broken evenly, or a draw from a softmax.

Pure; `rng` is the only source of chance, so that a seeded router repeats itself.
"""

from __future__ import annotations

import math
import random

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
    weights = np.exp(-(costs - low) / ((high - low) * temperature))
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


def eligible_rows(eligible: BoolArray) -> np.ndarray:
    return np.flatnonzero(eligible)


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
