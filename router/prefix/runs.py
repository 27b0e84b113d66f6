"""Compiled: the blocks of live requests as runs, the edges of a radix tree over their key chains.

A key names its whole prefix, so two chains that agree at a place agree up to it: where a prompt leaves a run is found
by halving, and a request is as many runs as there are places where others joined or left it, whatever its length. A run
is a node of the block table under its first key, a holder of it is a handle whose count (parallel array) is the number
of requests; `RUN` says in whose keys it lies. Runs are split where a request diverges or ends, and go with their last
holder.

Everything here is restartable like `operations`: a kernel that lacks room stops at a run's boundary with state[NEED].
Cost: about 0.1 us a run.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,assignment,call-arg,var-annotated"

from __future__ import annotations

import numpy as np
from numba import from_dtype, njit, types

from router.prefix import layout as at
from router.prefix.address import vector
from router.prefix.blocks import attach, detach, new_handle, new_node
from router.prefix.owners import MARK, find_handle, find_node, lowest_bit

_ID = MARK - 1
_ONE = np.uint64(1)
_ZERO = np.uint64(0)

RUN = np.dtype([("at", "i8"), ("start", "i8"), ("end", "i8"), ("chain", "i8")])
"""Parallel to the nodes: blocks `start` to `end` of the keys at address `at`, which are the chain number `chain`."""
RUNS_T = from_dtype(RUN)[::1]
COUNTS_T = types.int32[::1]
LIVE_T = types.int64[::1]
"""Per slot: different blocks in use."""
CHAINS_T = types.int64[:, ::1]
"""Per chain: [0] runs that lie in it, [1] a stack of free chain numbers, with its height in state[CHAINS_FREE]."""

i64, void = types.int64, types.void


@njit(i64(at.U64S, at.U64S, i64), **at.KERNEL)
def common_blocks(one, other, known):
    """Length of the common prefix of two key chains that are known to agree at index `known`."""
    low = known
    high = min(one.shape[0], other.shape[0]) - 1
    if one[high] == other[high]:
        return high + 1
    while low < high:
        middle = (low + high + 1) // 2
        if one[middle] == other[middle]:
            low = middle
        else:
            high = middle - 1
    return low + 1


@njit(i64(at.U64S, RUNS_T, i64, i64), **at.KERNEL)
def follows(keys, runs, n, start):
    """Where `keys`, at `start` the first of run `n`, leave it or end."""
    return common_blocks(keys, vector(runs[n].at, runs[n].end, np.uint64), start)


@njit(void(at.STATE_T, at.U64S), **at.KERNEL)
def match_runs(where, keys):
    """For every slot how many of `keys`, from the first on, its live requests use, into the first row of `out`."""
    nodes = vector(where[at.NODES_AT], where[at.NODES_LEN], at.NODE)
    ntab = vector(where[at.NTAB_AT], where[at.NTAB_LEN], np.int32)
    sets = vector(where[at.SETS_AT], where[at.SETS_LEN], at.SET)
    words = vector(where[at.WORDS_AT], where[at.WORDS_LEN], at.WORD)
    runs = vector(where[at.RUNS_AT], where[at.NODES_LEN], RUN)
    out = vector(where[at.OUT_AT], 64 * where[at.GROUPS], np.int64)
    out[:] = 0
    place = 0
    while place < keys.shape[0]:
        n = find_node(nodes, ntab, keys[place])
        if n < 0:
            return
        end = runs[n].end
        place = follows(keys, runs, n, place)
        owner = nodes[n].set & _ID
        first = np.int64(sets[owner].offset)
        for k in range(first, first + sets[owner].words):
            base = (words[k].index // at.TIERS) * 64
            left = words[k].bits
            while left != _ZERO:
                out[base + lowest_bit(left)] = place
                left &= left - _ONE
        if place < end:
            return


@njit(i64(*at.CORE, COUNTS_T, RUNS_T, CHAINS_T, i64, i64), **at.KERNEL)
def split(nodes, ntab, handles, htab, sets, stab, words, state, slots, counts, runs, chains, n, place):
    """Run `n` ends at `place`; what was behind it is a run of its own with the same holders. 0, or a NEED code."""
    holders = 0
    h = np.int64(nodes[n].head)
    while h >= 0:
        holders += 1
        h = np.int64(handles[h].next)
    if state[at.NODE_LIVE] + 1 > nodes.shape[0]:
        return at.NEED_NODES
    if state[at.HANDLE_LIVE] + holders > handles.shape[0]:
        return at.NEED_HANDLES
    keys = vector(runs[n].at, runs[n].end, np.uint64)
    owner = nodes[n].set & _ID
    sets[owner].refs += 1
    behind = new_node(nodes, ntab, state, keys[place], owner)
    h = np.int64(nodes[n].head)
    while h >= 0:
        other = new_handle(nodes, handles, htab, state, slots, behind, handles[h].slot, keys[place])
        handles[other].tiers = 1
        counts[other] = counts[h]
        h = np.int64(handles[h].next)
    runs[behind].at = runs[n].at
    runs[behind].start = place
    runs[behind].end = runs[n].end
    runs[behind].chain = runs[n].chain
    runs[n].end = place
    chains[runs[n].chain, 0] += 1
    return 0


@njit(i64(*at.CORE, COUNTS_T, RUNS_T, CHAINS_T, LIVE_T, i64, at.U64S, i64, i64, i64), **at.KERNEL)
def acquire(
    nodes, ntab, handles, htab, sets, stab, words, state, slots,
    counts, runs, chains, live, slot, keys, address, chain, start,
):  # fmt: skip
    """A request with the blocks `keys`, which lie at `address` as chain number `chain`, starts on `slot`."""
    state[at.NEED] = 0
    place = start
    while place < keys.shape[0]:
        first = keys[place]
        n = find_node(nodes, ntab, first)
        end = keys.shape[0]
        if n >= 0:
            end = follows(keys, runs, n, place)
            if end < runs[n].end:
                need = split(nodes, ntab, handles, htab, sets, stab, words, state, slots, counts, runs, chains, n, end)
                if need < 0:
                    state[at.NEED] = need
                    return place
        h = attach(nodes, ntab, handles, htab, sets, stab, words, state, slots, slot, 0, first, first)
        if h < 0:
            state[at.NEED] = h
            return place
        if n < 0:
            n = np.int64(handles[h].node)
            runs[n].at = address
            runs[n].start = place
            runs[n].end = end
            runs[n].chain = chain
            chains[chain, 0] += 1
        if state[at.FRESH] == 1:
            counts[h] = 0
            live[slot] += end - place
        counts[h] += 1
        place = end
    return place


@njit(i64(*at.CORE, RUNS_T, CHAINS_T, LIVE_T, i64), **at.KERNEL)
def leave(nodes, ntab, handles, htab, sets, stab, words, state, slots, runs, chains, live, h):
    """Holder `h` of a run is no longer one. 0, or a NEED code."""
    n = np.int64(handles[h].node)
    slot = np.int64(handles[h].slot)
    need = detach(nodes, ntab, handles, htab, sets, stab, words, state, slots, h, 0)
    if need < 0:
        return need
    live[slot] -= runs[n].end - runs[n].start
    if nodes[n].set < 0:
        chain = runs[n].chain
        chains[chain, 0] -= 1
        if chains[chain, 0] == 0:
            chains[state[at.CHAINS_FREE], 1] = chain
            state[at.CHAINS_FREE] += 1
    return 0


@njit(i64(*at.CORE, COUNTS_T, RUNS_T, CHAINS_T, LIVE_T, i64, at.U64S, i64), **at.KERNEL)
def release(
    nodes, ntab, handles, htab, sets, stab, words, state, slots, counts, runs, chains, live, slot, keys, start
):  # fmt: skip
    """The opposite of `acquire`; keys that are not held are counted in state[UNKNOWN]."""
    state[at.NEED] = 0
    place = start
    while place < keys.shape[0]:
        h = find_handle(handles, htab, slot, keys[place])
        if h < 0:
            state[at.UNKNOWN] += keys.shape[0] - place
            return keys.shape[0]
        end = runs[handles[h].node].end
        if counts[h] > 1:
            counts[h] -= 1
        else:
            need = leave(nodes, ntab, handles, htab, sets, stab, words, state, slots, runs, chains, live, h)
            if need < 0:
                state[at.NEED] = need
                return place
        place = end
    return keys.shape[0]


@njit(void(*at.CORE, RUNS_T, CHAINS_T, LIVE_T, i64), **at.KERNEL)
def leave_all(nodes, ntab, handles, htab, sets, stab, words, state, slots, runs, chains, live, slot):
    """The slot holds no run any more, or state[NEED] says what it lacks."""
    state[at.NEED] = 0
    while slots[slot, 0] >= 0:
        need = leave(
            nodes, ntab, handles, htab, sets, stab, words, state, slots, runs, chains, live, slots[slot, 0]
        )  # fmt: skip
        if need < 0:
            state[at.NEED] = need
            return
