"""Latency objectives: `ttft_p95=500ms,itl_p95=50ms`, asked of a whole probe (capacity) or of each request (goodput).

Pure. Times are written with ms or s; a number alone is milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

STATS = ("mean", "p50", "p90", "p95", "p99")
_LATENCIES = ("ttft", "itl", "e2e")


@dataclass(frozen=True, slots=True)
class Target:
    """`metric`.`stat` at most `limit` milliseconds."""

    metric: str
    stat: str
    limit: float

    def __str__(self) -> str:
        return f"{self.metric}.{self.stat} <= {self.limit:g} ms"


def milliseconds(text: str) -> float:
    """`500ms`, `2s`, `500`.

    Raises:
        ValueError: none of these, or not above 0.
    """
    number, scale = text.strip(), 1.0
    if number.endswith("ms"):
        number = number[:-2]
    elif number.endswith("s"):
        number, scale = number[:-1], 1000.0
    try:
        value = float(number) * scale
    except ValueError:
        raise ValueError(f"{text.strip()!r} is not a time such as 500ms or 2s") from None
    if not 0 < value < float("inf"):
        raise ValueError(f"{text.strip()!r}: a time above 0 wanted")
    return value


def targets(text: str) -> tuple[Target, ...]:
    """`ttft_p95=500ms,itl=50ms`: without a statistic p95.

    Raises:
        ValueError: not of that form, or one metric twice.
    """
    found: list[Target] = []
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        base, _, stat = name.strip().replace(".", "_").partition("_")
        stat = stat.removeprefix("ms_") if stat != "ms" else ""
        if not equals or base not in _LATENCIES or (stat or "p95") not in STATS:
            raise ValueError(
                f"{part.strip()!r}: ttft=, itl= or e2e= wanted, with _{', _'.join(STATS)} behind the name or without, "
                "such as ttft_p95=500ms"
            )
        try:
            target = Target(f"{base}_ms", stat or "p95", milliseconds(value))
        except ValueError as error:
            raise ValueError(f"{part.strip()!r}: {error}") from None
        if any((t.metric, t.stat) == (target.metric, target.stat) for t in found):
            raise ValueError(f"{part.strip()!r}: {target.metric}.{target.stat} has a limit already")
        found.append(target)
    return tuple(found)


def missed(wanted: tuple[Target, ...], value: Callable[[str], float | None]) -> list[str]:
    """What of the objectives is not met, in words.

    Args:
        wanted: the objectives.
        value: `ttft_ms.p95` -> milliseconds; None: failed requests reach it, or there is none.
    """
    found = []
    for target in wanted:
        name = f"{target.metric}.{target.stat}"
        reached = value(name)
        if reached is None:
            found.append(f"{name} does not exist")
        elif reached > target.limit:
            found.append(f"{name} is {reached:.4g} ms, {target.limit:g} allowed")
    return found
