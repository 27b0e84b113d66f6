"""Hosts N simulated engines in this process, each with its own HTTP, KV-event and replay port, until told to end.

The only module here that installs signal handlers and reads standard input.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import uvloop
import zmq

from bench.sim.api import Api, ApiConfig
from bench.sim.engine import Engine, EngineConfig
from bench.sim.events import Publisher, PublisherConfig
from bench.sim.http import Server
from bench.sim.kvcache import CacheEvent
from bench.sim.l2 import MemoryStore, RedisStore
from bench.sim.live import LiveEngine
from bench.sim.text import BUNDLED, TextModel
from bench.sim.tiers import SharedStore, TierConfig, Tiers
from bench.sim.timing import Timing
from bench.sim.worker import Imitation, SimWorker, WorkerFleet
from router.prefix.shared_keys import namespace
from router.redis_url import RedisUrl


class PortError(OSError):
    """A port cannot be had; the message names it and why."""


@dataclass(frozen=True, slots=True)
class HostConfig:
    """`count` engines of one kind. Ports count up from the given ones; 0 lets the kernel choose each.

    `keep_alive` is the seconds after which an idle HTTP connection is closed (0: never); the default is uvicorn's.
    `tiers` are the caches behind each engine's own, None for none. With tiers, `l2` is the store that the engines
    share: None for none, "memory" for one of this process, or a Redis; there a block lives for `l2_ttl` seconds. Not
    with an `imitation`, which has an LMCache of its own.
    """

    timing: Timing
    count: int = 1
    host: str = "127.0.0.1"
    port: int = 0
    kv_port: int = 0
    replay_port: int = 0
    engine: EngineConfig = field(default_factory=EngineConfig)
    api: ApiConfig = field(default_factory=ApiConfig)
    publisher: PublisherConfig = field(default_factory=PublisherConfig)
    kv_events: bool = True
    keep_alive: float = 5.0
    tokenizer: Path = BUNDLED
    imitation: Imitation | None = None
    tiers: TierConfig | None = None
    l2: RedisUrl | Literal["memory"] | None = None
    l2_ttl: float = 3600.0

    def __post_init__(self) -> None:
        if self.tiers is not None and self.imitation is not None:
            raise ValueError("tiers and an imitated LMCache exclude each other")


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """Where an engine can be reached; `kv` and `replay` are None without KV events.

    Of an imitated worker also its LMCache instance id, and its log if that is a file.
    """

    id: str
    url: str
    kv: str | None
    replay: str | None
    instance: str | None = None
    log: str | None = None


class EngineHost:
    """One engine with its sockets, on the running loop; `fleet` makes it the `index`-th worker of an imitation."""

    def __init__(
        self,
        config: HostConfig,
        index: int,
        text: TextModel,
        context: zmq.Context[Any],
        fleet: WorkerFleet | None = None,
        memory: MemoryStore | None = None,
    ) -> None:
        self._host = config.host
        self._port = config.port + index if config.port else 0
        self._id = f"sim-{index}"
        engine = replace(config.engine, seed=config.engine.seed + 1_000_003 * index, record_events=config.kv_events)
        self.publisher: Publisher | None = None
        if config.kv_events:
            ports = replace(
                config.publisher,
                host=config.host,
                port=config.kv_port + index if config.kv_port else 0,
                replay_port=config.replay_port + index if config.replay_port else 0,
                seed=config.publisher.seed + index,
            )
            try:
                self.publisher = Publisher(ports, engine.block_size, context)
            except OSError as error:
                raise PortError(f"cannot listen for KV events on {error.strerror}") from error
        self.worker: SimWorker | None = None
        if fleet is not None:
            self.worker = SimWorker(fleet, index, self._id, config.api.model, engine, config.timing)
        self.redis: RedisStore | None = None
        self.tiers: Tiers | None = None
        if config.tiers is not None:
            self.tiers = Tiers(config.tiers, engine, self._shared_store(config, memory), config.timing.scale)
        cache = self.worker.cache if self.worker is not None else self.tiers
        self.live = LiveEngine(
            Engine(engine, config.timing, cache, self.tiers), self._publish if self.publisher else None
        )
        self._api = Api(self.live, text, config.api, self.publisher, self.worker, self.tiers, self.redis)
        self._server = Server(self._api.handle, config.keep_alive)

    async def listen(self) -> EngineAddress:
        try:
            await self._server.listen(self._host, self._port)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise PortError(f"cannot listen on {self._host}:{self._port}: {reason}") from error
        kv = self.publisher.endpoint if self.publisher else None
        replay = self.publisher.replay_endpoint if self.publisher else None
        host = f"[{self._host}]" if ":" in self._host else self._host
        url = f"http://{host}:{self._server.port}"
        if self.worker is None:
            return EngineAddress(self._id, url, kv, replay)
        self.worker.serves(url, self.live)
        log = self.worker.log_path
        return EngineAddress(self._id, url, kv, replay, self.worker.instance, str(log) if log is not None else None)

    async def close(self) -> None:
        await self._server.close()
        self._api.close()
        self.live.close()
        if self.publisher is not None:
            self.publisher.close()
        if self.worker is not None:
            self.worker.close()
        if self.redis is not None:
            self.redis.close()

    def _shared_store(self, config: HostConfig, memory: MemoryStore | None) -> SharedStore | None:
        if isinstance(config.l2, RedisUrl):
            prefix = namespace(config.api.model, config.engine.block_size)
            self.redis = RedisStore(config.l2, prefix, config.l2_ttl)
            return self.redis
        return memory.client() if memory is not None else None

    def _publish(self, events: list[CacheEvent]) -> None:
        assert self.publisher is not None
        self.publisher.publish(events, time.time())


async def serve(
    config: HostConfig,
    ready: Callable[[list[EngineAddress]], None],
    *,
    exit_with_parent: bool = False,
) -> None:
    """Run the engines until SIGTERM or SIGINT, or, if asked for, until the parent process is gone.

    Args:
        config: what to run.
        ready: called once with the addresses when all engines can be reached.
        exit_with_parent: also end when standard input is closed or the parent process has changed.

    Raises:
        PortError: a port is taken or not allowed.
        LogError: a log file cannot be written.
        bench.sim.text.TextError: the tokenizer cannot be used.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    text = TextModel(config.tokenizer)
    context: zmq.Context[Any] = zmq.Context()
    hosts: list[EngineHost] = []
    watch: _ParentWatch | None = None
    fleet: WorkerFleet | None = None
    try:
        if config.imitation is not None:
            fleet = WorkerFleet(config.imitation)
        memory = MemoryStore() if config.l2 == "memory" else None
        for index in range(config.count):
            hosts.append(EngineHost(config, index, text, context, fleet, memory))
        if fleet is not None:
            fleet.began()
        addresses = [await host.listen() for host in hosts]
        gc.collect()
        gc.freeze()
        ready(addresses)
        if exit_with_parent:
            watch = _ParentWatch(loop, stop)
        await stop.wait()
    finally:
        if watch is not None:
            watch.close()
        for host in hosts:
            await host.close()
        if fleet is not None:
            fleet.close()
        context.destroy(linger=0)


def run(config: HostConfig, ready: Callable[[list[EngineAddress]], None], *, exit_with_parent: bool = False) -> None:
    """`serve` on a loop of its own; returns when it has ended."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(config, ready, exit_with_parent=exit_with_parent))


class _ParentWatch:
    """Sets `stop` when the parent is gone: its end of our standard input closes, or we get another parent."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
        self._loop = loop
        self._stop = stop
        self._parent = os.getppid()
        self._descriptor = sys.stdin.fileno()
        self._timer = loop.call_later(1.0, self._look)
        try:
            loop.add_reader(self._descriptor, self._on_input)
        except OSError:  # a plain file: it never says that its other end has closed
            stop.set()

    def close(self) -> None:
        self._timer.cancel()
        self._loop.remove_reader(self._descriptor)

    def _look(self) -> None:
        if os.getppid() != self._parent:
            self._stop.set()
        self._timer = self._loop.call_later(1.0, self._look)

    def _on_input(self) -> None:
        try:
            open_ = bool(os.read(self._descriptor, 4096))
        except OSError:
            open_ = False
        if not open_:
            self._loop.remove_reader(self._descriptor)
            self._stop.set()
