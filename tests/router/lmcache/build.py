"""Registries, prompts and messages for the tests of the controller."""

from __future__ import annotations

from typing import Any

import numpy as np

from router.fleet.registry import Fleet
from router.fleet.worker import Health, Worker
from router.lmcache import wire
from router.lmcache.chunks import Form, PromptChunks, Scheme, root_of
from router.lmcache.index import ChunkIndex
from router.lmcache.registry import Instances
from router.lmcache.worker import LmWorker
from router.model import WorkerSpec

SIZE = 16
FORM = Form(chunk_size=SIZE)
CPU = "LocalCPUBackend"


def instances(limit: int = 1 << 24, patience: float = 30.0) -> Instances:
    return Instances(
        ChunkIndex(limit), Scheme(FORM, 0), lambda ip: f"{ip}-side:9002", lambda: None, lambda: None, patience
    )


def register(
    made: Any, instance: str = "a", number: int = 0, ip: str = "10.0.0.1", port: int = 8001, **more: Any
) -> Any:
    return made.answer(wire.RegisterMsg(instance, number, ip, port, **more), more.pop("now", 0.0))


def beat(made: Instances, now: float, instance: str = "a", ip: str = "10.0.0.1", port: int = 8001) -> list[str | None]:
    """The reasons of the commands in the answer."""
    answer = made.answer(wire.HeartbeatMsg(instance, 0, ip, port), now)
    assert isinstance(answer, wire.HeartbeatRetMsg)
    return [command.reason for command in answer.commands]


def operations(
    made: Instances,
    *told: tuple[str, int, int],
    instance: str = "a",
    location: str = CPU,
    number: int = 0,
    now: float = 0.0,
) -> None:
    """Each of `told`: (admit or evict, key, sequence number)."""
    listed = [wire.KVOpEvent(*one) for one in told]
    made.take(wire.BatchedKVOperationMsg(instance, number, location, listed), 0, len(listed), now)


def held(made: Instances, instance: str = "a", number: int = 0) -> set[int]:
    """The keys below 100 that the worker is known to hold."""
    worker: LmWorker = made.workers[instance, number]
    return {key for key in range(100) if made.index.holds(worker.bit, key)}


def prompt(seed: int, chunks: int = 3, size: int = SIZE) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 150_000, chunks * size).astype(np.uint32)


def keys(ids: np.ndarray, none_hash: int = 0, form: Form = FORM) -> list[int]:
    return PromptChunks(ids).keys(Scheme(form, root_of(form, none_hash)))


def fleet(*names: str, host: str = "", ranks: int = 1, **instances_of: tuple[str, ...]) -> Fleet:
    """Workers that are up, at http://NAME:1 or at one host, block size 4."""
    made = Fleet()
    for port, name in enumerate(names, 1):
        spec = WorkerSpec(f"http://{host or name}:{port}", name, ranks=ranks, instances=instances_of.get(name, ()))
        worker: Worker = made.add(spec)
        worker.health, worker.models, worker.block_size = Health.UP, ("m",), 4
    made.changed()
    return made
