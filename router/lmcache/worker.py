"""What is known of one LMCache worker: a tensor-parallel rank of an engine. Pure data."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Final

from router.lmcache.chunks import Scheme
from router.lmcache.index import Tier
from router.lmcache.wire import MAX_MISSING

MAX_LOCATIONS: Final = 16
ENOUGH: Final = 20
"""Prompts without a match after which a worker's hash is said never to match."""
MAX_RECENT: Final = 512
"""Newest admitted keys that are kept to learn from, of each worker."""

Id = tuple[str, int]


class State(StrEnum):
    """REGISTERED: no heartbeat yet, and none is overdue. DEGRADED: it is overdue."""

    REGISTERED = "registered"
    LIVE = "live"
    SYNCING = "syncing"
    DEGRADED = "degraded"


@dataclass(slots=True)
class Location:
    tier: Tier
    last_seq: int | None = None
    gaps: int = 0


@dataclass(slots=True)
class Sync:
    """A full sync that is under way. `keys`: what was told so far, operations in between applied."""

    id: str
    location: str
    batches: int
    last: float
    received: set[int] = field(default_factory=set)
    keys: set[int] = field(default_factory=set)

    def missing(self) -> list[int]:
        return list(islice((number for number in range(self.batches) if number not in self.received), MAX_MISSING))


@dataclass(slots=True, eq=False)
class LmWorker:
    """`scheme`: how its keys are made, assumed until `verified`. `recent`: (key, when) of the newest
    admits, 0 as the time of those that a full sync told. `told`: it has ever told a key."""

    instance: str
    number: int
    ip: str
    port: int
    peer_url: str | None
    bit: int
    scheme: Scheme
    registered_at: float
    verified: bool = False
    told: bool = False
    heartbeat_at: float | None = None
    heartbeats: int = 0
    overdue: bool = False
    wants_sync: str | None = None
    asked_at: float | None = None
    sync: Sync | None = None
    syncs: int = 0
    admits: int = 0
    evicts: int = 0
    matched: int = 0
    unmatched: int = 0
    warned: bool = False
    tries: int = 0
    next_try: float = 0.0
    locations: dict[str, Location] = field(default_factory=dict)
    recent: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=MAX_RECENT))

    @property
    def id(self) -> Id:
        return self.instance, self.number

    @property
    def state(self) -> State:
        if self.overdue:
            return State.DEGRADED
        if self.sync is not None:
            return State.SYNCING
        return State.REGISTERED if self.heartbeat_at is None else State.LIVE

    @property
    def hash_state(self) -> str:
        """verified: keys were seen to be ours. never_matches: enough prompts, and none was. assumed: neither yet."""
        if self.verified or self.matched:
            return "verified"
        return "never_matches" if self.unmatched >= ENOUGH else "assumed"

    @property
    def gaps(self) -> int:
        return sum(location.gaps for location in self.locations.values())


def tier_of(location: str) -> Tier:
    return Tier.DISK if any(name in location for name in ("Disk", "Gds", "Nixl")) else Tier.HOST
