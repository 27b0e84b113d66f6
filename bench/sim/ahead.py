"""Compiled: an engine that only decodes, many steps in one call, for virtual time.

Does what `Engine.step` would do step after step while every running sequence decodes and nobody waits, and stops
before the first step that needs more than that. `Engine.step` is the reference: tests run both and compare every time,
event and block. Cost: some ten nanoseconds a sequence and step.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,assignment,attr-defined,call-arg"

from __future__ import annotations

import numpy as np
from numba import carray, njit, types
from numba.extending import intrinsic

from bench.sim import blocks as kernel
from bench.sim.step_time import decode_ms

COMPUTED, KNOWN, TOTAL, HELD, STORED, IDS, KEYS = range(7)
"""Columns of `rows`: tokens with KV, tokens that exist, tokens at the end, blocks held, blocks findable, and the
addresses of the sequence's block ids (int32) and block keys (uint64)."""
COLUMNS = 7

STEPS, EVENTS, FINISHED = 0, 1, 2
"""Places in the answer: steps made, entries logged, whether the last step finished a sequence."""

REMOVED, PUBLISHED = 0, 1
"""Kinds in the log. REMOVED: (step, kind, the evicted key as int64, 0). PUBLISHED: (step, kind, row, first block)."""

_ROWS = types.Array(types.int64, 2, "C")
_FORM = types.Array(types.float64, 1, "C")
_NODE = types.Array(types.int32, 2, "C")
_SLOTS = types.Array(types.int32, 1, "C")
_KEY = types.Array(types.uint64, 1, "C")
_COUNT = types.Array(types.int64, 1, "C")
_ENDS = types.Array(types.float64, 1, "C")
_LOG = types.Array(types.int64, 2, "C")


@intrinsic
def _int32_at(typing_context, address):
    def generate(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.int32)(types.int64), generate


@intrinsic
def _uint64_at(typing_context, address):
    def generate(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.uint64)(types.int64), generate


@njit(
    types.UniTuple(types.int64, 3)(
        _ROWS,
        types.int64,
        _FORM,
        types.float64,
        types.float64,
        types.float64,
        types.float64,
        types.boolean,
        _NODE,
        _KEY,
        _SLOTS,
        _COUNT,
        _ENDS,
        _LOG,
    ),
    cache=True,
    nogil=True,
)
def decode_ahead(rows, block, form, slow, speedup, now, until, caches, node, key, slots, count, ends, log):
    """Steps from `now` on, as long as they begin before `until`.

    `rows` int64 (sequences, 7), in order of admission, is brought up to date. `ends` float64 gets the end of each step,
    `log` int64 (entries, 4) what the cache would tell; both bound how far one call goes. Returns (steps, entries,
    whether the last step finished a sequence).
    """
    n = rows.shape[0]
    blocks = node.shape[0] - 1
    evicted = np.empty(1, np.uint64)
    steps = 0
    logged = 0
    start = now
    while start < until and steps < ends.shape[0] and logged + 2 * n <= log.shape[0]:
        needed = 0
        for i in range(n):
            if rows[i, KNOWN] > rows[i, HELD] * block:
                needed += 1
        if needed > count[kernel.FREE]:
            break
        context = 0
        finished = False
        for i in range(n):
            stop = rows[i, KNOWN]
            held = rows[i, HELD]
            total = rows[i, TOTAL]
            size = (total + block - 1) // block
            ids = carray(_int32_at(rows[i, IDS]), (size,))
            if stop > held * block:
                if kernel.take(ids, held, held + 1, evicted, node, key, slots, count):
                    log[logged, 0] = steps
                    log[logged, 1] = REMOVED
                    log[logged, 2] = np.int64(evicted[0])
                    logged += 1
                rows[i, HELD] = held + 1
            context += stop
            rows[i, COMPUTED] = stop
            full = stop // block
            stored = rows[i, STORED]
            if full > stored:
                if caches:
                    keys = carray(_uint64_at(rows[i, KEYS]), (total // block,))
                    kernel.publish(ids, keys, stored, full, node, key, slots, count)
                    log[logged, 0] = steps
                    log[logged, 1] = PUBLISHED
                    log[logged, 2] = i
                    log[logged, 3] = stored
                    logged += 1
                rows[i, STORED] = full
            rows[i, KNOWN] = stop + 1
            if stop + 1 == total:
                finished = True
        used = blocks - count[kernel.FREE]
        seconds = decode_ms(form, n, context, used * block, blocks * block) * slow / speedup / 1000.0
        start = start + seconds
        ends[steps] = start
        steps += 1
        if finished:
            return steps, logged, 1
    return steps, logged, 0
