"""Token ids -> the chunk keys of LMCache.

A key is `hash((key of the chunk before, ids of the chunk, extra))`, the first chunk's prefix NONE_HASH. With the
default algorithm `builtin` the hash is Python's own, which for integers depends on nothing but their values, so the
compiled kernels here give what any CPython of 64 bits gives. The outer hash of three is invertible: from one key
and its prompt NONE_HASH follows, which is how `learn.py` finds it. `sha256_cbor` takes the first eight bytes of the
digest of the canonical CBOR (LMCache 0.4.6 and later), `sha256_cbor_64bit` of older vLLM the last eight. The extra part
is `()` from LMCache 0.4.1 on, None before.

Sources: CPython's tuple and integer hashes (xxHash's primes, the modulus 2^61 - 1); RFC 8949 for CBOR. Cost: builtin
about 1 ns a token and 5 ns a chunk, sha256_cbor about 5 ns a token.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
from numba import njit, types

from router.prefix.hashing import Keys, Tokens

_P1 = np.uint64(11400714785074694791)
_P2 = np.uint64(14029467366897019727)
_P5 = np.uint64(2870177450012600261)
_P1_INVERSE = np.uint64(pow(11400714785074694791, -1, 1 << 64))
_P2_INVERSE = np.uint64(pow(14029467366897019727, -1, 1 << 64))
_LENGTH = np.uint64(2870177450012600261 ^ 3527539)
_FAILED = np.uint64(0xFFFFFFFFFFFFFFFF)
_INSTEAD = np.uint64(1546275796)
_MODULUS = np.uint64((1 << 61) - 1)
_SIGN = np.uint64(1 << 63)
_KEY_MASK = (1 << 64) - 1

_HASH_OF_EMPTY = hash(()) & _KEY_MASK
_HASH_OF_NONE = 0xFCA86420
"""hash(None) of Python 3.12 and later, which LMCache's images have; before it was an address."""

_u64 = types.uint64
_Tokens = types.Array(types.uint32, 1, "C", readonly=True)
_Keys = types.Array(types.uint64, 1, "C")


class Algorithm(StrEnum):
    """LMCache's `pre_caching_hash_algorithm`, as far as it can be followed."""

    BUILTIN = "builtin"
    SHA256_CBOR = "sha256_cbor"
    SHA256_CBOR_64BIT = "sha256_cbor_64bit"


@dataclass(frozen=True, slots=True)
class Form:
    """All of how a worker makes keys but NONE_HASH. `extra_none`: the third part is None instead of ()."""

    algorithm: Algorithm = Algorithm.BUILTIN
    chunk_size: int = 256
    extra_none: bool = False


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a worker makes keys. `root`: 64 bits, hash(NONE_HASH) for builtin, NONE_HASH itself for the others."""

    form: Form
    root: int


def root_of(form: Form, none_hash: int) -> int:
    """The root of a scheme whose workers log this NONE_HASH."""
    return (hash(none_hash) if form.algorithm is Algorithm.BUILTIN else none_hash) & _KEY_MASK


# -- Python's hash of a tuple ----------------------------------------------------------------------------------


@njit(_u64(_u64, _u64), cache=True, nogil=True, inline="always")
def _round(acc, lane):  # type: ignore[no-untyped-def]
    acc += lane * _P2
    acc = (acc << np.uint64(31)) | (acc >> np.uint64(33))
    return acc * _P1


@njit(_u64(_u64, _u64), cache=True, nogil=True, inline="always")
def _finished(acc, length):  # type: ignore[no-untyped-def]
    acc += length ^ _LENGTH
    return _INSTEAD if acc == _FAILED else acc


@njit(_u64(_u64), cache=True, nogil=True, inline="always")
def _int_hash(key):  # type: ignore[no-untyped-def]
    """hash() of the integer whose two's complement `key` is."""
    if key & _SIGN:
        rest = (~key + np.uint64(1)) % _MODULUS
        value = ~rest + np.uint64(1)
        return _FAILED - np.uint64(1) if value == _FAILED else value
    return key % _MODULUS


