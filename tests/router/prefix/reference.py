"""Plain references: block keys in pure Python, and the index as dicts and sets. They state the exact semantic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from router.prefix.table import BlockTable

MASK = (1 << 64) - 1
MUL_A, MUL_B, GOLDEN = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0x9E3779B97F4A7C15
TIERS = 4


def mix(value: int) -> int:
    value = (value ^ (value >> 30)) * MUL_A & MASK
    value = (value ^ (value >> 27)) * MUL_B & MASK
    return value ^ (value >> 31)


def chain(parent: int, tokens: Sequence[int]) -> int:
    acc = parent ^ GOLDEN
    for i in range(0, len(tokens) - 1, 2):
        acc = (acc ^ (tokens[i] << 32 | tokens[i + 1])) * MUL_A & MASK
        acc ^= acc >> 32
    if len(tokens) % 2:
        acc = (acc ^ tokens[-1]) * MUL_B & MASK
        acc ^= acc >> 32
    return mix(acc + len(tokens) & MASK)


def block_keys(tokens: Sequence[int], block_size: int, root: int) -> list[int]:
    keys, key = [], root
    for start in range(0, len(tokens) - block_size + 1, block_size):
        key = chain(key, tokens[start : start + block_size])
        keys.append(key)
    return keys


class ReferenceIndex:
    """Who holds what: (slot, engine hash) -> (key, copies a tier). A key names the whole prefix up to its block."""

    def __init__(self, root: int) -> None:
        self.root = root
        self.handles: dict[tuple[int, int], tuple[int, dict[int, int]]] = {}
        self.orphans = self.duplicates = self.unknown = 0

    def store(
        self, slot: int, tier: int, parent: int | None, hashes: Iterable[int], tokens: Sequence[int], size: int
    ) -> None:
        if parent is None:
            key = self.root
        elif (slot, parent) in self.handles:
            key = self.handles[slot, parent][0]
        else:
            self.orphans += 1
            return
        for i, block_hash in enumerate(hashes):
            key = chain(key, tokens[i * size : (i + 1) * size])
            known, copies = self.handles.get((slot, block_hash), (key, {}))
            if known != key:
                copies = {}
            if tier in copies:
                self.duplicates += 1
            self.handles[slot, block_hash] = (key, {**copies, tier: min(copies.get(tier, 0) + 1, 256)})

    def remove(self, slot: int, tier: int | None, hashes: Iterable[int]) -> None:
        for block_hash in hashes:
            key, copies = self.handles.get((slot, block_hash), (0, {}))
            if not copies or (tier is not None and tier not in copies):
                self.unknown += 1
                continue
            left = {
                held: count - (held == tier)
                for held, count in copies.items()
                if tier is not None and count > (held == tier)
            }
            self.forget(slot, block_hash)
            if left:
                self.handles[slot, block_hash] = (key, left)

    def forget(self, slot: int, block_hash: int) -> None:
        self.handles.pop((slot, block_hash), None)

    def clear(self, slot: int) -> None:
        for held_by, block_hash in list(self.handles):
            if held_by == slot:
                self.forget(slot, block_hash)

    def blocks(self, slot: int) -> int:
        return sum(held_by == slot for held_by, _ in self.handles)

    def match(self, slot: int, keys: Iterable[int]) -> list[int]:
        held: list[set[int]] = [set() for _ in range(TIERS)]
        for (held_by, _), (key, copies) in self.handles.items():
            if held_by == slot:
                for tier in copies:
                    held[tier].add(key)
        wanted = list(keys)
        depth, result = 0, []
        for tier in range(TIERS):
            first = depth
            while depth < len(wanted) and wanted[depth] in held[tier]:
                depth += 1
            result.append(depth - first)
        return result


def check_table(table: BlockTable) -> None:
    """Every invariant of the arrays: lists, counts, references, and that each entry is found where it belongs."""
    nodes, ntab, handles, htab, sets, stab, words, state, slots = table.core
    live_nodes = [n for n in range(state[1]) if nodes[n]["set"] >= 0]
    live_handles = [h for h in range(state[4]) if handles[h]["tiers"] != 0]
    live_sets = [s for s in range(1, state[7]) if sets[s]["refs"] > 0]
    assert len(live_nodes) == state[2]
    assert len(live_handles) == state[5]
    assert len(live_sets) == state[8]
    assert sorted(ntab[ntab != 0] - 1) == live_nodes
    assert sorted(htab[htab != 0] - 1) == live_handles
    assert sorted(stab[stab != 0] - 1) == live_sets
    for pool, field, head, top, live in (
        (nodes, "head", state[0], state[1], len(live_nodes)),
        (handles, "next", state[3], state[4], len(live_handles)),
        (sets, "next", state[6], state[7] - 1, len(live_sets)),
    ):
        free = 0
        while head >= 0:
            free += 1
            head = pool[head][field]
        assert free == top - live
    chained = 0
    refs: dict[int, int] = {}
    for n in live_nodes:
        owner = int(nodes[n]["set"]) & ((1 << 30) - 1)
        refs[owner] = refs.get(owner, 0) + 1
        members = set()
        first = sets[owner]["offset"]
        for k in range(first, first + sets[owner]["words"]):
            group, tier = divmod(int(words[k]["index"]), TIERS)
            members |= {(tier, group * 64 + bit) for bit in range(64) if int(words[k]["bits"]) >> bit & 1}
        expected, h, before = set(), nodes[n]["head"], -1
        while h >= 0:
            assert handles[h]["node"] == n
            assert handles[h]["prev"] == before
            chained += 1
            expected |= {(t, int(handles[h]["slot"])) for t in range(TIERS) if handles[h]["tiers"] >> t & 1}
            before, h = h, handles[h]["next"]
        assert members == expected
        assert members
    assert chained == len(live_handles)
    assert refs == {s: int(sets[s]["refs"]) for s in live_sets}
    assert state[9] - state[10] == sum(int(sets[s]["words"]) for s in live_sets)
    for slot in range(len(slots)):
        h, count, before = int(slots[slot, 0]), 0, -1
        while h >= 0:
            assert handles[h]["slot"] == slot
            assert handles[h]["slot_prev"] == before
            count += 1
            before, h = h, int(handles[h]["slot_next"])
        assert count == slots[slot, 1]


def u32(tokens: Sequence[int]) -> np.ndarray:
    return np.array(tokens, np.uint32)


def u64(values: Sequence[int]) -> np.ndarray:
    return np.array(values, np.uint64)
