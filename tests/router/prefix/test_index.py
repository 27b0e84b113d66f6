from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.events.wire import AllBlocksCleared, BlockRemoved, BlockStored, Tier
from router.prefix.hashing import block_keys, root_key
from router.prefix.index import Overlap, PrefixIndex

from .reference import ReferenceIndex, check_table, u32, u64

SEED, SIZE, PLENTY = 99, 2, 1 << 30
ROOT = root_key(SEED, SIZE)


def overlap_of(index: PrefixIndex, tokens: list[int], lora: str | None = None, salt: str | None = None) -> Overlap:
    return index.match(block_keys(u32(tokens), SIZE, root_key(SEED, SIZE, lora, salt)))


def tiers(overlap: Overlap, slot: int) -> list[int]:
    return [int(a[slot]) for a in (overlap.device, overlap.host, overlap.disk, overlap.external)]


def store(index: PrefixIndex, slot: int, tokens: list[int], hashes: list[int], tier: int = 0, **more: object) -> int:
    return index.store(slot, tier, None, u64(hashes), u32(tokens), SIZE, **more)  # type: ignore[arg-type]


# ---- the semantic, one fact each


def test_match_counts_the_contiguous_prefix_of_each_slot() -> None:
    index = PrefixIndex(SEED, PLENTY, 3)
    store(index, 0, [1, 2, 3, 4, 5, 6], [10, 11, 12])
    store(index, 2, [1, 2, 3, 4], [10, 11])
    assert overlap_of(index, [1, 2, 3, 4, 5, 6, 7, 8]).device.tolist() == [3, 0, 2]


def test_a_block_missing_in_the_middle_ends_the_match() -> None:
    index = PrefixIndex(SEED, PLENTY, 1)
    store(index, 0, [1, 2, 3, 4, 5, 6], [10, 11, 12])
    index.remove(0, 0, u64([11]))
    assert overlap_of(index, [1, 2, 3, 4, 5, 6]).device.tolist() == [1]


def test_lower_tiers_continue_where_the_tier_above_stopped() -> None:
    index = PrefixIndex(SEED, PLENTY, 1)
    store(index, 0, [1, 2, 3, 4, 5, 6, 7, 8, 9, 9], [1, 2, 3, 4, 5], tier=Tier.EXTERNAL)
    store(index, 0, [1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4], tier=Tier.DISK)
    store(index, 0, [1, 2, 3, 4, 5, 6], [1, 2, 3], tier=Tier.HOST)
    store(index, 0, [1, 2], [1])
    assert tiers(overlap_of(index, [1, 2, 3, 4, 5, 6, 7, 8, 9, 9]), 0) == [1, 2, 1, 1]


def test_a_tier_is_not_entered_again_after_it_stopped() -> None:
    index = PrefixIndex(SEED, PLENTY, 1)
    store(index, 0, [1, 2, 3, 4, 5, 6], [1, 2, 3])
    index.remove(0, 0, u64([2]))
    store(index, 0, [1, 2, 3, 4], [1, 2], tier=Tier.HOST)
    assert tiers(overlap_of(index, [1, 2, 3, 4, 5, 6]), 0) == [1, 1, 0, 0]


def test_a_child_continues_its_parents_chain() -> None:
    index = PrefixIndex(SEED, PLENTY, 1)
    store(index, 0, [1, 2], [10])
    index.store(0, 0, 10, u64([11]), u32([3, 4]), SIZE)
    assert overlap_of(index, [1, 2, 3, 4]).device.tolist() == [2]


def test_a_parent_of_another_slot_is_unknown() -> None:
    index = PrefixIndex(SEED, PLENTY, 2)
    store(index, 0, [1, 2], [10])
    assert index.store(1, 0, 10, u64([11]), u32([3, 4]), SIZE) == 0
    assert index.counters.orphan_stores == 1
    assert index.blocks(1) == 0


def test_a_store_known_already_is_counted() -> None:
    index = PrefixIndex(SEED, PLENTY, 1)
    assert store(index, 0, [1, 2, 3, 4], [10, 11]) == 2
    assert store(index, 0, [1, 2, 3, 4, 5, 6], [10, 11, 12]) == 1
    assert (index.counters.stored, index.counters.duplicate_stores) == (3, 2)


