"""Prompts as symbols: what a block of a prompt is, without its tokens.

A workload's prompt is a row of pieces, each the first ids of an endless stream with a key. Two blocks hold the same
tokens exactly if they are cut from the same places of the same streams (up to 64-bit collisions, and streams that agree
by chance). So a block gets two 32-bit numbers, mixed from (stream, place, length) of each of its parts; chained like
tokens they give block keys that agree where those of the tokens agree. Cost: some nanoseconds a block instead of
some a token. Pure.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from numba import njit, types

from bench.sim.nouns import SYMBOLS
from bench.workload.tokens import Piece, Tokens
from router.prefix.hashing import mix

_KEYS = types.Array(types.uint64, 1, "C", readonly=True)
_LENGTHS = types.Array(types.int64, 1, "C", readonly=True)


@njit(types.Array(types.uint64, 1, "C")(_KEYS, _LENGTHS, types.int64), cache=True, nogil=True)
def _marks(keys, lengths, block_size):
    """One number for each full block of the row of pieces."""
    total = 0
    for length in lengths:
        total += length
    marks = np.empty(total // block_size, np.uint64)
    piece = 0
    offset = 0
    for block in range(marks.shape[0]):
        acc = np.uint64(0x9E3779B97F4A7C15)
        left = block_size
        while left > 0:
            take = min(lengths[piece] - offset, left)
            if take > 0:
                acc = mix(acc ^ keys[piece])
                acc = mix(acc ^ ((np.uint64(offset) << np.uint64(32)) | np.uint64(take)))
            left -= take
            offset += take
            if offset == lengths[piece]:
                piece += 1
                offset = 0
        marks[block] = acc
    return marks


def symbols(pieces: Sequence[Piece], block_size: int) -> Tokens:
    """Symbols of the full blocks of `pieces`: uint32, shape (SYMBOLS * (tokens // block_size),)."""
    keys: npt.NDArray[np.uint64] = np.array([piece.key for piece in pieces], np.uint64)
    lengths: npt.NDArray[np.int64] = np.array([piece.length for piece in pieces], np.int64)
    marks: npt.NDArray[np.uint64] = _marks(keys, lengths, block_size)
    made: Tokens = marks.view(np.uint32)
    assert len(made) == SYMBOLS * len(marks)
    return made
