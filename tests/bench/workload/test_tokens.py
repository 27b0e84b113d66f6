"""Token ids follow from their key alone, and a shorter piece is the start of a longer one."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.workload.tokens import Piece, PieceText, Vocabulary, piece_key, piece_tokens

VOCABULARY = Vocabulary()
pieces = st.builds(Piece, st.integers(0, 2**64 - 1), st.integers(0, 600))


@given(pieces)
def test_ids_lie_in_the_vocabulary(piece: Piece) -> None:
    tokens = piece_tokens(piece, VOCABULARY)
    assert len(tokens) == piece.length
    assert ((tokens >= 100) & (tokens < 2000)).all()


@given(pieces, st.integers(0, 600))
def test_a_shorter_piece_is_a_prefix_of_a_longer_one(piece: Piece, length: int) -> None:
    short, long = sorted((piece.length, length))
    whole = piece_tokens(Piece(piece.key, long), VOCABULARY)
    assert (piece_tokens(Piece(piece.key, short), VOCABULARY) == whole[:short]).all()


def test_ids_wider_than_32_bits_stay_apart() -> None:
    assert piece_key("trace", 5) != piece_key("trace", 5 + 2**32)


def test_parts_of_a_key_do_not_run_into_each_other() -> None:
    assert piece_key("a", "bc") != piece_key("ab", "c")


def plain_stream(key: int, length: int) -> list[int]:
    """SplitMix64 in plain integers."""
    mask = 2**64 - 1
    out = []
    for i in range(1, length + 1):
        x = (key + i * 0x9E3779B97F4A7C15) & mask
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        out.append((x ^ (x >> 31)) % 1900 + 100)
    return out


@given(pieces)
def test_the_ids_equal_the_plain_stream(piece: Piece) -> None:
    assert piece_tokens(piece, VOCABULARY).tolist() == plain_stream(piece.key, piece.length)


@given(st.lists(pieces, max_size=6))
def test_json_and_ids_agree(parts: list[Piece]) -> None:
    text = PieceText(VOCABULARY, limit=2000)
    assert json.loads(text.json(tuple(parts))) == text.tokens(tuple(parts)).tolist()


def test_the_cache_of_json_stays_within_its_limit() -> None:
    text = PieceText(VOCABULARY, limit=10_000)
    for key in range(50):
        text.json((Piece(key, 512),))
    assert text.held <= 10_000


@pytest.mark.parametrize(("low", "high"), [(-1, 5), (5, 5), (0, 2**32 + 1)])
def test_an_impossible_range_of_ids_is_refused(low: int, high: int) -> None:
    with pytest.raises(ValueError, match="token ids"):
        Vocabulary(low, high)


def test_an_empty_prompt_is_an_empty_array() -> None:
    assert PieceText(VOCABULARY).tokens(()).dtype == np.uint32
