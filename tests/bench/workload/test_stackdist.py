"""Stack distances against a plain LRU, and by hand."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.workload.stackdist import distances, hit_weights


def lru_hits(keys: list[int], size: int) -> list[bool]:
    """A cache that really holds keys."""
    held: OrderedDict[int, None] = OrderedDict()
    hits = []
    for key in keys:
        hits.append(key in held)
        held[key] = None
        held.move_to_end(key)
        if len(held) > size:
            held.popitem(last=False)
    return hits


def test_distances_by_hand() -> None:
    found = distances(np.array([7, 8, 7, 7, 9, 8], np.int64))
    assert found.tolist() == [0, 0, 2, 1, 0, 3]


def test_nothing_has_no_distances() -> None:
    assert distances(np.empty(0, np.int64)).tolist() == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 12), max_size=120), st.integers(1, 14))
def test_an_access_hits_exactly_where_its_distance_is_at_most_the_size(keys: list[int], size: int) -> None:
    found = distances(np.array(keys, np.int64))
    assert [0 < one <= size for one in found.tolist()] == lru_hits(keys, size)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 50)), max_size=80))
def test_weights_of_hits_are_those_of_the_plain_cache(pairs: list[tuple[int, int]]) -> None:
    keys, weights = [key for key, _ in pairs], [weight for _, weight in pairs]
    found = distances(np.array(keys, np.int64))
    sizes = [1, 3, 20]
    plain = [sum(w for w, hit in zip(weights, lru_hits(keys, s), strict=True) if hit) for s in sizes]
    assert hit_weights(found, np.array(weights, np.int64), sizes) == plain


def test_keys_of_64_bits_stay_apart() -> None:
    keys = np.array([2**63 + 1, 1, 2**63 + 1], np.uint64)
    assert distances(keys).tolist() == [0, 0, 2]