@njit(_u64(_u64, _u64, _u64), cache=True, nogil=True, inline="always")
def _of_three(first, second, third):  # type: ignore[no-untyped-def]
    return _finished(_round(_round(_round(_P5, first), second), third), np.uint64(3))


@njit(_Keys(_Tokens, types.int64), cache=True, nogil=True)
def _bodies(tokens, chunk_size):  # type: ignore[no-untyped-def]
    n = tokens.shape[0]
    count = (n + chunk_size - 1) // chunk_size
    found = np.empty(count, np.uint64)
    for chunk in range(count):
        start = chunk * chunk_size
        stop = min(start + chunk_size, n)
        acc = _P5
        for at in range(start, stop):
            acc = _round(acc, np.uint64(tokens[at]))
        found[chunk] = _finished(acc, np.uint64(stop - start))
    return found


@njit(_Keys(_Keys, _u64, _u64), cache=True, nogil=True)
def _chained(bodies, root, extra):  # type: ignore[no-untyped-def]
    keys = np.empty(bodies.shape[0], np.uint64)
    lane = root
    for chunk in range(bodies.shape[0]):
        keys[chunk] = _of_three(lane, bodies[chunk], extra)
        lane = _int_hash(keys[chunk])
    return keys


@njit(_Keys(_Keys, _u64, _u64), cache=True, nogil=True)
def _following(keys, body, extra):  # type: ignore[no-untyped-def]
    found = np.empty(keys.shape[0], np.uint64)
    for at in range(keys.shape[0]):
        found[at] = _of_three(_int_hash(keys[at]), body, extra)
    return found


@njit(_u64(_u64, _u64), cache=True, nogil=True, inline="always")
def _unround(acc, lane):  # type: ignore[no-untyped-def]
    acc *= _P1_INVERSE
    acc = (acc >> np.uint64(31)) | (acc << np.uint64(33))
    return acc - lane * _P2


@njit(_u64(_u64, _u64, _u64), cache=True, nogil=True)
def _first_lane(key, body, extra):  # type: ignore[no-untyped-def]
    acc = _unround(_unround(key - (np.uint64(3) ^ _LENGTH), extra), body) * _P1_INVERSE
    acc = (acc >> np.uint64(31)) | (acc << np.uint64(33))
    return (acc - _P5) * _P2_INVERSE


# -- CBOR ------------------------------------------------------------------------------------------------------


@njit(
    types.int64(types.Array(types.uint8, 1, "C"), types.int64, types.uint8, _u64),
    cache=True,
    nogil=True,
    inline="always",
)
def _head(out, at, major, value):  # type: ignore[no-untyped-def]
    if value < np.uint64(24):
        out[at] = major | np.uint8(value)
        return at + 1
    size = 1
    if value >= np.uint64(1 << 8):
        size = 2
    if value >= np.uint64(1 << 16):
        size = 4
    if value >= np.uint64(1 << 32):
        size = 8
    out[at] = major | np.uint8(24 + (size >= 2) + (size >= 4) + (size >= 8))
    for place in range(size):
        out[at + 1 + place] = np.uint8((value >> np.uint64(8 * (size - 1 - place))) & np.uint64(255))
    return at + 1 + size


@njit(types.int64(_Tokens, types.int64, types.Array(types.uint8, 1, "C")), cache=True, nogil=True)
def _encoded(tokens, start, out):  # type: ignore[no-untyped-def]
    """The CBOR array of `tokens[start:]` into `out` (5 bytes an id and 9 are enough); returns its length."""
    at = _head(out, 0, np.uint8(0x80), np.uint64(tokens.shape[0] - start))
    for place in range(start, tokens.shape[0]):
        at = _head(out, at, np.uint8(0), np.uint64(tokens[place]))
    return at


