"""Whose prefill is the request's own: prefixes that a worker is computing right now for somebody else.

A sibling of a request that still prefills would find, on that worker, a queue that is mostly its own prefix. Counted as
a stranger's queue it would be sent elsewhere, and the prefix computed twice. This table tells how many queued tokens
are the request's own, so that the cost leaves them out (docs, how it decides).

One entry a prefilling booking: where its uncached part begins and the block key there. Keys are chained, so a request
shares that block exactly if its key at the same place is equal: one vectorised comparison over all entries, then a
binary search in the few that match.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from router.model import IntArray

Keys = npt.NDArray[np.uint64]


class PendingPrefills:
    """`add` returns a ticket for `remove`. Free places hold the position -1."""

    def __init__(self) -> None:
        self._first: IntArray = np.full(64, -1, np.int64)
        self._key: Keys = np.zeros(64, np.uint64)
        self._slot: IntArray = np.zeros(64, np.int64)
        self._keys: list[Keys | None] = [None] * 64
        self._free = list(range(63, -1, -1))

    def __len__(self) -> int:
        return len(self._keys) - len(self._free)

    def add(self, slot: int, keys: Keys, cached_blocks: int) -> int | None:
        """A request starts to prefill `keys[cached_blocks:]` on `slot`; None if there is no such block."""
        if cached_blocks >= len(keys):
            return None
        if not self._free:
            self._grow()
        ticket = self._free.pop()
        self._first[ticket] = cached_blocks
        self._key[ticket] = keys[cached_blocks]
        self._slot[ticket] = slot
        self._keys[ticket] = keys
        return ticket

    def remove(self, ticket: int) -> None:
        self._first[ticket] = -1
        self._keys[ticket] = None
        self._free.append(ticket)

    def own_blocks(self, keys: Keys, slots: int) -> IntArray | None:
        """Blocks of `keys` that each slot is computing for another request, int64 (slots,); None if there are none."""
        if not len(keys) or len(self._free) == len(self._keys):
            return None
        inside = (self._first >= 0) & (self._first < len(keys))
        alike = np.flatnonzero(inside & (keys[np.where(inside, self._first, 0)] == self._key))
        if not len(alike):
            return None
        own: IntArray = np.zeros(slots, np.int64)
        for ticket in alike.tolist():
            other = self._keys[ticket]
            assert other is not None
            first, slot = int(self._first[ticket]), int(self._slot[ticket])
            own[slot] = max(own[slot], common_blocks(keys, other, first) - first)
        return own

    def _grow(self) -> None:
        size = len(self._keys)
        self._first = np.concatenate([self._first, np.full(size, -1, np.int64)])
        self._key = np.concatenate([self._key, np.zeros(size, np.uint64)])
        self._slot = np.concatenate([self._slot, np.zeros(size, np.int64)])
        self._keys += [None] * size
        self._free = list(range(2 * size - 1, size - 1, -1))


def common_blocks(one: Keys, other: Keys, known: int) -> int:
    """Length of the common prefix of two key chains that are known to agree at index `known`."""
    low, high = known, min(len(one), len(other)) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if one[middle] == other[middle]:
            low = middle
        else:
            high = middle - 1
    return low + 1
