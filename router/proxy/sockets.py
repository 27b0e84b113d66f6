"""Socket options of both sides: find out that a peer has vanished without a word, while nothing is being sent."""

from __future__ import annotations

import asyncio
import socket

_IDLE, _INTERVAL, _PROBES = 30, 10, 3
_OPTIONS = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
if hasattr(socket, "TCP_KEEPIDLE"):
    _OPTIONS += [
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _INTERVAL),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES),
    ]
_RESET_ON_CLOSE = b"\1\0\0\0\0\0\0\0"


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Probe a silent peer after 30 s, give up on it after one minute."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        for level, option, value in _OPTIONS:
            sock.setsockopt(level, option, value)


def reset(transport: asyncio.Transport) -> None:
    """Close with RST, where a FIN would look like the proper end of a message."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.abort()
