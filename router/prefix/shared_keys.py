"""Names of KV blocks in a store that several engines share, computable by whoever has the token ids.

The engines' own block hashes differ from engine to engine, and the router's keys from start to start. A shared store
needs names that all agree on: block keys (`hashing.py`) from a fixed seed, LoRA name and cache salt in the root as
everywhere, behind the model's name and the block size:

    kvctl:kv:MODEL:BLOCK_SIZE:KEY      KEY: 16 hex digits

The simulated engines write these (`kvctl sim --l2 redis://…`) and the router asks for them (`--shared-cache`).
LMCache's keys in Redis are others (docs, tiers). A fixed seed means that whoever can send prompts could prepare two
with the same key, about 2^32 tries for one collision: the store is for fleets whose users trust each other, as any
shared cache without a salt is. Cost: 2 ns a token for the keys, 0.2 us a name.
"""

from __future__ import annotations

from collections.abc import Iterable

from router.prefix.hashing import Keys, Tokens, block_keys, root_key

SEED = 0x6B7663746C
"""Part of the scheme: a store filled under one seed is empty under another."""


def shared_keys(tokens: Tokens, block_size: int, lora: str | None = None, salt: str | None = None) -> Keys:
    """Keys of the full blocks of `tokens` (uint32, C-contiguous), the same in every process; uint64, one a block."""
    return block_keys(tokens, block_size, root_key(SEED, block_size, lora, salt))


def namespace(model: str, block_size: int) -> str:
    """What all names of one model and block size begin with."""
    return f"kvctl:kv:{model}:{block_size}:"


def names(prefix: str, keys: Iterable[int]) -> list[str]:
    """The names of blocks; `prefix` is the `namespace`."""
    return [f"{prefix}{key:016x}" for key in keys]
