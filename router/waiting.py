"""Requests that wait for a free worker: the queue of `router.admission` on the loop.

A waiting request is a future. Whenever load goes down somebody pokes, and on the next turn of the loop those whose turn
it is are placed until one is refused again. A waiter that is cancelled (its client left), times out or passes its
deadline leaves no trace. Cost of a poke with nobody waiting: one comparison.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from router.admission import AdmissionQueue, AdmissionSettings, DeadlinePassed, Entry, QueueTimeout, Tenants
from router.model import AllBusy, RouteRequest, RoutingError
from router.proxy.interface import Answer, Leg, Outcome

Place = Callable[[], Leg]
"""Places a request; raises RoutingError, AllBusy among them."""
Waiting = asyncio.Future[Answer | Leg]

_MOST_BLOCKED = 32


@dataclass(eq=False, slots=True)
class _Waiter:
    future: Waiting
    place: Place
    began: float
    timer: asyncio.TimerHandle | None = None


class WaitingRoom:
    """`refuse` makes the answer of a request that cannot be served after all."""

    def __init__(
        self, settings: AdmissionSettings, clock: Callable[[], float], refuse: Callable[[RoutingError], Answer]
    ) -> None:
        self.settings = settings
        self.queue = AdmissionQueue(settings)
        self.tenants = Tenants(settings.tenant_limit)
        self.counts: Counter[str] = Counter()
        """How waiting ended: placed, cancelled, refused, or the code of the limit."""
        self.waited_s = 0.0
        self._clock = clock
        self._refuse = refuse
        self._poked = False

    def admit(self, request: RouteRequest, cost: Callable[[], int], arrived: float, place: Place) -> Leg | Waiting:
        """Places the request now, or a future that ends with its leg or its refusal; cancelling it takes it out.

        `cost`: its uncached prompt tokens, asked only if it has to wait.

        Raises:
            RoutingError: it cannot be served, or a limit is reached.
        """
        try:
            self.tenants.check(request.hints.tenant)
            if self.settings.limit <= 0:
                return place()
            if not len(self.queue):
                try:
                    return place()
                except AllBusy:
                    pass
            waiter = _Waiter(asyncio.get_running_loop().create_future(), place, self._clock())
            entry = Entry(request, max(cost(), 1), arrived, waiter)
            self.queue.enter(entry)
        except RoutingError as error:
            if error.status in (429, 529):
                self.counts[error.code] += 1
            raise
        self._wait(entry, waiter)
        return waiter.future

    def poke(self) -> None:
        """Load has gone down, or the fleet has changed."""
        if self.queue.requests and not self._poked:
            self._poked = True
            asyncio.get_running_loop().call_soon(self._drain)

    def _wait(self, entry: Entry, waiter: _Waiter) -> None:
        tenant, deadline = entry.request.hints.tenant, entry.request.hints.deadline_s
        patience = self.settings.timeout_s
        if deadline is not None:
            patience = min(patience, max(entry.arrived + deadline - waiter.began, 0.0))
        self.tenants.began(tenant)
        waiter.timer = asyncio.get_running_loop().call_later(patience, self._too_late, entry, waiter)

        def over(future: Waiting) -> None:
            if waiter.timer is not None:
                waiter.timer.cancel()
            self.queue.leave(entry, served=False)
            self.tenants.ended(tenant)
            if future.cancelled():
                self.counts["cancelled"] += 1

        waiter.future.add_done_callback(over)
        self.poke()

    def _too_late(self, entry: Entry, waiter: _Waiter) -> None:
        if waiter.future.done():
            return
        deadline = entry.request.hints.deadline_s
        error: RoutingError
        if deadline is not None and deadline <= self.settings.timeout_s:
            error = DeadlinePassed(f"no worker was free before the request's deadline of {deadline * 1000:.0f} ms")
        else:
            limit = self.settings.timeout_s
            error = QueueTimeout(
                f"queue-timeout: no worker was free within the limit of {limit:g} s",
                extra={"limit": "queue-timeout", "value": limit, "current": round(self._clock() - waiter.began, 3)},
            )
        self.counts[error.code] += 1
        waiter.future.set_result(self._refuse(error))

    def _drain(self) -> None:
        """Places waiting requests in their order until those who are left would be refused."""
        self._poked = False
        blocked: set[tuple[object, ...]] = set()
        while len(blocked) < _MOST_BLOCKED and (entry := self.queue.next(blocked)) is not None:
            waiter: _Waiter = entry.payload
            if waiter.future.done():
                self.queue.leave(entry, served=False)
                continue
            result: Answer | Leg
            try:
                result = waiter.place()
            except AllBusy:
                blocked.add(entry.lane)
                continue
            except RoutingError as error:
                self.counts["refused"] += 1
                result = self._refuse(error)
                self.queue.leave(entry, served=False)
            else:
                self.counts["placed"] += 1
                self.waited_s += self._clock() - waiter.began
                self.queue.leave(entry, served=True)
            waiter.future.set_result(result)

    def shown(self) -> dict[str, object]:
        """For the admin port."""
        return {
            "waiting": len(self.queue),
            "limit": self.settings.limit,
            "timeout_s": self.settings.timeout_s,
            "classes": [
                {"name": name, "waiting": requests, "tokens": tokens} for name, requests, tokens in self.queue.depths()
            ],
            "tenants": len(self.tenants),
            "tenant_limit": self.settings.tenant_limit,
            "outcomes": dict(self.counts),
        }


async def settled(waiting: Waiting) -> Answer | Leg:
    """Awaits a waiting request from a task; if that is cancelled just when the request was placed, its leg is ended."""
    try:
        return await waiting
    except asyncio.CancelledError:
        if waiting.done() and not waiting.cancelled() and not isinstance(waiting.result(), Answer):
            leg = waiting.result()
            assert not isinstance(leg, Answer)
            leg.end(Outcome.CLIENT_GONE, 0)
        raise