def test_a_block_in_two_copies_is_gone_with_the_second() -> None:
    index = PrefixIndex(SEED, PLENTY, 1)
    for _ in range(2):
        store(index, 0, [1, 2], [10])
    index.remove(0, 0, u64([10]))
    assert overlap_of(index, [1, 2]).device.tolist() == [1]
    assert len(index.gone) == 0
    index.remove(0, 0, u64([10, 77]))
    assert overlap_of(index, [1, 2]).device.tolist() == [0]
    assert len(index.gone) == 1


def test_without_counting_copies_one_removal_ends_a_block_told_twice() -> None:
    index = PrefixIndex(SEED, PLENTY, 1, count_copies=False)
    for _ in range(2):
        store(index, 0, [1, 2], [10])
    index.remove(0, 0, u64([10]))
    assert overlap_of(index, [1, 2]).device.tolist() == [0]


def test_copies_are_counted_a_tier() -> None:
    index = PrefixIndex(SEED, PLENTY, 1)
    for tier in (Tier.DEVICE, Tier.HOST, Tier.HOST):
        store(index, 0, [1, 2], [10], tier=tier)
    index.remove(0, Tier.DEVICE, u64([10]))
    index.remove(0, Tier.HOST, u64([10]))
    assert tiers(overlap_of(index, [1, 2]), 0) == [0, 1, 0, 0]


def test_more_copies_than_can_be_counted_do_not_spill_into_the_next_tier() -> None:
    index = PrefixIndex(SEED, PLENTY, 1)
    for _ in range(400):
        store(index, 0, [1, 2], [10])
    for _ in range(256):
        index.remove(0, Tier.DEVICE, u64([10]))
    assert tiers(overlap_of(index, [1, 2]), 0) == [0, 0, 0, 0]
    assert index.blocks(0) == 0


def test_removing_one_of_two_hashes_of_the_same_block_keeps_it() -> None:
    index = PrefixIndex(SEED, PLENTY, 1)
    store(index, 0, [1, 2], [10])
    store(index, 0, [1, 2], [20])
    index.remove(0, 0, u64([10]))
    assert overlap_of(index, [1, 2]).device.tolist() == [1]
    index.remove(0, 0, u64([20]))
    assert overlap_of(index, [1, 2]).device.tolist() == [0]


def test_removing_from_one_tier_keeps_the_other() -> None:
    index = PrefixIndex(SEED, PLENTY, 1)
    store(index, 0, [1, 2], [10])
    store(index, 0, [1, 2], [10], tier=Tier.HOST)
    index.remove(0, Tier.DEVICE, u64([10]))
    assert tiers(overlap_of(index, [1, 2]), 0) == [0, 1, 0, 0]


def test_removing_from_every_tier_forgets_the_hash() -> None:
    index = PrefixIndex(SEED, PLENTY, 1)
    store(index, 0, [1, 2], [10])
    store(index, 0, [1, 2], [10], tier=Tier.DISK)
    assert index.remove(0, None, u64([10])) == 1
    assert index.blocks(0) == 0


def test_a_moved_block_is_held_in_the_other_tier_and_keeps_its_children() -> None:
    index = PrefixIndex(SEED, 1 << 20)
    store(index, 0, [1, 2, 3, 4], [10, 11])
    assert index.move(0, Tier.DEVICE, Tier.HOST, u64([11])) == 1
    assert tiers(overlap_of(index, [1, 2, 3, 4]), 0) == [1, 1, 0, 0]
    assert index.store(0, 0, 11, u64([12]), u32([5, 6]), SIZE) == 1
    index.move(0, Tier.HOST, Tier.DEVICE, u64([11]))
    assert tiers(overlap_of(index, [1, 2, 3, 4, 5, 6]), 0) == [3, 0, 0, 0]
    assert index.counters.moved == 2


def test_a_move_takes_every_copy() -> None:
    index = PrefixIndex(SEED, 1 << 20)
    for _copy in range(3):
        store(index, 0, [1, 2], [10])
    index.move(0, Tier.DEVICE, Tier.HOST, u64([10]))
    index.remove(0, Tier.HOST, u64([10]))
    assert index.blocks(0) == 0


def test_a_move_of_an_unknown_block_is_counted_and_adds_nothing() -> None:
    index = PrefixIndex(SEED, 1 << 20)
    assert index.move(0, Tier.DEVICE, Tier.HOST, u64([99])) == 0
    assert (index.counters.unknown_removals, index.counters.moved, index.nodes) == (1, 0, 0)