def _cbor_head(value: int) -> bytes:
    out = np.empty(9, np.uint8)
    return out[: _head(out, 0, np.uint8(0), np.uint64(value))].tobytes()


def cbor_bodies(tokens: Tokens, chunk_size: int) -> list[bytes]:
    """The encoded ids of each chunk, the last one maybe shorter."""
    out = np.empty(5 * chunk_size + 9, np.uint8)
    found = []
    for start in range(0, len(tokens), chunk_size):
        found.append(out[: _encoded(tokens[start : start + chunk_size], 0, out)].tobytes())
    return found


def cbor_key(prefix: int, body: bytes, form: Form) -> int:
    """The key of a chunk behind `prefix`."""
    digest = hashlib.sha256(b"\x83" + _cbor_head(prefix) + body + (b"\xf6" if form.extra_none else b"\x80")).digest()
    return int.from_bytes(digest[:8] if form.algorithm is Algorithm.SHA256_CBOR else digest[-8:])


# -- what others use -------------------------------------------------------------------------------------------


def _extra(form: Form) -> int:
    return _HASH_OF_NONE if form.extra_none else _HASH_OF_EMPTY


def following(keys: Keys, body: int, form: Form) -> Keys:
    """The key behind each of `keys` if the chunk there has this body; builtin only."""
    found: Keys = _following(keys, np.uint64(body), np.uint64(_extra(form)))
    return found


def first_root(key: int, body: int, form: Form) -> int:
    """The root from which the first chunk of this body gets `key`; builtin only."""
    return int(_first_lane(np.uint64(key), np.uint64(body), np.uint64(_extra(form))))


def builtin_bodies(tokens: Tokens, chunk_size: int) -> npt.NDArray[np.uint64]:
    """hash() of each chunk's tuple of ids, the last one maybe shorter."""
    found: npt.NDArray[np.uint64] = _bodies(tokens, chunk_size)
    return found


class PromptChunks:
    """A prompt's chunk keys, each way of making them computed once. `tokens`: uint32, shape (n,)."""

    __slots__ = ("_builtin", "_cbor", "_keys", "tokens")

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self._builtin: dict[int, npt.NDArray[np.uint64]] = {}
        self._cbor: dict[int, list[bytes]] = {}
        self._keys: dict[Scheme, list[int]] = {}

    def builtin(self, chunk_size: int) -> npt.NDArray[np.uint64]:
        found = self._builtin.get(chunk_size)
        if found is None:
            found = self._builtin[chunk_size] = builtin_bodies(self.tokens, chunk_size)
        return found

    def cbor(self, chunk_size: int) -> list[bytes]:
        found = self._cbor.get(chunk_size)
        if found is None:
            found = self._cbor[chunk_size] = cbor_bodies(self.tokens, chunk_size)
        return found

    def keys(self, scheme: Scheme) -> list[int]:
        """The key of each chunk, the last chunk maybe shorter than the others; 64 bits, not negative."""
        found = self._keys.get(scheme)
        if found is None:
            found = self._keys[scheme] = self._make(scheme)
        return found

    def _make(self, scheme: Scheme) -> list[int]:
        form = scheme.form
        if form.algorithm is Algorithm.BUILTIN:
            keys: list[int] = _chained(
                self.builtin(form.chunk_size), np.uint64(scheme.root), np.uint64(_extra(form))
            ).tolist()
            return keys
        found, prefix = [], scheme.root
        for body in self.cbor(form.chunk_size):
            prefix = cbor_key(prefix, body, form)
            found.append(prefix)
        return found


def warm() -> None:
    """Run each kernel once, so that none is compiled on a request."""
    chunks = PromptChunks(np.arange(600, dtype=np.uint32))
    for algorithm in Algorithm:
        chunks.keys(Scheme(Form(algorithm), 0))
    bodies = chunks.builtin(256)
    following(bodies, int(bodies[0]), Form())
    first_root(1, 2, Form())
