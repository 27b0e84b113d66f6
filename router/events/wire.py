"""Decode what engines publish about their KV cache: msgpack batches of BlockStored, BlockRemoved,
AllBlocksCleared.

vLLM's wire, which SGLang and Dynamo's TensorRT-LLM workers speak as well: a batch is `[ts, events, dp_rank]`, an event
a tagged array (older) or a map with `type`; or an event of TensorRT-LLM's own (`tensorrt.py`). Unknown event types,
unknown media and groups that are not full attention are left out and counted; unknown keys and extra positions are not
looked at. A frame that does not decode raises `WireError`, never anything else.

Cost: about 3 us an event plus 2 ns a token. Token ids and hashes are unpacked from the raw bytes by a
compiled loop; no Python object a token. Safe to call from any thread; a `WireDecoder` belongs to one source,
because it learns that source's cache groups.
"""

from __future__ import annotations

from collections import Counter
from itertools import zip_longest
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from router.events.cache_events import (
    MEDIUM,
    AllBlocksCleared,
    BlockMoved,
    BlockRemoved,
    BlockStored,
    Event,
    Tier,
    fold_hash,
)
from router.events.tensorrt import NativeDecoder, NativeEvent, parse_native
from router.events.unpack import unpack

__all__ = [
    "MEDIUM",
    "AllBlocksCleared",
    "Batch",
    "BlockMoved",
    "BlockRemoved",
    "BlockStored",
    "Event",
    "Tier",
    "WireDecoder",
    "WireError",
    "fold_hash",
]

Hashes = npt.NDArray[np.uint64]
Tokens = npt.NDArray[np.uint32]


class WireError(ValueError):
    """A frame that is not what an engine sends."""


FULL_ATTENTION: Final = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of cache groups in which a block stands for its whole prefix. A sliding window or a state group does
not."""


class Batch(msgspec.Struct, frozen=True, gc=False):
    """One frame. `rank` is None where the engine does not say. `blocks`: stored and removed hashes in
    `events`."""

    at: float
    rank: int | None
    events: list[Event]
    blocks: int


_NIL: Final = msgspec.Raw(b"\xc0")
_NO_LORA: Final = frozenset({b"\xc0", b"\x00"})


class _Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[msgspec.Raw]
    dp_rank: int | None = None


class _MapTag(msgspec.Struct):
    type: str | None = None
    data: msgspec.Raw = _NIL


class _ArrayTag(msgspec.Struct, array_like=True):
    type: str


class _MapStored(msgspec.Struct, tag_field="type", tag="BlockStored"):
    block_hashes: msgspec.Raw
    token_ids: msgspec.Raw
    block_size: int
    parent_block_hash: int | bytes | None = None
    lora_id: msgspec.Raw = _NIL
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    cache_salt: str | None = None
    block_mm_infos: list[Any] | None = None


class _ArrayStored(msgspec.Struct, array_like=True):
    type: str
    block_hashes: msgspec.Raw
    parent_block_hash: int | bytes | None
    token_ids: msgspec.Raw
    block_size: int
    lora_id: msgspec.Raw = _NIL
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


_Told = _MapStored | _MapRemoved | _MapCleared | _ArrayStored | _ArrayRemoved | NativeEvent | None


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
    tag = (_map_tag if is_map else _array_tag).decode(raw)
    kind = tag.type
    if kind is None:
        if isinstance(tag, _MapTag) and bytes(tag.data) != b"\xc0":
            return parse_native(raw)
        raise WireError("a KV event has neither a type nor data")
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


def _lora_of(lora_id: msgspec.Raw) -> str | None:
    """A name for an adapter that an engine only numbers: no request's, so its blocks never match a plain prompt."""
    told = bytes(lora_id)
    return None if told in _NO_LORA else f"lora id {told.hex()}"


def _with_media(extra_keys: list[Any] | None, mm_infos: list[Any]) -> list[Any]:
    """Extra keys a block, with what TensorRT-LLM's workers tell of its images and the like."""
    keys = extra_keys or [None] * len(mm_infos)
    return [[key, info] if info else key for key, info in zip_longest(keys, mm_infos)]


class WireDecoder:
    """Decodes the frames of one source. `ignored` counts events left out, by reason."""

    def __init__(self) -> None:
        self.ignored: Counter[str] = Counter()
        self._other_groups: set[int] = set()
        self._native = NativeDecoder(self.ignored)

    def decode(self, payload: bytes) -> Batch:
        """The events of a frame that concern the index, in order. Raises `WireError` for a malformed one."""
        try:
            frame = _parse(payload)
            events: list[Event] = []
            rank = frame.dp_rank
            for raw in frame.events:
                told: _Told = _parse_event(raw) if isinstance(raw, msgspec.Raw) else raw
                if isinstance(told, NativeEvent):
                    rank = told.attention_dp_rank if rank is None else rank
                    events += self._native.events(told, rank)
                    continue
                event = self._event(told)
                if event is not None:
                    events.append(event)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise WireError(f"KV event frame does not decode: {error}") from error
        if rank is not None and not 0 <= rank < 1 << 16:
            raise WireError(f"KV event frame has the dp rank {rank}")
        blocks = sum(len(event.hashes) for event in events if not isinstance(event, AllBlocksCleared))
        return Batch(frame.ts, rank, events, blocks)

    def _event(self, told: _Told) -> Event | None:
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

    def _stored(self, told: _MapStored | _ArrayStored) -> BlockStored | BlockMoved | None:
        kind = told.kv_cache_spec_kind
        if kind is None and told.block_size == 0:
            return self._offloaded(told)
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
        mm_infos = told.block_mm_infos if isinstance(told, _MapStored) else None
        return BlockStored(
            hashes,
            None if parent is None else fold_hash(parent),
            tokens,
            told.block_size,
            tier,
            told.lora_name or _lora_of(told.lora_id),
            (told.cache_salt or None) if isinstance(told, _MapStored) else None,
            told.extra_keys if mm_infos is None else _with_media(told.extra_keys, mm_infos),
            told.group_idx,
            kind,
        )

    def _offloaded(self, told: _MapStored | _ArrayStored) -> BlockMoved | None:
        """vLLM's offloading connector without `self_describing_kv_events` tells hashes and a medium, nothing more: the
        blocks are those that the device's events have told of."""
        if told.group_idx in self._other_groups:
            self.ignored["other_group"] += 1
            return None
        tier = self._tier(told.medium)
        if tier is None:
            return None
        if tier is Tier.DEVICE or len(_numbers(told.token_ids, 1)):
            self.ignored["bad_shape"] += 1
            return None
        return BlockMoved(_numbers(told.block_hashes, 0), tier, tier)

    def _removed(self, told: _MapRemoved | _ArrayRemoved) -> BlockRemoved | None:
        if told.group_idx in self._other_groups:
            self.ignored["other_group"] += 1
            return None
        tier = self._tier(told.medium)
        if tier is None:
            return None
        return BlockRemoved(_numbers(told.block_hashes, 0), tier, told.group_idx)
