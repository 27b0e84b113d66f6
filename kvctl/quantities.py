"""Durations and sizes as people write them on a command line: `90s`, `15m`, `1h30m`; `4Mi`, `64KiB`, `1000`."""

from __future__ import annotations

import re

from kvctl.errors import Problem

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SIZE = re.compile(r"(\d{1,18})\s*(?:(K|M|G)(?:i(?:B)?)?)?B?", re.IGNORECASE)
_POWERS = {"": 0, "K": 10, "M": 20, "G": 30}
LONGEST_S = 30 * 86400.0


def seconds(text: str, option: str, *, least: float = 0.0) -> float:
    """Seconds of `15m`, `1h30m` or a plain number of seconds, at least `least`. Raises Problem naming the option."""
    plain = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", plain):
        value = float(plain)
    elif plain and re.fullmatch(f"(?:{_PART.pattern})+", plain):
        value = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(plain))
    else:
        raise Problem(f"{option} is a duration such as 90s, 15m or 1h, not {text[:40]!r}")
    if value > LONGEST_S:
        raise Problem(f"{option} {text[:40]}: at most 30d")
    if value < least:
        raise Problem(f"{option} {text}: at least {least:g}s")
    return value


def size(text: str, option: str) -> int:
    """Bytes of `4Mi`, `64KiB`, `1G` (powers of 1024) or a plain number. Raises Problem naming the option."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise Problem(f"{option} is a size such as 512Ki, 4Mi or 1048576, not {text[:40]!r}")
    value = int(match.group(1)) << _POWERS[(match.group(2) or "").upper()]
    if not 0 < value <= 1 << 32:
        raise Problem(f"{option} {text}: more than 0 and at most 4Gi")
    return value
