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

_A_TURN = 32
_MOST_BLOCKED = 1024


@dataclass(eq=False, slots=True)
class _Waiter:
    future: Waiting
    place: Place
    began: float
    mode: str = ""
    timer: asyncio.TimerHandle | None = None


class WaitingRoom:
    """`refuse` makes the answer of a request that cannot be served after all; `home` says where a request's session is
    bound to, None if anybody may serve it."""

    def __init__(
        self,
        settings: AdmissionSettings,
        clock: Callable[[], float],
        refuse: Callable[[RoutingError], Answer],
        home: Callable[[RouteRequest], object] = lambda _request: None,
    ) -> None:
        self.settings = settings
        self.queue = AdmissionQueue(settings)
        self.tenants = Tenants(settings.tenant_limit)
        self.counts: Counter[str] = Counter()
        """How waiting ended: placed, cancelled, refused, failed (an error in the router), or the code of the limit."""
        self.waited_s = 0.0
        self._clock = clock
        self._refuse = refuse
        self._home = home
        self._draining = False
        self._again = False

    def admit(
        self, request: RouteRequest, cost: Callable[[], int], arrived: float, place: Place, mode: str = ""
    ) -> Leg | Waiting:
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
            waiter = _Waiter(asyncio.get_running_loop().create_future(), place, self._clock(), mode)
            entry = Entry(request, max(cost(), 1), arrived, waiter, self._home(request))
            self.queue.enter(entry)
        except RoutingError as error:
            if error.status in (429, 529):
                self.counts[error.code] += 1
            raise
        self._wait(entry, waiter)
        return waiter.future

    def poke(self) -> None:
        """Load has gone down, or the fleet has changed."""
        if self._draining:
            self._again = True
        elif self.queue.requests:
            self._draining = True
            asyncio.get_running_loop().call_soon(self._drain, set())

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
        entry.request.waited_s = self._clock() - waiter.began
        error.request, error.mode = entry.request, waiter.mode
        waiter.future.set_result(self._refuse(error))

    def _drain(self, blocked: set[tuple[object, ...]]) -> None:
        """Places waiting requests in their order until those who are left would be refused: some in each turn of the
        loop, so that a long queue holds up nobody else."""
        for _ in range(_A_TURN):
            entry = self.queue.next(blocked) if len(blocked) < _MOST_BLOCKED else None
            if entry is None:
                break
            self._try(entry, blocked)
        else:
            asyncio.get_running_loop().call_soon(self._drain, blocked)
            return
        self._draining = False
        if self._again:
            self._again = False
            self.poke()

    def _try(self, entry: Entry, blocked: set[tuple[object, ...]]) -> None:
        """Places the entry, refuses it, or blocks its lane."""
        waiter: _Waiter = entry.payload
        if waiter.future.done():
            self.queue.leave(entry, served=False)
            return
        result: Answer | Leg
        entry.request.waited_s = self._clock() - waiter.began
        try:
            result = waiter.place()
        except AllBusy:
            home = self._home(entry.request)
            if home != entry.home:
                self.queue.rehome(entry, home)
            blocked.add(entry.lane)
            return
        except RoutingError as error:
            self.counts["refused"] += 1
            error.request, error.mode = entry.request, waiter.mode
            result = self._refuse(error)
            self.queue.leave(entry, served=False)
        except Exception as error:
            self.counts["failed"] += 1
            self.queue.leave(entry, served=False)
            waiter.future.set_exception(error)
            return
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
        if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
            leg = waiting.result()
            if not isinstance(leg, Answer):
                leg.end(Outcome.CLIENT_GONE, 0)
        raise
