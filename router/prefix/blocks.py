"""Compiled: blocks and their handles, the upper half of the block table: attach, detach, evict, match.

A kernel that runs out of a pool stops *before* it changes anything for the current block and returns a
`NEED_*` code; `table.py` then grows or evicts, and calls again. Attach and detach are O(1) plus the flip of
one set member; a match is O(depth) lookups plus O(set words) where the owner set changes.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,assignment,call-arg,var-annotated"

from __future__ import annotations

import numpy as np
from numba import njit, types

from router.prefix import layout as at
from router.prefix.address import vector
from router.prefix.owners import (
    MARK,
    erase_handle,
    erase_node,
    find_handle,
    find_node,
    flip,
    handle_home,
    lowest_bit,
    put,
    release_set,
    set_word,
)

_ID = MARK - 1
_ONE = np.uint64(1)
_ZERO = np.uint64(0)
_LOW6 = np.uint64(63)

i64, u64, boolean, void = types.int64, types.uint64, types.boolean, types.void


@njit(void(at.HANDLES_T, at.TABLE_T, at.STATE_T, at.SLOTS_T, i64), **at.KERNEL)
def free_handle(handles, table, state, slots, h):
    """Forget a handle everywhere but in its node's chain."""
    erase_handle(handles, table, h)
    slot = handles[h].slot
    after = handles[h].slot_next
    before = handles[h].slot_prev
    if before >= 0:
        handles[before].slot_next = after
    else:
        slots[slot, 0] = after
    if after >= 0:
        handles[after].slot_prev = before
    slots[slot, 1] -= 1
    handles[h].tiers = 0
    handles[h].next = state[at.HANDLE_FREE]
    state[at.HANDLE_FREE] = h
    state[at.HANDLE_LIVE] -= 1


@njit(void(at.NODES_T, at.TABLE_T, at.STATE_T, i64), **at.KERNEL)
def free_node(nodes, table, state, n):
    erase_node(nodes, table, n)
    nodes[n].set = -1
    nodes[n].head = state[at.NODE_FREE]
    state[at.NODE_FREE] = n
    state[at.NODE_LIVE] -= 1


@njit(i64(*at.CORE, i64, i64), **at.KERNEL)
def detach(nodes, ntab, handles, htab, sets, stab, words, state, slots, h, tier):
    """Handle `h` no longer stands for its block in `tier`. Returns 0, or a NEED code and nothing has
    changed."""
    bit = 1 << tier
    n = handles[h].node
    slot = handles[h].slot
    shared = False
    if handles[h].twin != 0:
        other = nodes[n].head
        while other >= 0:
            if other != h and handles[other].slot == slot and (handles[other].tiers & bit) != 0:
                shared = True
                break
            other = handles[other].next
    if not shared:
        mark = nodes[n].set & MARK
        owner = flip(sets, stab, words, state, nodes[n].set & _ID, tier, slot)
        if owner < 0:
            return owner
        nodes[n].set = owner | mark
    left = handles[h].tiers & ~bit
    handles[h].tiers = left
    handles[h].copies &= ~(0xFF << (8 * tier))
    if left == 0:
        after = handles[h].next
        before = handles[h].prev
        if before >= 0:
            handles[before].next = after
        else:
            nodes[n].head = after
        if after >= 0:
            handles[after].prev = before
        free_handle(handles, htab, state, slots, h)
        if nodes[n].head < 0:
            free_node(nodes, ntab, state, n)
    return 0


@njit(i64(*at.CORE, i64), **at.KERNEL)
def detach_all(nodes, ntab, handles, htab, sets, stab, words, state, slots, h):
    """`detach` in every tier: the handle is gone afterwards. Returns 0 or a NEED code (call again)."""
    for tier in range(at.TIERS):
        if (handles[h].tiers & (1 << tier)) != 0:
            need = detach(nodes, ntab, handles, htab, sets, stab, words, state, slots, h, tier)
            if need < 0:
                return need
    return 0


@njit(i64(at.NODES_T, at.TABLE_T, at.STATE_T, u64, i64), **at.KERNEL)
def new_node(nodes, ntab, state, key, owner):
    """A node for `key` with the set `owner`, which counts it already; there must be room."""
    if state[at.NODE_FREE] >= 0:
        n = state[at.NODE_FREE]
        state[at.NODE_FREE] = nodes[n].head
    else:
        n = state[at.NODE_TOP]
        state[at.NODE_TOP] += 1
    state[at.NODE_LIVE] += 1
    nodes[n].key = key
    nodes[n].head = -1
    put(ntab, key, n)
    nodes[n].set = owner
    return n


