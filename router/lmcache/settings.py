"""`--lmcache-controller HOST[:PULL][,reply=PORT][,heartbeat=PORT][,advertise=HOST]` and what belongs to it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from router.lmcache.chunks import Algorithm, Form, Scheme, root_of

PULL_PORT = 9000
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%a-z]+\]|[A-Za-z0-9._-]+|\*)(:(?P<port>\d{1,5}))?")
_HOST = re.compile(r"\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """`advertise`: the host that workers are told for the heartbeat port; None is the address they reached.
    `none_hash` None is 0 until it is learnt. `patience`: seconds without a heartbeat until a worker is degraded."""

    host: str = "127.0.0.1"
    pull: int = PULL_PORT
    reply: int = PULL_PORT + 1
    heartbeat: int = PULL_PORT + 2
    advertise: str | None = None
    algorithm: Algorithm = Algorithm.BUILTIN
    chunk_size: int = 256
    none_hash: int | None = None
    index_limit: int = 256 << 20
    patience: float = 30.0

    @property
    def scheme(self) -> Scheme:
        """How a worker's keys are made, as long as nothing else is known."""
        form = Form(self.algorithm, self.chunk_size)
        return Scheme(form, root_of(form, self.none_hash or 0))


def controller_settings(
    text: str,
    *,
    none_hash: int | None = None,
    algorithm: str = Algorithm.BUILTIN,
    chunk_size: int = 256,
    index_limit: int = 256 << 20,
    patience: float = 30.0,
) -> ControllerSettings:
    """Raises ValueError, in one line, where a part is not understood."""
    address, *parts = (part.strip() for part in text.split(","))
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise ValueError(
            f"--lmcache-controller: '{address[:100]}' is not HOST or HOST:PORT; an example is 0.0.0.0:9000,reply=9001"
        )
    pull = PULL_PORT if found["port"] is None else _port(found["port"], "the pull port")
    ports = {"reply": pull + 1 if pull else 0, "heartbeat": pull + 2 if pull else 0}
    advertise = None
    for part in parts:
        key, _equals, value = part.partition("=")
        if key == "advertise" and _HOST.fullmatch(value):
            advertise = value
        elif key in ports:
            ports[key] = _port(value, key)
        else:
            raise ValueError(
                f"--lmcache-controller: '{part[:100]}' is none of reply=PORT, heartbeat=PORT and advertise=HOST"
            )
    taken = [port for port in (pull, *ports.values()) if port]
    if len(set(taken)) != len(taken) or max(taken, default=0) > 65535:
        raise ValueError(f"--lmcache-controller: the ports {', '.join(map(str, taken))} must differ and be below 65536")
    if algorithm not in (*Algorithm,):
        raise ValueError(f"--lmcache-hash must be one of {', '.join(Algorithm)}, not '{algorithm}'")
    if none_hash is not None and not -(1 << 63) <= none_hash < 1 << 64:
        raise ValueError("--lmcache-none-hash must be an integer of 64 bits, as the workers log it")
    host = found["host"].removeprefix("[").removesuffix("]")
    return ControllerSettings(
        host="0.0.0.0" if host == "*" else host,  # noqa: S104  asked for
        pull=pull,
        reply=ports["reply"],
        heartbeat=ports["heartbeat"],
        advertise=advertise,
        algorithm=Algorithm(algorithm),
        chunk_size=chunk_size,
        none_hash=none_hash,
        index_limit=index_limit,
        patience=patience,
    )


def _port(text: str, name: str) -> int:
    if not text.isdecimal() or len(text) > 5 or int(text) > 65535:
        raise ValueError(f"--lmcache-controller: {name} must be a port from 0 to 65535, not '{text[:20]}'")
    return int(text)
