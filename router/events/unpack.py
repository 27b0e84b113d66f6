"""Compiled: msgpack integers to numpy, without a Python object a token. About 2 ns a token, no lock, no state."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,assignment"

from __future__ import annotations

import numpy as np
from numba import njit, types


@njit(types.int64(types.Array(types.uint8, 1, "C", readonly=True), types.int64, types.uint64[::1], types.int64), cache=True, nogil=True)  # fmt: skip  # noqa: E501
def unpack(raw, offset, out, limit):
    """Unpack msgpack integers and byte strings from `raw[offset:]` into `out`.

    A negative integer is taken as its 64 bits, a byte string as its last eight bytes, big endian. With `limit` 1
    only integers of 0 to 2**32 - 1 are allowed (token ids). Returns 0, or -1 at anything else.
    """
    i = offset
    end = raw.shape[0]
    for n in range(out.shape[0]):
        if i >= end:
            return -1
        head = raw[i]
        i += 1
        size = 0
        negative = False
        if head < 0x80:
            out[n] = head
            continue
        if head == 0xCD and i + 2 <= end:
            out[n] = (np.uint64(raw[i]) << np.uint64(8)) | np.uint64(raw[i + 1])
            i += 2
            continue
        if head == 0xCE and i + 4 <= end:
            high = (np.uint64(raw[i]) << np.uint64(24)) | (np.uint64(raw[i + 1]) << np.uint64(16))
            out[n] = high | (np.uint64(raw[i + 2]) << np.uint64(8)) | np.uint64(raw[i + 3])
            i += 4
            continue
        if head >= 0xE0:
            if limit == 1:
                return -1
            out[n] = np.uint64(np.int64(head) - 256)
            continue
        if 0xCC <= head <= 0xCF:
            size = 1 << (head - 0xCC)
        elif 0xD0 <= head <= 0xD3:
            size = 1 << (head - 0xD0)
            negative = True
        elif (head == 0xC4 or head == 0xC5) and limit == 0:
            if i + (head - 0xC3) > end:
                return -1
            size = np.int64(raw[i])
            i += 1
            if head == 0xC5:
                size = size * 256 + np.int64(raw[i])
                i += 1
            if i + size > end:
                return -1
            if size > 8:
                i += size - 8
                size = 8
        else:
            return -1
        if i + size > end:
            return -1
        value = np.uint64(0)
        for k in range(size):
            value = (value << np.uint64(8)) | np.uint64(raw[i + k])
        if negative and size > 0 and (raw[i] & 0x80) != 0:
            if limit == 1:
                return -1
            if size < 8:
                value |= ~np.uint64(0) << np.uint64(8 * size)
        if limit == 1 and value > np.uint64(0xFFFFFFFF):
            return -1
        out[n] = value
        i += size
    return 0
