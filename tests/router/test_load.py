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


def tracked() -> LoadTracker:
    return LoadTracker(ActiveBlocks(), track_output=True)


def blocks(loads: LoadTracker) -> int:
    return int(loads.decode_blocks(np.array([0]))[0])


def test_every_block_that_a_chunk_crosses_is_counted() -> None:
    """A prompt of 40 in blocks of 16 ends in block 3; 8 more tokens fill it, 33 more open three others."""
    loads = tracked()
    booking = loads.book(0, 40, 0, keys(1, 2), block_size=16)
    booking.generated(8)
    assert blocks(loads) == 2
    booking.generated(33)
    assert blocks(loads) == 2 + 3


def test_with_an_expected_length_output_weighs_less_as_it_comes_near() -> None:
    """Of 160 expected tokens 80 have come: 5 blocks weigh 2.5, of 128 8 blocks weigh 1.6."""
    loads = tracked()
    booking = loads.book(0, 16, 0, keys(1), block_size=16, expected_output=160)
    booking.generated(80)
    assert loads.output_blocks[0] == 2.5
    booking.generated(48)
    assert abs(loads.output_blocks[0] - 8 * 0.2) < 1e-9


def test_an_expectation_that_proves_too_short_is_doubled() -> None:
    """100 tokens where 64 were expected: 7 blocks at 1 - 100/128."""
    loads = tracked()
    booking = loads.book(0, 16, 0, keys(1), block_size=16, expected_output=64)
    booking.generated(100)
    assert abs(loads.output_blocks[0] - 7 * (1 - 100 / 128)) < 1e-9


def test_output_is_given_back_with_the_booking() -> None:
    loads = tracked()
    first, second = (loads.book(0, 16, 0, keys(1), block_size=16) for _ in range(2))
    first.generated(50)
    second.generated(20)
    first.release()
    first.generated(50)
    assert blocks(loads) == 1 + 2
    second.release()
    assert (blocks(loads), float(loads.output_blocks[0])) == (0, 0.0)


def test_without_tracking_output_counts_nothing() -> None:
    loads = LoadTracker(ActiveBlocks())
    loads.book(0, 16, 0, keys(1), block_size=16).generated(100)
    assert blocks(loads) == 1


def test_where_prefixes_are_not_shared_each_request_counts_its_own_blocks() -> None:
    loads = LoadTracker(ActiveBlocks(), shares=False)
    first, second = (loads.book(0, 48, 0, keys(1, 2, 3)) for _ in range(2))
    assert blocks(loads) == 6
    first.release()
    assert blocks(loads) == 3
    second.release()
    assert blocks(loads) == 0
