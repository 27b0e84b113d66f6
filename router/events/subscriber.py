"""EventListener: the KV events of the whole fleet, received and decoded in one thread, delivered on the event
loop.

One thread holds a SUB socket a source (and a DEALER while it asks for a replay), decodes the frames, keeps
them in order (`order.py`) and queues the result; the loop takes it in slices of half a millisecond. The wire
is vLLM's: topic, sequence number (8 bytes, big-endian, signed), payload; a replay request is `["", first]`,
its answers `["", topic, seq, payload]` (older engines leave the topic out), the end seq -1.

Epochs: when a connection breaks, its SUB socket is thrown away with everything it still holds, so that what
comes from the new one is of the new connection only; then `Cleared` is delivered and the source is learnt
again from frame 0.

Backpressure: at most `max_queued` deliveries wait for the loop. Past that the thread stops reading; ZMQ
queues (10,000 frames a source), then the engine drops, and the gap is repaired by replay when the loop has
caught up. Nothing is dropped silently.

Cost: a few microseconds a frame plus decoding (`wire.py`), in the thread; about five file descriptors a
source.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import zmq
from zmq.utils.monitor import parse_monitor_message

from router.events.delivery import Cleared, Delivery, Events, Lost, Source, SourceState
from router.events.endpoint import resolve_endpoint
from router.events.link import Link, Part, Watch
from router.events.order import Action, AskReplay, Deliver, Gap, NewEpoch, StopReplay
from router.events.wire import AllBlocksCleared, WireError

__all__ = ["Cleared", "Delivery", "EventListener", "Events", "Lost", "Source", "SourceState", "resolve_endpoint"]

log = logging.getLogger(__name__)

END_OF_REPLAY: Final = b"\xff" * 8
_ENDLESS: Final = 1 << 62
_A_TURN: Final = 64
_SLICE: Final = 0.0005
_AGAIN: Final = 5.0


class EventListener:
    """See the module.

    Args:
        deliver: called on the loop for every delivery, in order a source; an exception is logged and counted.
        loop: the loop that owns the index.
        max_queued: deliveries that may wait for the loop.
        patience: seconds of silence after which a replay request counts as unanswered.
    """

    def __init__(
        self,
        deliver: Callable[[Delivery], None],
        loop: asyncio.AbstractEventLoop,
        *,
        max_queued: int = 4096,
        patience: float = 5.0,
    ) -> None:
        self.deliver_errors = 0
        self.stalls = 0
        self._deliver = deliver
        self._loop = loop
        self._max_queued = max_queued
        self._patience = patience
        self._links: dict[tuple[str, int], Link] = {}
        self._queue: deque[tuple[Link, Delivery]] = deque()
        self._scheduled = False
        self._room = threading.Event()
        self._closing = False
        self._commands: deque[tuple[str, Link]] = deque()
        self._waker, self._wake = socket.socketpair()
        self._waker.setblocking(False)
        self._wake.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    # ---- called on the loop

    def add(self, source: Source) -> None:
        """Listen to a source. Raises ValueError if its (worker, rank) is listened to already."""
        key = (source.worker_id, source.rank)
        if key in self._links:
            raise ValueError(f"worker {source.worker_id} rank {source.rank}: KV events are listened to already")
        link = self._links[key] = Link(source, self._patience)
        self._command("open", link)

    def remove(self, worker_id: str) -> None:
        """Stop listening to a worker, all ranks. Nothing of it is delivered after this call."""
        for key in [key for key in self._links if key[0] == worker_id]:
            link = self._links.pop(key)
            link.removed = True
            self._command("close", link)

    def resync(self, worker_id: str, reason: str) -> None:
        """Begin a new epoch for a worker, all ranks: what it told is void, and it is asked for all that it has."""
        for key, link in self._links.items():
            if key[0] == worker_id:
                link.resync_reason = reason
                self._command("resync", link)

    def states(self) -> dict[tuple[str, int], SourceState]:
        """The state of every source by (worker id, rank)."""
        return {key: link.state for key, link in self._links.items()}

    @property
    def queued(self) -> int:
        """Deliveries that wait for the loop."""
        return len(self._queue)

    def close(self) -> None:
        """Stop the thread and close every socket. Nothing is delivered after this call."""
        if self._closing:
            return
        self._closing = True
        self._queue.clear()
        self._room.set()
        self._nudge()
        self._thread.join()
        self._waker.close()
        self._wake.close()

    def _command(self, name: str, link: Link) -> None:
        self._commands.append((name, link))
        self._nudge()

    def _nudge(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: the thread has wake-ups enough
            self._waker.send(b"x")

    def _drain(self) -> None:
        until = time.perf_counter() + _SLICE
        while self._queue and not self._closing:
            link, delivery = self._queue.popleft()
            if not link.removed:
                try:
                    self._deliver(delivery)
                except Exception:
                    self.deliver_errors += 1
                    log.exception("a KV event of worker %s could not be applied", delivery.worker_id)
            if time.perf_counter() >= until:
                break
        if len(self._queue) * 2 <= self._max_queued:
            self._room.set()
        self._scheduled = False
        if self._queue and not self._closing:
            self._scheduled = True
            self._loop.call_soon(self._drain)

    # ---- the thread

    def _run(self) -> None:
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, min(int(self._context.get(zmq.SOCKET_LIMIT)), 65_535))
        self._watch = Watch()
        self._watch.selector.register(self._wake, selectors.EVENT_READ)
        self._open: list[Link] = []
        self._asking: set[Link] = set()
        self._again: dict[Link, float] = {}
        try:
            while not self._closing:
                self._turn()
        except Exception as error:  # also RuntimeError: the loop is closed
            log.exception("KV events are no longer received")
            for link in self._open:
                link.state.error = f"the listener stopped: {error}"
        finally:
            for link in self._open:
                link.close(self._watch)
            self._watch.selector.close()
            self._context.destroy(linger=0)

    def _turn(self) -> None:
        watch = self._watch
        for key, _ in watch.selector.select(0 if watch.ready else self._timeout()):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    self._wake.recv(4096)
            else:
                watch.ready[key.data] = None
        while self._commands:
            self._obey(*self._commands.popleft())
        ready, watch.ready = watch.ready, {}
        for link, part in sorted(ready, key=lambda item: item[1]):
            self._guarded(link, self._SERVE[part])
        now = time.monotonic()
        for link in [link for link in self._asking if (link.order.deadline or 0.0) <= now]:
            self._act(link, link.order.tick(now))
        for link in [link for link, at in self._again.items() if at <= now]:
            del self._again[link]
            self._guarded(link, EventListener._connect)
        self._hand_over()

    def _timeout(self) -> float:
        moments = [link.order.deadline or 0.0 for link in self._asking]
        soonest = min([*moments, *self._again.values()], default=None)
        return 10.0 if soonest is None else max(0.0, soonest - time.monotonic())

    def _hand_over(self) -> None:
        if not self._queue:
            return
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._drain)
        if len(self._queue) > self._max_queued:
            self.stalls += 1
            while not self._closing and len(self._queue) * 2 > self._max_queued:
                self._room.clear()
                self._room.wait(0.05)

    def _obey(self, name: str, link: Link) -> None:
        if name == "open" and not link.removed:
            self._open.append(link)
            self._guarded(link, EventListener._connect)
        elif name == "resync" and link in self._open and link.known_before:
            link.state.resyncs += 1
            self._act(link, link.order.restart(link.resync_reason, time.monotonic()))
        elif name == "close" and link in self._open:
            self._open.remove(link)
            self._asking.discard(link)
            self._again.pop(link, None)
            link.close(self._watch)

    def _guarded(self, link: Link, step: Callable[[EventListener, Link], None]) -> None:
        """An error concerns its source only: note it, and connect again a little later."""
        try:
            step(self, link)
        except (zmq.ZMQError, OSError, ValueError) as error:
            link.state.error = str(error)
            log.warning("KV events of worker %s at %s: %s", link.source.worker_id, link.source.endpoint, error)
            link.close(self._watch)
            self._asking.discard(link)
            self._again[link] = time.monotonic() + _AGAIN

    def _connect(self, link: Link) -> None:
        link.connect(self._context, self._watch)

    def _serve_monitor(self, link: Link) -> None:
        while (frames := link.receive(Part.MONITOR)) is not None:
            event = parse_monitor_message(frames)["event"]
            if event == zmq.EVENT_DISCONNECTED and link.state.connected:
                link.close(self._watch)
                self._connect(link)
                return
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED and not link.state.connected:
                link.state.connected = True
                link.state.error = ""
                self._begin(link)

    def _begin(self, link: Link) -> None:
        now = time.monotonic()
        if link.known_before:
            link.state.reconnects += 1
            self._act(link, link.order.restart("the connection was lost and made again", now))
        else:
            link.known_before = True
            self._act(link, link.order.start(now))

    def _serve_dealer(self, link: Link) -> None:
        for _ in range(_A_TURN):
            frames = link.receive(Part.DEALER)
            if frames is None:
                return
            if len(frames) < 2 or len(frames[-2]) != 8:
                link.state.malformed += 1
                continue
            now = time.monotonic()
            if frames[-2] == END_OF_REPLAY:
                link.hang_up(self._watch)
                self._act(link, link.order.replay_ended(now))
                return
            seq = int.from_bytes(frames[-2], "big", signed=True)
            if not 0 <= seq < _ENDLESS:
                link.state.malformed += 1
                continue
            self._act(link, link.order.replayed(seq, frames[-1], now))
        self._watch.ready[link, Part.DEALER] = None

    def _serve_sub(self, link: Link) -> None:
        self._serve_monitor(link)
        for _ in range(_A_TURN):
            frames = link.receive(Part.SUB)
            if frames is None:
                return
            seq = int.from_bytes(frames[1], "big", signed=True) if len(frames) == 3 and len(frames[1]) == 8 else -1
            if not 0 <= seq < _ENDLESS:
                link.state.malformed += 1
                continue
            self._act(link, link.order.live(seq, frames[2], time.monotonic()))
        self._watch.ready[link, Part.SUB] = None

    _SERVE: Final[dict[Part, Callable[[EventListener, Link], None]]] = {
        Part.MONITOR: _serve_monitor,
        Part.DEALER: _serve_dealer,
        Part.SUB: _serve_sub,
    }

    def _act(self, link: Link, actions: list[Action]) -> None:
        source = link.source
        for action in actions:
            match action:
                case Deliver(seq, payload):
                    self._decode(link, seq, payload)
                case NewEpoch(reason):
                    for rank in sorted(link.ranks):
                        self._queue.append((link, Cleared(source.worker_id, rank, reason)))
                    link.ranks = {source.rank}
                case Gap(reason):
                    log.warning("KV events of worker %s rank %d lost: %s", source.worker_id, source.rank, reason)
                    for rank in sorted(link.ranks):
                        self._queue.append((link, Lost(source.worker_id, rank, reason)))
                case AskReplay(first):
                    self._ask(link, first)
                case StopReplay():
                    link.hang_up(self._watch)
        if link.order.replaying:
            self._asking.add(link)
        else:
            self._asking.discard(link)
        link.state.last_seq = link.order.last
        link.state.complete = link.order.complete
        link.state.replaying = link.order.replaying

    def _ask(self, link: Link, first: int) -> None:
        try:
            link.ask(self._context, self._watch, first)
        except zmq.ZMQError as error:
            link.state.error = f"{link.source.replay_endpoint}: {error}"
            log.warning("KV event replay of worker %s at %s", link.source.worker_id, link.state.error)
            link.hang_up(self._watch)
            self._act(link, link.order.cannot_ask(f"no replay: {error}", time.monotonic()))

    def _decode(self, link: Link, seq: int, payload: bytes) -> None:
        state = link.state
        state.frames += 1
        state.last_event_at = time.monotonic()
        try:
            batch = link.decoder.decode(payload)
        except WireError as error:
            state.malformed += 1
            if state.malformed == 1:
                log.warning("KV events of worker %s: %s", link.source.worker_id, error)
            return
        rank = link.source.rank if batch.rank is None else batch.rank
        link.ranks.add(rank)
        state.blocks += batch.blocks
        if any(isinstance(event, AllBlocksCleared) for event in batch.events):
            link.order.complete = True
        if batch.events:
            self._queue.append((link, Events(link.source.worker_id, rank, batch.events, seq, batch.at)))
