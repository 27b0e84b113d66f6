"""The LRU of a worker's capacity against a plain one, and what it means for a worker that tells nothing."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.prefix.capacity import CapacityLru, output_blocks

from .reference import u64


class PlainLru:
    """Per slot an ordered dict of keys, freshest last."""

    def __init__(self) -> None:
        self.slots: dict[int, OrderedDict[object, None]] = {}
        self.touches = 0

    def touch(self, slot: int, keys: list[int], capacity: int, output: int) -> None:
        self.touches += 1
        held = self.slots.setdefault(slot, OrderedDict())
        names: list[object] = [*keys, *(("output", self.touches, block) for block in range(output))]
        for name in reversed(names):
            held[name] = None
            held.move_to_end(name)
        while len(held) > capacity:
            held.popitem(last=False)

    def depth(self, slot: int, keys: list[int]) -> int:
        held = self.slots.get(slot, OrderedDict())
        return next((depth for depth, key in enumerate(keys) if key not in held), len(keys))


prompts = st.builds(
    lambda branch, count: [1000 * (branch + 1) + block for block in range(count)], st.integers(0, 5), st.integers(0, 12)
)
touch = st.tuples(st.just("touch"), st.integers(0, 3), prompts, st.integers(1, 20), st.integers(0, 4))
drop = st.tuples(st.just("drop"), st.integers(0, 3))


@settings(max_examples=150, deadline=None)
@given(st.lists(touch | drop, max_size=40))
def test_random_touches_give_what_the_plain_lru_gives(ops: list[tuple]) -> None:  # type: ignore[type-arg]
    lru, plain = CapacityLru(1_000_000, slots=4), PlainLru()
    everything = [[1000 * (branch + 1) + block for block in range(12)] for branch in range(6)]
    for op in ops:
        if op[0] == "touch":
            _name, slot, keys, capacity, output = op
            lru.touch(slot, u64(keys), capacity, output)
            plain.touch(slot, keys, capacity, output)
        else:
            lru.drop(op[1])
            plain.slots.pop(op[1], None)
        for keys in everything:
            assert lru.match(u64(keys)).tolist() == [plain.depth(slot, keys) for slot in range(4)]
        assert [lru.held(slot) for slot in range(4)] == [len(plain.slots.get(slot, ())) for slot in range(4)]


def test_a_prompt_longer_than_the_capacity_keeps_its_first_blocks() -> None:
    lru = CapacityLru(1000)
    lru.touch(0, u64(range(1, 101)), 10)
    assert lru.match(u64(range(1, 101)))[0] == 10
    assert len(lru) == 10


def test_the_least_recently_used_prompt_goes_first_from_its_end() -> None:
    lru = CapacityLru(1000)
    lru.touch(0, u64([1, 2, 3]), 8)
    lru.touch(0, u64([11, 12, 13]), 8)
    lru.touch(0, u64([1, 2, 3]), 8)
    lru.touch(0, u64([21, 22, 23, 24]), 8)
    assert [int(lru.match(u64(keys))[0]) for keys in ([1, 2, 3], [11, 12, 13], [21, 22, 23, 24])] == [3, 1, 4]


def test_output_takes_room_that_no_prompt_matches() -> None:
    lru = CapacityLru(1000)
    lru.touch(0, u64([1, 2, 3]), 6)
    lru.touch(0, u64([11, 12]), 6, output_blocks=3)
    assert lru.held(0) == 6
    assert lru.match(u64([1, 2, 3]))[0] == 1


def test_slots_are_independent() -> None:
    lru = CapacityLru(1000)
    lru.touch(0, u64([1, 2]), 2)
    lru.touch(1, u64([11, 12]), 2)
    assert lru.match(u64([1, 2]))[:2].tolist() == [2, 0]
    lru.drop(0)
    assert lru.match(u64([1, 2]))[:2].tolist() == [0, 0]
    assert lru.match(u64([11, 12]))[:2].tolist() == [0, 2]


def test_slots_can_be_added() -> None:
    lru = CapacityLru(1000, slots=1)
    lru.touch(0, u64([1]), 10)
    lru.ensure_slots(200)
    lru.touch(199, u64([1]), 10)
    assert lru.match(u64([1]))[[0, 198, 199]].tolist() == [1, 0, 1]


def test_past_the_limit_the_slots_in_use_share_it_evenly() -> None:
    lru = CapacityLru(100)
    for slot in range(4):
        lru.touch(slot, u64(range(1000 * slot + 1, 1000 * slot + 91)), 90)
        assert len(lru) <= 100
    assert [lru.held(slot) for slot in range(4)] == [25, 25, 25, 25]


def test_the_bytes_stay_put_however_much_is_touched() -> None:
    lru = CapacityLru(1000)
    lru.touch(0, u64(range(1, 1001)), 1000)
    before = lru.bytes
    for start in range(2000, 40_000, 900):
        lru.touch(0, u64(range(start, start + 900)), 1000)
    assert lru.bytes <= 2 * before
    assert len(lru) == 1000


def test_no_room_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        CapacityLru(0)


@pytest.mark.parametrize(
    ("prompt", "output", "expected"),
    [(32, 0, 0), (32, 1, 0), (32, 16, 0), (32, 17, 1), (30, 2, 0), (30, 3, 1), (30, 18, 1), (30, 19, 2), (0, 17, 1)],
)
def test_a_block_of_output_counts_one_token_late(prompt: int, output: int, expected: int) -> None:
    """After n sampled tokens n - 1 are in the cache: 32 + 16 in blocks of 16 are 47 cached, so two whole blocks."""
    assert output_blocks(prompt, output, 16) == expected
