from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from router.prefix import hashing

from . import reference

tokens_of = st.lists(st.integers(0, 2**32 - 1), max_size=70)


@settings(deadline=None)
@given(tokens_of, st.integers(1, 9), st.integers(0, 2**64 - 1))
def test_block_keys_equal_the_pure_python_reference(tokens: list[int], block_size: int, root: int) -> None:
    keys = hashing.block_keys(np.array(tokens, np.uint32), block_size, root)
    assert keys.tolist() == reference.block_keys(tokens, block_size, root)


@settings(deadline=None)
@given(tokens_of, tokens_of, st.integers(1, 5))
def test_prompts_share_keys_exactly_as_far_as_their_blocks_are_equal(a: list[int], b: list[int], size: int) -> None:
    keys_a = hashing.block_keys(np.array(a, np.uint32), size, 7).tolist()
    keys_b = hashing.block_keys(np.array(b, np.uint32), size, 7).tolist()
    for depth in range(min(len(keys_a), len(keys_b))):
        same = a[: (depth + 1) * size] == b[: (depth + 1) * size]
        assert (keys_a[depth] == keys_b[depth]) == same


def test_a_partial_last_block_has_no_key() -> None:
    assert len(hashing.block_keys(np.arange(31, dtype=np.uint32), 16, 1)) == 1


def test_readonly_tokens_are_accepted() -> None:
    tokens = np.frombuffer(np.arange(32, dtype=np.uint32).tobytes(), np.uint32)
    assert len(hashing.block_keys(tokens, 16, 1)) == 2


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**64 - 1))
def test_the_root_differs_by_adapter_salt_and_block_size(seed: int) -> None:
    roots = {
        hashing.root_key(seed, size, lora, salt)
        for size in (16, 32)
        for lora in (None, "a", "b")
        for salt in (None, "a", "b")
    }
    assert len(roots) == 18


def test_an_empty_adapter_or_salt_is_none() -> None:
    assert hashing.root_key(5, 16, "", "") == hashing.root_key(5, 16)


def test_text_keys_of_texts_that_differ_in_trailing_zeros_differ() -> None:
    assert len({hashing.text_key(b"a" + b"\0" * n, 3) for n in range(5)}) == 5
