"""The map with a byte limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.tokens.lru import ByteLru


def test_what_was_used_longest_ago_goes_first() -> None:
    lru: ByteLru[str, int] = ByteLru(30)
    lru.put("a", 1, 10)
    lru.put("b", 2, 10)
    lru.put("c", 3, 10)
    assert lru.get("a") == 1
    lru.put("d", 4, 10)
    assert lru.get("b") is None
    assert [lru.get(key) for key in "acd"] == [1, 3, 4]


def test_an_entry_above_the_limit_is_not_kept() -> None:
    lru: ByteLru[str, int] = ByteLru(30)
    lru.put("a", 1, 10)
    lru.put("big", 2, 31)
    assert lru.get("big") is None
    assert lru.get("a") == 1


def test_clear_forgets_everything() -> None:
    lru: ByteLru[str, int] = ByteLru(30)
    lru.put("a", 1, 10)
    lru.clear()
    assert (lru.get("a"), lru.bytes, len(lru)) == (None, 0, 0)


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 40))))
def test_bytes_are_the_sum_of_what_is_kept_and_within_the_limit(puts: list[tuple[int, int]]) -> None:
    lru: ByteLru[int, int] = ByteLru(100)
    sizes: dict[int, int] = {}
    for key, size in puts:
        lru.put(key, size, size)
        sizes[key] = size
    kept = [key for key in sizes if lru.get(key) is not None]
    assert lru.bytes == sum(sizes[key] for key in kept) <= 100


@given(st.lists(st.tuples(st.sampled_from("gp"), st.integers(0, 5))))
def test_hits_and_misses_count_every_look_up(operations: list[tuple[str, int]]) -> None:
    lru: ByteLru[int, int] = ByteLru(30)
    for operation, key in operations:
        if operation == "g":
            lru.get(key)
        else:
            lru.put(key, key, 10)
    assert lru.hits + lru.misses == sum(operation == "g" for operation, _ in operations)
