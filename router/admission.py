"""The queue in front of selection: requests that every eligible worker is too busy for wait here, within limits.

Pure: holds entries and says whose turn it is; the dispatcher tries to place them and tells what came of it. Requests of
one class wait in lanes, one lane for those that the same workers may serve, so that a pin to a busy worker does not
hold up the others. Between classes: deficit round robin in uncached prompt tokens (Shreedhar and Varghese, 1995), with
credit given in bulk. Inside a class: `fcfs` (arrival, a second earlier for each level of priority) or `wspt` (uncached
tokens over 1 + priority, the smallest first); a higher strict priority goes before both. O(log n) to enter and leave.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import Any

from router.model import RouteRequest, RoutingError

DEFAULT_CLASS = "default"


class Order(StrEnum):
    FCFS = "fcfs"
    WSPT = "wspt"


@dataclass(frozen=True, slots=True)
class ClassSettings:
    """One class of requests. `quantum`: its share, in tokens a round; `limit`, `token_limit`: requests and uncached
    prompt tokens that may wait, None is the queue's own limit."""

    name: str
    order: Order = Order.FCFS
    quantum: int = 512
    limit: int | None = None
    token_limit: int | None = None


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """`limit`: requests that may wait in all, 0 is no queue; `timeout_s`: longest wait; `tenant_limit`: requests that
    one tenant may have waiting and running."""

    limit: int = 0
    timeout_s: float = 60.0
    tenant_limit: int | None = None
    classes: tuple[ClassSettings, ...] = ()


class QueueFull(RoutingError):
    status = 529
    code = "queue_full"


class QueueTimeout(RoutingError):
    status = 529
    code = "queue_timeout"


class DeadlinePassed(RoutingError):
    status = 504
    code = "deadline_passed"


class TenantLimit(RoutingError):
    status = 429
    code = "tenant_limit"


@dataclass(eq=False, slots=True)
class Entry:
    """A waiting request. `cost`: its uncached prompt tokens, at least 1; `payload` is the dispatcher's; `home` is the
    one place that may serve it, where its session is bound to one."""

    request: RouteRequest
    cost: int
    arrived: float
    payload: Any
    home: object = None
    waiting: bool = True

    @property
    def lane(self) -> tuple[object, ...]:
        """What decides who may serve it: entries with the same lane are placed or refused alike."""
        request, hints = self.request, self.request.hints
        return (
            request.model,
            request.pin_worker,
            request.pin_rank,
            hints.allowed,
            hints.required_taints,
            request.tried,
            self.home,
        )


@dataclass(slots=True)
class _Lane:
    heap: list[tuple[int, float, int, Entry]] = field(default_factory=list)

    def head(self) -> tuple[int, float, int, Entry] | None:
        while self.heap and not self.heap[0][3].waiting:
            heapq.heappop(self.heap)
        return self.heap[0] if self.heap else None


class _Class:
    def __init__(self, settings: ClassSettings) -> None:
        self.settings = settings
        self.lanes: dict[tuple[object, ...], _Lane] = {}
        self.deficit = 0
        self.requests = 0
        self.tokens = 0

    def key(self, entry: Entry) -> float:
        priority = entry.request.hints.priority
        if self.settings.order is Order.WSPT:
            return entry.cost / (1 + priority) if priority > 0 else entry.cost * (1.0 - priority)
        return entry.arrived - priority

    def head(self, without: set[tuple[object, ...]]) -> Entry | None:
        """The entry whose turn it is, lanes in `without` left out."""
        best: tuple[int, float, int, Entry] | None = None
        for name in list(self.lanes):
            first = self.lanes[name].head()
            if first is None:
                del self.lanes[name]
            elif name not in without and (best is None or first[:3] < best[:3]):
                best = first
        return None if best is None else best[3]


