"""ActiveBlocks: which blocks the live requests of every slot use, each counted once however many requests share it.

The rule of "potential decode blocks" was found from recorded selections of Dynamo 1.6.1 and explains all 3,588 of them:
a request's blocks are the *full* blocks of its prompt (a partial last block does not count), their identity is the
block key, and a block shared by live requests of a slot counts once. A request placed on a slot would make it
`count(slot) + len(keys) - shared_depth(keys)[slot]`. Live requests hold whole prefixes, so the blocks shared are a
contiguous prefix.

Keys are chained (`hashing.py`), so requests are kept as runs of blocks (`runs.py`), not block by block: to acquire or
release costs 1 to 2 us whatever the prompt's length, a walk 0.1 us a run. The keys of a live request stay in memory as
long as some run lies in them. No limit of its own: it is bounded by the requests that are open.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from router.prefix import layout as at
from router.prefix import runs
from router.prefix.hashing import Keys
from router.prefix.table import BlockTable

Int64s = npt.NDArray[np.int64]

_CHAINS = 64


class ActiveBlocks:
    """A multiset of block keys a slot. Keys given in must be C-contiguous chains of `hashing`, and must not change.

    A slot is used again by another worker after `drop`; a release that comes late then must not touch the
    newcomer's blocks, so `acquire` returns the slot's generation and `release` does nothing for an old one.
    """

    def __init__(self, slots: int = 64) -> None:
        self._table = BlockTable(slots, side=np.int32)
        self._slots = slots
        self._generation = [0] * slots
        self._runs = np.zeros(0, runs.RUN)
        self._live: Int64s = np.zeros(0, np.int64)
        self._chains: Int64s = np.zeros((0, 2), np.int64)
        self._keys: list[Keys | None] = []
        self._follow()
        self.stale_releases = 0

    @property
    def bytes(self) -> int:
        return self._table.bytes + self._runs.nbytes + self._live.nbytes + self._chains.nbytes

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

    @property
    def chains(self) -> int:
        """Arrays of keys that are kept."""
        return len(self._keys) - int(self._table.state[at.CHAINS_FREE])

    def ensure_slots(self, count: int) -> None:
        if count > self._slots:
            self._table.ensure_slots(count)
            self._generation += [0] * (count - self._slots)
            self._slots = count
            self._follow()

    def acquire(self, slot: int, keys: Keys) -> int:
        """A request with these blocks starts on `slot`. Returns the generation to release with."""
        table, done, count = self._table, 0, len(keys)
        if not count:
            return self._generation[slot]
        chain = self._take_chain(keys)
        address = keys.__array_interface__["data"][0]
        while True:
            done = runs.acquire(  # type: ignore[call-arg]
                *table.core, table.side, self._runs, self._chains, self._live, slot, keys, address, chain, done
            )
            if done == count:
                break
            self._make_room()
        if not self._chains[chain, 0]:
            self._give_back(chain)
        return self._generation[slot]

    def release(self, slot: int, keys: Keys, generation: int | None = None) -> None:
        """That request has ended; exactly once for an `acquire`."""
        if generation is not None and generation != self._generation[slot]:
            self.stale_releases += 1
            return
        table, done = self._table, 0
        free = int(table.state[at.CHAINS_FREE])
        while True:
            done = runs.release(  # type: ignore[call-arg]
                *table.core, table.side, self._runs, self._chains, self._live, slot, keys, done
            )
            if done == len(keys):
                break
            self._make_room()
        self._let_go(free)

    def shared_depth(self, keys: Keys) -> Int64s:
        """int64 (slots,): how many of these blocks, from the first on, live requests of each slot use
        already."""
        runs.match_runs(self._table.where, keys)
        return self._table.out[0, : self._slots].copy()

    def count(self, slot: int) -> int:
        """Different blocks in use on a slot."""
        return int(self._live[slot])

    def counts(self) -> Int64s:
        """`count` of every slot at once, int64 (slots,)."""
        return self._live[: self._slots].copy()

    def counts_of(self, slots: Int64s) -> Int64s:
        """`count` of each of `slots`, int64, the same shape."""
        return self._live[slots]

    def drop(self, slot: int) -> None:
        """The slot's worker is gone: its blocks are in use no more, and late releases are ignored."""
        table = self._table
        free = int(table.state[at.CHAINS_FREE])
        while True:
            runs.leave_all(*table.core, self._runs, self._chains, self._live, slot)  # type: ignore[call-arg]
            if table.state[at.NEED] == 0:
                break
            self._make_room()
        self._let_go(free)
        self._generation[slot] += 1

    def _take_chain(self, keys: Keys) -> int:
        state = self._table.state
        free = int(state[at.CHAINS_FREE])
        if not free:
            count = len(self._keys)
            more = max(count, _CHAINS)
            self._chains = np.concatenate([self._chains, np.zeros((more, 2), np.int64)])
            self._chains[:more, 1] = np.arange(count + more - 1, count - 1, -1)
            self._keys += [None] * more
            free = more
        chain = int(self._chains[free - 1, 1])
        state[at.CHAINS_FREE] = free - 1
        self._keys[chain] = keys
        return chain

    def _give_back(self, chain: int) -> None:
        """No run lies in these keys."""
        state = self._table.state
        self._chains[state[at.CHAINS_FREE], 1] = chain
        state[at.CHAINS_FREE] += 1
        self._keys[chain] = None

    def _let_go(self, free: int) -> None:
        """Forget the keys of the chains that became free since there were `free`."""
        now = int(self._table.state[at.CHAINS_FREE])
        for place in range(free, now):
            self._keys[int(self._chains[place, 1])] = None

    def _make_room(self) -> None:
        table = self._table
        table.make_room(int(table.state[at.NEED]))
        self._follow()

    def _follow(self) -> None:
        """Arrays of ours as long as those of the table, and their addresses where kernels look for them."""
        table = self._table
        if len(self._runs) < table.node_room:
            more = np.zeros(table.node_room - len(self._runs), runs.RUN)
            self._runs = np.concatenate([self._runs, more])
        if len(self._live) < table.slots:
            self._live = np.concatenate([self._live, np.zeros(table.slots - len(self._live), np.int64)])
        table.where[at.RUNS_AT] = self._runs.ctypes.data
        table.where[at.LIVE_AT] = self._live.ctypes.data
