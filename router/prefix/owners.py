"""Compiled: open-addressing tables and interned owner sets, the lower half of the block table.

An owner set says who holds a block in which tier: a sparse bitmap over (tier, slot). Equal sets are stored
once, found by the xor of their members' random numbers (Zobrist, 1970) and compared word by word, so the
consecutive blocks of a conversation share one set, and a match walk looks at bits only where the set changes.

Everything works on the arrays of `layout.py`, allocates nothing and keeps them consistent at every return.
Cost: a lookup is one linear probe sequence in a table that is at most two thirds full; flipping a member is
one such lookup plus O(words of the set).
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,assignment"

from __future__ import annotations

import numpy as np
from numba import njit, types

from router.prefix import layout as at
from router.prefix.hashing import mix

MARK = 1 << 30
_ID = MARK - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ONE = np.uint64(1)
_ZERO = np.uint64(0)
_SIX = np.uint64(6)
_LOW6 = np.uint64(63)

# de Bruijn sequence: index of the lowest set bit (Leiserson, Prokop, Randall, 1998)
_DEBRUIJN = np.uint64(0x03F79D71B4CB0A89)
_BIT_INDEX = np.zeros(64, np.int64)
for _i in range(64):
    _BIT_INDEX[((int(_DEBRUIJN) << _i) & 0xFFFFFFFFFFFFFFFF) >> 58] = _i

i64, i32, u64, boolean, void = types.int64, types.int32, types.uint64, types.boolean, types.void


@njit(i64(u64), **at.KERNEL)
def lowest_bit(value):
    return _BIT_INDEX[((value & (~value + _ONE)) * _DEBRUIJN) >> np.uint64(58)]


@njit(u64(u64, i64), **at.KERNEL)
def handle_home(engine_hash, slot):
    return mix(engine_hash ^ (np.uint64(slot + 1) * _GOLDEN))


@njit(u64(i64, i64), **at.KERNEL)
def member_code(tier, slot):
    """The Zobrist number of one (tier, slot): the hash of a set is the xor over its members."""
    return mix(np.uint64(slot * at.TIERS + tier + 1) * _GOLDEN)


# ---- open-addressing tables: 0 is empty, else index + 1 -------------------------------------------------------


@njit(i64(at.NODES_T, at.TABLE_T, u64), **at.KERNEL)
def find_node(nodes, table, key):
    mask = np.uint64(table.shape[0] - 1)
    i = key & mask
    while True:
        entry = table[i]
        if entry == 0:
            return -1
        if nodes[entry - 1].key == key:
            return entry - 1
        i = (i + _ONE) & mask


@njit(i64(at.HANDLES_T, at.TABLE_T, i64, u64), **at.KERNEL)
def find_handle(handles, table, slot, engine_hash):
    mask = np.uint64(table.shape[0] - 1)
    i = handle_home(engine_hash, slot) & mask
    while True:
        entry = table[i]
        if entry == 0:
            return -1
        if handles[entry - 1].hash == engine_hash and handles[entry - 1].slot == slot:
            return entry - 1
        i = (i + _ONE) & mask


@njit(void(at.TABLE_T, u64, i64), **at.KERNEL)
def put(table, home, index):
    mask = np.uint64(table.shape[0] - 1)
    i = home & mask
    while table[i] != 0:
        i = (i + _ONE) & mask
    table[i] = index + 1


@njit(u64(at.TABLE_T, u64, i64), **at.KERNEL)
def position(table, home, index):
    mask = np.uint64(table.shape[0] - 1)
    i = home & mask
    while table[i] != index + 1:
        i = (i + _ONE) & mask
    return i


@njit(boolean(u64, u64, u64), **at.KERNEL)
def must_stay(home, hole, i):
    """Whether the entry at `i` with that home would be lost to its probe sequence if it moved to `hole`."""
    if hole <= i:
        return hole < home and home <= i
    return hole < home or home <= i


@njit(void(at.NODES_T, at.TABLE_T, i64), **at.KERNEL)
def erase_node(nodes, table, index):
    mask = np.uint64(table.shape[0] - 1)
    hole = position(table, nodes[index].key, index)
    i = hole
    while True:
        i = (i + _ONE) & mask
        entry = table[i]
        if entry == 0:
            break
        if not must_stay(nodes[entry - 1].key & mask, hole, i):
            table[hole] = entry
            hole = i
    table[hole] = 0


@njit(void(at.HANDLES_T, at.TABLE_T, i64), **at.KERNEL)
def erase_handle(handles, table, index):
    mask = np.uint64(table.shape[0] - 1)
    hole = position(table, handle_home(handles[index].hash, handles[index].slot), index)
    i = hole
    while True:
        i = (i + _ONE) & mask
        entry = table[i]
        if entry == 0:
            break
        home = handle_home(handles[entry - 1].hash, handles[entry - 1].slot) & mask
        if not must_stay(home, hole, i):
            table[hole] = entry
            hole = i
    table[hole] = 0


@njit(void(at.SETS_T, at.TABLE_T, at.STATE_T, i64), **at.KERNEL)
def erase_set(sets, table, state, index):
    state[at.FLIP_MEMBER] = -1
    mask = np.uint64(table.shape[0] - 1)
    hole = position(table, sets[index].hash, index)
    i = hole
    while True:
        i = (i + _ONE) & mask
        entry = table[i]
        if entry == 0:
            break
        if not must_stay(sets[entry - 1].hash & mask, hole, i):
            table[hole] = entry
            hole = i
    table[hole] = 0


# ---- owner sets; id 0 is the empty set and has no record of its own -------------------------------------------


@njit(u64(at.SETS_T, at.WORDS_T, i64, i64), **at.KERNEL)
def set_word(sets, words, owner, index):
    """Word `index` of a set's bitmap."""
    if owner == 0:
        return _ZERO
    first = sets[owner].offset
    for k in range(first, first + sets[owner].words):
        if words[k].index >= index:
            return words[k].bits if words[k].index == index else _ZERO
    return _ZERO