class AdmissionQueue:
    """Waiting requests by class. Whoever takes an entry out says so with `leave`."""

    def __init__(self, settings: AdmissionSettings) -> None:
        self.settings = settings
        given = {one.name: one for one in settings.classes}
        self._classes = {
            name: _Class(one) for name, one in {DEFAULT_CLASS: ClassSettings(DEFAULT_CLASS), **given}.items()
        }
        self._order = list(self._classes)
        self._turn = 0
        self._ticket = count()
        self.requests = 0

    def __len__(self) -> int:
        return self.requests

    def depths(self) -> Iterator[tuple[str, int, int]]:
        """(class, waiting requests, their uncached tokens)."""
        for name, one in self._classes.items():
            yield name, one.requests, one.tokens

    def enter(self, entry: Entry) -> None:
        """Raises QueueFull; the request that reaches a limit of tokens is still taken."""
        mine = self._class(entry)
        _check("queue-limit", self.settings.limit, self.requests)
        _check(f"limit of class {mine.settings.name}", mine.settings.limit, mine.requests)
        _check(f"token limit of class {mine.settings.name}", mine.settings.token_limit, mine.tokens)
        strict = -entry.request.hints.strict_priority
        lane = mine.lanes.setdefault(entry.lane, _Lane())
        heapq.heappush(lane.heap, (strict, mine.key(entry), next(self._ticket), entry))
        mine.requests += 1
        mine.tokens += entry.cost
        self.requests += 1

    def leave(self, entry: Entry, *, served: bool) -> None:
        """The entry waits no longer; `served` ones use up their class's credit. May be called again."""
        if not entry.waiting:
            return
        entry.waiting = False
        mine = self._class(entry)
        mine.requests -= 1
        mine.tokens -= entry.cost
        self.requests -= 1
        if served:
            mine.deficit -= entry.cost
        if not mine.requests:
            mine.deficit = 0
            mine.lanes.clear()

    def rehome(self, entry: Entry, home: object) -> None:
        """The entry that `next` gave turned out to be bound elsewhere: it waits on in that lane."""
        lanes = self._class(entry).lanes
        item = heapq.heappop(lanes[entry.lane].heap)
        assert item[3] is entry, "only the head of a lane is moved"
        entry.home = home
        heapq.heappush(lanes.setdefault(entry.lane, _Lane()).heap, item)

    def next(self, blocked: set[tuple[object, ...]]) -> Entry | None:
        """Whose turn it is among the lanes that are not `blocked`; None if nobody can be tried. Takes nothing out."""
        heads = [(name, head) for name in self._order if (head := self._classes[name].head(blocked)) is not None]
        if not heads:
            return None
        strictest = max(head.request.hints.strict_priority for _name, head in heads)
        heads = [pair for pair in heads if pair[1].request.hints.strict_priority == strictest]
        rounds = min(self._rounds(name, head) for name, head in heads)
        if rounds:
            for name, _head in heads:
                one = self._classes[name]
                one.deficit += rounds * one.settings.quantum
        size = len(self._order)
        after = {name: (place - self._turn) % size for place, name in enumerate(self._order)}
        ready = [pair for pair in heads if self._classes[pair[0]].deficit >= pair[1].cost]
        name, head = min(ready, key=lambda pair: after[pair[0]])
        self._turn = self._order.index(name)
        if self._classes[name].deficit - head.cost < 1:
            self._turn = (self._turn + 1) % size
        return head

    def _rounds(self, name: str, head: Entry) -> int:
        one = self._classes[name]
        return max(0, math.ceil((head.cost - one.deficit) / one.settings.quantum))

    def _class(self, entry: Entry) -> _Class:
        """A class that was not set up is the default one: its name is the caller's to invent."""
        return self._classes.get(entry.request.hints.policy_class) or self._classes[DEFAULT_CLASS]


def _check(name: str, limit: int | None, current: int) -> None:
    if limit is not None and current >= limit:
        raise QueueFull(
            f"{name}: limit {limit}, now {current}", extra={"limit": name, "value": limit, "current": current}
        )


class Tenants:
    """Requests waiting and running, a tenant. "" is nobody's and not counted."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._open: dict[str, int] = {}

    def check(self, tenant: str) -> None:
        """Raises TenantLimit."""
        if self.limit is None or not tenant:
            return
        current = self._open.get(tenant, 0)
        if current >= self.limit:
            raise TenantLimit(
                f"tenant-limit: limit {self.limit}, now {current}",
                extra={"limit": "tenant-limit", "value": self.limit, "current": current},
            )

    def began(self, tenant: str) -> None:
        if self.limit is not None and tenant:
            self._open[tenant] = self._open.get(tenant, 0) + 1

    def ended(self, tenant: str) -> None:
        if self.limit is not None and tenant and tenant in self._open:
            self._open[tenant] -= 1
            if not self._open[tenant]:
                del self._open[tenant]

    def __len__(self) -> int:
        return len(self._open)


def parse_class(text: str) -> ClassSettings:
    """`NAME[:order=fcfs|wspt][,quantum=N][,limit=N][,token-limit=N]`.

    Raises:
        ValueError: names what was not understood.
    """
    name, _, rest = text.partition(":")
    fields: dict[str, Any] = {}
    for part in filter(None, (piece.strip() for piece in rest.split(","))):
        key, equals, value = part.partition("=")
        if key == "order" and value in (*Order,):
            fields["order"] = Order(value)
        elif key in ("quantum", "limit", "token-limit") and equals and value.isdecimal() and 0 < int(value) < 1 << 40:
            fields[key.replace("-", "_")] = int(value)
        else:
            raise ValueError(
                f"--queue-class '{text}': '{part}' is not order=fcfs|wspt, quantum=N, limit=N or token-limit=N"
            )
    if not name.strip():
        raise ValueError(f"--queue-class '{text}': the class has no name")
    return ClassSettings(name.strip(), **fields)
