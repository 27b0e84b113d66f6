"""Bookings: what they count, and that they are given back exactly once."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from router.load import Booking, LoadTracker
from router.prefix.active import ActiveBlocks

SLOTS = np.arange(3)


def keys(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint64)


def test_a_booking_counts_request_uncached_prefill_and_full_blocks() -> None:
    loads = LoadTracker(ActiveBlocks())
    loads.book(1, prompt_tokens=50, cached_tokens=16, keys=keys(1, 2, 3))
    assert loads.active_requests[:3].tolist() == [0, 1, 0]
    assert loads.prefill_tokens[:3].tolist() == [0, 34, 0]
    assert loads.decode_blocks(SLOTS).tolist() == [0, 3, 0]


def test_two_live_requests_count_a_shared_prefix_once() -> None:
    loads = LoadTracker(ActiveBlocks())
    loads.book(0, 48, 0, keys(1, 2, 3))
    second = loads.book(0, 48, 0, keys(1, 2, 4))
    assert loads.decode_blocks(SLOTS)[0] == 4
    second.release()
    assert loads.decode_blocks(SLOTS)[0] == 3


def test_the_first_token_ends_the_prefill_load_only() -> None:
    loads = LoadTracker(ActiveBlocks())
    booking = loads.book(0, 48, 0, keys(1, 2, 3))
    booking.prefill_done()
    booking.prefill_done()
    assert (loads.prefill_tokens[0], loads.active_requests[0]) == (0, 1)
    assert loads.decode_blocks(SLOTS)[0] == 3


def test_a_booking_released_twice_counts_once() -> None:
    loads = LoadTracker(ActiveBlocks())
    with loads.book(0, 48, 0, keys(1, 2, 3)) as booking:
        booking.release()
    assert loads.active_requests[0] == 0
    assert loads.open_bookings == 0


def test_loads_survive_growth_of_the_fleet() -> None:
    loads = LoadTracker(ActiveBlocks(2), slots=2)
    booking = loads.book(1, 48, 0, keys(1, 2, 3))
    loads.ensure_slots(500)
    loads.book(499, 16, 0, keys(1))
    booking.release()
    assert loads.active_requests.sum() == 1
    assert loads.decode_blocks(np.array([1, 499])).tolist() == [0, 1]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6), st.integers(0, 3), st.booleans()), max_size=40))
def test_load_is_zero_after_any_order_of_first_tokens_and_releases(steps: list[tuple[int, int, int, bool]]) -> None:
    loads = LoadTracker(ActiveBlocks())
    open_bookings: list[Booking] = []
    for slot, blocks, action, twice in steps:
        if action < 2 or not open_bookings:
            open_bookings.append(loads.book(slot, blocks * 16 + 3, 16 * (blocks // 2), keys(*range(blocks))))
        elif action == 2:
            open_bookings[blocks % len(open_bookings)].prefill_done()
        else:
            booking = open_bookings.pop(blocks % len(open_bookings))
            booking.release()
            if twice:
                booking.release()
    assert loads.active_requests.sum() == len(open_bookings) == loads.open_bookings
    for booking in open_bookings:
        booking.release()
    assert loads.active_requests.sum() == 0
    assert loads.prefill_tokens.sum() == 0
    assert loads.decode_blocks(SLOTS).sum() == 0
    assert loads.open_bookings == 0
