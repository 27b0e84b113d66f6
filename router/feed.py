"""KV events into the core: follows each worker's publishers, applies what they tell, and keeps `Worker.kv` true.

Everything here runs on the loop; receiving and decoding is the listener's thread. Cost: a few microseconds an event and
one look at every source's state four times a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any

from router.core import RoutingCore
from router.events.cache_events import AllBlocksCleared, BlockStored, Tier
from router.events.endpoint import resolve_endpoint
from router.events.subscriber import Cleared, Delivery, EventListener, Events, Source, SourceState
from router.fleet.probe import EventSource
from router.fleet.worker import KvState, Worker

log = logging.getLogger("kvctl.events")

_LOOK_EVERY = 0.25

States = dict[tuple[str, int], SourceState]


class KvFeed:
    def __init__(self, core: RoutingCore, loop: asyncio.AbstractEventLoop) -> None:
        self._core = core
        self._listener = EventListener(self._deliver, loop)
        self._followed: dict[str, tuple[Source, ...]] = {}
        self._lost: dict[str, str] = {}
        self._task = loop.create_task(self._look())
        self.not_applied = 0
        self.other_blocks = 0
        self._other_blocks: set[str] = set()

    # -- which sources -----------------------------------------------------------------------------------------

    def follow(self, worker: Worker, sources: list[EventSource]) -> None:
        """Listen to a worker's publishers; the same ones as before are left alone, so that nothing is missed."""
        wanted = tuple(self._resolved(worker, sources))
        if self._followed.get(worker.id) == wanted:
            return
        self.unfollow(worker)
        self._followed[worker.id] = wanted
        worker.kv = KvState.PENDING if wanted else KvState.NONE
        worker.kv_endpoint = wanted[0].endpoint if wanted else None
        worker.replay_endpoint = wanted[0].replay_endpoint if wanted else None
        if not wanted:
            log.warning(
                "Worker %s publishes no KV events: it is routed in approximate mode. Start the engine with KV events "
                "on, or give kv=tcp://HOST:PORT",
                worker.id,
            )
        for source in wanted:
            self._listener.add(source)
        self._core.fleet.changed()

    @staticmethod
    def _resolved(worker: Worker, sources: list[EventSource]) -> list[Source]:
        host = worker.endpoint.host
        found = []
        for source in sources:
            try:
                endpoint = resolve_endpoint(source.endpoint, host)
                replay = resolve_endpoint(source.replay_endpoint, host) if source.replay_endpoint else None
            except ValueError as error:
                log.warning("Worker %s: %s", worker.id, error)
                continue
            found.append(Source(worker.id, source.rank, endpoint, replay, source.topic))
        return found

    def resync(self, worker: Worker, reason: str) -> None:
        """Learn a worker's cache anew: its publishers are asked for all that they still have. Those that cannot be
        asked, or where there are none, leave nothing known."""
        log.warning("Worker %s: its KV events are learnt anew: %s", worker.id, reason)
        if self._followed.get(worker.id):
            self._listener.resync(worker.id, reason)
        else:
            self._core.forget(worker)

    def unfollow(self, worker: Worker) -> None:
        if self._followed.pop(worker.id, None):
            self._listener.remove(worker.id)
        self._lost.pop(worker.id, None)
        self._other_blocks.discard(worker.id)

    # -- what they tell ----------------------------------------------------------------------------------------

    def _deliver(self, delivery: Delivery) -> None:
        worker = self._core.fleet.workers.get(delivery.worker_id)
        if worker is None or delivery.rank >= worker.ranks:
            return
        if isinstance(delivery, Events):
            self._apply(worker, delivery)
            return
        self._core.forget(worker, delivery.rank)
        if isinstance(delivery, Cleared):
            self._lost.pop(worker.id, None)
            log.info("Worker %s: its cache is learnt anew (%s)", worker.id, delivery.reason)
        else:
            self._lost[worker.id] = delivery.reason
            log.warning("Worker %s: KV events are lost (%s); what was known is dropped", worker.id, delivery.reason)
        self._update(worker)

    def _apply(self, worker: Worker, batch: Events) -> None:
        slot = worker.slots[batch.rank]
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                self._core.forget(worker, batch.rank)
                if self._lost.pop(worker.id, None):
                    self._update(worker)
                continue
            if isinstance(event, BlockStored) and event.block_size != worker.block_size:
                if event.tier is not Tier.DEVICE and worker.block_size:
                    self._leave_out(worker, event)
                    continue
                self._learn_block_size(worker, event.block_size)
            shared = self._core.shared
            try:
                if shared is not None and shared.tells(event):
                    shared.apply(worker, event)
                else:
                    self._core.apply(slot, event)
            except ValueError as error:
                self.not_applied += 1
                log.warning("Worker %s: a KV event was not applied: %s", worker.id, error)

    def _leave_out(self, worker: Worker, event: BlockStored) -> None:
        """A cache behind the engine's own that counts in other blocks (LMCache's chunks): nothing that a prompt's keys
        could be compared with."""
        self.other_blocks += 1
        if worker.id not in self._other_blocks:
            self._other_blocks.add(worker.id)
            log.warning(
                "Worker %s: a cache behind its own tells of blocks of %d tokens, its own has %d: these events are left "
                "out (for LMCache, give --lmcache-controller)",
                worker.id,
                event.block_size,
                worker.block_size,
            )

    def _learn_block_size(self, worker: Worker, block_size: int) -> None:
        """The events are the truth; the keys of other sizes are of no use any more."""
        if worker.block_size:
            log.warning(
                "Worker %s: block size is %d by its KV events, %d by %s; the events are believed",
                worker.id,
                block_size,
                worker.block_size,
                worker.block_size_from,
            )
            self._core.forget(worker)
        worker.block_size, worker.block_size_from = block_size, "its KV events"
        self._core.fleet.check_block_sizes()

    # -- state -------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        while True:
            states = self._listener.states()
            for worker in list(self._core.fleet.workers.values()):
                self._update(worker, states)
            await asyncio.sleep(_LOOK_EVERY)

    def _update(self, worker: Worker, states: States | None = None) -> None:
        wanted = self._followed.get(worker.id)
        if not wanted:
            return
        states = self._listener.states() if states is None else states
        mine = [states.get((source.worker_id, source.rank)) for source in wanted]
        if worker.id in self._lost:
            state = KvState.LOST
        elif all(found is not None and found.connected for found in mine):
            state = KvState.LIVE
        else:
            state = KvState.PENDING
        if state is not worker.kv:
            worker.kv = state
            self._core.fleet.changed()

    async def settled(self, patience: float) -> None:
        """Until every source followed now is connected and has told what it still knows, at most `patience` s."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while not self._all_settled():  # noqa: ASYNC110  the state is written by the listener's thread
                    await asyncio.sleep(0.02)
        states = self._listener.states()
        for worker in self._core.fleet.workers.values():
            self._update(worker, states)

    def _all_settled(self) -> bool:
        states = self._listener.states()
        return not self._listener.queued and all(
            (found := states.get((source.worker_id, source.rank))) is not None
            and found.connected
            and not found.replaying
            for sources in self._followed.values()
            for source in sources
        )

    def followed(self) -> list[str]:
        """Ids of the workers whose sources are listened to."""
        return list(self._followed)

    def states(self, worker_id: str) -> list[dict[str, Any]]:
        """For the admin port: one entry a source."""
        states = self._listener.states()
        return [
            {
                "dp_rank": source.rank,
                "endpoint": source.endpoint,
                "replay_endpoint": source.replay_endpoint,
                "topic": source.topic,
                "lost": self._lost.get(worker_id),
                **_shown(states.get((source.worker_id, source.rank))),
            }
            for source in self._followed.get(worker_id, ())
        ]

    def close(self) -> None:
        self._task.cancel()
        self._listener.close()


def _shown(state: SourceState | None) -> dict[str, Any]:
    if state is None:
        return {}
    age = None if state.last_event_at is None else round(time.monotonic() - state.last_event_at, 3)
    return {
        "connected": state.connected,
        "complete": state.complete,
        "replaying": state.replaying,
        "last_seq": state.last_seq,
        "seconds_since_last_event": age,
        "frames": state.frames,
        "blocks": state.blocks,
        "malformed": state.malformed,
        "gaps": state.gaps,
        "repaired": state.repaired,
        "frames_lost": state.lost,
        "epochs": state.order.epochs,
        "reconnects": state.reconnects,
        "resyncs": state.resyncs,
        "error": state.error,
        "ignored": dict(state.ignored),
    }
