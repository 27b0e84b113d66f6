"""How much of the difference in TTFT comes from hits, from queueing, from imbalance. Pure.

Two terms are known for each request and taken out as they are: how late it was sent, and what the router's decision
took. The rest of its TTFT is explained by a linear model with one intercept an arm and slopes that both arms share,

    rest = intercept(arm) + a * uncached prompt tokens of its own
                          + b * uncached tokens ahead of it at its worker (sent, no first token yet)
                          + c * requests in flight at its worker

fitted by least squares. An intercept an arm makes the means of the fit those of the data, so the difference of the arms
is exactly the sum of slope * (difference of means) and the difference of the intercepts. What is ahead at a request's
own worker is the average over the workers plus an excess: the average is queueing (how full the fleet was), the excess
imbalance (how much fuller the worker that was chosen). The difference of the intercepts is what the model leaves open.
With slopes from both arms together this is the pooled form of the decomposition of R. Oaxaca and A. Blinder (both
1973), with arm intercepts in the pooled fit as B. Jann (2008) advises.

It is a description, no proof of causes: fewer uncached tokens also shorten the queue, which counts as queueing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.explain.columns import BlockColumns, ahead
from bench.stats import Floats, expanded_interval

FEWEST = 40
"""Pairs from which the model is fitted."""
EFFECTS = ("hits", "queueing", "imbalance", "decision", "sent late", "unexplained")
_OWN, _AHEAD, _FLIGHT = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Effect:
    """`ms`: candidate - base; below 0 it makes the candidate sooner. None: cannot be told apart. `ci95`: rounds
    resampled; None with fewer than two.
    """

    name: str
    ms: float | None
    ci95: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Slopes:
    """Milliseconds; None: the term does not vary or is not known."""

    per_1k_uncached: float | None
    per_1k_ahead: float | None
    per_request: float | None


@dataclass(frozen=True, slots=True)
class Decomposition:
    """Of the difference of the arms' mean TTFT over `pairs` requests that both answered whole.

    `r2`: share of the variance inside each arm that the model explains, candidate first. `reason`: why there is no
    decomposition; then `effects` is empty.
    """

    base: str
    other: str
    pairs: int
    difference_ms: float | None
    effects: tuple[Effect, ...]
    slopes: Slopes | None = None
    r2: tuple[float, float] | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Side:
    """An arm: its blocks, and how many workers stand behind it."""

    name: str
    blocks: Sequence[BlockColumns]
    workers: int


@dataclass(frozen=True, slots=True)
class _Rows:
    """One arm's paired requests. `terms`, `level`: shape (n, 3); `level` is the fleet's average of each term (0 for its
    own tokens). `place`: the round's number.
    """

    rest: Floats
    late: Floats
    decide: Floats
    terms: Floats
    level: Floats
    place: npt.NDArray[np.int64]

    @property
    def total(self) -> Floats:
        return self.rest + self.late + self.decide


def decompose(other: Side, base: Side, rng: np.random.Generator, draws: int = 1000) -> Decomposition:
    """The difference other - base. `draws`: of the bootstrap over rounds; costs about 0.1 ms each."""
    rounds, pairs = _paired(other, base)
    known = all(bool((b.worker[b.ok] >= 0).all()) for side in (other, base) for b in side.blocks)
    decides = all(not np.isnan(b.decide_ms[b.ok]).any() for side in (other, base) for b in side.blocks)
    sides = [_rows(side, pairs, rounds, known, decides) for side in (other, base)]
    count = len(sides[0].rest)
    if not count:
        reason = "no request was answered whole by both arms with its cached tokens known"
        return Decomposition(base.name, other.name, 0, None, (), reason=reason)
    difference = float(sides[0].total.mean() - sides[1].total.mean())
    if count < FEWEST:
        reason = f"{count} requests that both arms answered are too few for the model ({FEWEST} needed)"
        return Decomposition(base.name, other.name, count, difference, (), reason=reason)
    sums = [_Sums.of(side, len(rounds)) for side in sides]
    whole = np.ones(len(rounds))
    point, slopes = _effects(sums, whole)
    ends = _intervals(sums, len(rounds), rng, draws)
    effects = []
    for index, name in enumerate(EFFECTS):
        unknown = (name == "imbalance" and not known) or (name == "decision" and not decides)
        effects.append(Effect(name, None if unknown else float(point[index]), None if unknown else ends[index]))
    return Decomposition(
        base.name,
        other.name,
        count,
        difference,
        tuple(effects),
        Slopes(*(None if s is None else s * scale for s, scale in zip(slopes, (1000, 1000, 1), strict=True))),
        (_r2(sides[0], slopes), _r2(sides[1], slopes)),
    )


def _paired(other: Side, base: Side) -> tuple[list[int], set[tuple[int, str]]]:
    """The rounds of both, and the requests that both answered and of which everything is known."""
    found = [
        {
            (b.round, b.ids[row])
            for b in side.blocks
            for row in np.flatnonzero(~np.isnan(b.ttft_send_ms) & ~np.isnan(b.uncached)).tolist()
        }
        for side in (other, base)
    ]
    pairs = found[0] & found[1]
    return sorted({round_ for round_, _ in pairs}), pairs


def _rows(side: Side, pairs: set[tuple[int, str]], rounds: list[int], known: bool, decides: bool) -> _Rows:
    parts = []
    for block in side.blocks:
        keep = np.array([(block.round, name) in pairs for name in block.ids], np.bool_)
        if not keep.any():
            continue
        front = ahead(block, max(1, side.workers))
        zero = np.zeros(len(keep))
        level = np.column_stack([zero, front.mean_tokens, front.mean_requests])
        own = np.column_stack([block.uncached, front.tokens, front.requests]) if known else level.copy()
        own[:, _OWN] = block.uncached
        decide = block.decide_ms if decides else zero
        rest = block.ttft_send_ms - decide
        place = np.full(len(keep), rounds.index(block.round))
        parts.append((rest[keep], block.late_ms[keep], decide[keep], own[keep], level[keep], place[keep]))
    joined = [np.concatenate(column) for column in zip(*parts, strict=True)]
    if not joined:
        return _Rows(np.empty(0), np.empty(0), np.empty(0), np.empty((0, 3)), np.empty((0, 3)), np.empty(0, np.int64))
    rest, late, decided, terms, levels, places = joined
    return _Rows(rest, late, decided, terms, levels, places)


@dataclass(frozen=True, slots=True)
class _Sums:
    """Sums over each round of what the fit needs, so that a draw of rounds costs no pass over the requests.

    `n` (rounds,), `terms`, `level` (rounds, 3), `cross` (rounds, 3, 3), `target` (rounds, 3), `rest`, `late`, `decide`
    (rounds,).
    """

    n: Floats
    terms: Floats
    level: Floats
    cross: Floats
    target: Floats
    rest: Floats
    late: Floats
    decide: Floats

    @classmethod
    def of(cls, rows: _Rows, rounds: int) -> _Sums:
        def total(values: Floats) -> Floats:
            found = np.zeros((rounds, *values.shape[1:]))
            np.add.at(found, rows.place, values)
            return found

        cross = rows.terms[:, :, None] * rows.terms[:, None, :]
        return cls(
            total(np.ones(len(rows.rest))), total(rows.terms), total(rows.level), total(cross),
            total(rows.terms * rows.rest[:, None]), total(rows.rest), total(rows.late), total(rows.decide),
        )  # fmt: skip


def _effects(sums: Sequence[_Sums], weights: Floats) -> tuple[Floats, list[float | None]]:
    """The six effects, and the slopes; `weights`: how often each round counts."""
    inside, onto = np.zeros((3, 3)), np.zeros(3)
    means = []
    for side in sums:
        n = float(weights @ side.n)
        terms, level = weights @ side.terms / n, weights @ side.level / n
        rest, late, decide = (float(weights @ column) / n for column in (side.rest, side.late, side.decide))
        inside += np.tensordot(weights, side.cross, 1) - n * np.outer(terms, terms)
        onto += weights @ side.target - n * terms * rest
        means.append((terms, level, rest, late, decide))
    slopes = _solve(inside, onto)
    beta = np.array([slope or 0.0 for slope in slopes])
    (terms_a, level_a, rest_a, late_a, decide_a), (terms_b, level_b, rest_b, late_b, decide_b) = means
    moved, fleet = terms_a - terms_b, level_a - level_b
    hits = beta[_OWN] * moved[_OWN]
    queueing = float(beta[_AHEAD:] @ fleet[_AHEAD:])
    imbalance = float(beta[_AHEAD:] @ (moved - fleet)[_AHEAD:])
    rest = rest_a - rest_b - float(beta @ moved)
    return np.array([hits, queueing, imbalance, decide_a - decide_b, late_a - late_b, rest]), slopes


def _solve(inside: Floats, onto: Floats) -> list[float | None]:
    """Slopes of the terms that vary; of terms that vary together the least-squares solution of least norm."""
    scale = np.sqrt(np.diag(inside).clip(0))
    varies = scale > 1e-9
    slopes: list[float | None] = [None, None, None]
    if varies.any():
        inner = inside[np.ix_(varies, varies)] / np.outer(scale[varies], scale[varies])
        found = np.linalg.lstsq(inner, onto[varies] / scale[varies], rcond=1e-9)[0] / scale[varies]
        for index, value in zip(np.flatnonzero(varies).tolist(), found.tolist(), strict=True):
            slopes[index] = value
    return slopes


def _intervals(
    sums: Sequence[_Sums], rounds: int, rng: np.random.Generator, draws: int
) -> list[tuple[float, float] | None]:
    if rounds < 2:
        return [None] * len(EFFECTS)
    drawn = rng.multinomial(rounds, np.full(rounds, 1 / rounds), draws).astype(np.float64)
    found = np.array([_effects(sums, weights)[0] for weights in drawn])
    return [expanded_interval(found[:, index], rounds) for index in range(len(EFFECTS))]


def _r2(rows: _Rows, slopes: Sequence[float | None]) -> float:
    beta = np.array([slope or 0.0 for slope in slopes])
    left = rows.rest - rows.terms @ beta
    spread = float(rows.rest.var())
    return 1 - float(left.var()) / spread if spread > 0 else 0.0