@njit(i64(at.NODES_T, at.HANDLES_T, at.TABLE_T, at.STATE_T, at.SLOTS_T, i64, i64, u64), **at.KERNEL)
def new_handle(nodes, handles, htab, state, slots, n, slot, engine_hash):
    """A handle of `slot` on node `n`, in no tier yet; there must be room."""
    if state[at.HANDLE_FREE] >= 0:
        h = state[at.HANDLE_FREE]
        state[at.HANDLE_FREE] = handles[h].next
    else:
        h = state[at.HANDLE_TOP]
        state[at.HANDLE_TOP] += 1
    state[at.HANDLE_LIVE] += 1
    handles[h].hash = engine_hash
    handles[h].node = n
    handles[h].slot = slot
    handles[h].tiers = 0
    handles[h].copies = 0
    handles[h].twin = 0
    first = nodes[n].head
    handles[h].next = first
    handles[h].prev = -1
    if first >= 0:
        handles[first].prev = h
    nodes[n].head = h
    head = slots[slot, 0]
    handles[h].slot_next = head
    handles[h].slot_prev = -1
    if head >= 0:
        handles[head].slot_prev = h
    slots[slot, 0] = h
    slots[slot, 1] += 1
    put(htab, handle_home(engine_hash, slot), h)
    return h


@njit(i64(*at.CORE, i64, i64, u64, u64), **at.KERNEL)
def attach(nodes, ntab, handles, htab, sets, stab, words, state, slots, slot, tier, engine_hash, key):
    """`slot` holds the block `key` in `tier` under the handle `engine_hash`.

    Returns the handle's index and sets state[FRESH] to 1 if this is new and 0 if it was known; or a NEED code.
    A handle that stood for another block before is moved: the engine's latest word counts.
    """
    bit = 1 << tier
    n = find_node(nodes, ntab, key)
    h = find_handle(handles, htab, slot, engine_hash)
    if h >= 0 and handles[h].node != n:
        need = detach_all(nodes, ntab, handles, htab, sets, stab, words, state, slots, h)
        if need < 0:
            return need
        h = -1
    if h >= 0 and (handles[h].tiers & bit) != 0:
        nodes[n].set |= MARK
        state[at.FRESH] = 0
        return h
    if h < 0 and state[at.HANDLE_FREE] < 0 and state[at.HANDLE_TOP] >= handles.shape[0]:
        return at.NEED_HANDLES
    if n < 0 and state[at.NODE_FREE] < 0 and state[at.NODE_TOP] >= nodes.shape[0]:
        return at.NEED_NODES

    owner = 0
    if n >= 0:
        owner = nodes[n].set & _ID
    group = (slot >> 6) * at.TIERS
    member = _ONE << (np.uint64(slot) & _LOW6)
    twin = False
    if h < 0:
        for t in range(at.TIERS):
            if (set_word(sets, words, owner, group + t) & member) != _ZERO:
                twin = True
    if (set_word(sets, words, owner, group + tier) & member) == _ZERO:
        owner = flip(sets, stab, words, state, owner, tier, slot)
        if owner < 0:
            return owner

    if n < 0:
        n = new_node(nodes, ntab, state, key, owner)
    else:
        nodes[n].set = owner | MARK

    if h < 0:
        h = new_handle(nodes, handles, htab, state, slots, n, slot, engine_hash)
        if twin:
            handles[h].twin = 1
            other = handles[h].next
            while other >= 0:
                if handles[other].slot == slot:
                    handles[other].twin = 1
                other = handles[other].next
    handles[h].tiers |= bit
    if tier >= state[at.TIERS_USED]:
        state[at.TIERS_USED] = tier + 1
    state[at.FRESH] = 1
    return h


@njit(i64(*at.CORE, i64, i64), **at.KERNEL)
def drain(nodes, ntab, handles, htab, sets, stab, words, state, slots, slot, budget):
    """Forget up to `budget` handles of a slot. Returns 0 or a NEED code (call again)."""
    while budget > 0 and slots[slot, 0] >= 0:
        need = detach_all(nodes, ntab, handles, htab, sets, stab, words, state, slots, slots[slot, 0])
        if need < 0:
            return need
        budget -= 1
    return 0


@njit(i64(*at.CORE, i64), **at.KERNEL)
def evict(nodes, ntab, handles, htab, sets, stab, words, state, slots, count):
    """Forget `count` nodes by CLOCK. Returns how many were forgotten.

    A node that was matched or stored again since the hand came by has a mark and loses it; one without goes. A
    new node has none: it takes the place of one just forgotten, behind the hand, and so has a full round.
    """
    top = state[at.NODE_TOP]
    hand = state[at.HAND]
    gone = 0
    steps = 2 * top
    while gone < count and steps > 0:
        if hand >= top:
            hand = 0
        if nodes[hand].set >= 0:
            if (nodes[hand].set & MARK) != 0:
                nodes[hand].set &= _ID
            else:
                h = nodes[hand].head
                while h >= 0:
                    after = handles[h].next
                    free_handle(handles, htab, state, slots, h)
                    h = after
                release_set(sets, stab, state, nodes[hand].set)
                free_node(nodes, ntab, state, hand)
                gone += 1
        hand += 1
        steps -= 1
    state[at.HAND] = hand
    return gone


