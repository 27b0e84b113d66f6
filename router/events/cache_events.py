"""What an engine tells of its KV cache, decoded: blocks stored, removed or moved, everything cleared.

Pure data, whatever wire it came over. Hashes are the engine's own, opaque 64-bit handles.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import msgspec


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
    """Blocks no longer held in a tier; in none, if `tier` is None."""

    hashes: Any
    tier: Tier | None = Tier.DEVICE
    group_idx: int | None = None


class BlockMoved(msgspec.Struct, frozen=True, gc=False):
    """Blocks that left one tier for another; with the same tier twice, blocks known elsewhere that are there too."""

    hashes: Any
    source: Tier
    target: Tier


class AllBlocksCleared(msgspec.Struct, frozen=True, gc=False):
    """Nothing is held any more, in any tier."""


Event = BlockStored | BlockRemoved | BlockMoved | AllBlocksCleared


def fold_hash(value: int | bytes) -> int:
    """An engine's block hash as 64 bits: integers modulo 2**64, bytes by their last eight, big endian."""
    if isinstance(value, bytes):
        return int.from_bytes(value[-8:], "big")
    return value & 0xFFFFFFFFFFFFFFFF
