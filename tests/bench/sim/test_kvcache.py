"""The paged cache: facts of reuse and eviction, and equality with a plain model under random use."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.sim.kvcache import Cleared, Ids, KVCache, Removed, Stored
from router.prefix.hashing import Keys

BLOCK = 4


def admit(cache: KVCache, keys: Keys, limit: int, ids: Ids, first_tokens: int, all_tokens: int) -> int:
    """Let a sequence in, as the engine does: its cached prefix and blocks for its next tokens. The reused blocks, or
    -1 if there is no room.
    """
    hits = cache.lookup(keys, limit, ids, all_tokens)
    if hits >= 0:
        cache.hold(ids, hits, min(all_tokens, hits * cache.block_size + first_tokens))
    return hits


class PlainCache:
    """The same rules with lists and dicts: a list is the free queue, head first."""

    def __init__(self, blocks: int) -> None:
        self.queue = list(range(blocks))
        self.refs = [0] * blocks
        self.key_of: dict[int, int] = {}
        self.by_key: dict[int, list[int]] = {}
        self.evicted: list[int] = []

    def admit(self, keys: list[int], limit: int, first: int, total: int) -> tuple[int, list[int]]:
        hits = []
        for key in keys[:limit]:
            if key not in self.by_key:
                break
            hits.append(self.by_key[key][0])
        parked = sum(self.refs[block] == 0 for block in hits)
        if -(-total // BLOCK) - len(hits) + parked > len(self.queue):
            return -1, []
        for block in hits:
            if self.refs[block] == 0:
                self.queue.remove(block)
            self.refs[block] += 1
        tokens = min(total, len(hits) * BLOCK + first)
        return len(hits), hits + self.take(-(-tokens // BLOCK) - len(hits))

    def take(self, count: int) -> list[int]:
        taken = [self.queue.pop(0) for _ in range(max(0, count))]
        for block in taken:
            key = self.key_of.pop(block, None)
            if key is not None:
                self.evicted.append(key)
                self.by_key[key].remove(block)
                if not self.by_key[key]:
                    del self.by_key[key]
            self.refs[block] = 1
        return taken

    def store(self, blocks: list[int], keys: list[int], start: int, stop: int) -> None:
        for block, key in zip(blocks[start:stop], keys[start:stop], strict=True):
            self.key_of[block] = key
            self.by_key.setdefault(key, []).append(block)

    def release(self, blocks: list[int]) -> None:
        bare, cached = [], []
        for block in reversed(blocks):
            self.refs[block] -= 1
            if self.refs[block] == 0:
                (cached if block in self.key_of else bare).append(block)
        self.queue = bare + self.queue + cached


def keys_of(numbers: list[int]) -> np.ndarray:
    """Distinct, well-mixed keys; equal numbers give equal keys."""
    return np.array([(n * 0x9E3779B97F4A7C15 + 0x1234567) % 2**64 for n in numbers], np.uint64)


def chain(prompt: tuple[int, ...]) -> list[int]:
    """A number for every prefix of a prompt of blocks."""
    return [hash(prompt[: i + 1]) & 0xFFFFFFFF for i in range(len(prompt))]


class Holder:
    def __init__(self, cache: KVCache, prompt: tuple[int, ...]) -> None:
        self.cache = cache
        self.keys = keys_of(chain(prompt))
        self.ids = np.empty(len(prompt), np.int32)
        self.tokens = np.zeros(len(prompt) * BLOCK, np.uint32)

    def run(self) -> int:
        """Admit, store all, release; returns the reused blocks."""
        total = len(self.tokens)
        hits = admit(self.cache, self.keys, len(self.keys), self.ids, total, total)
        if hits >= 0:
            self.cache.store(self.ids, self.keys, hits, len(self.keys), self.tokens, None, None)
            self.cache.release(self.ids, len(self.ids))
        return hits


def test_a_repeated_prompt_reuses_its_blocks() -> None:
    cache = KVCache(8, BLOCK)
    assert [Holder(cache, (1, 2, 3)).run(), Holder(cache, (1, 2, 3)).run(), Holder(cache, (1, 2, 9)).run()] == [0, 3, 2]


def test_tails_are_evicted_before_heads() -> None:
    cache = KVCache(4, BLOCK)
    Holder(cache, (1, 2, 3)).run()
    cache.take_events()
    Holder(cache, (7, 8)).run()
    evicted = next(event for event in cache.take_events() if isinstance(event, Removed))
    assert list(evicted.keys) == [keys_of(chain((1, 2, 3)))[2]]
    assert Holder(cache, (1, 2, 3)).run() == 2


def test_the_least_recently_used_prompt_goes_first() -> None:
    cache = KVCache(6, BLOCK)
    for prompt in ((1, 2), (3, 4), (1, 2), (5, 6), (7, 8)):
        Holder(cache, prompt).run()
    assert Holder(cache, (3, 4)).run() == 0


def test_blocks_that_are_held_are_not_evicted() -> None:
    cache = KVCache(4, BLOCK)
    holder = Holder(cache, (1, 2, 3))
    admit(cache, holder.keys, 3, holder.ids, 12, 12)
    assert Holder(cache, (7, 8)).run() == -1
    assert cache.used == 3


def test_a_refused_admission_changes_nothing() -> None:
    cache = KVCache(4, BLOCK)
    Holder(cache, (1, 2)).run()
    before = (cache.free, sorted(cache.cached_keys()))
    big = Holder(cache, (1, 2, 3, 4, 5))
    assert admit(cache, big.keys, 5, big.ids, 20, 20) == -1
    assert (cache.free, sorted(cache.cached_keys())) == before


def test_admission_asks_for_room_for_the_whole_prompt_even_if_a_chunk_fits() -> None:
    cache = KVCache(4, BLOCK)
    big = Holder(cache, (1, 2, 3, 4, 5))
    assert admit(cache, big.keys, 0, big.ids, BLOCK, 20) == -1


def test_a_reused_block_counts_once_in_use() -> None:
    cache = KVCache(8, BLOCK)
    Holder(cache, (1, 2)).run()
    for prompt in ((1, 2, 3), (1, 2, 4)):
        holder = Holder(cache, prompt)
        assert admit(cache, holder.keys, 3, holder.ids, 12, 12) == 2
    assert cache.used == 4


def test_clear_is_refused_while_a_block_is_held() -> None:
    cache = KVCache(4, BLOCK)
    holder = Holder(cache, (1, 2))
    admit(cache, holder.keys, 0, holder.ids, 8, 8)
    assert not cache.clear()
    cache.release(holder.ids, 2)
    assert cache.clear()
    assert cache.take_events()[-1] == Cleared()


def test_nothing_is_found_after_clear() -> None:
    cache = KVCache(4, BLOCK)
    Holder(cache, (1, 2)).run()
    cache.clear()
    assert cache.cached == 0
    assert Holder(cache, (1, 2)).run() == 0


def test_without_reuse_nothing_is_cached_or_recorded() -> None:
    cache = KVCache(4, BLOCK, reuse=False)
    assert [Holder(cache, (1, 2)).run(), Holder(cache, (1, 2)).run()] == [0, 0]
    assert (cache.cached, cache.take_events()) == (0, [])


def test_a_stored_event_names_the_key_before_it_and_its_own_tokens() -> None:
    cache = KVCache(4, BLOCK)
    keys = keys_of(chain((1, 2, 3)))
    ids = np.empty(3, np.int32)
    tokens = np.arange(12, dtype=np.uint32)
    admit(cache, keys, 0, ids, 12, 12)
    cache.store(ids, keys, 0, 1, tokens, None, None)
    cache.store(ids, keys, 1, 3, tokens, "adapter", "salt")
    first, second = cache.take_events()
    assert isinstance(first, Stored) and isinstance(second, Stored)
    assert (first.parent, second.parent) == (None, int(keys[0]))
    assert (list(second.keys), list(second.tokens)) == (list(keys[1:]), list(range(4, 12)))
    assert (second.lora, second.salt) == ("adapter", "salt")


def test_an_empty_cache_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        KVCache(0, BLOCK)


PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=7).map(tuple)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), PROMPTS, st.integers(1, 7 * BLOCK)),
        st.tuples(st.just("store"), st.integers(0, 9), st.integers(0, 7)),
        st.tuples(st.just("grow"), st.integers(0, 9), st.integers(1, 7 * BLOCK)),
        st.tuples(st.just("release"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("clear"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 12), ACTIONS)
def test_equals_the_plain_model_and_its_events_tell_its_content(blocks: int, actions: list[tuple]) -> None:
    cache, plain = KVCache(blocks, BLOCK), PlainCache(blocks)
    live: list[dict] = []
    told: Counter[int] = Counter()
    for name, which, size in actions:
        if name == "admit":
            numbers = chain(which)
            keys = keys_of(numbers)
            ids = np.empty(len(numbers), np.int32)
            total = len(numbers) * BLOCK
            limit = (total - 1) // BLOCK
            hits = admit(cache, keys, limit, ids, size, total)
            expected, held = plain.admit([int(key) for key in keys], limit, size, total)
            assert hits == expected
            if hits >= 0:
                assert ids[: len(held)].tolist() == held
                live.append({"keys": keys, "ids": ids, "held": held, "stored": hits, "total": total})
        elif name == "clear":
            assert cache.clear() == (len(plain.queue) == blocks)
            if len(plain.queue) == blocks:
                plain.key_of.clear()
                plain.by_key.clear()
        elif live:
            entry = live[which % len(live)]
            if name == "store":
                stop = min(len(entry["held"]), max(size, entry["stored"]))
                tokens = np.zeros(entry["total"], np.uint32)
                cache.store(entry["ids"], entry["keys"], entry["stored"], stop, tokens, None, None)
                plain.store(entry["held"], [int(key) for key in entry["keys"]], entry["stored"], stop)
                entry["stored"] = stop
            elif name == "grow":
                tokens = min(size, entry["total"])
                held = cache.grow(entry["ids"], len(entry["held"]), tokens)
                need = max(len(entry["held"]), -(-tokens // BLOCK))
                if need - len(entry["held"]) > len(plain.queue):
                    assert held == -1
                else:
                    entry["held"] += plain.take(need - len(entry["held"]))
                    assert held == need
                    assert entry["ids"][:held].tolist() == entry["held"]
            else:
                live.pop(which % len(live))
                cache.release(entry["ids"], len(entry["held"]))
                plain.release(entry["held"])
        for event in cache.take_events():
            if isinstance(event, Stored):
                told.update(event.keys.tolist())
            elif isinstance(event, Removed):
                told.subtract(event.keys.tolist())
            else:
                told.clear()
        assert cache.free == len(plain.queue)
        assert Counter(cache.cached_keys()) == Counter(plain.key_of.values()) == +told
        assert cache.cached == len(plain.key_of)
        assert min(told.values(), default=0) >= 0
