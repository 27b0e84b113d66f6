"""Decode what engines publish about their KV cache: msgpack batches of BlockStored, BlockRemoved,
AllBlocksCleared.

vLLM's wire (routing.md 4.2): a batch is `[ts, events, dp_rank]`, an event a tagged array (older) or a map
with `type`. Unknown event types, unknown media and groups that are not full attention are left out and
counted; unknown keys and extra positions are not looked at. A frame that does not decode raises `WireError`,
never anything else.

Cost: about 3 us an event plus 2 ns a token. Token ids and hashes are unpacked from the raw bytes by a
compiled loop; no Python object a token. Safe to call from any thread; a `WireDecoder` belongs to one source,
because it learns that source's cache groups.
"""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from router.events.unpack import unpack

Hashes = npt.NDArray[np.uint64]
Tokens = npt.NDArray[np.uint32]


class WireError(ValueError):
    """A frame that is not what an engine sends."""


class Tier(IntEnum):
    DEVICE = 0
    HOST = 1
    DISK = 2
    EXTERNAL = 3


MEDIUM: Final[dict[str | None, Tier]] = {
    None: Tier.DEVICE,
    "GPU": Tier.DEVICE,
    "DEVICE": Tier.DEVICE,
    "CPU": Tier.HOST,
    "CPU_PINNED": Tier.HOST,
    "CPU_TIER1": Tier.HOST,
    "CPU_TIER2": Tier.DISK,
    "DISK": Tier.DISK,
    "NVME": Tier.DISK,
    "STORAGE": Tier.DISK,
    "EXTERNAL": Tier.EXTERNAL,
    "NETWORK": Tier.EXTERNAL,
    "REMOTE": Tier.EXTERNAL,
    "SHARED": Tier.EXTERNAL,
}
"""Where a medium's blocks are; names are compared in upper case."""

FULL_ATTENTION: Final = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of cache groups in which a block stands for its whole prefix. A sliding window or a state group does
not."""


class BlockStored(msgspec.Struct, frozen=True, gc=False):
    """Blocks now held in a tier. `hashes` uint64 (n,), the engine's own; `tokens` uint32 (n *
    block_size,)."""

    hashes: Any
    parent: int | None
    tokens: Any
    block_size: int
    tier: Tier = Tier.DEVICE
    lora_name: str | None = None
    cache_salt: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class BlockRemoved(msgspec.Struct, frozen=True, gc=False):
    """Blocks no longer held in a tier."""

    hashes: Any
    tier: Tier = Tier.DEVICE
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, gc=False):
    """Nothing is held any more, in any tier."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class Batch(msgspec.Struct, frozen=True, gc=False):
    """One frame. `rank` is None where the engine does not say. `blocks`: stored and removed hashes in
    `events`."""

    at: float
    rank: int | None
    events: list[Event]
    blocks: int


class _Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[msgspec.Raw]
    dp_rank: int | None = None


class _MapTag(msgspec.Struct):
    type: str


class _ArrayTag(msgspec.Struct, array_like=True):
    type: str


class _MapStored(msgspec.Struct, tag_field="type", tag="BlockStored"):
    block_hashes: msgspec.Raw
    token_ids: msgspec.Raw
    block_size: int
    parent_block_hash: int | bytes | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    cache_salt: str | None = None


class _ArrayStored(msgspec.Struct, array_like=True):
    type: str
    block_hashes: msgspec.Raw
    parent_block_hash: int | bytes | None
    token_ids: msgspec.Raw
    block_size: int
    lora_id: msgspec.Raw = msgspec.Raw(b"\xc0")
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class _MapRemoved(msgspec.Struct, tag_field="type", tag="BlockRemoved"):
    block_hashes: msgspec.Raw
    medium: str | None = None
    group_idx: int | None = None


class _MapCleared(msgspec.Struct, tag_field="type", tag="AllBlocksCleared"):
    pass


class _ArrayRemoved(msgspec.Struct, array_like=True):
    type: str
    block_hashes: msgspec.Raw
    medium: str | None = None
    group_idx: int | None = None


class _MapBatch(msgspec.Struct, array_like=True):
    ts: float
    events: list[_MapStored | _MapRemoved | _MapCleared]
    dp_rank: int | None = None


_map_batch = msgspec.msgpack.Decoder(_MapBatch)
_batch = msgspec.msgpack.Decoder(_Batch)
_map_tag = msgspec.msgpack.Decoder(_MapTag)
_array_tag = msgspec.msgpack.Decoder(_ArrayTag)
_map_stored = msgspec.msgpack.Decoder(_MapStored)
_array_stored = msgspec.msgpack.Decoder(_ArrayStored)
_map_removed = msgspec.msgpack.Decoder(_MapRemoved)
_array_removed = msgspec.msgpack.Decoder(_ArrayRemoved)


_Told = _MapStored | _MapRemoved | _MapCleared | _ArrayStored | _ArrayRemoved | None


