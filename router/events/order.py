"""FrameOrder: one source's frames in sequence, each exactly once, never two epochs mixed. Pure: no sockets,
no clock.

The listener feeds it frames and moments; it answers with what to do, in order: deliver a frame, clear what is
known (a new epoch), declare it lost (a gap that cannot be repaired), ask for a replay, stop waiting for one.

A gap is repaired through the replay socket: live frames wait, in order, while the missing ones come. An
engine drops replay answers when the reader is slow, so an incomplete replay is asked again as long as each
one brings something new. Without a replay socket, after a silence, or when the engine no longer has the
frames: `Lost`, and on with what is there. A sequence number that was passed already is either a copy of a
frame that a replay brought too (the same bytes: dropped) or a new engine process (a new epoch).

Cost: a dict entry and a hash of the bytes for the last 1,024 frames; waiting frames are bounded.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final

_REMEMBERED: Final = 1024


@dataclass(frozen=True, slots=True)
class Deliver:
    seq: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class NewEpoch:
    """Forget what this source told: it counts from the start again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Gap:
    """Frames are missing and will not come: forget what this source told, it may be wrong."""

    reason: str


@dataclass(frozen=True, slots=True)
class AskReplay:
    first: int


@dataclass(frozen=True, slots=True)
class StopReplay:
    pass


Action = Deliver | NewEpoch | Gap | AskReplay | StopReplay


@dataclass(slots=True)
class OrderCounters:
    gaps: int = 0
    repaired: int = 0
    lost: int = 0
    epochs: int = 0
    copies: int = 0


