"""PrefixIndex: who holds which blocks, in which tier, as the engines' KV events tell it.

Two key spaces. The engine's block hashes are opaque *handles*, unique within a slot; our keys are chained
from the token ids inside the events (`hashing.py`), so engines need not share a hash function, a salt or a
seed. A node is a key with its set of holders; a handle is (slot, engine hash) -> node with the tiers it
holds. The slot holds a block in a tier while at least one of its handles says so.

Copies count: vLLM tells every physical copy of a block with the same hash (two requests that computed it at the
same time), and tells the end of each. So a store of a known block is one copy more (up to 256) and a removal one
less; the block is gone with its last copy. `count_copies` turns that off.

One owner, no locks: the event loop. Cost: see `table.py`; a store is about 5 us and 0.25 us a block, a
match of 512 blocks 5 to 10 us. `clear` forgets small slots at once (0.1 us a handle) and retires
large ones: the slot continues empty at once under a new internal number, and later calls forget the old
handles a thousand at a time, so no event pays for 100,000.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from router.events.cache_events import AllBlocksCleared, BlockMoved, BlockRemoved, BlockStored, Event, Tier
from router.prefix import layout as at
from router.prefix import operations
from router.prefix.hashing import Keys, Tokens, block_keys, root_key, text_key
from router.prefix.table import BlockTable

Int64s = npt.NDArray[np.int64]

_AT_ONCE: Final = 2048
_A_CALL: Final = 1024
_SPARE: Final = 16
_ROOTS: Final = 4096
_NO_EXTRA: Final = np.zeros(0, np.uint64)


@dataclass(slots=True)
class Overlap:
    """What each slot holds of a prompt, int64 (slots,) each: `device` the contiguous prefix on the device,
    then what each further tier adds from where the one before stopped."""

    device: Int64s
    host: Int64s
    disk: Int64s
    external: Int64s


@dataclass(slots=True)
class IndexCounters:
    """What events did, in blocks; `cleared` and `orphan_stores` are events. `evicted`: by the byte limit."""

    stored: int = 0
    removed: int = 0
    moved: int = 0
    cleared: int = 0
    orphan_stores: int = 0
    unknown_removals: int = 0
    duplicate_stores: int = 0
    evicted: int = 0


class PrefixIndex:
    """See the module.

    Args:
        seed: of the block keys; the same as for the requests' keys.
        limit_bytes: what the arrays may take. The smallest possible table (about 40 KB, and
            130 bytes a slot) is always there.
        slots: how many slots to start with; `ensure_slots` adds.
        count_copies: False for engines that tell blocks again which they hold already, and their end only once.
    """

    def __init__(self, seed: int, limit_bytes: int, slots: int = 64, *, count_copies: bool = True) -> None:
        self.seed = seed
        self.limit = limit_bytes
        self._counters = IndexCounters()
        self._slots = slots
        self._table = BlockTable(slots + _SPARE, limit_bytes)
        self._table.state[at.COPIES] = int(count_copies)
        self._inner = np.arange(slots, dtype=np.int64)
        self._moved = False
        self._free = list(range(slots + _SPARE - 1, slots - 1, -1))
        self._retired: deque[int] = deque()
        self._roots: dict[tuple[int, str | None, str | None], int] = {}
        self.gone: Keys = np.empty(0, np.uint64)
        self._only_live()

    @property
    def counters(self) -> IndexCounters:
        self._counters.evicted = self._table.evicted
        return self._counters

    @property
    def bytes(self) -> int:
        return self._table.bytes

    @property
    def nodes(self) -> int:
        """Different blocks known."""
        return self._table.nodes

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def where(self) -> Int64s:
        """The table's addresses, for kernels that read several tables."""
        return self._table.where

    @property
    def inner(self) -> Int64s:
        """The table's own number of each slot, int64 (slots,)."""
        return self._inner

    def blocks(self, slot: int) -> int:
        """Engine block hashes known of a slot, each counted once however many tiers hold it."""
        return self._table.held(int(self._inner[slot]))

    def holds(self, slot: int, block_hash: int) -> int:
        """The tiers in which a slot holds an engine block hash, bit `1 << tier` each; 0 if it holds it nowhere."""
        return self._table.tiers_of(int(self._inner[slot]), block_hash)

    def ensure_slots(self, count: int) -> None:
        """Make slots 0..count-1 valid. Raises ValueError past 65,520."""
        if count <= self._slots:
            return
        first = self._slots + _SPARE
        self._table.ensure_slots(count + _SPARE)
        numbers = list(range(first, count + _SPARE))
        self._inner = np.concatenate([self._inner, np.array(numbers, np.int64)])
        self._moved = True
        self._slots = count
        self._only_live()

    def reserve(self, blocks: int) -> None:
        """Grow now for so many (block, slot) pairs in all, as far as the limit allows."""
        self._table.reserve(blocks)

    def store(
        self,
        slot: int,
        tier: int,
        parent_hash: int | None,
        block_hashes: npt.NDArray[np.uint64],
        token_ids: Tokens,
        block_size: int,
        lora_name: str | None = None,
        extra_keys: Sequence[Any] | None = None,
        cache_salt: str | None = None,
    ) -> int:
        """Blocks that `slot` now holds in `tier`. Returns how many of them were new.

        A store whose parent is unknown is an orphan: it can never be matched, so it is ignored and counted. At a root,
        `lora_name` and the cache salt decide where the chain starts (`hashing.root_key`). An `extra_keys` entry
        gives its block a key of its own, except that vLLM repeats the lora name there (dropped), and puts the cache
        salt, a lone string, into the entry of the first block (taken as the salt).

        Raises ValueError if the tokens do not cover the blocks.
        """
        if block_size < 1 or len(token_ids) < len(block_hashes) * block_size:
            raise ValueError(f"{len(token_ids)} tokens are not {len(block_hashes)} blocks of {block_size}")
        self._tidy()
        extra = _NO_EXTRA
        if extra_keys is not None and any(extra_keys):
            extra, told_salt = self._fold(extra_keys, len(block_hashes), lora_name, parent_hash is None)
            cache_salt = cache_salt or told_salt
        if parent_hash is None:
            kind, parent = operations.NO_PARENT, self.root(block_size, lora_name, cache_salt)
        else:
            kind, parent = operations.PARENT_HASH, parent_hash
        table, inner, where, done = self._table, self._inner[slot], int(tier), 0  # numba is slow on an enum
        count = len(block_hashes)
        table.state[at.DUPLICATES] = 0
        while True:
            done = operations.store(  # type: ignore[call-arg]
                *table.core, inner, where, kind, np.uint64(parent), block_hashes, token_ids, block_size, extra, done
            )
            if done == operations.ORPHAN:
                self._counters.orphan_stores += 1
                return 0
            if done == count:
                break
            if kind == operations.PARENT_HASH:
                kind, parent = operations.PARENT_KNOWN, int(table.state[at.PARENT].view(np.uint64))
            table.make_room(int(table.state[at.NEED]))
        duplicates = int(table.state[at.DUPLICATES])
        self._counters.duplicate_stores += duplicates
        self._counters.stored += count - duplicates
        return count - duplicates

    def remove(self, slot: int, tier: int | None, hashes: npt.NDArray[np.uint64]) -> int:
        """`slot` holds one copy less of these in `tier` (None: no copy in any tier). Returns how many it did hold.

        The keys of those whose last copy in the tier went are in `gone` until the next call.
        """
        self._tidy()
        gone = np.empty(len(hashes), np.uint64)
        table, inner, done = self._table, self._inner[slot], 0
        where = -1 if tier is None else int(tier)
        table.state[at.UNKNOWN] = table.state[at.GONE] = 0
        while True:
            done = operations.remove(*table.core, inner, where, hashes, gone, done)  # type: ignore[call-arg]
            if done == len(hashes):
                break
            table.make_room(int(table.state[at.NEED]))
        self.gone = gone[: table.state[at.GONE]]
        unknown = int(table.state[at.UNKNOWN])
        self._counters.unknown_removals += unknown
        self._counters.removed += len(hashes) - unknown
        return len(hashes) - unknown

    def move(self, slot: int, source: int, target: int, hashes: npt.NDArray[np.uint64]) -> int:
        """`slot` holds these in tier `target` now and no longer in `source`. Returns how many it knew."""
        self._tidy()
        table, inner, done = self._table, self._inner[slot], 0
        table.state[at.UNKNOWN] = 0
        while True:
            done = operations.move(*table.core, inner, int(source), int(target), hashes, done)  # type: ignore[call-arg]
            if done == len(hashes):
                break
            table.make_room(int(table.state[at.NEED]))
        unknown = int(table.state[at.UNKNOWN])
        self._counters.unknown_removals += unknown
        self._counters.moved += len(hashes) - unknown
        return len(hashes) - unknown

    def clear(self, slot: int) -> None:
        """`slot` holds nothing any more."""
        self._counters.cleared += 1
        inner = int(self._inner[slot])
        if self._table.held(inner) <= _AT_ONCE or not self._free:
            self._table.drain(inner)
            return
        self._inner[slot] = self._free.pop()
        self._moved = True
        self._retired.append(inner)
        self._only_live()

    def apply(self, slot: int, event: Event) -> int:
        """One decoded event. Returns the blocks it changed (0 for a clear)."""
        if isinstance(event, BlockStored):
            return self.store(
                slot,
                event.tier,
                event.parent,
                event.hashes,
                event.tokens,
                event.block_size,
                event.lora_name,
                event.extra_keys,
                event.cache_salt,
            )
        if isinstance(event, BlockRemoved):
            return self.remove(slot, event.tier, event.hashes)
        if isinstance(event, BlockMoved):
            return self.move(slot, event.source, event.target, event.hashes)
        if isinstance(event, AllBlocksCleared):
            self.clear(slot)
        return 0

    def match(self, keys: Keys) -> Overlap:
        """Who holds the prompt with these block keys. Exact; marks the blocks as used."""
        rows = self._table.match(keys, True)[: at.TIERS]
        rows = rows[:, self._inner] if self._moved else rows[:, : self._slots].copy()
        return Overlap(rows[Tier.DEVICE], rows[Tier.HOST], rows[Tier.DISK], rows[Tier.EXTERNAL])

    def root(self, block_size: int, lora_name: str | None, cache_salt: str | None) -> int:
        """`hashing.root_key` with this index's seed, remembered."""
        which = (block_size, lora_name, cache_salt)
        root = self._roots.get(which)
        if root is None:
            if len(self._roots) >= _ROOTS:
                self._roots.clear()
            root = self._roots[which] = root_key(self.seed, block_size, lora_name, cache_salt)
        return root

    def keys(
        self, tokens: Tokens, block_size: int, lora: str | None, salt: str | None, media: str | None = None
    ) -> Keys:
        """Block keys of a prompt. With `media`, the name of what is no text in it, those by which only this router
        knows it."""
        root = self.root(block_size, lora, salt)
        if media is not None:
            root = text_key(b"media " + media.encode(), root)
        return block_keys(tokens, block_size, root)

    def _fold(
        self, extra_keys: Sequence[Any], count: int, lora_name: str | None, at_root: bool
    ) -> tuple[npt.NDArray[np.uint64], str | None]:
        """One number a block (0: none), and the cache salt if the first entry is one."""
        extra = np.zeros(count, np.uint64)
        salt: str | None = None
        for block, entry in enumerate(extra_keys[:count]):
            if not entry:
                continue
            parts = list(entry) if isinstance(entry, (list, tuple)) else [entry]
            if lora_name is not None and lora_name in parts:
                parts.remove(lora_name)
            if block == 0 and at_root and len(parts) == 1 and isinstance(parts[0], str):
                salt = parts[0]
            elif parts:
                extra[block] = text_key(msgspec.msgpack.encode(parts), self.seed) or 1
        return extra, salt

    def _tidy(self) -> None:
        """Forget a part of what retired slots held."""
        if self._retired:
            inner = self._retired[0]
            self._table.drain(inner, _A_CALL)
            if self._table.held(inner) == 0:
                self._free.append(self._retired.popleft())

    def _only_live(self) -> None:
        """Only the numbers in use take part in a walk."""
        members = self._table.members
        members[:] = 0
        np.bitwise_or.at(members, self._inner >> 6, np.uint64(1) << (self._inner & 63).astype(np.uint64))
