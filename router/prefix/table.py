"""BlockTable: which slot holds which block in which tier, in numpy arrays that grow, evict and count their
bytes.

The shared core of `index.py` (what engines say), `predict.py` (what routing makes likely) and `active.py`
(what live requests use). One owner, no locks: the event loop. Kernels are restartable; this class gives them
room.

Cost: a pool doubles up to 65,536 entries and then grows by an eighth, which costs little; its hash table doubles and
is refilled, about 80 ns an entry (80 ms at a million entries, a handful of times in a life; `reserve` does it ahead).
Pools grow in place, and a hash table is given back before its larger one is made, so that memory stays within `bytes`;
only the small pool of set words is copied. At the limit, room is made by forgetting 1/64 of the nodes by CLOCK, never a
full sweep a call.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from router.prefix import blocks, owners
from router.prefix import layout as at
from router.prefix.hashing import Keys

Int64s = npt.NDArray[np.int64]

UNLIMITED: Final = 1 << 62
_START: Final = 256
_LARGE: Final = 1 << 16
_NO_TABLE: Final = np.zeros(0, np.int32)
_EVICT_SHARE: Final = 64


def _table_size(capacity: int) -> int:
    """Entries of the hash table of a pool: a power of two, at most two thirds full."""
    return 1 << int(capacity * 3 // 2).bit_length()


class BlockTable:
    """Blocks, their holders and the memory for both.

    Args:
        slots: how many slots to start with.
        limit_bytes: the arrays never grow past it, except for the smallest start and what `slots` need by
        themselves. side: dtype of an array parallel to the handles (`self.side`) that grows with them.
    """

    def __init__(self, slots: int, limit_bytes: int = UNLIMITED, side: npt.DTypeLike | None = None) -> None:
        self.limit = limit_bytes
        self.evicted = 0
        self.slots = 0
        self._used = 0
        self._nodes = np.zeros(_START, at.NODE)
        self._ntab = np.zeros(_table_size(_START), np.int32)
        self._handles = np.zeros(_START, at.HANDLE)
        self._htab = np.zeros(_table_size(_START), np.int32)
        self._sets = np.zeros(_START, at.SET)
        self._stab = np.zeros(_table_size(_START), np.int32)
        self._words = np.zeros(_START, at.WORD)
        self._slots = np.zeros((0, 2), np.int64)
        self.side: npt.NDArray[Any] = np.zeros(_START if side is not None else 0, side)
        self.state = np.zeros(at.STATE_SIZE, np.int64)
        self.state[[at.NODE_FREE, at.HANDLE_FREE, at.SET_FREE]] = -1
        self.state[at.SET_TOP] = self.state[at.TIERS_USED] = 1
        self.state[at.FLIP_MEMBER] = -1
        self.where = np.zeros(at.WHERE_SIZE, np.int64)
        """Where all this lies in memory, for `blocks.match` and kernels that read several tables."""
        self.core: tuple[Any, ...] = ()
        self.ensure_slots(slots)

    @property
    def bytes(self) -> int:
        """Bytes of all arrays, used or not."""
        arrays = (*self.core, self.side, self._out, self._scratch, self.members)
        return sum(array.nbytes for array in arrays)

    @property
    def handles(self) -> int:
        return int(self.state[at.HANDLE_LIVE])

    @property
    def nodes(self) -> int:
        return int(self.state[at.NODE_LIVE])

    @property
    def node_room(self) -> int:
        """Nodes that there is room for; arrays parallel to the nodes must be as long."""
        return len(self._nodes)

    @property
    def out(self) -> Int64s:
        """What the last walk wrote, int64 (TIERS + 1, slots)."""
        return self._out

    def held(self, slot: int) -> int:
        """Handles of a slot."""
        return int(self._slots[slot, 1])

    def tiers_of(self, slot: int, block_hash: int) -> int:
        """The tier bits of a handle, 0 if there is none."""
        h = owners.find_handle(self._handles, self._htab, slot, np.uint64(block_hash))
        return int(self._handles[h]["tiers"]) if h >= 0 else 0

    def ensure_slots(self, count: int) -> None:
        """Make room for slots 0..count-1. Raises ValueError past 65,536."""
        if count > at.MAX_SLOTS:
            raise ValueError(f"{count} slots: at most {at.MAX_SLOTS} (worker, dp rank) pairs are possible")
        count = max(count, self._used)
        self._used = count
        if count > self.slots or not self.core:
            size = 64 * -(-max(count, 1) // 64)
            fresh = np.empty((size, 2), np.int64)
            fresh[:, 0] = -1
            fresh[:, 1] = 0
            fresh[: len(self._slots)] = self._slots
            self._slots = fresh
            groups = size // 64
            self.members = np.zeros(groups, np.uint64)
            self._scratch = np.zeros(2 * groups * at.TIERS, np.uint64)
            self._out = np.zeros((at.TIERS + 1, size), np.int64)
            self.slots = size
            if len(self._words) < 4 * groups * at.TIERS:
                self._move_words(4 * groups * at.TIERS)
            self._bind()
        full, rest = divmod(count, 64)
        self.members[:] = 0
        self.members[:full] = np.uint64(2**64 - 1)
        if rest:
            self.members[full] = np.uint64((1 << rest) - 1)

    def match(self, keys: Keys, mark: bool) -> Int64s:
        """The walk of `blocks.match`: int64 (TIERS + 1, slots), valid until the next call."""
        blocks.match(self.where, keys, mark)
        return self._out

    def drain(self, slot: int, budget: int = UNLIMITED) -> None:
        """Forget up to `budget` handles of a slot, about 0.1 us each."""
        while (need := blocks.drain(*self.core, slot, budget)) < 0:  # type: ignore[call-arg]
            self.make_room(need)

    def reserve(self, held: int) -> None:
        """Grow now for `held` handles in all, as far as the limit allows, so that no event pays for it."""
        while len(self._handles) < held and self._grow(at.NEED_HANDLES):
            pass
        while len(self._nodes) < held and self._grow(at.NEED_NODES):
            pass

    def make_room(self, need: int) -> None:
        """Give a kernel what it stopped for: a larger pool, or an eviction at the limit."""
        if need == at.NEED_WORDS and self.state[at.WORD_DEAD] * 2 > len(self._words):
            self._move_words(len(self._words))
            self._bind()
            return
        if self._grow(need):
            return
        count = max(1, self.nodes // _EVICT_SHARE)
        before = self.handles
        gone = blocks.evict(*self.core, count)  # type: ignore[call-arg]
        self.evicted += before - self.handles
        if need == at.NEED_WORDS:
            self._move_words(len(self._words))
            self._bind()
        elif gone == 0:
            raise RuntimeError(f"block table: no room (code {need}) and nothing to forget")

    def _grow(self, need: int) -> bool:
        """Grow one pool by the largest step that fits the limit; False if none of at least an eighth does."""
        pool, table, each = {
            at.NEED_NODES: (self._nodes, self._ntab, at.NODE.itemsize),
            at.NEED_HANDLES: (
                self._handles,
                self._htab,
                at.HANDLE.itemsize + self.side.itemsize * bool(len(self.side)),
            ),
            at.NEED_SETS: (self._sets, self._stab, at.SET.itemsize),
            at.NEED_WORDS: (self._words, None, at.WORD.itemsize),
        }[need]
        left = self.limit - self.bytes
        for eighths in (16, 12, 10, 9) if len(pool) < _LARGE else (9,):
            capacity = len(pool) * eighths // 8
            size = 0 if table is None else _table_size(capacity)
            more = (capacity - len(pool)) * each + 4 * (size - (0 if table is None else len(table)))
            if more <= left:
                self._resize(need, capacity, size)
                self._bind()
                return True
        return False

    def _resize(self, need: int, capacity: int, size: int) -> None:
        self.core = ()
        if need == at.NEED_NODES:
            _enlarge(self._nodes, capacity)
            if size != len(self._ntab):
                self._ntab = _NO_TABLE
                self._ntab = np.zeros(size, np.int32)
                owners.fill_node_table(self._nodes, self._ntab, self.state)
        elif need == at.NEED_HANDLES:
            _enlarge(self._handles, capacity)
            if len(self.side):
                _enlarge(self.side, capacity)
            if size != len(self._htab):
                self._htab = _NO_TABLE
                self._htab = np.zeros(size, np.int32)
                owners.fill_handle_table(self._handles, self._htab, self.state)
        elif need == at.NEED_SETS:
            _enlarge(self._sets, capacity)
            if size != len(self._stab):
                self._stab = _NO_TABLE
                self._stab = np.zeros(size, np.int32)
                owners.fill_set_table(self._sets, self._stab, self.state)
        else:
            self._move_words(capacity)

    def _move_words(self, capacity: int) -> None:
        target = np.zeros(capacity, at.WORD)
        owners.compact_words(self._sets, self._words, target, self.state)
        self._words = target

    def _bind(self) -> None:
        self.core = (
            self._nodes,
            self._ntab,
            self._handles,
            self._htab,
            self._sets,
            self._stab,
            self._words,
            self.state,
            self._slots,
        )
        for place, array in (
            (at.NODES_AT, self._nodes),
            (at.NTAB_AT, self._ntab),
            (at.SETS_AT, self._sets),
            (at.WORDS_AT, self._words),
        ):
            self.where[place : place + 2] = array.ctypes.data, len(array)
        for place, address in (
            (at.STATE_AT, self.state.ctypes.data),
            (at.SLOTS_AT, self._slots.ctypes.data),
            (at.MEMBERS_AT, self.members.ctypes.data),
            (at.SCRATCH_AT, self._scratch.ctypes.data),
            (at.OUT_AT, self._out.ctypes.data),
        ):
            self.where[place] = address
        self.where[at.GROUPS] = len(self.members)


def _enlarge(array: npt.NDArray[Any], capacity: int) -> None:
    """In place, new entries zero. The system moves the pages of a large array instead of copying them. Nothing else
    may look into it: there are no views of pools."""
    array.resize(capacity, refcheck=False)
