"""The router in virtual time: `router.core` with a fleet that is up, called as the live server calls it.

A request is decided and booked at its arrival; the first token, further tokens, the end and the engine's figure of
cached tokens reach the core in the order in which a live answer brings them. KV events are applied when the step that
made them has ended and the lag has passed. Nothing of policy, load or index is done here. No I/O, no clock: times are
passed in, in order. Proxy, queue, retries and the breaker are not part of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bench.sim.kvcache import CacheEvent, Removed, Stored
from bench.sim.nouns import SYMBOLS
from bench.workload.tokens import Tokens
from router.core import RoutingCore
from router.core_settings import CoreSettings
from router.events.cache_events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from router.fleet.worker import Health, KvState, Worker
from router.load import Booking
from router.model import Decision, Hints, Need, RouteRequest, WorkerSpec


@dataclass(frozen=True, slots=True)
class WorkerSize:
    """What a router learns of an engine: blocks of its cache, tokens a block, tokens a step, longest context."""

    blocks: int
    block_size: int
    batch_tokens: int
    context: int
    adapters: tuple[str, ...] = ()


@dataclass(slots=True)
class Place:
    """A placed request; `worker` is the engine's number."""

    request: RouteRequest
    decision: Decision
    booking: Booking
    worker: int
    placed: float
    first_at: float = 0.0
    last_at: float = 0.0
    cached: int = 0


class Chooser(Protocol):
    """Decides in place of the core's policies, with knowledge that no router has."""

    def decide(
        self, core: RoutingCore, request: RouteRequest, symbols: Tokens, lora: str | None, now: float
    ) -> Decision: ...


class VirtualRouter:
    """One router, one mode.

    Args:
        settings: with a seed, so that a run can be repeated.
        mode: as the registry spells it; with a `chooser` only a name.
        sizes: one a worker.
        lag: seconds from the end of a step until its KV events are applied.
        chooser: decides instead.
    """

    def __init__(
        self,
        settings: CoreSettings,
        mode: str,
        sizes: Sequence[WorkerSize],
        *,
        lag: float = 0.0,
        chooser: Chooser | None = None,
    ) -> None:
        self.core = RoutingCore(settings)
        self.mode = mode
        self.lag = lag
        self._chooser = chooser
        self._blocks = chooser is not None or Need.BLOCKS in self.core.policy(mode).needs
        self.workers = [self._add(number, size) for number, size in enumerate(sizes)]
        self.core.add_slots()
        self.core.fleet.changed()
        self._number = {worker.id: number for number, worker in enumerate(self.workers)}
        self._count = 0
        self._due: deque[tuple[float, int, list[CacheEvent]]] = deque()
        self.counts = settings.track_output or self.core.timing is not None
        """Whether generated tokens are counted as they come."""
        self.every_token = settings.track_output
        """Whether a decision depends on how many have come by then."""

    def _add(self, number: int, size: WorkerSize) -> Worker:
        spec = WorkerSpec(
            f"http://worker-{number}.invalid", f"w{number}", block_size=size.block_size, batch_tokens=size.batch_tokens
        )
        worker = self.core.fleet.add(spec)
        worker.health, worker.health_why = Health.UP, ""
        worker.kv = KvState.LIVE
        worker.capacity_blocks, worker.max_model_len, worker.adapters = size.blocks, size.context, size.adapters
        return worker

    def place(
        self, name: str, prompt_tokens: int, symbols: Tokens, session: str, lora: str | None, now: float
    ) -> Place:
        """Decide and book. `symbols`: uint32, `SYMBOLS` for each full block of the prompt.

        Raises:
            RoutingError: nobody may serve it.
        """
        self._apply(now)
        core = self.core
        size = core.fleet.view.block_sizes[0]
        request = RouteRequest(name, lora or "", hints=Hints(session=session))
        if self._blocks:
            request.prompt_tokens = prompt_tokens
            request.keys = {size: core.index.keys(symbols, SYMBOLS, lora, None)}
        if self._chooser is not None:
            decision = self._chooser.decide(core, request, symbols, lora, now)
        else:
            decision = core.decide(request, self.mode, now)
        self._count += 1
        decision.id = f"d-{self._count:x}"
        booking = core.book(decision, request, now)
        return Place(request, decision, booking, self._number[decision.worker], now)

    def first_token(self, place: Place, at: float, cached: int) -> None:
        """The first token has come; `cached`: what the engine will report at the end."""
        self._apply(at)
        place.first_at = place.last_at = at
        place.cached = cached
        self.core.first_token(place.booking, at - place.placed, at)

    def generated(self, place: Place, at: float, tokens: int) -> None:
        """So many tokens more, the first one included."""
        if self.counts:
            place.last_at = at
            place.booking.generated(tokens)

    def ended(self, place: Place, at: float, output_tokens: int, *, whole: bool) -> None:
        """The answer is over; not `whole`: the client left."""
        self._apply(at)
        core, booking = self.core, place.booking
        worker = self.workers[place.worker]
        if whole:
            booking.reported_output = output_tokens
            place.decision.engine_cached_tokens = place.cached
            if place.decision.prompt_tokens:
                core.reported(place.request, place.decision, booking, worker, place.cached, at)
        booking.release(at)
        items = booking.output_tokens
        if whole and items > 1:
            core.streamed(booking, (place.last_at - place.first_at) / (items - 1), items)
        core.finished(place.request, at)
        core.ended(booking, worker, at)

    def told(self, worker: int, at: float, events: list[CacheEvent]) -> None:
        """KV events of a step that ended at `at`."""
        self._due.append((at + self.lag, worker, events))

    def _apply(self, now: float) -> None:
        due = self._due
        while due and due[0][0] <= now:
            _, worker, events = due.popleft()
            slot = self.workers[worker].slots[0]
            for event in events:
                self.core.apply(slot, routed(event))


def routed(event: CacheEvent) -> Event:
    """An engine's event as the router's listener would decode it, its symbols in place of tokens."""
    if isinstance(event, Stored):
        return BlockStored(event.keys, event.parent, event.tokens, SYMBOLS, lora_name=event.lora, cache_salt=event.salt)
    if isinstance(event, Removed):
        return BlockRemoved(event.keys)
    return AllBlocksCleared()
