"""Engines on free loopback ports, in the test's own loop."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import zmq

from bench.sim.api import ApiConfig
from bench.sim.engine import EngineConfig
from bench.sim.events import PublisherConfig
from bench.sim.faults import faults_of
from bench.sim.process import EngineAddress, EngineHost, HostConfig
from bench.sim.styles import style_named
from bench.sim.text import TextModel
from bench.sim.timing import FixedTiming, Timing
from bench.sim.worker import Imitation, WorkerFleet

TEXT = TextModel()


@dataclass
class Running:
    host: EngineHost
    address: EngineAddress
    client: httpx.AsyncClient


StartEngine = Callable[..., Awaitable[Running]]


@pytest.fixture
async def start_engine() -> AsyncIterator[StartEngine]:
    """`await start_engine(decode_ms=..., engine={...}, api={...}, publisher={...}, kv_events=..., keep_alive=...)`."""
    context: zmq.Context[Any] = zmq.Context()
    running: list[Running] = []

    async def start(
        *,
        decode_ms: float = 1.0,
        speedup: float = 1.0,
        engine: dict[str, Any] | None = None,
        api: dict[str, Any] | None = None,
        publisher: dict[str, Any] | None = None,
        kv_events: bool = True,
        keep_alive: float = 5.0,
    ) -> Running:
        config = HostConfig(
            timing=Timing(FixedTiming(prefill_ms=1.0, decode_ms=decode_ms), speedup=speedup),
            engine=EngineConfig(**({"num_blocks": 1024, "max_model_len": 8192} | (engine or {}))),
            api=ApiConfig(**(api or {})),
            publisher=PublisherConfig(**(publisher or {})),
            kv_events=kv_events,
            keep_alive=keep_alive,
        )
        host = EngineHost(config, 0, TEXT, context)
        address = await host.listen()
        client = httpx.AsyncClient(base_url=address.url, trust_env=False, timeout=30)
        running.append(Running(host, address, client))
        return running[-1]

    yield start
    for each in running:
        await each.client.aclose()
        await each.host.close()
    context.destroy(linger=0)


@dataclass
class Workers:
    """Engines that imitate workers, and their logs."""

    engines: list[Running]
    folder: Path

    def raw(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def log(self, name: str = "sim-0") -> str:
        """Without colours."""
        return re.sub(r"\x1b\[[0-9;]*m", "", self.raw(name))

    async def complete(self, engine: int, prompt: list[int], request_id: str = "a") -> dict[str, Any]:
        """The usage of a completion of one token."""
        body = {"prompt": prompt, "max_tokens": 1}
        answer = await self.engines[engine].client.post(
            "/v1/completions", json=body, headers={"x-request-id": request_id}
        )
        assert answer.status_code == 200, answer.text
        usage: dict[str, Any] = answer.json()["usage"]
        return usage

    async def forget(self, engine: int) -> None:
        """Empty the engine's own cache; LMCache keeps what it has."""
        answer = await self.engines[engine].client.post("/reset_prefix_cache")
        assert answer.json() == {"success": True}

    async def lmcache(self, engine: int) -> dict[str, Any]:
        """What `/sim/stats` tells of the worker."""
        stats = (await self.engines[engine].client.get("/sim/stats")).json()
        told: dict[str, Any] = stats["lmcache"]
        return told

    async def samples(self, engine: int) -> dict[str, float]:
        """The samples of `/metrics` by name, with an `le` or a `source` after it; other labels are left out."""
        found: dict[str, float] = {}
        for line in (await self.engines[engine].client.get("/metrics")).text.splitlines():
            if line.startswith("#"):
                continue
            name, _, value = line.rpartition(" ")
            part = re.search(r'[{,](?:le|source)="([^"]*)"', name)
            found[name.partition("{")[0] + (f"/{part[1]}" if part else "")] = float(value)
        return found


StartWorkers = Callable[..., Awaitable[Workers]]


@pytest.fixture
async def start_workers(tmp_path: Path) -> AsyncIterator[StartWorkers]:
    """`await start_workers(style, fault, ..., count=..., heartbeat=..., timestamps=..., engine={...})`."""
    context: zmq.Context[Any] = zmq.Context()
    fleets: list[WorkerFleet] = []
    running: list[Running] = []

    async def start(
        style: str,
        *faults: str,
        count: int = 1,
        heartbeat: float = 10.0,
        timestamps: bool = False,
        engine: dict[str, Any] | None = None,
    ) -> Workers:
        folder = tmp_path / "logs"
        imitation = Imitation(style_named(style), faults_of(faults, count), folder, timestamps, heartbeat)
        config = HostConfig(
            timing=Timing(FixedTiming(prefill_ms=1.0, decode_ms=1.0)),
            count=count,
            engine=EngineConfig(**({"num_blocks": 1024, "max_model_len": 8192} | (engine or {}))),
            imitation=imitation,
        )
        fleet = WorkerFleet(imitation)
        fleets.append(fleet)
        fleet.began()
        begun = len(running)
        for index in range(count):
            host = EngineHost(config, index, TEXT, context, fleet)
            address = await host.listen()
            running.append(Running(host, address, httpx.AsyncClient(base_url=address.url, trust_env=False, timeout=30)))
        return Workers(running[begun:], folder)

    yield start
    for each in running:
        await each.client.aclose()
        await each.host.close()
    for fleet in fleets:
        fleet.close()
    context.destroy(linger=0)
