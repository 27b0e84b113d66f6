"""Tiers behind an engine's own KV cache, block by block: host memory (L1), a disk, and a store that engines share (L2).

Blocks that the device gives up go to host memory, from there to the disk, least recently used first, and then away. A
prompt's walk goes on where the device's prefix ends, through host, disk and the shared store in this order, each as
far as it goes without a gap; what is found is loaded instead of computed. A block loaded from host or disk moves to
the device, one from the shared store is copied. Every full block of a prompt is written to the shared store when the
step that computed it has ended; nobody takes blocks out of there but the store itself.

Loading takes a time per block that the engine adds to its step; writing and moving down is free, as a copy in the
background is. Events are those of vLLM 0.32's offloading connector with `self_describing_kv_events` on: CPU and
STORAGE, one a block, with the block's own tokens and parent. For the shared store the medium is EXTERNAL, which vLLM
does not send and Dynamo's consumers know.

Pure but for the shared store, which is given. Cost: about a microsecond a block moved; with a shared store, hashing
the prompt once more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from bench.sim.engine import EngineConfig, EngineRequest
from bench.sim.kvcache import CacheEvent, Removed, Stored
from router.prefix.hashing import Keys, Tokens, block_keys, root_key
from router.prefix.shared_keys import shared_keys

HOST, DISK, SHARED = "CPU", "STORAGE", "EXTERNAL"


class SharedStore(Protocol):
    """A store of block keys (`router.prefix.shared_keys`). Never raises: a store that is down holds nothing."""

    def prefix(self, keys: Sequence[int]) -> int:
        """How many of the first `keys` are there, up to the first that is not."""
        ...

    def news(self, keys: Sequence[int]) -> int:
        """How many of the first `keys` need not be written, because this process wrote them a short while ago."""
        ...

    def put(self, keys: Sequence[int]) -> int | None:
        """Write these; a number by which `finished` will tell how it ended, None if it is not even tried."""
        ...

    def finished(self) -> list[tuple[int, bool]]:
        """Writes that have ended since the last call, in order: their numbers, and whether the blocks are there."""
        ...


@dataclass(frozen=True, slots=True)
class TierConfig:
    """Blocks in host memory and on disk, 0 for no such tier, and microseconds to load one block from each.

    The default times are those of a block of 2 MiB (16 tokens of the 8-billion-parameter model of `BatchTiming`) at
    20, 5 and 2 GB/s.
    """

    host_blocks: int = 0
    disk_blocks: int = 0
    host_load_us: float = 105.0
    disk_load_us: float = 420.0
    shared_load_us: float = 1050.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")


@dataclass(slots=True)
class TierCounters:
    """Blocks by tier's medium: `stored` there, `loaded` from there; `lost` from the last local one.

    `queries` and `hits` are vLLM's external-cache tokens, counted at a request's first admission. `load_seconds` is
    engine time.
    """

    stored: dict[str, int] = field(default_factory=lambda: dict.fromkeys((HOST, DISK, SHARED), 0))
    loaded: dict[str, int] = field(default_factory=lambda: dict.fromkeys((HOST, DISK, SHARED), 0))
    lost: int = 0
    queries: int = 0
    hits: int = 0
    load_seconds: float = 0.0


class _Block(NamedTuple):
    """What an event about a block has to say. `tokens` are of this block only."""

    parent: int | None
    tokens: Tokens
    lora: str | None
    salt: str | None


class _Local:
    """One tier of this engine's own."""

    __slots__ = ("blocks", "capacity", "load_s", "medium")

    def __init__(self, medium: str, capacity: int, load_us: float) -> None:
        self.medium = medium
        self.capacity = capacity
        self.load_s = load_us * 1e-6
        self.blocks: OrderedDict[int, _Block] = OrderedDict()


class _Write(NamedTuple):
    """Consecutive blocks on their way to the shared store, by the engine's own keys."""

    keys: Keys
    block: _Block


