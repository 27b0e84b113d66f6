"""Queued prefill that is the request's own: the table against a plain count."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from router.pending import PendingPrefills
from router.prefix.hashing import block_keys, root_key
from router.prefix.runs import common_blocks

ROOT = root_key(1, 1)


def chain(tokens: list[int]) -> np.ndarray:
    return block_keys(np.array(tokens, np.uint32), 1, ROOT)


def test_a_sibling_shares_the_uncached_part_of_the_prefix_being_computed() -> None:
    pending = PendingPrefills()
    pending.add(2, chain([1, 2, 3, 4, 50]), cached_blocks=1)
    assert pending.own_blocks(chain([1, 2, 3, 4, 60, 61]), 4).tolist() == [0, 0, 3, 0]


def test_a_request_that_diverges_before_the_uncached_part_shares_nothing() -> None:
    pending = PendingPrefills()
    pending.add(0, chain([1, 2, 3]), cached_blocks=2)
    assert pending.own_blocks(chain([1, 2, 9]), 1) is None


def test_nothing_is_pending_after_the_first_token() -> None:
    pending = PendingPrefills()
    ticket = pending.add(0, chain([1, 2, 3]), cached_blocks=0)
    assert ticket is not None
    pending.remove(ticket)
    assert pending.own_blocks(chain([1, 2, 3]), 1) is None
    assert len(pending) == 0


def test_a_wholly_cached_prompt_has_nothing_pending() -> None:
    assert PendingPrefills().add(0, chain([1, 2]), cached_blocks=2) is None


prompts = st.lists(st.integers(0, 2), min_size=1, max_size=8)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), prompts, st.integers(0, 4), st.booleans()), max_size=120), prompts)
def test_equals_a_plain_comparison_of_prefixes(
    bookings: list[tuple[int, list[int], int, bool]], asked: list[int]
) -> None:
    pending = PendingPrefills()
    expected = [0] * 4
    for slot, tokens, cached, ended in bookings:
        ticket = pending.add(slot, chain(tokens), cached)
        if ended:
            if ticket is not None:
                pending.remove(ticket)
            continue
        shared = next((i for i, (a, b) in enumerate(zip(tokens, asked)) if a != b), min(len(tokens), len(asked)))
        expected[slot] = max(expected[slot], shared - cached)
    own = pending.own_blocks(chain(asked), 4)
    assert (own.tolist() if own is not None else [0] * 4) == expected


@given(prompts, prompts)
def test_common_blocks_of_chains_that_agree_at_the_first(one: list[int], other: list[int]) -> None:
    one, other = [7, *one], [7, *other]
    plain = next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
    assert common_blocks(chain(one), chain(other), 0) == plain