def _parse(payload: bytes) -> _MapBatch | _Batch:
    """One pass for a frame of known map events, which is what current vLLM sends; else event by event."""
    try:
        return _map_batch.decode(payload)
    except msgspec.ValidationError:
        return _batch.decode(payload)


def _parse_event(raw: msgspec.Raw) -> _Told:
    """One event of any layout; None if its type is unknown."""
    head = memoryview(raw)[0]
    is_map = 0x80 <= head <= 0x8F or head in (0xDE, 0xDF)
    kind = (_map_tag if is_map else _array_tag).decode(raw).type
    if kind == "BlockStored":
        return (_map_stored if is_map else _array_stored).decode(raw)
    if kind == "BlockRemoved":
        return (_map_removed if is_map else _array_removed).decode(raw)
    return _MapCleared() if kind == "AllBlocksCleared" else None


def _numbers(raw: msgspec.Raw, limit: int) -> Hashes:
    data = np.frombuffer(raw, np.uint8)
    head = int(data[0]) if len(data) else 0
    if 0x90 <= head <= 0x9F:
        count, offset = head & 0x0F, 1
    elif head == 0xDC:
        count, offset = int.from_bytes(data[1:3].tobytes(), "big"), 3
    elif head == 0xDD:
        count, offset = int.from_bytes(data[1:5].tobytes(), "big"), 5
    else:
        raise WireError("block hashes and token ids must be lists")
    if count > len(data):
        raise WireError("a list is longer than its frame")
    out = np.empty(count, np.uint64)
    if unpack(data, offset, out, limit) < 0:
        raise WireError("token ids must be integers of 32 bits" if limit else "a block hash is not 64 bits or bytes")
    return out


def fold_hash(value: int | bytes) -> int:
    """An engine's block hash as 64 bits: integers modulo 2**64, bytes by their last eight, big endian."""
    if isinstance(value, bytes):
        return int.from_bytes(value[-8:], "big")
    return value & 0xFFFFFFFFFFFFFFFF


class WireDecoder:
    """Decodes the frames of one source. `ignored` counts events left out, by reason."""

    def __init__(self) -> None:
        self.ignored: Counter[str] = Counter()
        self._other_groups: set[int] = set()

    def decode(self, payload: bytes) -> Batch:
        """The events of a frame that concern the index, in order. Raises `WireError` for a malformed one."""
        try:
            frame = _parse(payload)
            events: list[Event] = []
            blocks = 0
            for told in frame.events:
                event = self._event(told)
                if event is not None:
                    events.append(event)
                    if not isinstance(event, AllBlocksCleared):
                        blocks += len(event.hashes)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise WireError(f"KV event frame does not decode: {error}") from error
        if frame.dp_rank is not None and not 0 <= frame.dp_rank < 1 << 16:
            raise WireError(f"KV event frame has the dp rank {frame.dp_rank}")
        return Batch(frame.ts, frame.dp_rank, events, blocks)

    def _event(self, told: _Told | msgspec.Raw) -> Event | None:
        if isinstance(told, msgspec.Raw):
            told = _parse_event(told)
        if isinstance(told, (_MapStored, _ArrayStored)):
            return self._stored(told)
        if isinstance(told, (_MapRemoved, _ArrayRemoved)):
            return self._removed(told)
        if isinstance(told, _MapCleared):
            return AllBlocksCleared()
        self.ignored["unknown_type"] += 1
        return None

    def _tier(self, medium: str | None) -> Tier | None:
        tier = MEDIUM.get(medium.upper() if medium else None)
        if tier is None:
            self.ignored["unknown_medium"] += 1
        return tier

    def _stored(self, told: _MapStored | _ArrayStored) -> BlockStored | None:
        kind = told.kv_cache_spec_kind
        if kind not in FULL_ATTENTION:
            if told.group_idx is not None:
                self._other_groups.add(told.group_idx)
            self.ignored["other_group"] += 1
            return None
        if told.group_idx is not None:
            self._other_groups.discard(told.group_idx)
        tier = self._tier(told.medium)
        if tier is None:
            return None
        hashes = _numbers(told.block_hashes, 0)
        tokens = _numbers(told.token_ids, 1).astype(np.uint32)
        if told.block_size < 1 or len(tokens) != len(hashes) * told.block_size:
            self.ignored["bad_shape"] += 1
            return None
        parent = told.parent_block_hash
        return BlockStored(
            hashes,
            None if parent is None else fold_hash(parent),
            tokens,
            told.block_size,
            tier,
            told.lora_name or None,
            (told.cache_salt or None) if isinstance(told, _MapStored) else None,
            told.extra_keys,
            told.group_idx,
            kind,
        )

    def _removed(self, told: _MapRemoved | _ArrayRemoved) -> BlockRemoved | None:
        if told.group_idx in self._other_groups:
            self.ignored["other_group"] += 1
            return None
        tier = self._tier(told.medium)
        if tier is None:
            return None
        return BlockRemoved(_numbers(told.block_hashes, 0), tier, told.group_idx)
