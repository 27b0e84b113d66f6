"""The engine's paged KV cache: refcounted blocks, prefix reuse on full blocks, LRU eviction, and a record of
changes.

Behaves as vLLM's block pool does (v1, checked against 0.32): blocks are found by a chained key of their
tokens and everything before; a free block keeps its content until it is needed; tails are evicted before
heads; two blocks may carry the same key when two sequences computed it, and each is stored and removed on its
own (a reader of the events has to count). Pure: no I/O, no clock. Cost: a few microseconds a call plus some
tens of nanoseconds a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from bench.sim import blocks as kernel
from router.prefix.hashing import Keys, Tokens

Ids = npt.NDArray[np.int32]
DEVICE_MEDIUM = "GPU"
"""The device's name on vLLM's wire."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Full blocks that became findable: keys, the key before the first of them, their tokens, and where they are."""

    keys: Keys
    parent: int | None
    tokens: Tokens
    lora: str | None
    salt: str | None
    medium: str = DEVICE_MEDIUM


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks that are not there any more, in most cases because their place was needed."""

    keys: Keys
    medium: str = DEVICE_MEDIUM


@dataclass(frozen=True, slots=True)
class Cleared:
    """Everything was forgotten at once."""


CacheEvent = Stored | Removed | Cleared


class LowerTier(Protocol):
    """Takes what the device gives up.

    `stored` tells of blocks that became findable, as `Stored` does. `evicted` of keys that the device has no copy of
    any more; it answers what becomes of them. `cleared`: everything is to be forgotten.
    """

    def stored(self, keys: Keys, parent: int | None, tokens: Tokens, lora: str | None, salt: str | None) -> None: ...

    def evicted(self, keys: list[int]) -> list[CacheEvent]: ...

    def cleared(self) -> None: ...


class KVCache:
    """`num_blocks` blocks of `block_size` tokens.

    Args:
        reuse: whether full blocks can be found again; without it nothing is cached and nothing recorded.
        record: whether changes are kept for `take_events`.
        lower: gets what is evicted.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        reuse: bool = True,
        record: bool = True,
        lower: LowerTier | None = None,
    ) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError("a cache needs at least one block of at least one token")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.reuse = reuse
        self._record = record and reuse
        self._lower = lower
        self._events: list[CacheEvent] = []
        self._slots = np.full(1 << max(1, (2 * num_blocks - 1).bit_length()), -1, np.int32)
        self._key = np.zeros(num_blocks, np.uint64)
        self._evicted = np.empty(num_blocks, np.uint64)
        self._count = np.array([num_blocks, 0], np.int64)
        self._node = np.zeros((num_blocks + 1, 5), np.int32)
        ring = np.arange(num_blocks + 1, dtype=np.int32)
        self._node[:, kernel.NEXT] = np.roll(ring, -1)
        self._node[:, kernel.PREV] = np.roll(ring, 1)
        self._node[:, kernel.TWIN] = -1

    @property
    def arrays(self) -> tuple[bool, npt.NDArray[np.int32], Keys, npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Whether blocks can be found again, and the state itself, for compiled callers."""
        return self.reuse, self._node, self._key, self._slots, self._count

    @property
    def free(self) -> int:
        """Blocks that nobody holds, cached or not."""
        return int(self._count[kernel.FREE])

    @property
    def used(self) -> int:
        return self.num_blocks - self.free

    @property
    def cached(self) -> int:
        """Blocks that can be found, twins counted singly."""
        return int(self._count[kernel.CACHED])

    def cached_keys(self) -> list[int]:
        """The keys of all findable blocks, with repeats for twins. For tests and inspection: reads every
        block.
        """
        return [int(key) for key in self._key[self._node[:-1, kernel.HASHED] == 1]]

    def lookup(self, keys: Keys, limit: int, ids: Ids, all_tokens: int) -> int:
        """The cached prefix of a sequence that would fit now; nothing changes.

        Args:
            keys: keys of the sequence's full blocks.
            limit: how many of them may be reused at most.
            ids: filled with the blocks of the prefix.
            all_tokens: length of the sequence; it is let in only if all of it would fit now.

        Returns:
            The reusable blocks, or -1 if there is no room.
        """
        hits = kernel.match(keys, limit, ids, self._key, self._slots) if self.reuse and limit > 0 else 0
        parked = kernel.unused(ids, hits, self._node) if hits else 0
        return -1 if self._blocks_for(all_tokens) - hits + parked > self.free else int(hits)

    def cached_prefix(self, keys: Keys, limit: int, ids: Ids) -> int:
        """How many of `keys[:limit]` are cached as an unbroken prefix; `ids` is scratch memory. Nothing changes."""
        return int(kernel.match(keys, limit, ids, self._key, self._slots)) if self.reuse and limit > 0 else 0

    def hold(self, ids: Ids, hits: int, tokens: int) -> int:
        """Hold the `hits` blocks that `lookup` found and as many more as `tokens` of the sequence need; how many in
        all. To be called before anything else changes.
        """
        if hits:
            kernel.touch(ids, hits, self._node, self._count)
        held = self._blocks_for(tokens)
        self._take(ids, hits, held)
        return held

    def grow(self, ids: Ids, held: int, tokens: int) -> int:
        """Blocks held after making room for a sequence of `tokens`, or -1 if there is none; then nothing has
        changed.
        """
        need = self._blocks_for(tokens)
        if need <= held:
            return held
        if need - held > self.free:
            return -1
        self._take(ids, held, need)
        return need

    def store(
        self,
        ids: Ids,
        keys: Keys,
        start: int,
        stop: int,
        tokens: Tokens,
        lora: str | None,
        salt: str | None,
        unit: int | None = None,
    ) -> None:
        """Make the full blocks `ids[start:stop]` findable. `tokens` are the whole sequence's, `unit` of them a block
        (None: the block size).
        """
        if not self.reuse or stop <= start:
            return
        kernel.publish(ids, keys, start, stop, self._node, self._key, self._slots, self._count)
        if self._record or self._lower is not None:
            unit = unit or self.block_size
            parent = int(keys[start - 1]) if start else None
            span = tokens[start * unit : stop * unit]
            if self._lower is not None:
                self._lower.stored(keys[start:stop], parent, span, lora, salt)
            if self._record:
                self._events.append(Stored(keys[start:stop], parent, span, lora, salt))

    def release(self, ids: Ids, held: int) -> None:
        """Let go of a sequence's blocks."""
        kernel.release(ids, held, self._node, self._count)

    def clear(self) -> bool:
        """Forget all cached blocks. False, and nothing changed, while any block is held."""
        if self.used:
            return False
        self._slots.fill(-1)
        self._node[:-1, kernel.HASHED] = 0
        self._node[:-1, kernel.TWIN] = -1
        self._count[kernel.CACHED] = 0
        if self._lower is not None:
            self._lower.cleared()
        if self._record:
            self._events.append(Cleared())
        return True

    def take_events(self) -> list[CacheEvent]:
        """The changes since the last call, in order."""
        events = self._events
        self._events = []
        return events

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _take(self, ids: Ids, start: int, stop: int) -> None:
        if stop <= start:
            return
        lost = kernel.take(ids, start, stop, self._evicted, self._node, self._key, self._slots, self._count)
        if not lost:
            return
        if self._lower is not None:
            gone = [key for key in self._evicted[:lost].tolist() if not self._holds(key)]
            self._events += self._lower.evicted(gone)
        if self._record:
            self._events.append(Removed(self._evicted[:lost].copy()))

    def _holds(self, key: int) -> bool:
        return bool(self._slots[kernel.find(np.uint64(key), self._key, self._slots)] >= 0)