class Tiers:
    """The engine's `Connector` and its cache's `LowerTier` in one.

    Args:
        config: sizes and times.
        engine: whose tiers these are.
        shared: the L2, None for none.
        time_scale: multiplies the times; 0 is no time at all.
    """

    def __init__(
        self, config: TierConfig, engine: EngineConfig, shared: SharedStore | None = None, time_scale: float = 1.0
    ) -> None:
        self.config = config
        self.counters = TierCounters()
        self._engine = engine
        self._shared = shared
        self._scale = time_scale
        wanted = (
            _Local(HOST, config.host_blocks, config.host_load_us),
            _Local(DISK, config.disk_blocks, config.disk_load_us),
        )
        self._local = tuple(tier for tier in wanted if tier.capacity)
        self._device: dict[int, _Block] = {}
        self._told: dict[str, int] = {}
        self._ending: list[tuple[EngineRequest, Tokens, int]] = []
        self._writes: dict[int, _Write] = {}
        self._events: list[CacheEvent] = []
        self._seconds = 0.0

    @property
    def held(self) -> dict[str, int]:
        """Blocks in each local tier, by medium."""
        return {tier.medium: len(tier.blocks) for tier in self._local}

    # -- what the engine's cache gives up ----------------------------------------------------------------------

    def stored(self, keys: Keys, parent: int | None, tokens: Tokens, lora: str | None, salt: str | None) -> None:
        if not self._local:
            return
        size = self._engine.block_size
        for number, key in enumerate(keys.tolist()):
            own = tokens[number * size : (number + 1) * size].copy()
            self._device[key] = _Block(parent, own, lora, salt)
            parent = key

    def evicted(self, keys: list[int]) -> list[CacheEvent]:
        events: list[CacheEvent] = []
        for key in keys:
            block = self._device.pop(key, None)
            if block is not None:
                self._move_down(0, key, block, events)
        return events if self._engine.record_events else []

    def cleared(self) -> None:
        """Also the local tiers: the engine tells its listeners that nothing is held any more."""
        self._device.clear()
        for tier in self._local:
            tier.blocks.clear()

    def _move_down(self, level: int, key: int, block: _Block, events: list[CacheEvent]) -> None:
        if level == len(self._local):
            self.counters.lost += 1
            return
        tier = self._local[level]
        if key in tier.blocks:
            tier.blocks.move_to_end(key)
            return
        if len(tier.blocks) >= tier.capacity:
            old_key, old = tier.blocks.popitem(last=False)
            self._move_down(level + 1, old_key, old, events)
            events.append(Removed(_one(old_key), tier.medium))
        tier.blocks[key] = block
        self.counters.stored[tier.medium] += 1
        events.append(Stored(_one(key), block.parent, block.tokens, block.lora, block.salt, tier.medium))

    # -- what a prompt finds -----------------------------------------------------------------------------------

    def match(self, request: EngineRequest, tokens: Tokens, computed: int, *, first: bool) -> int:
        size = self._engine.block_size
        begin = depth = computed // size
        limit = (len(tokens) - 1) // size
        if depth < limit and self._local:
            keys = self._own_keys(request, tokens).tolist()
            for tier in self._local:
                depth = self._load(tier, keys, depth, limit)
        if depth < limit and self._shared is not None:
            names = shared_keys(tokens, size, request.lora, request.salt)
            depth += self._copied(self._shared.prefix(names[depth:limit].tolist()))
        loaded = (depth - begin) * size
        if first:
            self.counters.queries += len(tokens) - computed
            self.counters.hits += loaded
        return loaded

    def _load(self, tier: _Local, keys: list[int], start: int, limit: int) -> int:
        """Take the blocks from `start` on out of a tier, as far as they are there; where that ends."""
        stop = start
        while stop < limit and keys[stop] in tier.blocks:
            del tier.blocks[keys[stop]]
            stop += 1
        if stop > start:
            self._took(tier.medium, stop - start, tier.load_s)
            if self._engine.record_events:
                self._events.append(Removed(np.array(keys[start:stop], np.uint64), tier.medium))
        return stop

    def _copied(self, blocks: int) -> int:
        if blocks:
            self._took(SHARED, blocks, self.config.shared_load_us * 1e-6)
        return blocks

    def _took(self, medium: str, blocks: int, load_s: float) -> None:
        self.counters.loaded[medium] += blocks
        seconds = blocks * load_s * self._scale
        self.counters.load_seconds += seconds
        self._seconds += seconds

    # -- what goes to the shared store -------------------------------------------------------------------------

    def computed(self, request: EngineRequest, tokens: Tokens, *, last: bool) -> None:
        if self._shared is None:
            return
        start = self._told.pop(request.id, 0)
        stop = len(tokens) // self._engine.block_size
        if not last:
            self._told[request.id] = stop
        if stop > start:
            self._ending.append((request, tokens, start))

    def forget(self, request_id: str) -> None:
        self._told.pop(request_id, None)

    def step_ended(self) -> None:
        if self._shared is None:
            return
        ended, self._ending = self._ending, []
        for request, tokens, start in ended:
            self._write(self._shared, request, tokens, start)
        for number, done in self._shared.finished():
            write = self._writes.pop(number)
            if not done:
                continue
            self.counters.stored[SHARED] += len(write.keys)
            if self._engine.record_events:
                block = write.block
                self._events.append(Stored(write.keys, block.parent, block.tokens, block.lora, block.salt, SHARED))

    def _write(self, store: SharedStore, request: EngineRequest, tokens: Tokens, start: int) -> None:
        size = self._engine.block_size
        stop = len(tokens) // size
        names = shared_keys(tokens, size, request.lora, request.salt)[start:stop].tolist()
        known = store.news(names)
        if known == len(names):
            return
        number = store.put(names[known:])
        if number is None:
            return
        start += known
        own = self._own_keys(request, tokens)
        block = _Block(
            int(own[start - 1]) if start else None, tokens[start * size : stop * size], request.lora, request.salt
        )
        self._writes[number] = _Write(own[start:stop], block)

    # -- a step's ----------------------------------------------------------------------------------------------

    def take_seconds(self) -> float:
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def take_events(self) -> list[CacheEvent]:
        events, self._events = self._events, []
        return events

    def _own_keys(self, request: EngineRequest, tokens: Tokens) -> Keys:
        size = self._engine.block_size
        return block_keys(tokens, size, root_key(self._engine.seed, size, request.lora, request.salt))


def _one(key: int) -> Keys:
    return np.array([key], np.uint64)
