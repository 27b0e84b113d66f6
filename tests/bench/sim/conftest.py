"""Engines on free loopback ports, in the test's own loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import zmq

from bench.sim.api import ApiConfig
from bench.sim.engine import EngineConfig
from bench.sim.events import PublisherConfig
from bench.sim.process import EngineAddress, EngineHost, HostConfig
from bench.sim.text import TextModel
from bench.sim.timing import FixedTiming, Timing

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
