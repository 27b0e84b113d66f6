"""The A/A control: pairs of blocks of one arm on one slice, before the run. What they differ by is noise. Pure.

From the noise follow the smallest difference that the run can show, said before it starts, and the number of rounds of
`--blocks auto`. Only the size of the differences is used, never their sign or anything about another arm, and the
pilot's blocks are in no comparison: so the number of rounds is fixed before the first block that counts, and the test
keeps its size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.design import HEADLINE, Block, rounds_needed, williams
from bench.experiment import BlockResult
from bench.metrics import Measurements, paired
from bench.power import Noise, noise, rounds_for, smallest_effect
from bench.stats import numbered, session_spread

MOST_ROUNDS = 40
EFFECT = 0.05
CARRY_OVER = 3.0


@dataclass(frozen=True, slots=True)
class Auto:
    """`--blocks auto:EFFECT`: as many rounds as claim a ratio of 1 + `effect` with 80 %, at most `most`."""

    effect: float = EFFECT
    most: int = MOST_ROUNDS

    @classmethod
    def parse(cls, text: str) -> Auto:
        """`auto`, `auto:5%`, `auto:0.05`.

        Raises:
            ValueError: none of these, or not between 0.1 % and 100 %.
        """
        name, colon, written = text.partition(":")
        try:
            if name != "auto" or (colon and not written):
                raise ValueError
            effect = float(written.removesuffix("%")) / (100 if written.endswith("%") else 1) if colon else EFFECT
        except ValueError:
            raise ValueError(f"{text!r}: a number, auto or auto:EFFECT such as auto:5%") from None
        if not 0.001 <= effect <= 1:
            raise ValueError(f"{text!r}: an effect between 0.1% and 100% wanted")
        return cls(effect)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two blocks of `arm` on one slice: the log ratio (second / first) of each metric, and what sessions explain."""

    arm: str
    log_ratios: dict[str, float]
    spread: dict[str, float]


@dataclass(frozen=True, slots=True)
class Pilot:
    """What the A/A pairs say. `noise`: by headline metric."""

    pairs: tuple[Pair, ...]
    noise: dict[str, Noise]

    def detectable(self, rounds: int, tests: int) -> dict[str, float | None]:
        """For each headline metric the smallest ratio above 1 that so many rounds claim with 80 %, as a share."""
        return {name: smallest_effect(found.sd, rounds, tests) for name, found in self.noise.items()}

    @property
    def carry_over(self) -> list[str]:
        """Headline metrics in which the second block differed from the first in every pair, the same way and by more
        than its sessions explain: the first block leaves something behind, or the machine drifts.
        """
        found = []
        for name in self.noise:
            scores = [pair.log_ratios[name] / max(pair.spread[name], 1e-9) for pair in self.pairs]
            if len(scores) > 1 and (min(scores) > CARRY_OVER or max(scores) < -CARRY_OVER):
                found.append(name)
        return found


def pilot_blocks(pairs: int, arms: int, slices: int) -> list[Block]:
    """The blocks of the pilot: a pair of each arm in turn, on the first slices. Their indices are negative."""
    return [Block(place - 2 * pairs, (place // 2) % slices, (place // 2) % arms) for place in range(2 * pairs)]


def read_pilot(blocks: Sequence[BlockResult], seed: int) -> Pilot | None:
    """What the finished pairs say; None without one, or where a headline metric has no ratio in one of them."""
    rng = np.random.default_rng(seed)
    done = [block for block in blocks if not block.interrupted]
    pairs = []
    for first, second in zip(done[::2], done[1::2], strict=False):
        ratios, spread = {}, {}
        sessions = numbered([request.session for request in Measurements.of(first.facts.measured).requests()])
        for name in HEADLINE:
            metric = paired(first.facts.measured, second.facts.measured, name)
            ratio, width = session_spread(metric, sessions, rng)
            if ratio is None:
                return None
            ratios[name], spread[name] = math.log(ratio), width
        pairs.append(Pair(first.arm.name, ratios, spread))
    if not pairs:
        return None
    found = {
        name: noise([pair.log_ratios[name] for pair in pairs], [pair.spread[name] for pair in pairs])
        for name in HEADLINE
    }
    return Pilot(tuple(pairs), {name: one for name, one in found.items() if one is not None})


def rounds_of(auto: Auto, pilot: Pilot | None, arms: int) -> int:
    """The rounds that `--blocks auto` takes: enough for every headline metric at the upper end of its noise, in whole
    periods of the design; `auto.most` where that is not enough, or where there is no pilot to go by.
    """
    tests = len(HEADLINE) * (arms - 1)
    needed: list[int | None] = [rounds_needed(tests)]
    if pilot is not None:
        needed += [rounds_for(one.upper(), auto.effect, tests, auto.most) for one in pilot.noise.values()]
    else:
        needed.append(None)
    rounds = max(auto.most if one is None else one for one in needed)
    period = len(williams(arms))
    return min(-(-rounds // period) * period, max(period, auto.most // period * period))
