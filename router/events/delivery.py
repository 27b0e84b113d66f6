"""What the listener is told (`Source`), delivers (`Events`, `Cleared`, `Lost`) and counts (`SourceState`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from router.events.order import OrderCounters
from router.events.wire import Event


@dataclass(frozen=True, slots=True)
class Source:
    """Where one (worker, dp rank) publishes. Endpoints as they are to be connected to, see
    `resolve_endpoint`."""

    worker_id: str
    rank: int
    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""


@dataclass(frozen=True, slots=True)
class Events:
    """One frame. `rank` is the frame's own if it names one."""

    worker_id: str
    rank: int
    events: list[Event]
    seq: int
    at: float


@dataclass(frozen=True, slots=True)
class Cleared:
    """A new epoch: what this (worker, rank) told is void; what follows is told from the beginning."""

    worker_id: str
    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """Frames are gone for good: what is known of this (worker, rank) is void and what follows is
    incomplete."""

    worker_id: str
    rank: int
    reason: str


Delivery = Events | Cleared | Lost


@dataclass(slots=True)
class SourceState:
    """For the admin port; written by the thread, read anywhere. `last_event_at` is `time.monotonic()`.

    `complete`: every frame since number 0 of this epoch, or since the engine emptied its cache, was delivered, so
    the index knows all that the engine holds.
    """

    connected: bool = False
    last_seq: int = -1
    last_event_at: float | None = None
    complete: bool = False
    replaying: bool = False
    frames: int = 0
    blocks: int = 0
    malformed: int = 0
    reconnects: int = 0
    resyncs: int = 0
    error: str = ""
    order: OrderCounters = field(default_factory=OrderCounters)
    ignored: Counter[str] = field(default_factory=Counter)

    @property
    def gaps(self) -> int:
        return self.order.gaps

    @property
    def repaired(self) -> int:
        return self.order.repaired

    @property
    def lost(self) -> int:
        return self.order.lost
