"""What the client does to its own measurement: its share of a core, the loop's lag, connections, the file limit.

Reads /proc/stat and this process's clocks. Cost: one wake-up every 10 ms.
"""

from __future__ import annotations

import asyncio
import resource
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.client.connection import Clock

LAG_PERIOD = 0.01


@dataclass(slots=True)
class SelfWatch:
    """What the client did to the measurement. Lags are seconds; `cpu` is a share of one core, `machine` the share of
    all cores that anybody used (None: the system does not say). `peak`: most connections open at once, `files` how many
    files the process may have open (None: no limit).
    """

    cpu: float = 0.0
    machine: float | None = None
    loop_lag: Sequence[float] = field(default_factory=lambda: array("f"))
    wall: float = 0.0
    connections: int = 0
    retried: int = 0
    peak: int = 0
    files: int | None = None


async def note_lag(lags: array[float], clock: Clock) -> None:
    """Appends by how much each wake-up of the loop came late, until it is cancelled."""
    while True:
        due = clock() + LAG_PERIOD
        await asyncio.sleep(LAG_PERIOD)
        lags.append(max(0.0, clock() - due))


def raise_file_limit() -> int | None:
    """Lets this process open as many files as the system allows it; returns how many (None: any number)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard and soft != resource.RLIM_INFINITY:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            return soft
    return None if soft == resource.RLIM_INFINITY else soft


def cpu_ticks(path: Path = Path("/proc/stat")) -> tuple[int, int] | None:
    """(busy, all) ticks of all cores since the machine started; None where there is no such file."""
    try:
        fields = [int(field) for field in path.read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    return sum(fields) - fields[3] - fields[4], sum(fields)


def busy_share(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    """The share of all cores that was used between two readings."""
    if before is None or after is None or after[1] <= before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1])
