"""Where an engine's KV-event socket is reached from here. Pure."""

from __future__ import annotations

import re
from typing import Final

_TCP: Final = re.compile(r"tcp://(?P<host>\[[^\]]*\]|[^:\[\]]*):(?P<port>\d{1,5})")
_EVERYWHERE: Final = frozenset({"*", "", "0.0.0.0", "[::]", "[::0]"})  # noqa: S104  names to replace, not to bind


def resolve_endpoint(endpoint: str, host: str, rank: int = 0) -> str:
    """The address to connect to, from what an engine says it binds.

    A wildcard host is replaced by `host`, the engine's own; dp rank r of a TCP endpoint listens on port + r
    (vLLM's rule). Pass rank 0 for an endpoint that is that of the rank already. Other transports (ipc,
    inproc) are returned as they are.

    Raises ValueError for a TCP endpoint without a usable port.
    """
    if not endpoint.startswith("tcp://"):
        return endpoint
    parts = _TCP.fullmatch(endpoint)
    port = int(parts["port"]) + rank if parts else 0
    if parts is None or not 0 < port < 1 << 16:
        raise ValueError(f"KV event endpoint {endpoint!r} (dp rank {rank}): expected tcp://HOST:PORT")
    bound = parts["host"]
    if bound in _EVERYWHERE:
        bound = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"tcp://{bound}:{port}"
