from __future__ import annotations

import random
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from router.prefix.active import ActiveBlocks
from router.prefix.hashing import block_keys

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


def test_keys_are_kept_only_while_somebody_uses_them() -> None:
    active = ActiveBlocks(2)
    active.acquire(0, u64([1, 2, 3]))
    active.acquire(1, u64([1, 2, 9]))
    active.acquire(1, u64([1, 2]))
    active.release(0, u64([1, 2, 3]))
    assert active.chains == 2
    active.release(1, u64([1, 2, 9]))
    active.drop(1)
    assert active.chains == 0


def test_a_shared_prefix_outlives_the_request_that_brought_it() -> None:
    active = ActiveBlocks(1)
    first = u64([1, 2, 3, 4])
    active.acquire(0, first)
    active.acquire(0, u64([1, 2, 8]))
    active.release(0, first)
    del first
    other = [u64([7] * 4) for _ in range(50)]
    assert active.shared_depth(u64([1, 2, 3, 4])).tolist() == [2]
    assert len(other) == 50


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_many_long_requests_that_branch_anywhere_give_what_a_counter_gives(seed: int) -> None:
    rng = random.Random(seed)
    slots = 70
    active = ActiveBlocks(slots)
    plain = [Counter[int]() for _ in range(slots)]
    prompts = [[rng.randrange(5) for _ in range(rng.randrange(40))]]
    open_requests: list[tuple[int, np.ndarray]] = []
    for step in range(400):
        if rng.random() < 0.7 or not open_requests:
            parent = rng.choice(prompts)
            prompt = parent[: rng.randrange(len(parent) + 1)] + [rng.randrange(3) for _ in range(rng.randrange(30))]
            prompts.append(prompt)
            keys = block_keys(np.array(prompt, np.uint32), 1, 5)
            slot = rng.randrange(slots)
            active.acquire(slot, keys)
            plain[slot].update(keys.tolist())
            open_requests.append((slot, keys))
        else:
            slot, keys = open_requests.pop(rng.randrange(len(open_requests)))
            active.release(slot, keys.copy())
            plain[slot] -= Counter(keys.tolist())
        if step % 100 == 50:
            slot = rng.randrange(slots)
            active.drop(slot)
            plain[slot].clear()
            open_requests = [request for request in open_requests if request[0] != slot]
        if step % 20 == 0:
            keys = block_keys(np.array(rng.choice(prompts), np.uint32), 1, 5)
            assert active.shared_depth(keys).tolist() == [sum(key in held for key in keys.tolist()) for held in plain]
            assert active.counts().tolist() == [len(held) for held in plain]
    for slot, keys in open_requests:
        active.release(slot, keys)
    assert (active.counts().any(), active.chains, active.unknown_releases) == (False, 0, 0)
    check_table(active._table)