@njit(void(at.SETS_T, at.TABLE_T, at.STATE_T, i64), **at.KERNEL)
def release_set(sets, table, state, owner):
    """One node less uses the set."""
    if owner == 0:
        return
    sets[owner].refs -= 1
    if sets[owner].refs == 0:
        erase_set(sets, table, state, owner)
        state[at.WORD_DEAD] += sets[owner].words
        sets[owner].next = state[at.SET_FREE]
        state[at.SET_FREE] = owner
        state[at.SET_LIVE] -= 1


@njit(boolean(at.SETS_T, at.WORDS_T, i64, i64, i64, u64), **at.KERNEL)
def differs_by(sets, words, other, owner, index, bit):
    """Whether set `other` is exactly set `owner` with one bit flipped."""
    a = sets[other].offset
    a_end = a + sets[other].words
    b = 0
    b_end = 0
    if owner != 0:
        b = sets[owner].offset
        b_end = b + sets[owner].words
    flipped = False
    while a < a_end or b < b_end or not flipped:
        want_index = np.int64(1) << np.int64(40)
        want = _ZERO
        if b < b_end:
            want_index = words[b].index
            want = words[b].bits
        if not flipped and index <= want_index:
            if index == want_index:
                want = want ^ bit
                b += 1
            else:
                want_index = index
                want = bit
            flipped = True
            if want == _ZERO:
                continue
        else:
            b += 1
        if a >= a_end or words[a].index != want_index or words[a].bits != want:
            return False
        a += 1
    return True


@njit(void(at.STATE_T, i64, i64, i64), **at.KERNEL)
def remember(state, owner, member, target):
    """That flipping `member` of set `owner` gives set `target`; `erase_set` forgets it."""
    state[at.FLIP_FROM] = owner
    state[at.FLIP_MEMBER] = member
    state[at.FLIP_TO] = target


