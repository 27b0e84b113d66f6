"""A scripted engine: a publisher and a replay socket that do exactly what a test says, on real sockets."""

from __future__ import annotations

import threading
import time

import zmq

from router.events.subscriber import END_OF_REPLAY

from .frames import frame, stored

TOPIC = b"kv"


class ScriptedEngine:
    """`publish` sends the next frame and keeps it for replay; `lose` only keeps it. XPUB, to see a reader arrive.

    `begin`: the first number that the replay buffer still has. `silent`: replay requests are read and not answered.
    """

    def __init__(self, port: int = 0, replay_port: int = 0, replay: bool = True, first_token: int = 0) -> None:
        self.first_token = first_token
        self.next = 0
        self.begin = 0
        self.silent = False
        self.hold = threading.Event()
        self.hold.set()
        self.requests: list[int] = []
        self.buffer: list[tuple[int, bytes]] = []
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.XPUB)
        self._pub.setsockopt(zmq.XPUB_VERBOSE, 1)
        self.endpoint = _bind(self._pub, port)
        self.port = int(self.endpoint.rsplit(":", 1)[1])
        self.replay_endpoint: str | None = None
        self.replay_port = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if replay:
            self._router = self._context.socket(zmq.ROUTER)
            self.replay_endpoint = _bind(self._router, replay_port)
            self.replay_port = int(self.replay_endpoint.rsplit(":", 1)[1])
            self._thread = threading.Thread(target=self._serve)
            self._thread.start()

    def payload(self, seq: int, rank: int | None = None) -> bytes:
        """A frame whose one block tells the engine and the number."""
        return frame(stored([seq + 1], [self.first_token, seq]), rank=rank)

    def lose(self, count: int = 1) -> None:
        for _ in range(count):
            self.buffer.append((self.next, self.payload(self.next)))
            self.next += 1

    def publish(self, count: int = 1, rank: int | None = None) -> None:
        for _ in range(count):
            payload = self.payload(self.next, rank)
            self.buffer.append((self.next, payload))
            self.send(self.next, payload)
            self.next += 1

    def send(self, seq: int, payload: bytes) -> None:
        self._pub.send_multipart((TOPIC, seq.to_bytes(8, "big"), payload))

    def send_raw(self, *frames: bytes) -> None:
        self._pub.send_multipart(frames)

    def wait_for_reader(self) -> None:
        """Until a subscription has arrived."""
        while self._pub.poll(20_000):
            if self._pub.recv() == b"\x01" + TOPIC:
                return
        raise TimeoutError("nobody subscribed")

    def close(self) -> None:
        self._stop.set()
        self.hold.set()
        if self._thread is not None:
            self._thread.join()
            self._router.close(linger=0)
        self._pub.close(linger=0)
        self._context.term()

    def _serve(self) -> None:
        while not self._stop.is_set():
            if not self._router.poll(20):
                continue
            reader, _, first = self._router.recv_multipart()
            self.requests.append(int.from_bytes(first, "big"))
            self.hold.wait()
            if self.silent:
                continue
            for seq, payload in list(self.buffer):
                if seq >= max(self.begin, self.requests[-1]):
                    self._router.send_multipart((reader, b"", seq.to_bytes(8, "big"), payload))
            self._router.send_multipart((reader, b"", END_OF_REPLAY, b""))


def _bind(sock: zmq.Socket[bytes], port: int) -> str:
    deadline = time.monotonic() + 20
    while True:
        try:
            sock.bind(f"tcp://127.0.0.1:{port or '*'}")
            return bytes(sock.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()
        except zmq.ZMQError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
