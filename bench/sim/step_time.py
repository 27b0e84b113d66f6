"""Compiled: the duration of one engine step from the coefficients of a timing model. One formula for every model.

`form` is float64, shape (9,): PREFILL_SQUARE, PREFILL_LINEAR, PREFILL_BASE, DECODE_SQUARE, DECODE_LINEAR, DECODE_BASE,
DECODE_FLOOR, DECODE_SEQ, DECODE_TOKEN. Both the engine that steps in real time and the one that runs ahead in virtual
time ask here, so that they cannot differ. Cost: a few nanoseconds compiled, about half a microsecond from Python.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit, types

Form = npt.NDArray[np.float64]

PREFILL_SQUARE, PREFILL_LINEAR, PREFILL_BASE = 0, 1, 2
DECODE_SQUARE, DECODE_LINEAR, DECODE_BASE, DECODE_FLOOR, DECODE_SEQ, DECODE_TOKEN = 3, 4, 5, 6, 7, 8
SIZE = 9

_FORM = types.Array(types.float64, 1, "C")
_INT = types.int64


@njit(types.float64(_FORM, _INT), cache=True, nogil=True)
def prefill_ms(form, tokens):  # type: ignore[no-untyped-def]
    """Milliseconds for so many new prompt tokens; 0 for none."""
    if tokens == 0:
        return 0.0
    n = float(tokens)
    return (form[PREFILL_SQUARE] * n + form[PREFILL_LINEAR]) * n + form[PREFILL_BASE]


@njit(types.float64(_FORM, _INT, _INT, _INT, _INT), cache=True, nogil=True)
def decode_ms(form, seqs, context, active, total):  # type: ignore[no-untyped-def]
    """Milliseconds for one more token of each of `seqs` sequences; 0 for none."""
    if seqs == 0:
        return 0.0
    p = min(1.0, active / total)
    ms = (form[DECODE_SQUARE] * p + form[DECODE_LINEAR]) * p + form[DECODE_BASE]
    ms += form[DECODE_SEQ] * seqs + form[DECODE_TOKEN] * context
    return max(form[DECODE_FLOOR], ms)


@njit(types.float64(_FORM, _INT, _INT, _INT, _INT, _INT), cache=True, nogil=True)
def step_ms(form, prefill, seqs, context, active, total):  # type: ignore[no-untyped-def]
    """Milliseconds of a step with both kinds of work."""
    return prefill_ms(form, prefill) + decode_ms(form, seqs, context, active, total)