@njit(i64(at.SETS_T, at.TABLE_T, at.WORDS_T, at.STATE_T, i64, i64, i64), **at.KERNEL)
def flip(sets, table, words, state, owner, tier, slot):
    """Move one node's reference from `owner` to that set with (tier, slot) flipped.

    Returns the set's id, or a NEED code and then nothing has changed. Consecutive blocks mostly ask for the same move,
    so the last one is remembered until either set changes.
    """
    index = (slot >> 6) * at.TIERS + tier
    member = slot * at.TIERS + tier
    if state[at.FLIP_MEMBER] == member and state[at.FLIP_FROM] == owner:
        other = state[at.FLIP_TO]
        if other != 0:
            sets[other].refs += 1
        release_set(sets, table, state, owner)
        return other
    bit = _ONE << (np.uint64(slot) & _LOW6)
    code = member_code(tier, slot)
    count = 0
    target = code
    if owner != 0:
        count = sets[owner].words
        target = sets[owner].hash ^ code
    before = set_word(sets, words, owner, index)
    after = before ^ bit
    if count == 1 and after == _ZERO:
        remember(state, owner, member, 0)
        release_set(sets, table, state, owner)
        return 0

    mask = np.uint64(table.shape[0] - 1)
    i = target & mask
    while table[i] != 0:
        other = np.int64(table[i]) - 1
        if sets[other].hash == target and differs_by(sets, words, other, owner, index, bit):
            sets[other].refs += 1
            remember(state, owner, member, other)
            release_set(sets, table, state, owner)
            return other
        i = (i + _ONE) & mask

    alone = owner != 0 and sets[owner].refs == 1
    if alone and before != _ZERO and after != _ZERO:
        erase_set(sets, table, state, owner)
        for k in range(sets[owner].offset, sets[owner].offset + count):
            if words[k].index == index:
                words[k].bits = after
        sets[owner].hash = target
        put(table, target, owner)
        return owner

    size = count
    if before == _ZERO:
        size += 1
    elif after == _ZERO:
        size -= 1
    top = state[at.WORD_TOP]
    if top + size > words.shape[0]:
        return at.NEED_WORDS
    if not alone and state[at.SET_FREE] < 0 and state[at.SET_TOP] >= sets.shape[0]:
        return at.NEED_SETS

    write = top
    placed = before != _ZERO
    if owner != 0:
        for k in range(sets[owner].offset, sets[owner].offset + count):
            if not placed and words[k].index > index:
                words[write].index = index
                words[write].bits = after
                write += 1
                placed = True
            if words[k].index == index:
                if after != _ZERO:
                    words[write].index = index
                    words[write].bits = after
                    write += 1
            else:
                words[write].index = words[k].index
                words[write].bits = words[k].bits
                write += 1
    if not placed:
        words[write].index = index
        words[write].bits = after
    state[at.WORD_TOP] = top + size

    if alone:
        erase_set(sets, table, state, owner)
        state[at.WORD_DEAD] += count
        fresh = owner
    else:
        if state[at.SET_FREE] >= 0:
            fresh = state[at.SET_FREE]
            state[at.SET_FREE] = sets[fresh].next
        else:
            fresh = state[at.SET_TOP]
            state[at.SET_TOP] += 1
        state[at.SET_LIVE] += 1
        remember(state, owner, member, fresh)
        release_set(sets, table, state, owner)
    sets[fresh].hash = target
    sets[fresh].refs = 1
    sets[fresh].offset = top
    sets[fresh].words = size
    put(table, target, fresh)
    return fresh


# ---- growing ---------------------------------------------------------------------------------------------


@njit(void(at.NODES_T, at.TABLE_T, at.STATE_T), **at.KERNEL)
def fill_node_table(nodes, table, state):
    for n in range(state[at.NODE_TOP]):
        if nodes[n].set >= 0:
            put(table, nodes[n].key, n)


@njit(void(at.HANDLES_T, at.TABLE_T, at.STATE_T), **at.KERNEL)
def fill_handle_table(handles, table, state):
    for h in range(state[at.HANDLE_TOP]):
        if handles[h].tiers != 0:
            put(table, handle_home(handles[h].hash, handles[h].slot), h)


@njit(void(at.SETS_T, at.TABLE_T, at.STATE_T), **at.KERNEL)
def fill_set_table(sets, table, state):
    for s in range(1, state[at.SET_TOP]):
        if sets[s].refs > 0:
            put(table, sets[s].hash, s)


@njit(void(at.SETS_T, at.WORDS_T, at.WORDS_T, at.STATE_T), **at.KERNEL)
def compact_words(sets, words, target, state):
    """Copy the live sets' words to another pool, without gaps."""
    write = 0
    for s in range(1, state[at.SET_TOP]):
        if sets[s].refs > 0:
            first = sets[s].offset
            sets[s].offset = write
            for k in range(first, first + sets[s].words):
                target[write] = words[k]
                write += 1
    state[at.WORD_TOP] = write
    state[at.WORD_DEAD] = 0
