"""CapacityLru: what a worker without KV events probably still holds, by what was sent there and how much fits.

Each slot is a list of blocks, least recently used first, no longer than the worker's advertised capacity: a prompt that
is routed there, and ends there, moves its blocks to the fresh end, deep blocks behind shallow ones, as an engine frees
them. Output fills blocks too; their ids are not known here, so they take room under names that no prompt ever matches.

Cost: about 0.2 us a block to touch, a match is the walk of `table.py`. Bounded by entries (one: a block on a slot,
about 120 bytes): at the bound the slots in use share it evenly.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from router.prefix import layout as at
from router.prefix import operations
from router.prefix.hashing import Keys, block_keys
from router.prefix.table import UNLIMITED, BlockTable

Int64s = npt.NDArray[np.int64]


class CapacityLru:
    """See the module. One owner, no locks.

    Args:
        limit: entries at most over all slots, at least 1.
        slots: slots to start with.
    """

    def __init__(self, limit: int, slots: int = 64) -> None:
        if limit < 1:
            raise ValueError("an LRU needs room for at least one block")
        self.limit = limit
        self._slots = slots
        self._table = BlockTable(slots, side=operations.TIMER)
        self._queues = np.full((slots, 2), -1, np.int64)
        self._touches = 0
        self._in_use: set[int] = set()

    @property
    def bytes(self) -> int:
        return self._table.bytes + self._queues.nbytes

    def __len__(self) -> int:
        return self._table.handles

    def held(self, slot: int) -> int:
        """Blocks counted on a slot, those of output included."""
        return self._table.held(slot)

    def ensure_slots(self, count: int) -> None:
        if count > self._slots:
            self._table.ensure_slots(count)
            more = np.full((count - self._slots, 2), -1, np.int64)
            self._queues = np.concatenate([self._queues, more])
            self._slots = count

    def touch(self, slot: int, keys: Keys, capacity: int, output_blocks: int = 0) -> None:
        """`slot`, with room for `capacity` blocks (at least 1), has used `keys` and filled `output_blocks` more."""
        self._touches += 1
        self._in_use.add(slot)
        if output_blocks > 0:
            keys = np.concatenate([keys, self._nameless(keys, output_blocks)])
        table, done = self._table, 0
        while True:
            done = operations.expect(  # type: ignore[call-arg]
                *table.core, table.side, self._queues, slot, keys, slot, float(self._touches), UNLIMITED, done
            )
            if done == len(keys):
                break
            table.make_room(int(table.state[at.NEED]))
        share = max(1, self.limit // len(self._in_use))
        self._trim(slot, min(capacity, share))
        if len(self) > self.limit:
            for other in self._in_use:
                self._trim(other, share)

    def match(self, keys: Keys) -> Int64s:
        """int64 (slots,): the contiguous depth from the root that each slot probably holds."""
        return self._table.match(keys, False)[0, : self._slots].copy()

    def drop(self, slot: int) -> None:
        """The slot's worker is gone or empty."""
        self._trim(slot, 0)
        self._in_use.discard(slot)

    def _trim(self, slot: int, most: int) -> None:
        table = self._table
        while True:
            operations.trim(*table.core, table.side, self._queues, slot, most)  # type: ignore[call-arg]
            if table.state[at.NEED] == 0:
                return
            table.make_room(int(table.state[at.NEED]))

    def _nameless(self, keys: Keys, count: int) -> Keys:
        """Keys that nothing else has: chained from this prompt's last with the number of the touch."""
        root = int(keys[-1]) if len(keys) else 0
        number = np.array([self._touches & 0xFFFFFFFF, self._touches >> 32], np.uint32)
        return block_keys(np.tile(number, count), 2, root)


def output_blocks(prompt_tokens: int, output_tokens: int, block_size: int) -> int:
    """Whole blocks that an answer adds to those of its prompt. The newest token is sampled, not yet computed, so a
    block counts one token late."""
    return max((prompt_tokens + output_tokens - 1) // block_size - prompt_tokens // block_size, 0)
