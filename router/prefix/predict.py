"""Predictions: the blocks that routing itself makes likely, until they are confirmed or their time is over.

Two uses. With KV events: a time to live of a few seconds bridges the time between a decision and the engine's
"stored" event, so that a burst of siblings stays together (routing.md 4.6). Without events: 120 s is the
*approximate mode*.

Cost: about 0.2 us a block to add or refresh; `expire` touches only what has expired; a match is the walk of
`table.py`. Bounded by entries (one entry: a block on a slot, about 80 bytes); at the bound what would expire
first goes first.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from router.prefix import layout as at
from router.prefix import operations
from router.prefix.hashing import Keys
from router.prefix.table import BlockTable

Int64s = npt.NDArray[np.int64]
_QUEUES = 16


class Predictions:
    """Expected blocks a slot, each until a time. Times are seconds of one monotonic clock of the caller.

    Args:
        ttl: seconds an expectation lives if `add` is not told otherwise.
        limit: entries at most, at least 1.
        slots: slots to start with.
    """

    def __init__(self, ttl: float, limit: int = 1_000_000, slots: int = 64) -> None:
        if ttl <= 0 or limit < 1:
            raise ValueError("predictions need a time to live above 0 and room for at least one entry")
        self.ttl = ttl
        self.limit = limit
        self._slots = slots
        self.clear()

    @property
    def bytes(self) -> int:
        return self._table.bytes + self._queues.nbytes

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def where(self) -> Int64s:
        """The table's addresses, for kernels that read several tables."""
        return self._table.where

    def __len__(self) -> int:
        return self._table.handles

    def ensure_slots(self, count: int) -> None:
        if count > self._slots:
            self._table.ensure_slots(count)
            self._slots = count

    def add(self, slot: int, keys: Keys, now: float, ttl: float | None = None) -> None:
        """Expect `keys` on `slot` for `ttl` seconds from `now`. Never shortens what was expected before.

        Raises ValueError at the 17th different time to live: they are meant to be settings, not measurements.
        """
        lives = self.ttl if ttl is None else ttl
        queue = self._queue_of.get(lives)
        if queue is None:
            if len(self._queue_of) == _QUEUES:
                raise ValueError(f"more than {_QUEUES} different times to live")
            queue = self._queue_of[lives] = len(self._queue_of)
        self.expire(now)
        table, done = self._table, 0
        while True:
            done = operations.expect(  # type: ignore[call-arg]
                *table.core, table.side, self._queues, slot, keys, queue, now + lives, self.limit, done
            )
            if done == len(keys):
                return
            table.make_room(int(table.state[at.NEED]))

    def match(self, keys: Keys, now: float) -> Int64s:
        """int64 (slots,): the contiguous depth from the root that is expected on each slot at `now`."""
        self.expire(now)
        return self._table.match(keys, False)[0, : self._slots].copy()

    def expire(self, now: float) -> int:
        """Forget what is over at `now`. Returns how many entries."""
        table, gone = self._table, 0
        while True:
            gone += int(operations.expire(*table.core, table.side, self._queues, now))  # type: ignore[call-arg]
            if table.state[at.NEED] == 0:
                return gone
            table.make_room(int(table.state[at.NEED]))

    def remove(self, slot: int, keys: Keys) -> None:
        """The slot does not hold these any more: expect them there no longer."""
        table, done = self._table, 0
        while True:
            done = operations.unexpect(*table.core, table.side, self._queues, slot, keys, done)  # type: ignore[call-arg]
            if done == len(keys):
                return
            table.make_room(int(table.state[at.NEED]))

    def drop(self, slot: int) -> None:
        """The slot's worker is gone or empty: expect nothing there."""
        table = self._table
        while True:
            operations.forget(*table.core, table.side, self._queues, slot)  # type: ignore[call-arg]
            if table.state[at.NEED] == 0:
                return
            table.make_room(int(table.state[at.NEED]))

    def clear(self) -> None:
        self._table = BlockTable(self._slots, side=operations.TIMER)
        self._queues = np.full((_QUEUES, 2), -1, np.int64)
        self._queue_of: dict[float, int] = {}
