"""Compiled: what the index and the predictions do with a whole list of blocks in one call.

Every kernel here is restartable: it returns how many entries it finished, with state[NEED] set to a `NEED_*`
code if it stopped early, and is called again with that number as `start` once there is room.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,assignment"

from __future__ import annotations

import numpy as np
from numba import from_dtype, njit, types

from router.prefix import layout as at
from router.prefix.blocks import attach, detach, detach_all
from router.prefix.hashing import chain, mix
from router.prefix.owners import MARK, find_handle

i64, u64, f64, void, boolean = types.int64, types.uint64, types.float64, types.void, types.boolean
_ZERO = np.uint64(0)

TIMER = np.dtype([("expires", "f8"), ("next", "i4"), ("prev", "i4"), ("queue", "i8")])
"""A handle's place in its time-to-live queue; parallel to the handles."""
TIMERS_T = from_dtype(TIMER)[::1]
QUEUES_T = types.int64[:, ::1]
"""One row a queue: [0] first handle, [1] last, -1 none. All of one queue live equally long, so it is in
order."""

NO_PARENT = 0
PARENT_HASH = 1
PARENT_KNOWN = 2
ORPHAN = -1


@njit(u64(u64, u64), **at.KERNEL)
def fold(key, extra):
    """The key of a block with extra keys (images, per-request salts): never that of the plain text."""
    if extra == _ZERO:
        return key
    return mix(key ^ mix(extra))


@njit(i64(*at.CORE, i64, i64, i64, u64, at.U64S, at.U32S, i64, at.U64S, i64), **at.KERNEL)
def store(
    nodes, ntab, handles, htab, sets, stab, words, state, slots,
    slot, tier, kind, parent, hashes, tokens, block_size, extra, start,
):  # fmt: skip
    """A BlockStored: chain our keys from the parent's and attach every block.

    `kind` says what `parent` is: NO_PARENT the root key, PARENT_HASH an engine hash, PARENT_KNOWN a key
    (a second call).
    Returns ORPHAN if the parent is unknown. A block known already is counted in state[DUPLICATES], and
    is one more copy if state[COPIES] is 1.
    """
    state[at.NEED] = 0
    key = parent
    if kind == PARENT_HASH:
        h = find_handle(handles, htab, slot, parent)
        if h < 0:
            return ORPHAN
        key = nodes[handles[h].node].key
        state[at.PARENT] = np.int64(key)
        nodes[handles[h].node].set |= MARK
    for i in range(hashes.shape[0]):
        key = chain(key, tokens, i * block_size, (i + 1) * block_size)
        if extra.shape[0] > i:
            key = fold(key, extra[i])
        if i < start:
            continue
        h = attach(nodes, ntab, handles, htab, sets, stab, words, state, slots, slot, tier, hashes[i], key)
        if h < 0:
            state[at.NEED] = h
            return i
        if state[at.FRESH] == 0:
            state[at.DUPLICATES] += 1
            if state[at.COPIES] == 1 and ((np.int64(handles[h].copies) >> (8 * tier)) & 0xFF) < 0xFF:
                handles[h].copies = np.int64(handles[h].copies) + (1 << (8 * tier))
    return hashes.shape[0]


@njit(i64(*at.CORE, i64, i64, at.U64S, types.uint64[::1], i64), **at.KERNEL)
def remove(nodes, ntab, handles, htab, sets, stab, words, state, slots, slot, tier, hashes, gone, start):
    """A BlockRemoved: one copy less; `tier` -1 is every copy in every tier.

    Hashes the slot does not hold there are counted in state[UNKNOWN]. The keys of blocks whose last copy in the tier
    went are written to `gone`, as long as `hashes`; state[GONE] counts them.
    """
    state[at.NEED] = 0
    for i in range(start, hashes.shape[0]):
        h = find_handle(handles, htab, slot, hashes[i])
        if h < 0 or (tier >= 0 and (handles[h].tiers & (1 << tier)) == 0):
            state[at.UNKNOWN] += 1
            continue
        if tier >= 0 and ((np.int64(handles[h].copies) >> (8 * tier)) & 0xFF) > 0:
            handles[h].copies = np.int64(handles[h].copies) - (1 << (8 * tier))
            continue
        key = nodes[handles[h].node].key
        if tier >= 0:
            need = detach(nodes, ntab, handles, htab, sets, stab, words, state, slots, h, tier)
        else:
            need = detach_all(nodes, ntab, handles, htab, sets, stab, words, state, slots, h)
        if need < 0:
            state[at.NEED] = need
            return i
        gone[state[at.GONE]] = key
        state[at.GONE] += 1
    return hashes.shape[0]


@njit(i64(*at.CORE, i64, i64, i64, at.U64S, i64), **at.KERNEL)
def move(nodes, ntab, handles, htab, sets, stab, words, state, slots, slot, source, target, hashes, start):
    """Blocks leave tier `source` for `target`, all copies; what the slot does not hold is counted in state[UNKNOWN]."""
    state[at.NEED] = 0
    for i in range(start, hashes.shape[0]):
        h = find_handle(handles, htab, slot, hashes[i])
        if h < 0:
            state[at.UNKNOWN] += 1
            continue
        key = nodes[handles[h].node].key
        h = attach(nodes, ntab, handles, htab, sets, stab, words, state, slots, slot, target, hashes[i], key)
        if h < 0:
            state[at.NEED] = h
            return i
        if source == target or (handles[h].tiers & (1 << source)) == 0:
            continue
        handles[h].copies = np.int64(handles[h].copies) & ~(0xFF << (8 * source))
        need = detach(nodes, ntab, handles, htab, sets, stab, words, state, slots, h, source)
        if need < 0:
            state[at.NEED] = need
            return i
    return hashes.shape[0]


