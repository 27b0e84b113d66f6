"""The controller's three ZMQ sockets, in a thread of their own: frames in, decoded messages to the loop, answers back.

PULL takes what workers push; two ROUTERs, reply and heartbeat, take their questions, each `[identity, "", payload]` and
answered likewise. A message with a long list is handed on in pieces, so that the loop never works on it for longer
than a fraction of a millisecond. At most `max_queued` pieces wait for the loop; past that nothing is read, and
ZMQ's own queues (1,000 messages a worker) and then the workers hold them. Whatever does not decode is counted, logged
rarely, and where it was a question answered with an error, so that nobody waits for it.

Cost: one thread; a few microseconds a message.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Final

import zmq

from router.lmcache.wire import (
    MAX_FRAME,
    Answer,
    Ask,
    BatchedKVOperationMsg,
    ErrorMsg,
    FullSyncBatchMsg,
    Message,
    Push,
    WireError,
    decode,
    encode,
)

log = logging.getLogger("kvctl.lmcache")

PIECE: Final = 500
"""Items of a list that the loop takes at a time."""
_A_TURN: Final = 64
_MAX_PARTS: Final = 4096
_SLICE: Final = 0.0005

Pushed = Callable[[Push, int, int], None]
Asked = Callable[[Ask], Answer]
Item = tuple[Message, int, int, "tuple[int, bytes] | None"]


class ControllerSockets:
    """Args:
    pushed: called on the loop with a message and the items of its list that are due now (0, 0 where it has none).
    asked: called on the loop with a question; gives the answer.
    ports: pull, reply, heartbeat; 0 takes a free one.

    Raises:
        OSError: a port cannot be bound; `strerror` says why, `filename` which one.
    """

    def __init__(
        self,
        pushed: Pushed,
        asked: Asked,
        loop: asyncio.AbstractEventLoop,
        host: str,
        ports: tuple[int, int, int],
        *,
        max_queued: int = 2000,
    ) -> None:
        self.counts: Counter[str] = Counter()
        """Messages by what became of them, closed: also the label of a metric."""
        self.failed = ""
        self._pushed = pushed
        self._asked = asked
        self._loop = loop
        self._max_queued = max_queued
        self._queue: deque[Item] = deque()
        self._answers: deque[tuple[int, bytes, bytes]] = deque()
        self._scheduled = False
        self._room = threading.Event()
        self._closing = False
        self._context = zmq.Context()
        self._sockets: list[zmq.Socket[bytes]] = []
        try:
            self.ports = self._bind(host, ports)
        except OSError:
            self._context.destroy(linger=0)
            raise
        self._waker, self._wake = socket.socketpair()
        self._waker.setblocking(False)
        self._wake.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="lmcache-controller", daemon=True)
        self._thread.start()

    def _bind(self, host: str, ports: tuple[int, int, int]) -> tuple[int, int, int]:
        bound = []
        for kind, port in zip((zmq.PULL, zmq.ROUTER, zmq.ROUTER), ports, strict=True):
            one = self._context.socket(kind)
            self._sockets.append(one)
            one.setsockopt(zmq.LINGER, 0)
            one.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME)
            one.setsockopt(zmq.HANDSHAKE_IVL, 10_000)
            one.setsockopt(zmq.TCP_KEEPALIVE, 1)
            if ":" in host:
                one.setsockopt(zmq.IPV6, 1)
            shown = f"[{host}]" if ":" in host else host
            try:
                one.bind(f"tcp://{shown}:{port or '*'}")
            except zmq.ZMQError as error:
                raise OSError(error.errno, os.strerror(error.errno or 0), f"{shown}:{port}") from None
            bound.append(int(one.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2]))
        return bound[0], bound[1], bound[2]

    # -- called on the loop ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop the thread and close the sockets; nothing is handed on after this call."""
        if self._closing:
            return
        self._closing = True
        self._queue.clear()
        self._room.set()
        self._nudge()
        self._thread.join()
        self._waker.close()
        self._wake.close()

    def _drain(self) -> None:
        until = time.perf_counter() + _SLICE
        answered = False
        while self._queue and not self._closing:
            message, start, stop, sender = self._queue.popleft()
            answer: Answer | None = None
            try:
                if isinstance(message, Push):
                    self._pushed(message, start, stop)
                else:
                    answer = self._asked(message)
            except Exception:
                self.counts["handler_failed"] += 1
                log.exception("a message of LMCache worker %s could not be handled", message.instance_id)
                answer = ErrorMsg("the message could not be handled; the controller's log says why")
            if sender is not None and answer is not None:
                self._answers.append((*sender, encode(answer)))
                answered = True
            if time.perf_counter() >= until:
                break
        if answered:
            self._nudge()
        if len(self._queue) * 2 <= self._max_queued:
            self._room.set()
        self._scheduled = False
        if self._queue and not self._closing:
            self._scheduled = True
            self._loop.call_soon(self._drain)

    def _nudge(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: the thread has wake-ups enough
            self._waker.send(b"x")

    # -- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wake.fileno(), zmq.POLLIN)
        for one in self._sockets:
            poller.register(one, zmq.POLLIN)
        try:
            while not self._closing:
                ready = dict(poller.poll(10_000))
                if self._wake.fileno() in ready:
                    with contextlib.suppress(BlockingIOError):
                        self._wake.recv(4096)
                self._send()
                for number, one in enumerate(self._sockets):
                    if one in ready:
                        self._receive(number, one)
                self._hand_over()
        except Exception as error:  # also RuntimeError: the loop is closed
            self.failed = str(error)
            if not self._closing:
                log.exception("The LMCache controller has stopped")
        finally:
            self._context.destroy(linger=0)

    def _send(self) -> None:
        while self._answers:
            number, identity, payload = self._answers.popleft()
            try:
                self._sockets[number].send_multipart([identity, b"", payload], zmq.NOBLOCK)
            except zmq.ZMQError:
                self.counts["answers_lost"] += 1

    def _receive(self, number: int, one: zmq.Socket[bytes]) -> None:
        for _ in range(_A_TURN):
            if len(self._queue) > self._max_queued:
                return
            try:
                frames = one.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if number == 0:
                for payload in frames[:_MAX_PARTS]:
                    self._take(payload, None)
                self.counts["malformed"] += max(0, len(frames) - _MAX_PARTS)
            elif len(frames) < 3:
                self._refuse(WireError("malformed", f"{len(frames)} frames instead of 3"), None)
            else:
                self._take(frames[2], (number, frames[0]))

    def _take(self, payload: bytes, sender: tuple[int, bytes] | None) -> None:
        try:
            message = decode(payload)
            if isinstance(message, Push) is not (sender is None):
                kind = type(message).__name__
                if sender is None:
                    raise WireError(
                        "old_wire", f"{kind} on the pull port: LMCache before 0.3.12 sends it there; upgrade"
                    )
                raise WireError("unknown_type", f"Unknown worker request message type: {kind}")
        except WireError as error:
            self._refuse(error, sender)
            return
        self.counts["taken"] += 1
        for start, stop in _pieces(message):
            self._queue.append((message, start, stop, sender))

    def _refuse(self, error: WireError, sender: tuple[int, bytes] | None) -> None:
        if self.counts[error.kind] % 1000 == 0:
            log.error("%s (counted: kvctl_lmcache_messages_total)", error)
        self.counts[error.kind] += 1
        if sender is not None:
            self._answers.append((*sender, encode(ErrorMsg(str(error)))))
            self._send()

    def _hand_over(self) -> None:
        if not self._queue:
            return
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._drain)
        if len(self._queue) > self._max_queued:
            self.counts["stalls"] += 1
            while not self._closing and len(self._queue) * 2 > self._max_queued:
                self._room.clear()
                self._room.wait(0.05)
                self._send()


def _pieces(message: Message) -> Iterator[tuple[int, int]]:
    match message:
        case BatchedKVOperationMsg():
            length = len(message.operations)
        case FullSyncBatchMsg():
            length = len(message.keys)
        case _:
            length = 0
    for start in range(0, length or 1, PIECE):
        yield start, min(start + PIECE, length)
