"""Where in a prompt an answer of the simulated model begins, if the prompt ends within one.

A real model that is given a prompt and a part of its own answer goes on with that answer. The simulated one draws
its answer from the prompt as a whole, so it has to see that the last tokens are the beginning of the answer to those
before them. Pure; about 6 ns a token of the prompt.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit, types

from router.prefix.hashing import Tokens, mix

_MUL_A = np.uint64(0xBF58476D1CE4E5B9)
_MUL_B = np.uint64(0x94D049BB133111EB)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

Seeds = npt.NDArray[np.uint64]


@njit(
    types.Array(types.uint64, 1, "C")(types.uint64, types.Array(types.uint32, 1, "C", readonly=True)),
    cache=True,
    nogil=True,
)
def _seeds(root, tokens):
    count = tokens.shape[0]
    seeds = np.empty(count + 1, np.uint64)
    acc = root ^ _GOLDEN
    seeds[0] = mix(acc)
    for i in range(count):
        if i % 2:
            pair = (np.uint64(tokens[i - 1]) << np.uint64(32)) | np.uint64(tokens[i])
            acc = (acc ^ pair) * _MUL_A
            acc ^= acc >> np.uint64(32)
            seeds[i + 1] = mix(acc + np.uint64(i + 1))
        else:
            last = (acc ^ np.uint64(tokens[i])) * _MUL_B
            last ^= last >> np.uint64(32)
            seeds[i + 1] = mix(last + np.uint64(i + 1))
    return seeds


def prefix_seeds(root: np.uint64, tokens: Tokens) -> Seeds:
    """`router.prefix.hashing.chain(root, tokens, 0, p)` for every p: uint64, shape (n + 1,)."""
    seeds: Seeds = _seeds(root, np.ascontiguousarray(tokens))
    return seeds
