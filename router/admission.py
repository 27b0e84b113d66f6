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
from dataclasses import dataclass
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


_Key = tuple[int, float, int]
"""Smaller is sooner: strict priority (negated), the order's own figure, the ticket."""


class _Lane:
    """`key`: the one that stands for this lane in its class's heap; others of its there are void."""

    __slots__ = ("heap", "key")

    def __init__(self) -> None:
        self.heap: list[tuple[_Key, Entry]] = []
        self.key: _Key | None = None

    def head(self) -> tuple[_Key, Entry] | None:
        while self.heap and not self.heap[0][1].waiting:
            heapq.heappop(self.heap)
        return self.heap[0] if self.heap else None


class _Class:
    """Lanes by their heads in a heap of their own, so that a turn does not look at each; those that are blocked in the
    current round stand aside. Entries that left are dropped when they come to the top, or once most are such."""

    def __init__(self, settings: ClassSettings) -> None:
        self.settings = settings
        self.lanes: dict[tuple[object, ...], _Lane] = {}
        self.deficit = 0
        self.requests = 0
        self.tokens = 0
        self._heads: list[tuple[_Key, int, tuple[object, ...]]] = []
        self._aside: list[tuple[_Key, int, tuple[object, ...]]] = []
        self._round: set[tuple[object, ...]] | None = None
        self._gone = 0
        self._number = count()

    def key(self, entry: Entry) -> float:
        priority = entry.request.hints.priority
        if self.settings.order is Order.WSPT:
            return entry.cost / (1 + priority) if priority > 0 else entry.cost * (1.0 - priority)
        return entry.arrived - priority

    def add(self, key: _Key, entry: Entry) -> None:
        name = entry.lane
        lane = self.lanes.get(name)
        if lane is None:
            lane = self.lanes[name] = _Lane()
        heapq.heappush(lane.heap, (key, entry))
        if lane.key is None or key < lane.key:
            lane.key = key
            self._push(key, name)

    def left(self) -> None:
        """An entry waits no longer."""
        self._gone += 1
        if not self.requests:
            self.deficit = 0
            self._rebuild([])
        elif self._gone > 2 * self.requests + 64:
            self._rebuild([item for lane in self.lanes.values() for item in lane.heap if item[1].waiting])

    def head(self, without: set[tuple[object, ...]]) -> Entry | None:
        """The entry whose turn it is, lanes in `without` left out: the same set, growing, during one round."""
        if self._round is not without:
            self._round = without
            self._heads += self._aside
            self._aside = []
            heapq.heapify(self._heads)
        while self._heads:
            key, _number, name = self._heads[0]
            lane = self.lanes.get(name)
            if lane is None or lane.key != key:
                heapq.heappop(self._heads)
                continue
            first = lane.head()
            if first is None:
                heapq.heappop(self._heads)
                del self.lanes[name]
            elif first[0] != key:
                lane.key = first[0]
                heapq.heapreplace(self._heads, (first[0], next(self._number), name))
            elif name in without:
                self._aside.append(heapq.heappop(self._heads))
            else:
                return first[1]
        return None

    def move(self, entry: Entry, home: object) -> None:
        """The head of a lane waits on in the lane of `home`."""
        key, first = heapq.heappop(self.lanes[entry.lane].heap)
        assert first is entry, "only the head of a lane is moved"
        entry.home = home
        self.add(key, entry)

    def _push(self, key: _Key, name: tuple[object, ...]) -> None:
        item = key, next(self._number), name
        if self._round is not None and name in self._round:
            self._aside.append(item)
        else:
            heapq.heappush(self._heads, item)

    def _rebuild(self, kept: list[tuple[_Key, Entry]]) -> None:
        self.lanes = {}
        self._heads, self._aside, self._round, self._gone = [], [], None, 0
        for key, entry in kept:
            self.add(key, entry)


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
        mine.add((strict, mine.key(entry), next(self._ticket)), entry)
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
        mine.left()

    def rehome(self, entry: Entry, home: object) -> None:
        """The entry that `next` gave turned out to be bound elsewhere: it waits on in that lane."""
        self._class(entry).move(entry, home)

    def next(self, blocked: set[tuple[object, ...]]) -> Entry | None:
        """Whose turn it is among the lanes that are not `blocked`; None if nobody can be tried. Takes nothing out. A
        round of tries gives the same set, which only grows; another set begins another round."""
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
