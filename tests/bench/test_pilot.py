"""The A/A pairs: their order, the noise they show, the rounds that follow from it, and what carry-over looks like."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from bench.client.watch import SelfWatch
from bench.cold import ColdProof
from bench.design import Block
from bench.experiment import BlockResult
from bench.guards import BlockFacts
from bench.metrics import Measured
from bench.pilot import Auto, Pilot, pilot_blocks, read_pilot, rounds_of
from bench.power import Noise
from tests.bench.results import arms, request, timing

TTFT = Callable[[int, int], float]


def blocks(pairs: int, ttft: TTFT) -> list[BlockResult]:
    """`ttft`: (place of the block, number of the request) -> seconds."""
    sides = arms("kv", "random")
    found = []
    for place, block in enumerate(pilot_blocks(pairs, 2, 8)):
        measured = [
            Measured(request(number, block.round), timing(0.1 * number, ttft=ttft(place, number), cached=20))
            for number in range(40)
        ]
        facts = BlockFacts(measured, SelfWatch(cpu=0.1))
        found.append(BlockResult(block, sides[block.arm], facts, ColdProof("reset"), 0.0))
    return found


def test_each_pair_is_one_arm_twice_on_one_slice() -> None:
    assert pilot_blocks(3, 2, 8) == [
        Block(-6, 0, 0), Block(-5, 0, 0), Block(-4, 1, 1), Block(-3, 1, 1), Block(-2, 2, 0), Block(-1, 2, 0),
    ]  # fmt: skip


def test_pairs_wrap_around_the_slices_there_are() -> None:
    assert {block.round for block in pilot_blocks(4, 2, 2)} == {0, 1}


def test_the_log_ratio_of_a_pair_is_the_second_block_over_the_first() -> None:
    pilot = read_pilot(blocks(2, lambda place, _: [0.1, 0.11, 0.2, 0.19][place]), 0)
    assert pilot is not None
    assert [pair.arm for pair in pilot.pairs] == ["kv", "random"]
    assert [pair.log_ratios["ttft_ms.mean"] for pair in pilot.pairs] == pytest.approx([math.log(1.1), math.log(0.95)])
    assert pilot.noise["ttft_ms.mean"].sd == pytest.approx(
        math.sqrt((math.log(1.1) ** 2 + math.log(0.95) ** 2) / 2), rel=1e-6
    )


def test_noise_of_the_sessions_counts_where_the_pairs_agree_by_luck() -> None:
    def noisy(place: int, number: int) -> float:
        return 0.1 * (1 + 0.5 * random.Random(f"{place % 2}/{number // 2}").uniform(-1, 1))

    pilot = read_pilot(blocks(1, noisy), 0)
    assert pilot is not None
    assert pilot.noise["ttft_ms.mean"].sd >= pilot.pairs[0].spread["ttft_ms.mean"] > 0.02


def test_an_unfinished_pair_does_not_count() -> None:
    found = blocks(1, lambda *_: 0.1)
    found[1].interrupted = True
    assert read_pilot(found, 0) is None


def test_a_second_block_that_is_always_slower_is_called_carry_over() -> None:
    slower = read_pilot(blocks(2, lambda place, number: (0.1 + 0.001 * (number % 3)) * (1.2 if place % 2 else 1)), 0)
    steady = read_pilot(blocks(2, lambda place, _: [0.1, 0.11, 0.11, 0.1][place]), 0)
    assert slower is not None
    assert steady is not None
    assert slower.carry_over == ["ttft_ms.mean"]
    assert steady.carry_over == []


def quiet(sd: float) -> Pilot:
    return Pilot((), {"ttft_ms.mean": Noise(sd, sd, sd, 4), "itl_ms.mean": Noise(sd / 10, sd, sd, 4)})


def test_more_noise_takes_more_rounds_up_to_the_limit() -> None:
    found = [rounds_of(Auto(0.05), quiet(sd), 2) for sd in (0.001, 0.04, 0.06, 1.0)]
    assert found == sorted(found)
    assert found[0] == 8
    assert found[1] < found[2]
    assert found[-1] == 40


def test_the_rounds_are_whole_periods_of_the_design() -> None:
    assert rounds_of(Auto(0.05), quiet(0.03), 3) % 6 == 0


def test_no_pilot_takes_all_rounds() -> None:
    assert rounds_of(Auto(0.05, most=12), None, 2) == 12


@pytest.mark.parametrize(("text", "effect"), [("auto", 0.05), ("auto:3%", 0.03), ("auto:0.1", 0.1)])
def test_auto_is_read(text: str, effect: float) -> None:
    assert Auto.parse(text).effect == pytest.approx(effect)


@pytest.mark.parametrize("text", ["auto:", "many", "auto:x", "auto:0", "auto:500%"])
def test_what_is_not_auto_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"wanted|such as"):
        Auto.parse(text)
