"""Compiled: the kv decision in one call. From a prompt's keys to every row's overlap, load, cost and the cheapest row.

What `router.core.RoutingCore.candidates` and `router.policies.kv` say in array expressions, for the case that needs
nothing else: one block size for the prompt, every worker with KV events, no draw. Equal to them to the last bit
(`tests/router/test_fused.py`). Cost: the walks of `blocks.match` and a few ns a row.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,assignment,call-arg,var-annotated"

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit, types

from router.prefix import layout as at
from router.prefix.address import vector
from router.prefix.blocks import match
from router.prefix.runs import common_blocks, match_runs

i64, f64, boolean, void = types.int64, types.float64, types.boolean, types.void

# rows of `ints`, int64 (INTS, n)
DEVICE: Final = 0
HOST: Final = 1
DISK: Final = 2
SHARED: Final = 3
PREFILL: Final = 4
OWN: Final = 5
DECODE: Final = 6
NEW: Final = 7
ACTIVE: Final = 8
TOLD: Final = 9
INTS: Final = 10

# rows of `floats`, float64 (FLOATS, n)
PREFILL_TERM: Final = 0
DECODE_TERM: Final = 1
COST: Final = 2
ACTIVE_TERM: Final = 3
FLOATS: Final = 4

# entries of `weights`, float64
CREDIT: Final = 0
DECAY: Final = 1
SCALE: Final = 2
PER_REQUEST: Final = 3
HOST_HIT: Final = 4
DISK_HIT: Final = 5
SHARED_HIT: Final = 6
TRACKS_PREFILL: Final = 7
WEIGHTS: Final = 8

# entries of `result`, int64 (TIED + n,)
ELIGIBLE: Final = 0
WINNER: Final = 1
TIES: Final = 2
BEST_TOKENS: Final = 3
IN_FLIGHT: Final = 4
TIED: Final = 5

# rows of `pending`, int64 (PENDING, places)
FIRST: Final = 0
KEY: Final = 1
SLOT: Final = 2
KEYS_AT: Final = 3
KEYS_LEN: Final = 4
PENDING: Final = 5

INTS_T = types.Array(types.int64, 1, "C", readonly=True)
GRID_T = types.Array(types.int64, 2, "C", readonly=True)
FLAGS_T = types.Array(types.boolean, 1, "C", readonly=True)
WEIGHTS_T = types.Array(types.float64, 1, "C", readonly=True)


@njit(boolean(GRID_T, at.U64S, at.STATE_T), **at.KERNEL)
def own_blocks(pending, keys, own):
    """Raises `own`, int64 (slots,), to the blocks of `keys` that each slot is computing for another request.

    Returns whether there are any.
    """
    some = False
    for place in range(pending.shape[1]):
        first = pending[FIRST, place]
        if first < 0 or first >= keys.shape[0] or np.int64(keys[first]) != pending[KEY, place]:
            continue
        other = vector(pending[KEYS_AT, place], pending[KEYS_LEN, place], np.uint64)
        blocks = common_blocks(keys, other, first) - first
        slot = pending[SLOT, place]
        own[slot] = max(own[slot], blocks)
        some = True
    return some


@njit(void(GRID_T, at.U64S, at.STATE_T), **at.KERNEL)
def forget_own(pending, keys, own):
    """Zero again what `own_blocks` raised."""
    for place in range(pending.shape[1]):
        first = pending[FIRST, place]
        if first >= 0 and first < keys.shape[0] and np.int64(keys[first]) == pending[KEY, place]:
            own[pending[SLOT, place]] = 0


@njit(
    void(
        at.STATE_T,
        at.STATE_T,
        at.STATE_T,
        at.U64S,
        INTS_T,
        GRID_T,
        at.STATE_T,
        GRID_T,
        FLAGS_T,
        INTS_T,
        INTS_T,
        WEIGHTS_T,
        i64,
        i64,
        boolean,
        boolean,
        types.int64[:, ::1],
        types.float64[:, ::1],
        types.int64[::1],
    ),
    **at.KERNEL,
)
def decide(
    index, active, expected, keys, inner, pending, own, rows, eligible, queued, requests, weights,
    prompt, size, predicts, expects, ints, floats, result,
):  # fmt: skip
    """Fill `ints`, `floats` and `result` for a prompt of `prompt` tokens with these `keys` of blocks of `size`.

    Args:
        index, active, expected: the tables (`layout`) of the index, of live requests and of predictions.
        inner: the index's number of each slot.
        own: working space, int64 (slots,), zero before and after.
        rows: int64 (2, n), the slot and the block size of each row, 0 where unknown.
        queued, requests: prefill tokens and requests in flight of each slot.
        predicts: blocks and prefills of live requests count as held and as the prompt's own.
        expects: there are predictions, none of them over.
    """
    match(index, keys, True)
    match_runs(active, keys)
    stride = 64 * index[at.GROUPS]
    found = vector(index[at.OUT_AT], at.TIERS * stride, np.int64)
    groups = active[at.GROUPS]
    live_depth = vector(active[at.OUT_AT], 64 * groups, np.int64)
    held_live = vector(active[at.LIVE_AT], 64 * groups, np.int64)
    expected_depth = live_depth
    if expects:
        match(expected, keys, False)
        expected_depth = vector(expected[at.OUT_AT], 64 * expected[at.GROUPS], np.int64)
    siblings = predicts and own_blocks(pending, keys, own)
    count = rows.shape[1]
    blocks = keys.shape[0]
    least = np.int64(0)
    if weights[DECAY] > 0.0:
        first = True
        for row in range(count):
            if eligible[row]:
                tokens = queued[rows[0, row]]
                if first or tokens < least:
                    least = tokens
                    first = False

    candidates = 0
    in_flight = 0
    winner = -1
    ties = 0
    best = np.int64(0)
    lowest = np.inf
    last_block = np.int64(0)
    most = np.int64(0)
    for row in range(count):
        slot = rows[0, row]
        block = max(rows[1, row], 1)
        place = inner[slot]
        live = live_depth[slot]
        end = found[place]
        device = end
        if predicts:
            device = max(device, live)
        if expects:
            device = max(device, expected_depth[slot])
        ints[DEVICE, row] = device
        ints[TOLD, row] = end
        covered = device
        holds = device
        for tier in range(1, at.TIERS):
            end += found[tier * stride + place]
            beyond = max(end - covered, 0)
            covered = max(covered, end)
            ints[DEVICE + tier, row] = beyond
            holds += beyond
        tokens = queued[slot]
        mine = np.int64(0)
        if siblings and rows[1, row] == size:
            mine = min(own[slot] * size, tokens)
        decode = held_live[slot]
        fresh = blocks - live
        ints[PREFILL, row] = tokens
        ints[OWN, row] = mine
        ints[DECODE, row] = decode
        ints[NEW, row] = fresh
        ints[ACTIVE, row] = requests[slot]

        width = np.float64(block)
        credit = weights[CREDIT] * np.float64(device)
        if weights[DECAY] > 0.0:
            excess = np.float64(tokens - least) / width
            request_blocks = max(np.ceil(np.float64(prompt) / width), 1.0)
            credit = credit * (1.0 / (1.0 + weights[DECAY] * max(excess, 0.0) / request_blocks))
        credit = credit + weights[HOST_HIT] * np.float64(ints[HOST, row])
        credit = credit + weights[DISK_HIT] * np.float64(ints[DISK, row])
        credit = credit + weights[SHARED_HIT] * np.float64(ints[SHARED, row])
        prefill = 0.0
        if weights[TRACKS_PREFILL] > 0.0:
            prefill = weights[SCALE] * max(np.float64(tokens - mine + prompt) / width - credit, 0.0)
        decode_term = np.float64(decode + fresh)
        cost = prefill + decode_term
        if weights[PER_REQUEST] > 0.0:
            floats[ACTIVE_TERM, row] = weights[PER_REQUEST] * np.float64(requests[slot])
            cost = cost + floats[ACTIVE_TERM, row]
        floats[PREFILL_TERM, row] = prefill
        floats[DECODE_TERM, row] = decode_term
        floats[COST, row] = cost

        if not eligible[row]:
            continue
        candidates += 1
        in_flight += requests[slot]
        if block != last_block:
            last_block = block
            most = (prompt - 1) // block if prompt > 0 else 0
        best = max(best, min(holds, most) * block)
        if cost < lowest:
            lowest = cost
            winner = row
            ties = 0
        if cost == lowest:
            result[TIED + ties] = row
            ties += 1
    if siblings:
        forget_own(pending, keys, own)
    result[ELIGIBLE] = candidates
    result[WINNER] = winner
    result[TIES] = ties
    result[BEST_TOKENS] = best
    result[IN_FLIGHT] = in_flight
