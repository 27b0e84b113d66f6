"""One source's sockets: a SUB with its monitor, and a DEALER while a replay is asked. Only for the listener's thread.

A ZMQ descriptor only says "look again", so a socket is looked at once when it is opened, and read until it is empty
whenever its descriptor is readable (or once more in the next turn).
"""

from __future__ import annotations

import contextlib
import selectors
import struct
from enum import IntEnum
from typing import Final

import zmq

from router.events.delivery import Source, SourceState
from router.events.order import FrameOrder
from router.events.wire import WireDecoder

_QUEUE: Final = 10_000
_REPLAY_QUEUE: Final = 100_000
_HEARTBEAT_MS: Final = 5_000


class Part(IntEnum):
    """The sockets of a link, in the order in which they are looked at: a broken connection before its frames."""

    MONITOR = 1
    DEALER = 2
    SUB = 3


class Watch:
    """The descriptors of all links, and the sockets to look at in the next turn."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.ready: dict[tuple[Link, Part], None] = {}

    def add(self, link: Link, part: Part, sock: zmq.Socket[bytes]) -> None:
        self.selector.register(int(sock.getsockopt(zmq.FD)), selectors.EVENT_READ, (link, part))
        self.ready[link, part] = None

    def drop(self, link: Link, part: Part, sock: zmq.Socket[bytes]) -> None:
        self.ready.pop((link, part), None)
        with contextlib.suppress(KeyError):  # its registration failed
            self.selector.unregister(int(sock.getsockopt(zmq.FD)))


class Link:
    """See the module. `ranks`: those its frames have named, and the source's own."""

    def __init__(self, source: Source, patience: float) -> None:
        self.source = source
        self.order = FrameOrder(source.replay_endpoint is not None, patience)
        self.decoder = WireDecoder()
        self.state = SourceState(order=self.order.counters, ignored=self.decoder.ignored)
        self.ranks = {source.rank}
        self.removed = False
        self.known_before = False
        self.resync_reason = ""
        self._sockets: dict[Part, zmq.Socket[bytes]] = {}

    def connect(self, context: zmq.Context[zmq.Socket[bytes]], watch: Watch) -> None:
        """Open a SUB socket; ZMQ connects by itself when the engine is there. Raises ZMQError for a bad endpoint."""
        sub = self._sockets[Part.SUB] = context.socket(zmq.SUB)
        sub.setsockopt(zmq.LINGER, 0)
        sub.setsockopt(zmq.RCVHWM, _QUEUE)
        sub.setsockopt(zmq.RECONNECT_IVL, 100)
        sub.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        sub.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        sub.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * _HEARTBEAT_MS)
        sub.setsockopt(zmq.IPV6, 1)
        sub.setsockopt(zmq.SUBSCRIBE, self.source.topic.encode())
        monitor = sub.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._sockets[Part.MONITOR] = monitor
        watch.add(self, Part.MONITOR, monitor)
        watch.add(self, Part.SUB, sub)
        sub.connect(self.source.endpoint)

    def ask(self, context: zmq.Context[zmq.Socket[bytes]], watch: Watch, first: int) -> None:
        """Ask the engine for its frames from `first` on, in a conversation of its own."""
        self.hang_up(watch)
        dealer = self._sockets[Part.DEALER] = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.RCVHWM, _REPLAY_QUEUE)
        dealer.setsockopt(zmq.IPV6, 1)
        dealer.connect(self.source.replay_endpoint or "")
        dealer.send_multipart([b"", struct.pack(">q", first)], zmq.NOBLOCK)
        watch.add(self, Part.DEALER, dealer)

    def receive(self, part: Part) -> list[bytes] | None:
        """The next message of a socket; None if there is none now, or no such socket."""
        sock = self._sockets.get(part)
        if sock is None:
            return None
        try:
            return sock.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def hang_up(self, watch: Watch) -> None:
        """Close the replay conversation, if there is one."""
        dealer = self._sockets.pop(Part.DEALER, None)
        if dealer is not None:
            watch.drop(self, Part.DEALER, dealer)
            dealer.close(linger=0)

    def close(self, watch: Watch) -> None:
        """Close everything, with all that was received and not read."""
        self.hang_up(watch)
        monitor = self._sockets.pop(Part.MONITOR, None)
        if monitor is not None:
            watch.drop(self, Part.MONITOR, monitor)
        sub = self._sockets.pop(Part.SUB, None)
        if sub is not None:
            watch.drop(self, Part.SUB, sub)
            sub.disable_monitor()
            sub.close(linger=0)
        self.state.connected = False
