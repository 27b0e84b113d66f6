"""The order of the blocks is balanced, and the p that it can reach is stated."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from bench.design import HEADLINE, default_rounds, plan, rounds_needed, smallest_p, williams


def orders(arms: int, rounds: int, seed: int = 0) -> list[list[int]]:
    blocks = plan(arms, rounds, seed)
    return [[block.arm for block in blocks if block.round == r] for r in range(rounds)]


def test_two_arms_alternate_as_abba() -> None:
    first, second, third, fourth = orders(2, 4)
    assert first == second[::-1]
    assert (third, fourth) == (first, second)


def test_the_seed_decides_who_is_a() -> None:
    assert {tuple(orders(2, 1, seed)[0]) for seed in range(20)} == {(0, 1), (1, 0)}


@pytest.mark.parametrize("arms", [2, 3, 4, 5, 6])
def test_each_arm_stands_equally_often_in_each_place(arms: int) -> None:
    rows = williams(arms)
    for place in range(arms):
        assert set(Counter(row[place] for row in rows).values()) == {len(rows) // arms}


@pytest.mark.parametrize("arms", [2, 3, 4, 5, 6])
def test_each_arm_follows_each_other_equally_often(arms: int) -> None:
    follows = Counter(pair for row in williams(arms) for pair in pairwise(row))
    assert len(follows) == arms * (arms - 1)
    assert len(set(follows.values())) == 1


def test_an_odd_number_of_arms_needs_twice_as_many_sequences() -> None:
    assert [len(williams(arms)) for arms in (1, 2, 3, 4, 5)] == [1, 2, 6, 4, 10]


def test_every_round_has_one_block_of_each_arm() -> None:
    for order in orders(3, 7):
        assert sorted(order) == [0, 1, 2]


def test_blocks_are_numbered_in_the_order_of_the_run() -> None:
    assert [block.index for block in plan(3, 4, 0)] == list(range(12))


@pytest.mark.parametrize(("rounds", "p"), [(1, 1.0), (2, 0.5), (6, 0.03125), (8, 0.0078125)])
def test_the_smallest_p(rounds: int, p: float) -> None:
    assert smallest_p(rounds) == p


def test_rounds_needed_by_hand() -> None:
    """One test: 2/64 is the first below 5 %. Two: 2 * 2/128. Four: 4 * 2/256."""
    assert [rounds_needed(tests) for tests in (1, 2, 4)] == [6, 7, 8]


def test_the_default_of_two_arms_can_claim_every_headline_metric() -> None:
    rounds = default_rounds(2)
    assert rounds % 2 == 0
    assert smallest_p(rounds) * len(HEADLINE) <= 0.05


@pytest.mark.parametrize("arms", [3, 4, 5])
def test_the_default_of_more_arms_is_whole_periods(arms: int) -> None:
    assert default_rounds(arms) % len(williams(arms)) == 0
    assert default_rounds(arms) >= 6