def test_an_unknown_removal_is_counted() -> None:
    index = PrefixIndex(SEED, PLENTY, 1)
    store(index, 0, [1, 2], [10])
    assert index.remove(0, Tier.HOST, u64([10, 77])) == 0
    assert index.counters.unknown_removals == 2
    assert index.blocks(0) == 1


def test_a_hash_used_for_other_tokens_stands_for_the_new_ones() -> None:
    index = PrefixIndex(SEED, PLENTY, 1)
    store(index, 0, [1, 2], [10])
    store(index, 0, [8, 9], [10])
    assert overlap_of(index, [1, 2]).device.tolist() == [0]
    assert overlap_of(index, [8, 9]).device.tolist() == [1]


def test_clear_empties_one_slot_only() -> None:
    index = PrefixIndex(SEED, PLENTY, 2)
    for slot in (0, 1):
        store(index, slot, [1, 2], [10])
    index.clear(0)
    assert overlap_of(index, [1, 2]).device.tolist() == [0, 1]


def test_clearing_a_large_slot_empties_it_at_once_and_frees_it_by_and_by() -> None:
    index = PrefixIndex(SEED, PLENTY, 2)
    tokens = list(range(10_000))
    store(index, 0, tokens, list(range(5_000)))
    index.clear(0)
    assert index.blocks(0) == 0
    assert overlap_of(index, tokens).device.tolist() == [0, 0]
    assert index.nodes == 5_000
    store(index, 0, tokens[:4], [1, 2])
    assert overlap_of(index, tokens).device.tolist() == [2, 0]
    for _ in range(6):
        index.remove(1, 0, u64([1]))
    assert index.nodes == 2
    check_table(index._table)


def test_more_large_clears_than_spare_numbers_still_empty_the_slot() -> None:
    index = PrefixIndex(SEED, PLENTY, 40)
    tokens = list(range(6_000))
    for slot in range(40):
        store(index, slot, tokens, list(range(3_000)))
    for slot in range(40):
        index.clear(slot)
    assert not overlap_of(index, tokens).device.any()
    check_table(index._table)


@pytest.mark.parametrize(
    "more",
    [
        {"lora_name": "sql"},
        {"cache_salt": "tenant"},
        {"extra_keys": [["tenant"], None]},
        {"extra_keys": [[["image", 0]], None]},
        {"lora_name": "sql", "extra_keys": [["sql"], ["sql"]]},
    ],
)
def test_blocks_of_an_adapter_a_salt_or_an_image_never_match_plain_text(more: dict[str, object]) -> None:
    index = PrefixIndex(SEED, PLENTY, 1)
    store(index, 0, [1, 2, 3, 4], [10, 11], **more)
    assert overlap_of(index, [1, 2, 3, 4]).device.tolist() == [0]


SCOPES: list[dict[str, object]] = [
    {},
    {"lora_name": "sql"},
    {"lora_name": "chat"},
    {"cache_salt": "tenant"},
    {"lora_name": "sql", "cache_salt": "tenant"},
    {"extra_keys": [[["image", 0]], None]},
    {"extra_keys": [[["image", 7]], None]},
    {"extra_keys": [[["other image", 0]], None]},
    {"lora_name": "sql", "extra_keys": [["sql", ["image", 0]], ["sql"]]},
    {"extra_keys": [[["image", 0], "tenant"], None]},
]


@pytest.mark.parametrize("mine", range(len(SCOPES)))
def test_equal_tokens_of_two_scopes_never_share_a_block(mine: int) -> None:
    """Nodes are shared by key: two scopes whose keys met anywhere would need fewer than two nodes each."""
    for other, scope in enumerate(SCOPES):
        index = PrefixIndex(SEED, 1 << 20)
        store(index, 0, [1, 2, 3, 4], [10, 11], **SCOPES[mine])
        store(index, 1, [1, 2, 3, 4], [20, 21], **scope)
        assert index.nodes == (2 if other == mine else 4)


@pytest.mark.parametrize("extra_keys", [None, [["sql"], ["sql"]], [("sql",), None]])
def test_an_adapters_name_inside_extra_keys_counts_once(extra_keys: list[object]) -> None:
    index = PrefixIndex(SEED, PLENTY, 1)
    store(index, 0, [1, 2, 3, 4], [10, 11], lora_name="sql", extra_keys=extra_keys)
    assert overlap_of(index, [1, 2, 3, 4], lora="sql").device.tolist() == [2]


