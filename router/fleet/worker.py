"""One registered worker: what the user said, what the engine answered, and how it is now."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

from router.model import DeviceClass, WorkerSpec
from router.proxy.interface import Endpoint


class Health(StrEnum):
    STARTING = "starting"
    UP = "up"
    DOWN = "down"


class Circuit(StrEnum):
    """Whether requests are let through to a worker: all, none, or a few that try it (PROBING: those are under way)."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    PROBING = "probing"


class KvState(StrEnum):
    """What the router knows of a worker's KV cache.

    LIVE: events arrive in sequence. LOST: a gap could not be repaired; what was known has been cleared and grows anew
    from live events. NONE: no event source was found, the worker is routed in approximate mode.
    """

    PENDING = "pending"
    LIVE = "live"
    LOST = "lost"
    NONE = "none"


@dataclass(slots=True, eq=False)
class Worker:
    """`slots`: one number a dp rank, in rank order, fixed while the worker is registered. `adapters`: those of its
    models that are LoRA adapters of another; their KV blocks are their own. `models_at`: the loop's clock when it was
    asked for them."""

    spec: WorkerSpec
    slots: tuple[int, ...]
    endpoint: Endpoint
    health: Health = Health.STARTING
    health_why: str = "not asked yet"
    draining: bool = False
    circuit: Circuit = Circuit.CLOSED
    warm_since: float | None = None
    """While it is in its slow start: the core's clock when that began."""
    models: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    max_model_len: int | None = None
    engine_version: str | None = None
    block_size: int = 0
    block_size_from: str = ""
    capacity_blocks: int = 0
    kv: KvState = KvState.PENDING
    kv_endpoint: str | None = None
    replay_endpoint: str | None = None
    warnings: dict[str, str] = field(default_factory=dict)
    failures: int = 0
    models_at: float = 0.0
    removed: bool = False

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def tells(self) -> bool:
        """Whether its KV events arrive, even if some were lost: only then its index confirms or denies."""
        return self.kv in (KvState.LIVE, KvState.LOST)

    def serves(self, model: str) -> bool:
        """Whether it has `model`; "" is any, and a worker that told no models is taken at its word to serve all."""
        return not model or not self.models or model in self.models

    @property
    def ranks(self) -> int:
        return len(self.slots)

    @property
    def device_class(self) -> DeviceClass:
        return {"cuda": DeviceClass.CUDA, "cpu": DeviceClass.CPU}.get(self.spec.device or "", DeviceClass.UNKNOWN)


def endpoint_of(url: str) -> Endpoint:
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    return Endpoint(parts.hostname or "", parts.port or (443 if tls else 80), parts.path.rstrip("/"), tls)
