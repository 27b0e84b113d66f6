from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from router.prefix.active import ActiveBlocks

from .reference import check_table, u64


def test_a_block_shared_by_two_requests_counts_once() -> None:
    active = ActiveBlocks(2)
    active.acquire(0, u64([1, 2, 3]))
    active.acquire(0, u64([1, 2, 9]))
    assert active.count(0) == 4


def test_a_shared_block_stays_until_its_last_request_ends() -> None:
    active = ActiveBlocks(2)
    active.acquire(0, u64([1, 2]))
    active.acquire(0, u64([1, 2]))
    active.release(0, u64([1, 2]))
    assert active.count(0) == 2
    active.release(0, u64([1, 2]))
    assert active.count(0) == 0


def test_the_shared_depth_is_what_a_new_request_would_not_add() -> None:
    active = ActiveBlocks(3)
    active.acquire(0, u64([1, 2, 3]))
    active.acquire(2, u64([1, 7]))
    assert active.shared_depth(u64([1, 2, 8])).tolist() == [2, 0, 1]


def test_counts_are_those_of_every_slot() -> None:
    active = ActiveBlocks(3)
    active.acquire(0, u64([1, 2, 3]))
    active.acquire(2, u64([1, 7]))
    assert active.counts().tolist() == [3, 0, 2]


def test_drop_empties_a_slot_only() -> None:
    active = ActiveBlocks(2)
    active.acquire(0, u64([1, 2]))
    active.acquire(1, u64([1, 2]))
    active.drop(0)
    assert active.counts().tolist() == [0, 2]


def test_a_release_from_before_a_drop_does_not_touch_the_newcomer() -> None:
    active = ActiveBlocks(1)
    old = active.acquire(0, u64([1, 2]))
    active.drop(0)
    new = active.acquire(0, u64([1, 2]))
    active.release(0, u64([1, 2]), old)
    assert (active.count(0), active.stale_releases) == (2, 1)
    active.release(0, u64([1, 2]), new)
    assert active.count(0) == 0


def test_releasing_what_is_not_held_is_counted() -> None:
    active = ActiveBlocks(1)
    active.release(0, u64([1, 2]))
    assert active.unknown_releases == 2


def test_slots_can_be_added() -> None:
    active = ActiveBlocks(1)
    active.ensure_slots(100)
    active.acquire(99, u64([5]))
    assert active.shared_depth(u64([5])).nonzero()[0].tolist() == [99]


PROMPTS = [[1, 2, 10 + b, 20 + b, 30 + b][:n] for b in range(3) for n in range(6)]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, len(PROMPTS) - 1), st.booleans()), max_size=60))
def test_random_requests_give_what_a_counter_gives(steps: list[tuple[int, int, bool]]) -> None:
    active = ActiveBlocks(3)
    plain = [Counter[int]() for _ in range(3)]
    open_requests: list[tuple[int, list[int]]] = []
    for slot, which, starts in steps:
        if starts or not open_requests:
            keys = PROMPTS[which]
            active.acquire(slot, u64(keys))
            plain[slot].update(keys)
            open_requests.append((slot, keys))
        else:
            slot, keys = open_requests.pop(which % len(open_requests))
            active.release(slot, u64(keys))
            plain[slot] -= Counter(keys)
        assert active.counts().tolist() == [len(p) for p in plain]
        for prompt in PROMPTS:
            shared = [sum(key in p for key in prompt) for p in plain]
            assert active.shared_depth(u64(prompt)).tolist() == shared
    for slot, keys in open_requests:
        active.release(slot, u64(keys))
    assert active.counts().tolist() == [0, 0, 0]
    assert active.unknown_releases == 0
    check_table(active._table)
