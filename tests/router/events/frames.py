"""Frames as engines send them, built with msgspec and kept as bytes."""

from __future__ import annotations

from typing import Any

import msgspec

encode = msgspec.msgpack.encode


def stored(hashes: list[Any], tokens: list[int], parent: Any = None, size: int = 2, **more: Any) -> dict[str, Any]:
    """A BlockStored as a map, as vLLM 0.32 writes it."""
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        **more,
    }


def removed(hashes: list[Any], **more: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU", **more}


def frame(*events: Any, rank: int | None = None) -> bytes:
    return encode([12.5, list(events), rank] if rank is not None else [12.5, list(events)])
