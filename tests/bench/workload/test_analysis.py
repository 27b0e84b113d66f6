"""A workload in numbers: by hand on small ones, and the published figures of the conversation trace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.workload.analysis import Analysis, accesses, analyse
from bench.workload.describe import BlockKeys
from bench.workload.model import Deed, FleetAction, Request, Workload
from bench.workload.mooncake import block_accesses, build, load
from bench.workload.source import Wish, make
from bench.workload.tokens import Piece, Vocabulary

REAL = Path(__file__).parents[4] / "shared/data/traces/mooncake_conversation.jsonl"


def request(
    number: int, at: float, *pieces: tuple[int, int], group: str = "g", slice: int = 0, **how: object
) -> Request:
    own = tuple(Piece(key, length) for key, length in pieces)
    return Request(f"r{number}", f"s{number}", 0, group, slice, at, 10 + number, own, **how)  # type: ignore[arg-type]


def hand() -> Workload:
    """A: 32 shared + 16 own, B: 32 shared + 16 other, A again, C: 16 alone."""
    return Workload(
        "hand",
        (
            request(0, 0.0, (1, 32), (2, 16), group="a"),
            request(1, 0.0, (1, 32), (3, 16), group="a"),
            request(2, 1.0, (1, 32), (2, 16), group="a"),
            request(3, 4.0, (9, 16), group="b"),
        ),
        1,
        Vocabulary(),
    )


def numbers(workload: Workload, **how: object) -> Analysis:
    return analyse(workload, **({"block": 16, "workers": 2, "cache_tokens": 64} | how))  # type: ignore[arg-type]


def test_accesses_are_whole_blocks_that_name_their_prefix() -> None:
    found = accesses(hand().requests, BlockKeys(Vocabulary(), 16))
    assert found.ends.tolist() == [3, 6, 9, 10]
    assert found.keys[:2].tolist() == found.keys[3:5].tolist() == found.keys[6:8].tolist()
    assert found.keys[2] == found.keys[8] != found.keys[5]


def test_the_endless_cache_by_hand() -> None:
    """B finds 2 of its 3 blocks, A again 3, C none: 5 of 10 blocks, 80 of 160 tokens."""
    assert numbers(hand()).infinite == (0.5, 0.5)


def test_the_lru_curve_by_hand() -> None:
    """B's shared blocks are 3 keys back, A's shared ones again 3, A's own 4 (its own, two shared, B's)."""
    curve = numbers(hand(), sizes=[2, 3, 4]).curve
    assert [cache.block_hits for cache in curve] == [0.0, 0.4, 0.5]


def test_arrivals_by_hand() -> None:
    arriving = numbers(hand()).arriving
    assert (arriving.loop, arriving.span_s, arriving.rate, arriving.peak) == ("open", 4.0, 0.75, 2)
    assert (arriving.moments, arriving.together) == (3, 2)
    assert arriving.cv == pytest.approx(float(np.std([0, 1, 3]) / np.mean([0, 1, 3])))


def test_lengths_by_hand() -> None:
    found = numbers(hand())
    assert (found.prompt.mean, found.prompt.at[0], found.prompt.at[100]) == (40.0, 16.0, 48.0)
    assert found.output.mean == 11.5


def test_copies_are_prompts_sent_before_whole() -> None:
    assert numbers(hand()).duplicates == 1


def test_the_hottest_prefixes_are_as_long_as_they_are_shared() -> None:
    found = [(prefix.tokens, prefix.requests, prefix.share) for prefix in numbers(hand()).hottest]
    assert found == [(32, 3, 0.75), (48, 2, 0.5)]


def test_the_largest_group_is_weighed_against_one_engine() -> None:
    group = numbers(hand()).largest
    assert (group.name, group.share, group.fair_shares, group.tokens, group.of_cache) == ("a", 0.75, 1.5, 64, 1.0)


def test_each_slice_starts_cold() -> None:
    twice = Workload("w", (request(0, 0, (1, 32)), request(0, 0, (1, 32), slice=1)), 2, Vocabulary())
    assert numbers(twice).infinite == (0.0, 0.0)


def test_adapters_share_nothing() -> None:
    two = Workload("w", (request(0, 0, (1, 32), model="x"), request(1, 0, (1, 32), model="y")), 1, Vocabulary())
    assert numbers(two).infinite == (0.0, 0.0)
    assert numbers(two).duplicates == 0


def test_actions_and_aborts_are_told() -> None:
    workload = Workload("w", (request(0, 0, (1, 32), abort_after=2),), 1, Vocabulary())
    workload.actions = (FleetAction(1.5, Deed.KILL, 3),)
    found = numbers(workload)
    assert found.aborted == 1
    assert found.actions == ["kill engine 3 at 1.50 s"]


def test_prompts_shorter_than_a_block_have_no_blocks() -> None:
    short = Workload("w", (request(0, 0, (1, 5)), request(1, 1, (1, 5))), 1, Vocabulary())
    found = numbers(short)
    assert (found.infinite, found.hottest) == ((0.0, 0.0), [])


def test_a_working_set_of_twice_the_fleets_cache_does_not_fit() -> None:
    workload = make(Wish("working-set:factor=2,cache=4096,document=256,passes=6", workers=2))
    found = analyse(workload, block=16, workers=2, cache_tokens=4096, sizes=[256, 512, 1024, 4096])
    held = [cache.token_hits for cache in found.curve]
    assert held[-1] == pytest.approx(found.infinite[1])
    assert held[1] < 0.65 * held[-1]


@pytest.mark.skipif(not REAL.exists(), reason="the conversation trace is not here")
def test_the_conversation_trace_has_the_published_figures() -> None:
    """12,031 requests over 3,537 s, 36.6 / 37.4 %, 1,180 times, 118 copies, LRU of 1k to 50k blocks."""
    workload = build(REAL, slices=1, seed=0, speedup=1, use_jitter=False)
    sizes = [1000, 3000, 10_000, 30_000, 50_000]
    native = block_accesses(load(REAL))
    found = analyse(workload, block=16, workers=8, cache_tokens=262_144, sizes=sizes, native=native)
    assert (found.requests, round(found.arriving.span_s), round(found.prompt.mean)) == (12_031, 3537, 12_035)
    assert (found.prompt.at[50], found.prompt.at[100], round(found.output.mean)) == (6909, 126_195, 343)
    assert [round(100 * share, 1) for share in found.infinite] == [36.6, 37.4]
    assert [round(100 * cache.block_hits, 1) for cache in found.curve] == [4.4, 6.5, 21.1, 32.6, 35.5]
    assert (found.arriving.moments, found.duplicates) == (1180, 118)
    assert found.hottest[0].requests == 12_031
