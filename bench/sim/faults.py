"""What can be wrong with a simulated worker, and which of it can be wrong at once.

Names and rules only: no I/O, no state. What a fault does is in `lmcache`, `worker` and `worker_log`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum


class Fault(StrEnum):
    """A fault's name is what `--fault` takes."""

    INIT_FAILURE = "init-failure"
    L2_DOWN = "l2-down"
    HEARTBEAT_LOST = "heartbeat-lost"
    NONE_HASH_DIFFERS = "none-hash-differs"
    REGISTRATION_FAILED = "registration-failed"
    NO_LMCACHE_METRICS = "no-lmcache-metrics"


Faults = frozenset[Fault]

_CANNOT_MEET: tuple[tuple[Fault, Fault, str], ...] = (
    (Fault.INIT_FAILURE, Fault.L2_DOWN, "a worker that did not initialise never asks its L2"),
    (Fault.INIT_FAILURE, Fault.HEARTBEAT_LOST, "a worker that did not initialise never sends a heartbeat"),
    (Fault.INIT_FAILURE, Fault.NONE_HASH_DIFFERS, "a worker that did not initialise stores nothing"),
    (Fault.INIT_FAILURE, Fault.REGISTRATION_FAILED, "a worker that did not initialise never tries to register"),
    (Fault.REGISTRATION_FAILED, Fault.HEARTBEAT_LOST, "a worker that is not registered never sends a heartbeat"),
)


def faults_of(names: Sequence[str], count: int) -> tuple[Faults, ...]:
    """The faults of each of `count` engines.

    Args:
        names: `NAME` for every engine, or `NAME@INDEX` for one, counted from 0.
        count: engines.

    Raises:
        ValueError: an unknown name, an engine that does not exist, or faults that cannot meet in one engine.
    """
    found: list[set[Fault]] = [set() for _ in range(count)]
    for text in names:
        name, at, where = text.partition("@")
        try:
            fault = Fault(name)
        except ValueError:
            raise ValueError(f"no fault '{name}'; there are {', '.join(Fault)}") from None
        for index in [_index(text, where, count)] if at else range(count):
            found[index].add(fault)
    for index, faults in enumerate(found):
        for one, other, reason in _CANNOT_MEET:
            if {one, other} <= faults:
                raise ValueError(f"{one} and {other} cannot meet in engine {index}: {reason}")
    return tuple(frozenset(faults) for faults in found)


def _index(text: str, where: str, count: int) -> int:
    if not (where.isascii() and where.isdigit()) or len(where) > 4 or int(where) >= count:
        last = f"0 to {count - 1}" if count > 1 else "0"
        raise ValueError(f"'{text}': what follows the @ must be the number of an engine, {last}")
    return int(where)
