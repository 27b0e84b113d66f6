"""Which LMCache worker holds which chunk: key -> the workers that do, as bits of an integer, one table a tier.

A walk over a prompt's keys keeps the workers that held all so far; its cost is a dictionary look-up a chunk and tier,
about 0.1 us, whatever the number of workers. Emptying a worker takes effect key by key: `sweep` does it in slices, and
the worker's bit is given out again only after that. Memory is counted as estimated; past the limit new keys are
refused, never old ones dropped, so that what is known stays true. One owner, one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import islice
from typing import Final

KEY_BYTES: Final = 110
"""A key in one table: its entry, the key and the bits. Measured on CPython 3.11 (docs/lmcache.md)."""
HELD_BYTES: Final = 70
"""A key among those of one worker."""
MAX_BITS: Final = 4096


class Tier(IntEnum):
    HOST = 0
    DISK = 1


@dataclass(slots=True)
class _Held:
    tiers: tuple[set[int], set[int]] = field(default_factory=lambda: (set(), set()))


@dataclass(slots=True)
class _Leaving:
    """Keys that worker `bit` may hold no longer; `last`: nothing of it is to come."""

    bit: int
    tier: Tier
    keys: Iterator[int]
    last: bool


Group = tuple[int, int]
"""(workers as bits, leading chunks)."""


class ChunkIndex:
    def __init__(self, limit_bytes: int) -> None:
        self.limit = limit_bytes
        self.refused = 0
        self._tables: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self._held: dict[int, _Held] = {}
        self._leaving: deque[_Leaving] = deque()
        self._free: list[int] = []
        self._next = 0
        self._holdings = 0

    # -- workers -----------------------------------------------------------------------------------------------

    def add(self) -> int | None:
        """A bit for a new worker; None if all are taken."""
        if self._free:
            bit = self._free.pop()
        elif self._next < MAX_BITS:
            bit, self._next = self._next, self._next + 1
        else:
            return None
        self._held[bit] = _Held()
        return bit

    def remove(self, bit: int) -> None:
        """The worker is gone and its bit may not be used any more."""
        held = self._held.pop(bit)
        self._leave(bit, Tier.HOST, held.tiers[Tier.HOST])
        self._leave(bit, Tier.DISK, held.tiers[Tier.DISK], last=True)

    def clear(self, bit: int, tier: Tier | None = None) -> None:
        """The worker holds nothing, or nothing in `tier`."""
        for one in Tier if tier is None else (tier,):
            self.replace(bit, one, set())

    def replace(self, bit: int, tier: Tier, keys: set[int]) -> None:
        """What the worker holds in `tier` is no more than `keys`, each of which was admitted."""
        held = self._held[bit]
        before = held.tiers[tier]
        tiers = list(held.tiers)
        tiers[tier] = keys & before
        held.tiers = (tiers[0], tiers[1])
        self._leave(bit, tier, before - keys)

    def _leave(self, bit: int, tier: Tier, keys: set[int], *, last: bool = False) -> None:
        self._holdings -= len(keys)
        if keys or last:
            self._leaving.append(_Leaving(bit, tier, iter(keys), last))

    @property
    def sweeping(self) -> bool:
        """Whether `sweep` has something to do."""
        return bool(self._leaving)

    def sweep(self, most: int = 2000) -> None:
        """Forget up to `most` keys of workers that were emptied or removed, 0.3 us each."""
        while self._leaving and most > 0:
            part = self._leaving[0]
            held = self._held.get(part.bit)
            kept = held.tiers[part.tier] if held is not None else ()
            done = 0
            for key in islice(part.keys, most):
                done += 1
                if key not in kept:
                    self._unset(part.bit, part.tier, key)
            if done == most:
                return
            most -= done
            self._leaving.popleft()
            if part.last:
                self._free.append(part.bit)

    # -- keys --------------------------------------------------------------------------------------------------

    def admit(self, bit: int, tier: Tier, key: int) -> bool:
        """The worker holds `key` (64 bits, not negative). False, and counted, if there is no room for it."""
        keys = self._held[bit].tiers[tier]
        if key in keys:
            return True
        if self.bytes >= self.limit:
            self.refused += 1
            return False
        table = self._tables[tier]
        table[key] = table.get(key, 0) | 1 << bit
        keys.add(key)
        self._holdings += 1
        return True

    def evict(self, bit: int, tier: Tier, key: int) -> bool:
        """The worker holds `key` in `tier` no longer; False if it was not known to."""
        keys = self._held[bit].tiers[tier]
        if key not in keys:
            return False
        keys.discard(key)
        self._holdings -= 1
        self._unset(bit, tier, key)
        return True

    def _unset(self, bit: int, tier: Tier, key: int) -> None:
        table = self._tables[tier]
        rest = table.get(key, 0) & ~(1 << bit)
        if rest:
            table[key] = rest
        else:
            table.pop(key, None)

    def holds(self, bit: int, key: int) -> bool:
        tiers = self._held[bit].tiers
        return key in tiers[Tier.HOST] or key in tiers[Tier.DISK]

    def holders(self, key: int) -> int:
        """The workers that hold `key` in any tier, as bits."""
        return self._tables[Tier.HOST].get(key, 0) | self._tables[Tier.DISK].get(key, 0)

    def count(self, bit: int, tier: Tier) -> int:
        return len(self._held[bit].tiers[tier])

    @property
    def bytes(self) -> int:
        """Estimated memory, within about a third (a table doubles when it grows)."""
        host, disk = self._tables
        return (len(host) + len(disk)) * (KEY_BYTES + self._next // 8) + self._holdings * HELD_BYTES

    # -- prompts -----------------------------------------------------------------------------------------------

    def walk(self, keys: Sequence[int], among: int) -> tuple[list[Group], list[Group]]:
        """How deep the workers of `among` (bits) hold a prompt: in host memory, and in any tier.

        Each group is the workers, as bits, that hold just so many leading chunks; who holds none is in no group.
        """
        host, disk = self._tables
        in_host: list[Group] = []
        in_any: list[Group] = []
        alive_host = alive = among
        for depth, key in enumerate(keys):
            here = host.get(key, 0)
            still_host, still = alive_host & here, alive & (here | disk.get(key, 0))
            if depth and still_host != alive_host:
                in_host.append((alive_host & ~still_host, depth))
            if depth and still != alive:
                in_any.append((alive & ~still, depth))
            alive_host, alive = still_host, still
            if not alive:
                return in_host, in_any
        if keys and alive_host:
            in_host.append((alive_host, len(keys)))
        if keys and alive:
            in_any.append((alive, len(keys)))
        return in_host, in_any


def bits(mask: int) -> Iterable[int]:
    """The numbers of the bits that are set."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
