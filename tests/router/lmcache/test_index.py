"""Chunk keys by worker: depth by tier, forgetting, limits."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from router.lmcache.index import MAX_BITS, ChunkIndex, Tier, bits

ALL = (1 << MAX_BITS) - 1


def index(workers: int = 1, limit: int = 1 << 24) -> ChunkIndex:
    made = ChunkIndex(limit)
    assert [made.add() for _ in range(workers)] == list(range(workers))
    return made


def match(made: ChunkIndex, keys: list[int], among: int = ALL) -> dict[int, tuple[int, int]]:
    """(chunks in host memory, chunks in any tier) by worker."""
    in_host, in_any = made.walk(keys, among)
    host = {worker: depth for mask, depth in in_host for worker in bits(mask)}
    return {worker: (host.get(worker, 0), depth) for mask, depth in in_any for worker in bits(mask)}


def swept(made: ChunkIndex) -> ChunkIndex:
    while made.sweeping:
        made.sweep(3)
    return made


def test_depth_ends_at_the_first_chunk_that_is_missing() -> None:
    made = index(2)
    for key in (1, 2, 4):
        made.admit(0, Tier.HOST, key)
    made.admit(1, Tier.HOST, 2)
    assert match(made, [1, 2, 3, 4]) == {0: (2, 2)}


def test_host_depth_ends_where_a_chunk_is_on_disk_only() -> None:
    made = index(3)
    for worker, tiers in ((0, "hdh"), (1, "dhh"), (2, "hhh")):
        for key, tier in enumerate(tiers):
            made.admit(worker, Tier.HOST if tier == "h" else Tier.DISK, key)
    assert match(made, [0, 1, 2]) == {0: (1, 3), 1: (0, 3), 2: (3, 3)}


def test_only_the_asked_workers_are_looked_at() -> None:
    made = index(2)
    for worker in (0, 1):
        made.admit(worker, Tier.HOST, 1)
    assert match(made, [1], 0b10) == {1: (1, 1)}
    assert match(made, []) == {}


def test_an_evicted_key_is_gone_for_that_worker_only() -> None:
    made = index(2)
    for worker in (0, 1):
        made.admit(worker, Tier.HOST, 7)
    assert made.evict(0, Tier.HOST, 7)
    assert not made.evict(0, Tier.HOST, 7)
    assert match(made, [7]) == {1: (1, 1)}


def test_a_removed_worker_leaves_nothing_and_its_bit_is_given_out_again_only_then() -> None:
    made = index(1)
    for key in range(10):
        made.admit(0, Tier.DISK, key)
    made.remove(0)
    assert made.add() == 1
    swept(made)
    assert made.add() == 0
    assert match(made, [0]) == {}
    assert made.bytes == 0


def test_what_is_admitted_again_before_the_sweep_stays() -> None:
    made = index(1)
    for key in range(10):
        made.admit(0, Tier.HOST, key)
    made.clear(0)
    made.admit(0, Tier.HOST, 0)
    swept(made)
    assert match(made, [0, 1]) == {0: (1, 1)}


def test_replace_keeps_what_was_told_and_drops_the_rest() -> None:
    made = index(1)
    for key in (1, 2, 3):
        made.admit(0, Tier.HOST, key)
    made.admit(0, Tier.DISK, 9)
    made.replace(0, Tier.HOST, {2, 3})
    swept(made)
    assert [made.holds(0, key) for key in (1, 2, 3, 9)] == [False, True, True, True]
    assert made.holders(1) == 0


def test_past_the_limit_new_keys_are_refused_and_counted() -> None:
    made = index(1, limit=2000)
    taken = sum(made.admit(0, Tier.HOST, key) for key in range(100))
    assert 0 < taken < 100
    assert made.refused == 100 - taken
    assert made.bytes <= 2000 + 200
    made.evict(0, Tier.HOST, 0)
    assert made.admit(0, Tier.HOST, 1000)


def test_there_are_so_many_workers_and_no_more() -> None:
    made = index(MAX_BITS)
    assert made.add() is None


def test_bits_are_the_numbers_of_the_bits_set() -> None:
    assert list(bits(0b101001)) == [0, 3, 5]


STEP = st.tuples(
    st.sampled_from(["admit", "evict", "clear", "sweep"]), st.integers(0, 2), st.integers(0, 1), st.integers(0, 3)
)


@settings(max_examples=100, deadline=None)
@given(st.lists(STEP, max_size=40))
def test_after_a_sweep_the_index_equals_plain_sets(steps: list[tuple[str, int, int, int]]) -> None:
    made = index(3)
    plain: list[list[set[int]]] = [[set(), set()] for _ in range(3)]
    for what, worker, tier, key in steps:
        if what == "admit":
            made.admit(worker, Tier(tier), key)
            plain[worker][tier].add(key)
        elif what == "evict":
            assert made.evict(worker, Tier(tier), key) is (key in plain[worker][tier])
            plain[worker][tier].discard(key)
        elif what == "clear":
            made.clear(worker, Tier(tier))
            plain[worker][tier] = set()
        else:
            made.sweep(1)
    swept(made)
    expected = {}
    for worker, (host, disk) in enumerate(plain):
        total = next((depth for depth in range(4) if depth not in host | disk), 4)
        if total:
            expected[worker] = (next((depth for depth in range(4) if depth not in host), 4), total)
    assert match(made, [0, 1, 2, 3]) == expected