@njit(
    void(
        at.NODES_T,
        at.TABLE_T,
        at.SETS_T,
        at.WORDS_T,
        at.U64S,
        boolean,
        types.uint64[::1],
        types.uint64[::1],
        types.int64[::1],
    ),
    **at.KERNEL,
)
def match_device(nodes, ntab, sets, words, keys, mark, members, alive, out):
    """`match` where nothing was ever held in another tier: a walk over the sets' own words."""
    groups = members.shape[0]
    for g in range(groups):
        alive[g] = members[g]
    previous = np.int64(-1)
    count = keys.shape[0]
    low = 0
    for depth in range(count):
        n = find_node(nodes, ntab, keys[depth])
        owner = np.int64(0)
        if n >= 0:
            stamped = nodes[n].set
            owner = stamped & _ID
            if mark and (stamped & MARK) == 0:
                nodes[n].set = stamped | MARK
        if owner == previous:
            continue
        previous = owner
        k = np.int64(0)
        end = np.int64(0)
        if owner != 0:
            k = np.int64(sets[owner].offset)
            end = k + sets[owner].words
        first = groups
        for g in range(low, groups):
            here = alive[g]
            if here == _ZERO:
                continue
            index = g * at.TIERS
            while k < end and words[k].index < index:
                k += 1
            bits = _ZERO
            if k < end and words[k].index == index:
                bits = words[k].bits
            left = here & ~bits
            while left != _ZERO:
                out[g * 64 + lowest_bit(left)] = depth
                left &= left - _ONE
            here &= bits
            alive[g] = here
            if here != _ZERO and first == groups:
                first = g
        if first == groups:
            return
        low = first
    for g in range(low, groups):
        left = alive[g]
        while left != _ZERO:
            out[g * 64 + lowest_bit(left)] = count
            left &= left - _ONE


@njit(void(at.STATE_T, at.U64S, boolean), **at.KERNEL)
def match(where, keys, mark):
    """Walk `keys` and write, for every slot, the contiguous blocks a tier, each tier from where the last
    stopped.

    Args:
        where: the table, as `layout` names its entries. Its `members`, one bit a slot that takes part, uint64 (w,);
            its `scratch`, uint64 of at least 2 * TIERS * w entries, whose contents do not matter; and its `out`,
            int64 (TIERS + 1, 64 * w), for the extensions a tier; the last row is working space.
        mark: whether the nodes passed get their second chance from eviction.
    """
    nodes = vector(where[at.NODES_AT], where[at.NODES_LEN], at.NODE)
    ntab = vector(where[at.NTAB_AT], where[at.NTAB_LEN], np.int32)
    sets = vector(where[at.SETS_AT], where[at.SETS_LEN], at.SET)
    words = vector(where[at.WORDS_AT], where[at.WORDS_LEN], at.WORD)
    groups = where[at.GROUPS]
    members = vector(where[at.MEMBERS_AT], groups, np.uint64)
    tiers = vector(where[at.STATE_AT], at.STATE_SIZE, np.int64)[at.TIERS_USED]
    slots = 64 * groups
    out = vector(where[at.OUT_AT], (at.TIERS + 1) * slots, np.int64)
    since = at.TIERS * slots
    width = groups * at.TIERS
    scratch = vector(where[at.SCRATCH_AT], 2 * width, np.uint64)
    alive = scratch[:width]
    out[: tiers * slots] = 0
    if tiers == 1:
        match_device(nodes, ntab, sets, words, keys, mark, members, alive, out)
        return
    held = scratch[width:]
    alive[:] = _ZERO
    held[:] = _ZERO
    out[since:] = 0
    for g in range(groups):
        alive[g * at.TIERS] = members[g]
    previous = 0
    count = keys.shape[0]
    depth = 0
    while depth < count:
        n = find_node(nodes, ntab, keys[depth])
        owner = np.int64(0)
        if n >= 0:
            stamped = nodes[n].set
            owner = stamped & _ID
            if mark and (stamped & MARK) == 0:
                nodes[n].set = stamped | MARK
        if depth > 0 and owner == previous:
            depth += 1
            continue
        if previous != 0:
            first = sets[previous].offset
            for k in range(first, first + sets[previous].words):
                if words[k].index < width:
                    held[words[k].index] = _ZERO
        if owner != 0:
            first = sets[owner].offset
            for k in range(first, first + sets[owner].words):
                if words[k].index < width:
                    held[words[k].index] = words[k].bits
        previous = owner
        some = _ZERO
        for g in range(groups):
            base = g * at.TIERS
            carry = _ZERO
            for tier in range(tiers):
                here = alive[base + tier]
                if (here | carry) == _ZERO:
                    continue
                bits = held[base + tier]
                stop = here & ~bits
                if depth > 0:
                    left = stop
                    while left != _ZERO:
                        slot = g * 64 + lowest_bit(left)
                        out[tier * slots + slot] = depth - out[since + slot]
                        out[since + slot] = depth
                        left &= left - _ONE
                stay = (here | carry) & bits
                carry = stop | (carry & ~bits)
                alive[base + tier] = stay
                some |= stay
        if some == _ZERO:
            return
        depth += 1
    if count > 0:
        for g in range(groups):
            for tier in range(tiers):
                left = alive[g * at.TIERS + tier]
                while left != _ZERO:
                    slot = g * 64 + lowest_bit(left)
                    out[tier * slots + slot] = count - out[since + slot]
                    left &= left - _ONE
