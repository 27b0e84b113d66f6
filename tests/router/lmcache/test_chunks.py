"""Chunk keys against what the package gave for given ids, and against Python's own hash."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.lmcache.chunks import (
    Algorithm,
    Form,
    PromptChunks,
    Scheme,
    cbor_key,
    first_root,
    following,
    root_of,
)

from . import recorded as told

MASK = 2**64 - 1
DIGEST = 0x08934CB002948EADC357930F56F44D8E83C3CC6101A0479A9344E5F6080502F3


@pytest.mark.parametrize(
    ("form", "none_hash", "expected"),
    [
        (Form(), told.BUILTIN_NONE_HASH, told.BUILTIN_256),
        (Form(chunk_size=16), told.BUILTIN_NONE_HASH, told.BUILTIN_16),
        (Form(Algorithm.SHA256_CBOR), told.CBOR_NONE_HASH, told.CBOR_256),
        (Form(Algorithm.SHA256_CBOR, 16), told.CBOR_NONE_HASH, told.CBOR_16),
        (Form(Algorithm.SHA256_CBOR), told.CBOR_UNSEEDED_NONE_HASH, told.CBOR_UNSEEDED_256),
    ],
)
def test_keys_are_those_of_the_package(form: Form, none_hash: int, expected: list[int]) -> None:
    keys = PromptChunks(told.IDS).keys(Scheme(form, root_of(form, none_hash)))
    assert keys[: len(expected)] == [key & MASK for key in expected]


def by_python(ids: list[int], size: int, none_hash: int, extra: object) -> list[int]:
    keys, prefix = [], none_hash
    for start in range(0, len(ids), size):
        prefix = hash((prefix, tuple(ids[start : start + size]), extra))
        keys.append(prefix & MASK)
    return keys


@settings(max_examples=100, deadline=None)
@given(
    ids=st.lists(st.integers(0, 2**32 - 1), max_size=40),
    size=st.integers(1, 9),
    none_hash=st.one_of(st.integers(-(2**63), 2**64 - 1), st.sampled_from([0, -1, -2, 2**61 - 1, -(2**61)])),
)
def test_builtin_keys_are_those_of_pythons_hash(ids: list[int], size: int, none_hash: int) -> None:
    form = Form(chunk_size=size)
    keys = PromptChunks(np.array(ids, np.uint32)).keys(Scheme(form, root_of(form, none_hash)))
    assert keys == by_python(ids, size, none_hash, ())


@settings(max_examples=50, deadline=None)
@given(ids=st.lists(st.integers(0, 2**32 - 1), min_size=8, max_size=8), none_hash=st.integers(-(2**63), 2**63 - 1))
def test_the_root_follows_from_the_first_key_and_the_second_key_from_the_first(ids: list[int], none_hash: int) -> None:
    form = Form(chunk_size=4)
    chunks = PromptChunks(np.array(ids, np.uint32))
    first, second = by_python(ids, 4, none_hash, ())
    bodies = chunks.builtin(4)
    assert first_root(first, int(bodies[0]), form) == root_of(form, none_hash)
    assert following(np.array([first], np.uint64), int(bodies[1]), form).tolist() == [second]


def test_sha256_cbor_hashes_canonical_cbor_and_takes_eight_bytes() -> None:
    """SHA-256 of 83 05 82 18 18 19 01 00 80, that is [5, [24, 256], []]; computed with sha256sum."""
    body = PromptChunks(np.array([24, 256], np.uint32)).cbor(2)[0]
    assert body.hex() == "821818190100"
    assert cbor_key(5, body, Form(Algorithm.SHA256_CBOR)) == DIGEST >> 192
    assert cbor_key(5, body, Form(Algorithm.SHA256_CBOR_64BIT)) == DIGEST & MASK


@pytest.mark.parametrize(
    ("number", "encoded"),
    [
        (0, "00"),
        (23, "17"),
        (24, "1818"),
        (255, "18ff"),
        (65535, "19ffff"),
        (65536, "1a00010000"),
        (2**32 - 1, "1affffffff"),
    ],
)
def test_cbor_integers_are_as_short_as_they_can_be(number: int, encoded: str) -> None:
    """Examples of RFC 8949, appendix A, and its neighbours."""
    assert PromptChunks(np.array([number], np.uint32)).cbor(1)[0].hex() == "81" + encoded


def test_a_partial_last_chunk_has_a_key_of_its_own() -> None:
    assert len(PromptChunks(told.IDS).keys(Scheme(Form(), 0))) == 3
    assert len(PromptChunks(told.IDS[:512]).keys(Scheme(Form(), 0))) == 2


def test_no_ids_have_no_keys() -> None:
    for algorithm in Algorithm:
        assert PromptChunks(np.array([], np.uint32)).keys(Scheme(Form(algorithm), 0)) == []
