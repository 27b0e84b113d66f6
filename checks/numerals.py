"""Numbers out of text that strangers wrote: none that Python refuses, none that no float or 64 bits can hold. Pure."""

from __future__ import annotations

import json
import math
from typing import Any

_DIGITS = 18
"""As many fit 64 bits; Python refuses to read thousands of them."""


def whole(text: str | None) -> int | None:
    """The number, or None where the text is no row of at most 18 decimal digits."""
    if not text or len(text) > _DIGITS or not text.isdecimal():
        return None
    return int(text)


def loads(text: str) -> Any:
    """Decoded JSON; null in place of NaN, infinities and whole numbers of more than 18 digits.

    Raises ValueError, also where it is nested too deeply to be read.
    """
    try:
        return json.loads(text, parse_int=_whole, parse_float=_finite, parse_constant=_nothing)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _whole(text: str) -> int | None:
    return int(text) if len(text.lstrip("-")) <= _DIGITS else None


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def _nothing(name: str) -> None:
    """NaN, Infinity, -Infinity."""
