"""Tokens -> block keys: one 64-bit key a full block, chained, so that a key names the whole prefix up to its
block.

The key space is our own. Engines' block hashes are opaque handles elsewhere (`index.py`); our keys are
computed from token ids alone, both for a prompt and for the tokens inside a KV event, so no engine needs to
share our hash function.

Cost: about 2 ns a token, one compiled call for a prompt. The mixing step is the xor-shift-multiply finaliser
of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014), applied once a
token pair and once a block. A process may pick its own `seed`, which makes collisions impossible to prepare
from outside.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit, types

Keys = npt.NDArray[np.uint64]
Tokens = npt.NDArray[np.uint32]

_MUL_A = np.uint64(0xBF58476D1CE4E5B9)
_MUL_B = np.uint64(0x94D049BB133111EB)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@njit(types.uint64(types.uint64), cache=True, nogil=True, inline="always")
def mix(value):  # type: ignore[no-untyped-def]
    """SplitMix64's finaliser: every input bit moves about half of the output bits."""
    value = (value ^ (value >> np.uint64(30))) * _MUL_A
    value = (value ^ (value >> np.uint64(27))) * _MUL_B
    return value ^ (value >> np.uint64(31))


@njit(
    types.uint64(types.uint64, types.Array(types.uint32, 1, "C", readonly=True), types.int64, types.int64),
    cache=True,
    nogil=True,
)
def chain(parent, tokens, start, stop):  # type: ignore[no-untyped-def]
    """The key of the block `tokens[start:stop]` whose prefix has the key `parent`."""
    acc = parent ^ _GOLDEN
    i = start
    while i + 1 < stop:
        pair = (np.uint64(tokens[i]) << np.uint64(32)) | np.uint64(tokens[i + 1])
        acc = (acc ^ pair) * _MUL_A
        acc ^= acc >> np.uint64(32)
        i += 2
    if i < stop:
        acc = (acc ^ np.uint64(tokens[i])) * _MUL_B
        acc ^= acc >> np.uint64(32)
    return mix(acc + np.uint64(stop - start))


@njit(
    types.Array(types.uint64, 1, "C")(types.Array(types.uint32, 1, "C", readonly=True), types.int64, types.uint64),
    cache=True,
    nogil=True,
)
def _block_keys(tokens, block_size, root):  # type: ignore[no-untyped-def]
    count = tokens.shape[0] // block_size
    keys = np.empty(count, np.uint64)
    key = root
    for block in range(count):
        key = chain(key, tokens, block * block_size, (block + 1) * block_size)
        keys[block] = key
    return keys


def block_keys(tokens: Tokens, block_size: int, root: int) -> Keys:
    """Keys of the full blocks of `tokens`.

    Args:
        tokens: uint32, shape (n,), C-contiguous.
        block_size: tokens a block, at least 1.
        root: what the chain starts from, see `root_key`.

    Returns:
        uint64, shape (n // block_size,). Two prompts share `keys[:k]` exactly when their first k blocks are
        equal (up to 64-bit collisions) and their roots are.
    """
    keys: Keys = _block_keys(tokens, block_size, np.uint64(root))
    return keys


def text_key(text: bytes, seed: int) -> int:
    """A 64-bit key of some bytes (a LoRA name, a cache salt, an engine's extra keys). Not on the per-block
    path."""
    padded = text + b"\0" * (-len(text) % 4)
    tokens = np.frombuffer(padded, np.uint32)
    return int(chain(np.uint64(seed ^ len(text)), tokens, 0, len(tokens)))


def root_key(seed: int, block_size: int, lora: str | None = None, salt: str | None = None) -> int:
    """Where a chain starts: prompts under another adapter, cache salt or block size never share a key."""
    root = text_key(b"block %d" % block_size, seed)
    if lora:
        root = text_key(b"lora " + lora.encode(), root)
    if salt:
        root = text_key(b"salt " + salt.encode(), root)
    return root
