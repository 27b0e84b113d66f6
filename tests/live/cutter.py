"""A wire to an engine that can be cut: a TCP relay that ends a stream behind a given event, and a given part of the
next one."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_END = b"\n\n"
PATIENCE = 30.0


@dataclass
class Cutter:
    """`cuts`: (events, bytes of the one behind them) at which the next generations are cut, shared by the cutters of a
    test; a generation for which there is none passes whole."""

    url: str
    cuts: list[tuple[int, int]]
    asked: list[bytes] = field(default_factory=list)
    """Requests for generations, as bytes."""


def _relay(cutter: Cutter, client: socket.socket, target: tuple[str, int], lock: threading.Lock) -> None:
    with client, socket.create_connection(target, PATIENCE) as engine, contextlib.suppress(OSError):
        client.settimeout(PATIENCE)
        request = b""
        while b"\r\n\r\n" not in request:
            request += _some(client)
        head, _, body = request.partition(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        while len(body) < length:
            body += _some(client)
        generates = head.startswith(b"POST /v1/")
        cut = None
        if generates:
            with lock:
                cutter.asked.append(head + b"\r\n\r\n" + body)
                cut = cutter.cuts.pop(0) if cutter.cuts else None
        # One request a connection: the engine is told to close it behind its answer.
        engine.sendall(head + b"\r\nconnection: close\r\n\r\n" + body)
        answer, passed = b"", 0
        while data := engine.recv(65536):
            answer += data
            if cut is not None:
                place = _place(answer, *cut)
                if place is not None:
                    client.sendall(answer[passed:place])
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", cut[1] % 2, 0))
                    return
            client.sendall(answer[passed:])
            passed = len(answer)


def _place(answer: bytes, events: int, more: int) -> int | None:
    """Where in `answer` the cut is, if that has come."""
    at = answer.find(b"\r\n\r\n") + 4
    if at < 4:
        return None
    for _ in range(events):
        at = answer.find(_END, at) + 2
        if at < 2:
            return None
    return at + more if len(answer) > at + more else None


def _some(sock: socket.socket) -> bytes:
    data = sock.recv(65536)
    if not data:
        raise OSError("closed")
    return data


@contextlib.contextmanager
def cutter(engine_url: str, cuts: list[tuple[int, int]]) -> Iterator[Cutter]:
    """A relay before the engine at `engine_url`."""
    url = urlsplit(engine_url)
    target = str(url.hostname), int(url.port or 80)
    lock = threading.Lock()
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = Cutter(f"http://127.0.0.1:{server.getsockname()[1]}", cuts)

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = server.accept()
                    threading.Thread(target=_safely, args=(found, client, target, lock), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield found
        server.shutdown(socket.SHUT_RDWR)


def _safely(found: Cutter, client: socket.socket, target: tuple[str, int], lock: threading.Lock) -> None:
    with contextlib.suppress(OSError):
        _relay(found, client, target, lock)