def test_a_salt_in_the_first_blocks_extra_keys_is_the_requests_salt() -> None:
    index = PrefixIndex(SEED, PLENTY, 1)
    store(index, 0, [1, 2, 3, 4], [10, 11], extra_keys=[["tenant"], None])
    assert overlap_of(index, [1, 2, 3, 4], salt="tenant").device.tolist() == [2]


def test_an_extra_key_in_the_middle_leaves_the_blocks_before_it_plain() -> None:
    index = PrefixIndex(SEED, PLENTY, 1)
    store(index, 0, [1, 2, 3, 4, 5, 6], [10, 11, 12], extra_keys=[None, ["image"], None])
    assert overlap_of(index, [1, 2, 3, 4, 5, 6]).device.tolist() == [1]


def test_entries_of_extra_keys_that_are_empty_count_as_none() -> None:
    index = PrefixIndex(SEED, PLENTY, 1)
    store(index, 0, [1, 2, 3, 4], [10, 11], extra_keys=[[], None])
    assert overlap_of(index, [1, 2, 3, 4]).device.tolist() == [2]


def test_too_few_tokens_for_the_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="3 tokens"):
        store(PrefixIndex(SEED, PLENTY, 1), 0, [1, 2, 3], [1, 2])


def test_apply_takes_decoded_events() -> None:
    index = PrefixIndex(SEED, PLENTY, 1)
    index.apply(0, BlockStored(u64([1, 2]), None, u32([1, 2, 3, 4]), SIZE))
    index.apply(0, BlockStored(u64([3]), 2, u32([5, 6]), SIZE, Tier.HOST))
    assert tiers(overlap_of(index, [1, 2, 3, 4, 5, 6]), 0) == [2, 1, 0, 0]
    index.apply(0, BlockRemoved(u64([2])))
    assert tiers(overlap_of(index, [1, 2, 3, 4, 5, 6]), 0) == [1, 0, 0, 0]
    index.apply(0, AllBlocksCleared())
    assert index.blocks(0) == 0


def test_slots_can_be_added_and_are_independent() -> None:
    index = PrefixIndex(SEED, PLENTY, 1)
    store(index, 0, [1, 2, 3, 4], [10, 11])
    index.ensure_slots(1000)
    store(index, 999, [1, 2], [10])
    overlap = overlap_of(index, [1, 2, 3, 4])
    assert np.flatnonzero(overlap.device).tolist() == [0, 999]
    assert overlap.device[[0, 999]].tolist() == [2, 1]


def test_a_match_of_no_keys_is_all_zero() -> None:
    index = PrefixIndex(SEED, PLENTY, 2)
    store(index, 0, [1, 2], [10])
    assert not overlap_of(index, [1]).device.any()


# ---- against the reference

SLOTS = 70  # two words of the owner sets
op = st.tuples(
    st.sampled_from(["store", "store", "store", "remove", "remove_all", "clear"]),
    st.sampled_from([0, 1, 2, 69]),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(1, 5),
    st.one_of(st.none(), st.integers(0, 20)),
)


