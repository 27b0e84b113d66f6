"""The order of the experiment: which arm runs when, on which slice of the workload. Pure.

A round is one block of every arm on the same slice; the rounds are the independent units of every comparison. The
order inside rounds is a Williams design: with two arms AB BA AB BA (linear drift cancels), with k arms k sequences
(2k if k is odd) in which each arm follows each other equally often. Which arm is A is drawn from the seed. Source: E.
J. Williams, "Experimental designs balanced for the estimation of residual effects of treatments", 1949.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

LEVEL = 0.05
HEADLINE = ("ttft_ms.mean", "itl_ms.mean")
"""The metrics that carry the claim: corrected for multiplicity (Holm). All others are shown without a claim."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block. `index`: place in the run; `round`: also the slice that is sent; `arm`: index of the arm."""

    index: int
    round: int
    arm: int


def williams(arms: int) -> list[list[int]]:
    """The sequences of a Williams design for `arms` treatments: `arms` of them, twice as many if odd."""
    if arms < 2:
        return [[0]]
    first = [0]
    low, high = 1, arms - 1
    while low <= high:
        first.append(low)
        if low < high:
            first.append(high)
        low, high = low + 1, high - 1
    rows = [[(value + shift) % arms for value in first] for shift in range(arms)]
    if arms % 2:
        rows += [row[::-1] for row in rows]
    return rows


def plan(arms: int, rounds: int, seed: int) -> list[Block]:
    """All blocks in the order in which they run."""
    labels = list(range(arms))
    random.Random(f"{seed}/labels").shuffle(labels)
    rows = williams(arms)
    blocks: list[Block] = []
    for index in range(rounds):
        for arm in rows[index % len(rows)]:
            blocks.append(Block(len(blocks), index, labels[arm]))
    return blocks


def smallest_p(rounds: int) -> float:
    """The smallest two-sided p that an exact sign-flip test over so many rounds can give."""
    return min(1.0, float(2.0 ** (1 - rounds)))


def rounds_needed(tests: int, level: float = LEVEL) -> int:
    """Rounds from which `tests` headline tests can all pass Holm's correction at `level`."""
    rounds = 1
    while smallest_p(rounds) * tests > level:
        rounds += 1
    return rounds


def default_rounds(arms: int) -> int:
    """Whole periods of the design: enough for a claim with two arms, at least six rounds with more."""
    period = len(williams(arms))
    least = rounds_needed(len(HEADLINE)) if arms <= 2 else 6
    return max(1, -(-least // period)) * period