@dataclass(slots=True)
class FrameOrder:
    """See the module. `replayable`: the source has a replay socket. `patience`: seconds of silence that end a
    replay.

    `last` is the last sequence number delivered in this epoch, -1 none. `complete`: everything since number 0
    was delivered.
    """

    replayable: bool
    patience: float = 5.0
    max_waiting: int = 20_000
    last: int = -1
    complete: bool = False
    deadline: float | None = None
    counters: OrderCounters = field(default_factory=OrderCounters)
    _waiting: deque[tuple[int, bytes]] = field(default_factory=deque)
    _recent: OrderedDict[int, int] = field(default_factory=OrderedDict)
    _asked: int = 0
    _answered: bool = False
    _broken: bool = False
    _is_gap: bool = False

    @property
    def replaying(self) -> bool:
        return self.deadline is not None

    def start(self, now: float) -> list[Action]:
        """The first connection: learn what the engine still knows."""
        return self._ask(0, now) if self.replayable else []

    def restart(self, reason: str, now: float) -> list[Action]:
        """A new connection may be a new process: a new epoch, learnt from its beginning."""
        return self._epoch(reason, now)

    def live(self, seq: int, payload: bytes, now: float) -> list[Action]:
        """A frame of the live stream."""
        if self.replaying:
            self._waiting.append((seq, payload))
            if len(self._waiting) > self.max_waiting:
                return self._give_up(f"more than {self.max_waiting} frames came while a gap was repaired", now)
            return []
        return self._take(seq, payload, now)

    def replayed(self, seq: int, payload: bytes, now: float) -> list[Action]:
        """A frame of a replay."""
        if not self.replaying:
            return []
        self.deadline = now + self.patience
        first, self._answered = not self._answered, True
        if seq <= self.last:
            self.counters.copies += 1
            return []
        if self._broken:
            return []
        if seq == self.last + 1:
            return [self._deliver(seq, payload)]
        if not first:
            self._broken = True  # a hole inside the answer: the rest is asked again
            return []
        reason = f"the engine's replay begins at {seq}"
        actions: list[Action] = []
        while self._waiting and self._waiting[0][0] < seq:  # older than all that the engine still has
            waited, held = self._waiting[0]
            if waited > self.last:
                actions += self._leap(waited, held, reason)
            elif self._recent.get(waited) != hash(held):
                break  # of another epoch: `replay_ended` sees to it
            self._waiting.popleft()
        return actions + self._leap(seq, payload, reason)

    def replay_ended(self, now: float) -> list[Action]:
        """The engine has sent all it has."""
        if not self.replaying:
            return []
        if self._broken and self.last >= self._asked:
            return self._ask(self.last + 1, now)
        return self._resume("the engine does not have the missing frames", now)

    def tick(self, now: float) -> list[Action]:
        """Time has passed: end a replay that went silent."""
        if self.deadline is None or now < self.deadline:
            return []
        if self.last >= self._asked:
            return self._ask(self.last + 1, now)
        return self._give_up(f"no answer to the replay request within {self.patience:g} s", now)

    def cannot_ask(self, reason: str, now: float) -> list[Action]:
        """There is no asking after all (its address is bad): do without from now on."""
        self.replayable = False
        return self._give_up(reason, now)

    def _take(self, seq: int, payload: bytes, now: float) -> list[Action]:
        if seq == self.last + 1:
            return [self._deliver(seq, payload)]
        if seq <= self.last:
            if self._recent.get(seq) == hash(payload):
                self.counters.copies += 1
                return []
            actions = self._epoch(f"sequence number {seq} after {self.last}", now)
            return actions + self.live(seq, payload, now)
        if self.last < 0 and not self.replayable:
            return [self._deliver(seq, payload)]
        if self.last >= 0:
            self.counters.gaps += 1
        if self.replayable:
            self._waiting.append((seq, payload))
            return self._ask(self.last + 1, now)
        return self._leap(seq, payload, "there is no replay socket")

    def _leap(self, seq: int, payload: bytes, reason: str) -> list[Action]:
        """Deliver a frame that is later than the last one, over a gap that nobody can fill."""
        if self.last >= 0 and seq != self.last + 1:
            lost = self._lose(f"frames {self.last + 1} to {seq - 1} are missing: {reason}")
            return [lost, self._deliver(seq, payload)]
        return [self._deliver(seq, payload)]

    def _deliver(self, seq: int, payload: bytes) -> Deliver:
        if seq == 0:
            self.complete = True
        elif seq != self.last + 1:
            self.complete = False
        self.last = seq
        self._recent[seq] = hash(payload)
        if len(self._recent) > _REMEMBERED:
            self._recent.popitem(last=False)
        return Deliver(seq, payload)

    def _lose(self, reason: str) -> Gap:
        self.counters.lost += 1
        self.complete = False
        self._is_gap = False
        return Gap(reason)

    def _epoch(self, reason: str, now: float) -> list[Action]:
        actions: list[Action] = [StopReplay()] if self.replaying else []
        self.counters.epochs += 1
        self.last = -1
        self.complete = False
        self.deadline = None
        self._recent.clear()
        self._waiting.clear()
        return [*actions, NewEpoch(reason), *self.start(now)]

    def _ask(self, first: int, now: float) -> list[Action]:
        self._is_gap = self.last >= 0 and (self._is_gap or not self.replaying)
        self._asked = first
        self._answered = False
        self._broken = False
        self.deadline = now + self.patience
        return [AskReplay(first)]

    def _give_up(self, reason: str, now: float) -> list[Action]:
        return [StopReplay(), *self._resume(reason, now)]

    def _resume(self, reason: str, now: float) -> list[Action]:
        """The replay is over: back to the live stream, beginning with what waits."""
        progress = self.last >= self._asked
        was_gap, self._is_gap = self._is_gap, False
        self.deadline = None
        waiting, self._waiting = self._waiting, deque()
        actions: list[Action] = []
        while waiting:
            seq, payload = waiting.popleft()
            if seq > self.last + 1 and not progress:
                was_gap = was_gap and self.last < 0
                actions += self._leap(seq, payload, reason)
                progress = True
                continue
            progress = True  # a hole behind a frame that arrived is a gap of its own
            actions += self._take(seq, payload, now)
            if self.replaying:
                self._waiting.extend(waiting)
                return actions
        if was_gap:
            self.counters.repaired += 1
        return actions