def blocks_of(branch: int, count: int) -> tuple[list[int], list[int]]:
    """Tokens and hashes that share prefixes across branches, and now and then a second hash for the same tokens."""
    tokens = [1, 1, 2, 2, 3 + branch % 2, 3, 4 + branch, 4, 5, 5][: 2 * count]
    return tokens, [100 * (branch if d >= 2 else branch // 2) + d for d in range(count)]


@settings(max_examples=200, deadline=None)
@given(st.lists(op, max_size=60))
def test_random_events_give_what_the_reference_gives(ops: list[tuple]) -> None:
    index, plain = PrefixIndex(SEED, PLENTY, SLOTS), ReferenceIndex(ROOT)
    for name, slot, tier, branch, count, parent in ops:
        tokens, hashes = blocks_of(branch, count)
        if name == "store":
            index.store(slot, tier, parent, u64(hashes), u32(tokens), SIZE)
            plain.store(slot, tier, parent, hashes, tokens, SIZE)
        elif name == "clear":
            index.clear(slot)
            plain.clear(slot)
        else:
            where = tier if name == "remove" else None
            index.remove(slot, where, u64(hashes[::-1]))
            plain.remove(slot, where, hashes[::-1])
    for branch in range(4):
        tokens, _ = blocks_of(branch, 5)
        keys = block_keys(u32(tokens), SIZE, ROOT)
        overlap = index.match(keys)
        for slot in (0, 1, 2, 69):
            assert tiers(overlap, slot) == plain.match(slot, keys.tolist())
    for slot in (0, 1, 2, 69):
        assert index.blocks(slot) == plain.blocks(slot)
    counters = index.counters
    assert (counters.orphan_stores, counters.duplicate_stores, counters.unknown_removals) == (
        plain.orphans,
        plain.duplicates,
        plain.unknown,
    )
    check_table(index._table)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_at_the_byte_limit_whole_blocks_go_and_the_rest_stays_exact(seed: int) -> None:
    rng = np.random.default_rng(seed)
    smallest = PrefixIndex(SEED, 0, 4).bytes
    limit = smallest + int(rng.integers(0, 30_000))
    index, plain = PrefixIndex(SEED, limit, 4), ReferenceIndex(ROOT)
    prompts = [rng.integers(0, 3, 80).tolist() for _ in range(12)]
    for _ in range(60):
        slot, tier, which = (int(rng.integers(0, n)) for n in (4, 4, len(prompts)))
        hashes = [which * 100 + d for d in range(int(rng.integers(1, 41)))]
        tokens = prompts[which][: 2 * len(hashes)]
        event = rng.random()
        if event < 0.8:
            index.store(slot, tier, None, u64(hashes), u32(tokens), SIZE)
            plain.store(slot, tier, None, hashes, tokens, SIZE)
        elif event < 0.95:
            index.remove(slot, tier, u64(hashes))
            plain.remove(slot, tier, hashes)
        else:
            index.clear(slot)
            plain.clear(slot)
        assert index.bytes <= limit
        gone = {where for where in plain.handles if index.holds(*where) == 0}
        gone_keys = {plain.handles[where][0] for where in gone}
        partly = {where for where in plain.handles if where not in gone and plain.handles[where][0] in gone_keys}
        assert partly <= {(slot, block_hash) for block_hash in hashes}  # gone, and stored again by this event
        for where in gone:
            plain.forget(*where)
        keys = block_keys(u32(prompts[which]), SIZE, ROOT)
        overlap = index.match(keys)
        for held_by in range(4):
            assert tiers(overlap, held_by) == plain.match(held_by, keys.tolist())
    check_table(index._table)


def test_store_and_remove_cycles_do_not_leak() -> None:
    index = PrefixIndex(SEED, PLENTY, 8)
    rng = np.random.default_rng(1)
    sizes = []
    for cycle in range(30):
        for slot in range(8):
            tokens = rng.integers(0, 1000, 400).tolist()
            hashes = rng.integers(0, 2**63, 200).tolist()
            store(index, slot, tokens, hashes, tier=slot % 4)
            if cycle % 2:
                index.clear(slot)
            else:
                index.remove(slot, None, u64(hashes))
        sizes.append(index.bytes)
    assert index.nodes == 0
    assert len(set(sizes[1:])) == 1
    check_table(index._table)


def test_a_block_matched_lately_survives_an_eviction() -> None:
    index = PrefixIndex(SEED, PrefixIndex(SEED, 0, 1).bytes, 1)
    store(index, 0, [1, 2, 3, 4], [1, 2])
    for turn in range(2000):
        overlap_of(index, [1, 2, 3, 4])
        store(index, 0, [7, 7 + turn], [1000 + turn])
    assert index.counters.evicted > 1000
    assert overlap_of(index, [1, 2, 3, 4]).device.tolist() == [2]


def test_a_prompt_longer_than_the_limit_allows_keeps_the_index_within_it() -> None:
    limit = PrefixIndex(SEED, 0, 1).bytes
    index = PrefixIndex(SEED, limit, 1)
    store(index, 0, list(range(20_000)), list(range(10_000)))
    assert index.bytes <= limit
    check_table(index._table)


def test_reserve_makes_the_room_that_stores_would_have_made() -> None:
    index = PrefixIndex(SEED, PLENTY, 1)
    index.reserve(5_000)
    before = index.bytes
    store(index, 0, list(range(8_000)), list(range(4_000)))
    assert index.bytes == before
