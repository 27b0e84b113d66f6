"""TensorRT-LLM's own KV cache events: `{event_id, data: {type, ...}, window_size, attention_dp_rank}`.

What `LLM.get_kv_cache_events()` and `trtllm-serve`'s `/kv_cache_events` give as JSON. Here they are decoded where a
publisher puts them on the wire as they are, instead of rewriting them as vLLM's events (which `wire.py` reads).

A stored event lists blocks with their tokens; a block's size is not told: the longest block seen is a full one, shorter
ones are partial and left out. Of several attention windows only the largest is indexed: in the others a block does not
stand for its whole prefix. An adapter is not named in these events, so its blocks look like plain ones.

Cost: about 1 us a token, as each is a map of its own; one publisher's decoder only.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import msgspec
import numpy as np

from router.events.cache_events import (
    AllBlocksCleared,
    BlockMoved,
    BlockRemoved,
    BlockStored,
    Event,
    Tier,
    fold_hash,
)
from router.prefix.hashing import text_key

LEVELS: Final = {0: Tier.DEVICE, 1: Tier.HOST, 2: Tier.DISK}
"""Cache levels: the primary pool on the device, the secondary in host memory, and disk."""

_Hash = int | str


class _Token(msgspec.Struct, gc=False):
    token_id: int | str
    token_extra_id: int = 0


class _Block(msgspec.Struct):
    block_hash: _Hash
    tokens: list[_Token]
    cache_level: int = 0
    cache_salt: str | None = None
    mm_keys: list[Any] | None = None


class _Created(msgspec.Struct, tag_field="type", tag="created"):
    pass


class _Stored(msgspec.Struct, tag_field="type", tag="stored"):
    blocks: list[_Block]
    parent_hash: _Hash | None = None


class _Removed(msgspec.Struct, tag_field="type", tag="removed"):
    block_hashes: list[_Hash]


class _Diff(msgspec.Struct):
    old_value: int
    new_value: int


class _Updated(msgspec.Struct, tag_field="type", tag="updated"):
    block_hash: _Hash
    cache_level: _Diff | None = None


class NativeEvent(msgspec.Struct):
    """One event as the engine serialises it. `data` is decoded when its kind is known."""

    data: msgspec.Raw
    window_size: int | None = None
    attention_dp_rank: int | None = None


class _Kind(msgspec.Struct):
    type: str


_native = msgspec.msgpack.Decoder(NativeEvent)
_kind = msgspec.msgpack.Decoder(_Kind)
_data = msgspec.msgpack.Decoder(_Created | _Stored | _Removed | _Updated)
_KINDS: Final = frozenset({"created", "stored", "removed", "updated"})


def parse_native(raw: msgspec.Raw) -> NativeEvent:
    """Raises msgspec's errors for what is no such event."""
    return _native.decode(raw)


class NativeDecoder:
    """Events of one publisher. `ignored` counts what is left out, by reason; it is the caller's."""

    def __init__(self, ignored: Counter[str]) -> None:
        self._ignored = ignored
        self._window: int | None = None
        self._block_size = 0

    def events(self, told: NativeEvent, rank: int | None) -> list[Event]:
        """What an event means for the index, in order; nothing for one of another rank than its frame's.

        Raises msgspec's errors for a malformed one.
        """
        if told.attention_dp_rank is not None and told.attention_dp_rank != rank:
            return self._leave_out("other_rank")
        if _kind.decode(told.data).type not in _KINDS:
            return self._leave_out("unknown_type")
        data = _data.decode(told.data)
        if isinstance(data, _Created):
            self._window = max(filter(None, (self._window, told.window_size)), default=None)
            return [AllBlocksCleared()]
        if told.window_size is not None and self._window is not None and told.window_size < self._window:
            return self._leave_out("other_group")
        if isinstance(data, _Stored):
            return list(self._stored(data))
        if isinstance(data, _Removed):
            return [BlockRemoved(_hashes(data.block_hashes), None)]
        return self._moved(data)

    def _leave_out(self, why: str) -> list[Event]:
        self._ignored[why] += 1
        return []

    def _moved(self, data: _Updated) -> list[Event]:
        level = data.cache_level
        if level is None:  # its priority changed
            return []
        source, target = LEVELS.get(level.old_value), LEVELS.get(level.new_value)
        if source is None or target is None:
            return self._leave_out("unknown_medium")
        return [BlockMoved(_hashes([data.block_hash]), source, target)]

    def _stored(self, data: _Stored) -> list[BlockStored]:
        """One event a run of full blocks in one tier."""
        self._block_size = max([self._block_size, *(len(block.tokens) for block in data.blocks)])
        events: list[BlockStored] = []
        parent = None if data.parent_hash is None else _hash(data.parent_hash)
        for block in data.blocks:
            tier = LEVELS.get(block.cache_level)
            ids = [token.token_id for token in block.tokens]
            if tier is None or len(ids) < self._block_size or not all(type(token) is int for token in ids):
                self._ignored["unknown_medium" if tier is None else "partial_block"] += 1
                break  # what follows hangs on it
            handle = _hash(block.block_hash)
            events.append(
                BlockStored(
                    np.array([handle], np.uint64),
                    parent,
                    _token_ids(ids),
                    self._block_size,
                    tier,
                    cache_salt=block.cache_salt or None,
                    extra_keys=_extra(block),
                )
            )
            parent = handle
        return events


def _extra(block: _Block) -> list[Any] | None:
    """What beside its token ids makes the block what it is: media, and ids of a prompt table."""
    parts = [*(block.mm_keys or ()), *(token.token_extra_id for token in block.tokens if token.token_extra_id)]
    return [["tensorrt", *parts]] if parts else None


def _token_ids(ids: list[Any]) -> Any:
    if not all(0 <= token < 1 << 32 for token in ids):
        raise msgspec.ValidationError("token ids must be integers of 32 bits")
    return np.array(ids, np.uint32)


def _hash(value: _Hash) -> int:
    return text_key(value.encode(), 0) if isinstance(value, str) else fold_hash(value)


def _hashes(values: list[_Hash]) -> Any:
    return np.array([_hash(value) for value in values], np.uint64)
