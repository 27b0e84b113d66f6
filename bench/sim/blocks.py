"""Compiled kernels of the paged KV cache: free list, block table and hash map over plain arrays.

`node` is int32, shape (blocks + 1, 5); the last row is the sentinel of the circular free list. Columns: REF
(sequences that hold the block), NEXT and PREV (free list, head = next to be evicted), TWIN (the next block
with the same key, or -1), HASHED (1 if the block is in the hash map). `key` is uint64, one a block. `slots`
is the hash map: open addressing with linear probing, int32 block ids or -1, a power of two at least twice the
number of blocks. `count` is int64: free blocks, blocks in the hash map.

Cost: some tens of nanoseconds a block. Signatures are explicit and `cache=True`, so nothing compiles on a
request.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

REF, NEXT, PREV, TWIN, HASHED = 0, 1, 2, 3, 4
FREE, CACHED = 0, 1

_NODE = types.Array(types.int32, 2, "C")
_SLOTS = types.Array(types.int32, 1, "C")
_IDS = types.Array(types.int32, 1, "C")
_KEY = types.Array(types.uint64, 1, "C")
_KEYS = types.Array(types.uint64, 1, "C", readonly=True)
_COUNT = types.Array(types.int64, 1, "C")
_INT = types.int64


@njit(_INT(types.uint64, _KEY, _SLOTS), cache=True, nogil=True)
def find(wanted, key, slots):  # type: ignore[no-untyped-def]
    """The place in `slots` of a key, or the empty place where it would go. Keys are mixed already: no second
    hash.
    """
    mask = slots.shape[0] - 1
    place = np.int64(wanted & np.uint64(mask))
    while slots[place] >= 0 and key[slots[place]] != wanted:
        place = (place + 1) & mask
    return place


@njit(types.void(_INT, _NODE, _KEY, _SLOTS, _COUNT), cache=True, nogil=True)
def unmap(block, node, key, slots, count):  # type: ignore[no-untyped-def]
    """Take a block out of the hash map; a twin with the same key stays."""
    place = find(key[block], key, slots)
    head = slots[place]
    node[block, HASHED] = 0
    count[CACHED] -= 1
    if head != block:
        while node[head, TWIN] != block:
            head = node[head, TWIN]
        node[head, TWIN] = node[block, TWIN]
        node[block, TWIN] = -1
        return
    twin = node[block, TWIN]
    node[block, TWIN] = -1
    if twin >= 0:
        slots[place] = twin
        return
    mask = slots.shape[0] - 1
    hole = place
    probe = (place + 1) & mask
    while slots[probe] >= 0:
        home = np.int64(key[slots[probe]] & np.uint64(mask))
        if ((probe - home) & mask) >= ((probe - hole) & mask):
            slots[hole] = slots[probe]
            hole = probe
        probe = (probe + 1) & mask
    slots[hole] = -1


@njit(_INT(_KEYS, _INT, _IDS, _KEY, _SLOTS), cache=True, nogil=True)
def match(keys, limit, ids, key, slots):  # type: ignore[no-untyped-def]
    """How many of `keys[:limit]` are cached as an unbroken prefix; their blocks go to `ids`."""
    for i in range(limit):
        block = slots[find(keys[i], key, slots)]
        if block < 0:
            return i
        ids[i] = block
    return limit


@njit(_INT(_IDS, _INT, _NODE), cache=True, nogil=True)
def unused(ids, stop, node):  # type: ignore[no-untyped-def]
    """How many of `ids[:stop]` nobody holds."""
    found = 0
    for i in range(stop):
        if node[ids[i], REF] == 0:
            found += 1
    return found


@njit(types.void(_IDS, _INT, _NODE, _COUNT), cache=True, nogil=True)
def touch(ids, stop, node, count):  # type: ignore[no-untyped-def]
    """Hold `ids[:stop]` once more; those that nobody held leave the free list."""
    for i in range(stop):
        block = ids[i]
        if node[block, REF] == 0:
            before, after = node[block, PREV], node[block, NEXT]
            node[before, NEXT] = after
            node[after, PREV] = before
            count[FREE] -= 1
        node[block, REF] += 1


@njit(_INT(_IDS, _INT, _INT, _KEY, _NODE, _KEY, _SLOTS, _COUNT), cache=True, nogil=True)
def take(ids, start, stop, evicted, node, key, slots, count):  # type: ignore[no-untyped-def]
    """Fill `ids[start:stop]` from the head of the free list; keys of what was evicted for it go to `evicted`.

    Returns how many were evicted. The caller has checked that enough blocks are free.
    """
    end = node.shape[0] - 1
    lost = 0
    for i in range(start, stop):
        block = node[end, NEXT]
        after = node[block, NEXT]
        node[end, NEXT] = after
        node[after, PREV] = end
        if node[block, HASHED]:
            evicted[lost] = key[block]
            lost += 1
            unmap(block, node, key, slots, count)
        node[block, REF] = 1
        ids[i] = block
    count[FREE] -= stop - start
    return lost


@njit(types.void(_IDS, _KEYS, _INT, _INT, _NODE, _KEY, _SLOTS, _COUNT), cache=True, nogil=True)
def publish(ids, keys, start, stop, node, key, slots, count):  # type: ignore[no-untyped-def]
    """Give the full blocks `ids[start:stop]` their keys, so that they can be found. A second block of a key
    is a twin.
    """
    for i in range(start, stop):
        block = ids[i]
        place = find(keys[i], key, slots)
        head = slots[place]
        key[block] = keys[i]
        node[block, HASHED] = 1
        node[block, TWIN] = -1
        count[CACHED] += 1
        if head < 0:
            slots[place] = block
        else:
            while node[head, TWIN] >= 0:
                head = node[head, TWIN]
            node[head, TWIN] = block


@njit(types.void(_IDS, _INT, _NODE, _COUNT), cache=True, nogil=True)
def release(ids, stop, node, count):  # type: ignore[no-untyped-def]
    """Let go of `ids[:stop]`, last block first, so that tails are evicted before heads.

    A block that nobody holds any more goes to the end of the free list if it is cached, to its front if not.
    """
    end = node.shape[0] - 1
    front = end
    for i in range(stop - 1, -1, -1):
        block = ids[i]
        node[block, REF] -= 1
        if node[block, REF] > 0:
            continue
        count[FREE] += 1
        before = node[end, PREV]
        if node[block, HASHED] == 0:
            before = front
            front = block
        after = node[before, NEXT]
        node[block, PREV] = before
        node[block, NEXT] = after
        node[before, NEXT] = block
        node[after, PREV] = block
