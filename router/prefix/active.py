"""ActiveBlocks: which blocks the live requests of every slot use, each counted once however many requests share it.

The rule of "potential decode blocks" was found from recorded selections of Dynamo 1.6.1 and explains all 3,588 of them:
a request's blocks are the *full* blocks of its prompt (a partial last block does not count), their identity is the
block key, and a block shared by live requests of a slot counts once. A request placed on a slot would make it
`count(slot) + len(keys) - shared_depth(keys)[slot]`. Live requests hold whole prefixes, so the blocks shared are a
contiguous prefix and one walk finds them for all slots.

Cost: about 0.1 us a block to acquire or release; a walk as in the index. Memory has no limit of its own: it is bounded
by the requests that are open.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from router.prefix import layout as at
from router.prefix import operations
from router.prefix.hashing import Keys
from router.prefix.table import BlockTable

Int64s = npt.NDArray[np.int64]


class ActiveBlocks:
    """A multiset of block keys a slot.

    A slot is used again by another worker after `drop`; a release that comes late then must not touch the
    newcomer's blocks, so `acquire` returns the slot's generation and `release` does nothing for an old one.
    """

    def __init__(self, slots: int = 64) -> None:
        self._table = BlockTable(slots, side=np.int32)
        self._slots = slots
        self._generation = [0] * slots
        self.stale_releases = 0

    @property
    def bytes(self) -> int:
        return self._table.bytes

    @property
    def unknown_releases(self) -> int:
        """Keys released that were not held; not zero is a bug of the caller."""
        return int(self._table.state[at.UNKNOWN])

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def where(self) -> Int64s:
        """The table's addresses, for kernels that read several tables."""
        return self._table.where

    def ensure_slots(self, count: int) -> None:
        if count > self._slots:
            self._table.ensure_slots(count)
            self._generation += [0] * (count - self._slots)
            self._slots = count

    def acquire(self, slot: int, keys: Keys) -> int:
        """A request with these blocks starts on `slot`. Returns the generation to release with."""
        table, done = self._table, 0
        while True:
            done = operations.acquire(*table.core, table.side, slot, keys, done)  # type: ignore[call-arg]
            if done == len(keys):
                return self._generation[slot]
            table.make_room(int(table.state[at.NEED]))

    def release(self, slot: int, keys: Keys, generation: int | None = None) -> None:
        """That request has ended; exactly once for an `acquire`."""
        if generation is not None and generation != self._generation[slot]:
            self.stale_releases += 1
            return
        table, done = self._table, 0
        while True:
            done = operations.release(*table.core, table.side, slot, keys, done)  # type: ignore[call-arg]
            if done == len(keys):
                return
            table.make_room(int(table.state[at.NEED]))

    def shared_depth(self, keys: Keys) -> Int64s:
        """int64 (slots,): how many of these blocks, from the first on, live requests of each slot use
        already."""
        return self._table.match(keys, False)[0, : self._slots].copy()

    def count(self, slot: int) -> int:
        """Different blocks in use on a slot."""
        return self._table.held(slot)

    def counts(self) -> Int64s:
        """`count` of every slot at once, int64 (slots,)."""
        return self._table.held_all()[: self._slots].copy()

    def counts_of(self, slots: Int64s) -> Int64s:
        """`count` of each of `slots`, int64, the same shape."""
        return self._table.held_all()[slots]

    def drop(self, slot: int) -> None:
        """The slot's worker is gone: its blocks are in use no more, and late releases are ignored."""
        self._table.drain(slot)
        self._generation[slot] += 1
