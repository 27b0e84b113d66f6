"""Whose prefill is the request's own: prefixes that a worker is computing right now for somebody else.

A sibling of a request that still prefills would find, on that worker, a queue that is mostly its own prefix. Counted as
a stranger's queue it would be sent elsewhere, and the prefix computed twice. This table tells how many queued tokens
are the request's own, so that the cost leaves them out (docs, how it decides).

One entry a prefilling booking: where its uncached part begins and the block key there. Keys are chained, so a request
shares that block exactly if its key at the same place is equal: a compiled pass over all entries, then a binary search
in the few that match.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from router.model import IntArray
from router.prefix import rows as at

Keys = npt.NDArray[np.uint64]


class PendingPrefills:
    """`add` returns a ticket for `remove`. `table` is int64 (5, places), see `router.prefix.rows`; a free place has
    the position -1."""

    def __init__(self) -> None:
        self.table: IntArray = np.full((at.PENDING, 64), -1, np.int64)
        self._keys: list[Keys | None] = [None] * 64
        self._free = list(range(63, -1, -1))

    def __len__(self) -> int:
        return len(self._keys) - len(self._free)

    def add(self, slot: int, keys: Keys, cached_blocks: int) -> int | None:
        """A request starts to prefill `keys[cached_blocks:]` on `slot`; None if there is no such block.

        `keys` must be C-contiguous, as `hashing.block_keys` makes them.
        """
        if cached_blocks >= len(keys):
            return None
        if not self._free:
            self._grow()
        ticket = self._free.pop()
        self._keys[ticket] = keys
        table = self.table
        table[at.KEY, ticket] = keys.view(np.int64)[cached_blocks]
        table[at.SLOT, ticket] = slot
        table[at.KEYS_AT, ticket] = keys.__array_interface__["data"][0]
        table[at.KEYS_LEN, ticket] = len(keys)
        table[at.FIRST, ticket] = cached_blocks
        return ticket

    def remove(self, ticket: int) -> None:
        self.table[at.FIRST, ticket] = -1
        self._keys[ticket] = None
        self._free.append(ticket)

    def own_blocks(self, keys: Keys, slots: int) -> IntArray | None:
        """Blocks of `keys` that each slot is computing for another request, int64 (slots,); None if there are none."""
        if not len(keys) or len(self._free) == len(self._keys):
            return None
        own: IntArray = np.zeros(slots, np.int64)
        return own if at.own_blocks(self.table, keys, own) else None

    def _grow(self) -> None:
        size = len(self._keys)
        self.table = np.concatenate([self.table, np.full((at.PENDING, size), -1, np.int64)], axis=1)
        self._keys += [None] * size
        self._free = list(range(2 * size - 1, size - 1, -1))