# ---- predictions: a time of expiry a handle --------------------------------------------------------------------


@njit(void(TIMERS_T, QUEUES_T, i64), **at.KERNEL)
def leave_queue(timers, queues, h):
    queue = timers[h].queue
    after = timers[h].next
    before = timers[h].prev
    if before >= 0:
        timers[before].next = after
    else:
        queues[queue, 0] = after
    if after >= 0:
        timers[after].prev = before
    else:
        queues[queue, 1] = before


@njit(void(TIMERS_T, QUEUES_T, i64, i64, f64), **at.KERNEL)
def join_queue(timers, queues, h, queue, expires):
    last = queues[queue, 1]
    timers[h].expires = expires
    timers[h].queue = queue
    timers[h].next = -1
    timers[h].prev = last
    if last >= 0:
        timers[last].next = h
    else:
        queues[queue, 0] = h
    queues[queue, 1] = h


@njit(i64(TIMERS_T, QUEUES_T), **at.KERNEL)
def soonest(timers, queues):
    """The handle that expires first, or -1."""
    best = np.int64(-1)
    for queue in range(queues.shape[0]):
        h = queues[queue, 0]
        if h >= 0 and (best < 0 or timers[h].expires < timers[best].expires):
            best = h
    return best


@njit(i64(*at.CORE, TIMERS_T, QUEUES_T, i64, at.U64S, i64, f64, i64, i64), **at.KERNEL)
def expect(
    nodes, ntab, handles, htab, sets, stab, words, state, slots,
    timers, queues, slot, keys, queue, expires, limit, start,
):  # fmt: skip
    """Expect `keys` on `slot` until `expires`; a later expiry replaces an earlier one. Past `limit` handles
    the one that expires first makes room. Deep blocks are queued before shallow ones, so that a prefix
    shrinks from its end."""
    state[at.NEED] = 0
    for i in range(start, keys.shape[0]):
        key = keys[keys.shape[0] - 1 - i]
        h = find_handle(handles, htab, slot, key)
        if h >= 0:
            if expires >= timers[h].expires:
                leave_queue(timers, queues, h)
                join_queue(timers, queues, h, queue, expires)
            continue
        while state[at.HANDLE_LIVE] >= limit:
            old = soonest(timers, queues)
            need = detach(nodes, ntab, handles, htab, sets, stab, words, state, slots, old, 0)
            if need < 0:
                state[at.NEED] = need
                return i
            leave_queue(timers, queues, old)
        h = attach(nodes, ntab, handles, htab, sets, stab, words, state, slots, slot, 0, key, key)
        if h < 0:
            state[at.NEED] = h
            return i
        join_queue(timers, queues, h, queue, expires)
    return keys.shape[0]


@njit(i64(*at.CORE, TIMERS_T, QUEUES_T, f64), **at.KERNEL)
def expire(nodes, ntab, handles, htab, sets, stab, words, state, slots, timers, queues, now):
    """Forget what has expired at `now`. Returns how many handles."""
    state[at.NEED] = 0
    gone = 0
    for queue in range(queues.shape[0]):
        while True:
            h = queues[queue, 0]
            if h < 0 or timers[h].expires > now:
                break
            need = detach(nodes, ntab, handles, htab, sets, stab, words, state, slots, h, 0)
            if need < 0:
                state[at.NEED] = need
                return gone
            leave_queue(timers, queues, h)
            gone += 1
    return gone


@njit(i64(*at.CORE, TIMERS_T, QUEUES_T, i64, at.U64S, i64), **at.KERNEL)
def unexpect(nodes, ntab, handles, htab, sets, stab, words, state, slots, timers, queues, slot, keys, start):
    """Expect `keys` on a slot no longer; those that were not expected are passed over."""
    state[at.NEED] = 0
    for i in range(start, keys.shape[0]):
        h = find_handle(handles, htab, slot, keys[i])
        if h < 0:
            continue
        need = detach(nodes, ntab, handles, htab, sets, stab, words, state, slots, h, 0)
        if need < 0:
            state[at.NEED] = need
            return i
        leave_queue(timers, queues, h)
    return keys.shape[0]


@njit(i64(*at.CORE, TIMERS_T, QUEUES_T, i64), **at.KERNEL)
def forget(nodes, ntab, handles, htab, sets, stab, words, state, slots, timers, queues, slot):
    """Forget every expectation of a slot. Returns how many handles."""
    state[at.NEED] = 0
    gone = 0
    while slots[slot, 0] >= 0:
        h = slots[slot, 0]
        need = detach(nodes, ntab, handles, htab, sets, stab, words, state, slots, h, 0)
        if need < 0:
            state[at.NEED] = need
            return gone
        leave_queue(timers, queues, h)
        gone += 1
    return gone


@njit(i64(*at.CORE, TIMERS_T, QUEUES_T, i64, i64), **at.KERNEL)
def trim(nodes, ntab, handles, htab, sets, stab, words, state, slots, timers, queues, slot, most):
    """Forget what stands first in the queue of the slot's number until the slot has at most `most` handles.
    Returns how many."""
    state[at.NEED] = 0
    gone = 0
    while slots[slot, 1] > most:
        h = queues[slot, 0]
        need = detach(nodes, ntab, handles, htab, sets, stab, words, state, slots, h, 0)
        if need < 0:
            state[at.NEED] = need
            return gone
        leave_queue(timers, queues, h)
        gone += 1
    return gone
