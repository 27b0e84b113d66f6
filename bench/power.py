"""How small a difference a run can show, and how many rounds a given difference needs. Pure; no clock, no state.

The noise is the standard deviation of a round's log ratio between equal arms, measured by A/A pairs before the run
(the pilot): two blocks of the same arm on the same slice. Their true log ratio is 0, so `n` pairs give the variance
with `n` degrees of freedom. A pilot is small: the number of rounds is chosen from the upper end of what the noise may
be (R. H. Browne, "On the use of a pilot sample for sample size determination", 1995), and nothing that the pilot
measured is used in the test, so that the choice cannot make a claim likelier. Power is that of the exact sign-flip
test that the run uses, by simulation with Gaussian noise and a fixed seed; up to 0.3 s for each number of rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import chdtri, stdtrit

from bench.design import LEVEL, smallest_p
from bench.stats import EXACT_LIMIT, Floats

POWER = 0.8
ASSURANCE = 0.8
"""The true noise is below the one that rounds are chosen by with this probability."""
_TRIALS = 1000


@dataclass(frozen=True, slots=True)
class Noise:
    """Of one metric. `sd`: of a round's log ratio; `low`, `high`: its 90 % interval; `pairs`: measured with."""

    sd: float
    low: float
    high: float
    pairs: int

    def upper(self, assurance: float = ASSURANCE) -> float:
        """What the noise stays below with that probability."""
        return self.sd * math.sqrt(self.pairs / float(chdtri(self.pairs, assurance)))


def noise(log_ratios: Sequence[float], within: Sequence[float] = ()) -> Noise | None:
    """The noise from A/A pairs.

    Args:
        log_ratios: one a pair.
        within: what sessions alone make of each pair's log ratio (a bootstrap's standard deviation). Pairs that agree
            by luck are not taken for less noise than this.

    Returns:
        None without a pair.
    """
    values = np.asarray(log_ratios, np.float64)
    n = len(values)
    if not n:
        return None
    sd = math.sqrt(float((values**2).mean()))
    if len(within):
        sd = max(sd, math.sqrt(float((np.asarray(within, np.float64) ** 2).mean())))
    return Noise(sd, sd * math.sqrt(n / float(chdtri(n, 0.05))), sd * math.sqrt(n / float(chdtri(n, 0.95))), n)


@lru_cache(maxsize=256)
def detectable(rounds: int, tests: int, power: float = POWER, level: float = LEVEL) -> float | None:
    """The mean log ratio, in standard deviations of a round, that is claimed with probability `power`.

    Args:
        rounds: of the run.
        tests: that share `level`, by Holm's first and hardest step.
        power: of the claim.
        level: of all tests together.

    Returns:
        None where so few rounds can claim nothing.
    """
    alpha = level / tests
    if smallest_p(rounds) > alpha:
        return None
    if rounds > EXACT_LIMIT:
        return float((stdtrit(rounds - 1, 1 - alpha / 2) + stdtrit(rounds - 1, power)) / math.sqrt(rounds))
    trial = _SignFlipTrials(rounds)
    low, high = 0.0, 8.0
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (low, middle) if trial.power(middle, alpha) >= power else (middle, high)
    return high


def smallest_effect(sd: float, rounds: int, tests: int) -> float | None:
    """The smallest true ratio above 1, as a share (0.05: 5 %), that a run of `rounds` claims with 80 %."""
    units = detectable(rounds, tests)
    return None if units is None else math.expm1(units * sd)


def rounds_for(sd: float, effect: float, tests: int, most: int) -> int | None:
    """The fewest rounds that claim a ratio of 1 + `effect` with 80 %; None if more than `most`."""
    for rounds in range(1, most + 1):
        found = smallest_effect(sd, rounds, tests)
        if found is not None and found <= effect:
            return rounds
    return None


class _SignFlipTrials:
    """Simulated experiments of one size, the same noise for every effect asked about."""

    def __init__(self, rounds: int) -> None:
        rng = np.random.default_rng(rounds)
        self._rounds = rounds
        noise_: Floats = rng.standard_normal((_TRIALS, rounds))
        if rounds <= 11:
            signs = ((np.arange(2 ** (rounds - 1))[:, None] >> np.arange(rounds)) & 1) * 2.0 - 1
        else:
            signs = rng.integers(0, 2, (2048, rounds)) * 2.0 - 1
            signs[0] = 1
        self._flipped = noise_ @ signs.T
        self._signs = signs.sum(axis=1)
        self._observed = noise_.sum(axis=1)

    def power(self, effect: float, alpha: float) -> float:
        """Share of the trials with p <= alpha when every round has `effect` on top of unit noise."""
        observed = np.abs(self._observed + effect * self._rounds)
        sums = np.abs(self._flipped + effect * self._signs)
        p = (sums >= observed[:, None] - 1e-9).mean(axis=1)
        return float((p <= alpha).mean())
