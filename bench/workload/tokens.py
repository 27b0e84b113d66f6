"""Token ids out of nothing but a key: the text of every workload, made where it is needed, equal wherever it is made.

A piece is `length` ids drawn from the stream of a 64-bit key. The stream is counter based (SplitMix64's finaliser
over key and position), so a shorter piece is a prefix of a longer one of the same key: that is what makes sharing
exact when a trace names a block that two requests hold to a different length. Pure; about 10 ns a token.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.uint32]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MUL_A = np.uint64(0xBF58476D1CE4E5B9)
_MUL_B = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True)
class Piece:
    """`length` ids of the stream of `key`.

    `text`: what it says, where a data set gives words and not ids; `length` is then their number of tokens as far as it
    is known, and the ids stand for the text only where prefixes are compared.
    """

    key: int
    length: int
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The ids a workload may use: `low` <= id < `high`. Must lie inside the engine's vocabulary."""

    low: int = 100
    high: int = 2000

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= 2**32:
            raise ValueError(f"token ids {self.low} to {self.high}: need 0 <= low < high")


def piece_key(*parts: object) -> int:
    """A 64-bit key of some parts; ids of any width stay apart, they are hashed as text."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def piece_tokens(piece: Piece, vocabulary: Vocabulary) -> Tokens:
    """The ids of a piece: uint32, shape (piece.length,)."""
    with np.errstate(over="ignore"):
        x = np.uint64(piece.key) + np.arange(1, piece.length + 1, dtype=np.uint64) * _STEP
        x = (x ^ (x >> np.uint64(30))) * _MUL_A
        x = (x ^ (x >> np.uint64(27))) * _MUL_B
        x ^= x >> np.uint64(31)
    span = np.uint64(vocabulary.high - vocabulary.low)
    return (x % span + np.uint64(vocabulary.low)).astype(np.uint32)


class PieceText:
    """Pieces as ids and as JSON, the recently used ones kept. `limit` is bytes of cached JSON.

    A body is then a join of a few dozen byte strings, so that building it does not delay the next send.
    """

    def __init__(self, vocabulary: Vocabulary, limit: int = 64 * 1024 * 1024) -> None:
        self.vocabulary = vocabulary
        self._limit = limit
        self._held = 0
        self._kept: OrderedDict[tuple[Piece, str], bytes] = OrderedDict()

    @property
    def held(self) -> int:
        """Bytes kept."""
        return self._held

    def tokens(self, pieces: tuple[Piece, ...]) -> Tokens:
        """The ids of a whole prompt: uint32, C-contiguous."""
        if not pieces:
            return np.empty(0, np.uint32)
        return np.concatenate([piece_tokens(piece, self.vocabulary) for piece in pieces])

    def json(self, pieces: tuple[Piece, ...]) -> bytes:
        """The ids of a whole prompt as a JSON array."""
        return b"[" + b",".join(self.kept(piece, "ids", self._ids) for piece in pieces if piece.length) + b"]"

    def kept(self, piece: Piece, form: str, make: Callable[[Piece], bytes]) -> bytes:
        """`make(piece)`, or what it gave before for this piece and form."""
        key = (piece, form)
        known = self._kept.get(key)
        if known is not None:
            self._kept.move_to_end(key)
            return known
        text = make(piece)
        self._kept[key] = text
        self._held += len(text)
        while self._held > self._limit and len(self._kept) > 1:
            self._held -= len(self._kept.popitem(last=False)[1])
        return text

    def _ids(self, piece: Piece) -> bytes:
        return ",".join(map(str, piece_tokens(piece, self.vocabulary).tolist())).encode()
