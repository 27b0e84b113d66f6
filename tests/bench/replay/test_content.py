"""Symbols stand for blocks: equal exactly where the tokens are."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.replay.content import symbols
from bench.sim.nouns import SYMBOLS
from bench.workload.tokens import Piece, Vocabulary, piece_tokens
from router.prefix.hashing import block_keys

BLOCK = 4
WIDE = Vocabulary(0, 2**32)
"""So wide that two streams do not agree by chance."""

pieces = st.lists(st.builds(Piece, st.integers(1, 3), st.integers(0, 11)), min_size=1, max_size=5)


def by_tokens(row: list[Piece]) -> np.ndarray:
    tokens = np.concatenate([piece_tokens(piece, WIDE) for piece in row])
    return block_keys(tokens[: len(tokens) // BLOCK * BLOCK], BLOCK, 7)


@settings(max_examples=100, deadline=None)
@given(one=pieces, other=pieces)
def test_two_prompts_share_by_symbols_what_they_share_when_cut_from_the_same_places(
    one: list[Piece], other: list[Piece]
) -> None:
    """Prompts are made to begin alike, as those of a workload do."""
    first, second = one, one[: len(one) // 2] + other
    keys = [block_keys(symbols(row, BLOCK), SYMBOLS, 7) for row in (first, second)]
    tokens = [by_tokens(row) for row in (first, second)]
    assert [len(k) for k in keys] == [len(t) for t in tokens]
    shared_tokens = np.equal(*(t[: min(map(len, tokens))] for t in tokens))
    shared_symbols = np.equal(*(k[: min(map(len, keys))] for k in keys))
    merged = merge(first) != first or merge(second) != second
    if not merged:
        assert shared_symbols.tolist() == shared_tokens.tolist()
    else:
        assert not (shared_symbols & ~shared_tokens).any()


def merge(row: list[Piece]) -> list[Piece]:
    """A row without empty pieces."""
    return [piece for piece in row if piece.length]


def test_a_longer_piece_of_a_stream_begins_with_the_blocks_of_a_shorter_one() -> None:
    short, long = symbols([Piece(5, 9)], BLOCK), symbols([Piece(5, 40)], BLOCK)
    assert short.tolist() == long[: len(short)].tolist()


def test_a_partial_last_block_has_no_symbols() -> None:
    assert len(symbols([Piece(5, 11)], BLOCK)) == 2 * SYMBOLS
