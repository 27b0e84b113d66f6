"""Wiring: the only module that knows all the others. `run` is the life of `kvctl serve`."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import ipaddress
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from router.admin.app import AdminApp
from router.admin.guard import TokenGuard
from router.admin.server import AdminServer
from router.answers import kvctl_version
from router.callers.gate import CallerCollector
from router.core import CoreSettings, RoutingCore
from router.dispatch import RequestDispatcher
from router.feed import KvFeed
from router.fleet.breaker import Breaker, BreakerSettings
from router.fleet.monitor import FleetMonitor
from router.fleet.probe import EventSource
from router.fleet.worker import Circuit, Worker
from router.journal.access_log import AccessLogSettings
from router.journal.parts import AccessLogCollector, JournalParts, PartError
from router.journal.trace_settings import TraceSettings
from router.metrics import RouterCollector, RouterStats
from router.model import WorkerSpec
from router.model_tokens import ModelTokens
from router.prefix.warm import warm
from router.proxy.forwarded import ForwardedMode, forwarding
from router.proxy.interface import Limits, PlaneStats, Timeouts
from router.proxy.plane import DataPlane
from router.reading import DispatchSettings
from router.records import DecisionLog
from router.room_metrics import (
    FailureCollector,
    MigrationCollector,
    QueueCollector,
    RoomCollector,
    SessionCollector,
    ShadowCollector,
    TruthCollector,
)
from router.secret import Secret
from router.shadow import Shadows
from router.shared.lookup import LookupSettings, RedisLookup
from router.shared.metrics import SharedCacheCollector
from router.tls import EngineFiles, RouterTls, ServerFiles, TlsError, follow, reload_all, router_tls
from router.tokens.tokenizer import LocalTokenizer, TokenizerError

if TYPE_CHECKING:
    from router.lmcache.controller import LMCacheController
    from router.lmcache.settings import ControllerSettings

log = logging.getLogger("kvctl")

_FIRST_ANSWERS = 5.0
_RECLAIM_EVERY = 5.0
_TICK = 0.5
_RELOAD_AFTER = 0.1
"""Seconds from SIGHUP."""
_KEYS_EVERY = 1.0


class StartError(Exception):
    """The router cannot start; the message says what to do."""


@dataclass(frozen=True, slots=True)
class ServeSettings:
    core: CoreSettings = field(default_factory=CoreSettings)
    dispatch: DispatchSettings = field(default_factory=DispatchSettings)
    timeouts: Timeouts = field(default_factory=Timeouts)
    limits: Limits = field(default_factory=Limits)
    host: str = "127.0.0.1"
    port: int = 8000
    admin_host: str = "127.0.0.1"
    admin_port: int = 9090
    workers: tuple[WorkerSpec, ...] = ()
    workers_file: Path | None = None
    tokenizer: Path | None = None
    health_interval: float = 1.0
    health_timeout: float = 3.0
    breaker: BreakerSettings | None = field(default_factory=BreakerSettings)
    drain_timeout: float = 30.0
    drain_delay: float = 0.0
    shadow: tuple[str, ...] = ()
    lmcache: ControllerSettings | None = None
    shared_redis: LookupSettings | None = None
    log_level: str = "info"
    ready_json: bool = False
    tls: ServerFiles | None = None
    upstream_tls: EngineFiles = field(default_factory=EngineFiles)
    forwarded: ForwardedMode = ForwardedMode.OFF
    api_keys_file: Path | None = None
    upstream_key: Secret | None = None
    admin_token: Secret | None = None
    admin_open_metrics: bool = False
    access_log: AccessLogSettings | None = None
    traces: TraceSettings | None = None


class Router:
    """All rooms of a running router. Also the fleet's listener: a worker that comes or goes is told to each room."""

    def __init__(self, settings: ServeSettings, local: LocalTokenizer | None, tls: RouterTls) -> None:
        self.settings = settings
        self.tls = tls
        loop = asyncio.get_running_loop()
        try:
            self.parts = parts = JournalParts(
                settings.api_keys_file,
                settings.access_log,
                settings.traces,
                settings.dispatch.aliases,
                tenants=settings.dispatch.admission.tenant_limit is not None,
            )
        except PartError as error:
            raise StartError(str(error)) from None
        self.core = RoutingCore(settings.core)
        self.stats = RouterStats()
        self.plane_stats = PlaneStats()
        self.log = DecisionLog()
        self.tokens = ModelTokens(self.core.fleet, local, tls.engines.context, settings.upstream_key)
        self.feed = KvFeed(self.core, loop)
        if self.core.truth is not None:
            self.core.truth.resync = self.feed.resync
        self.monitor = FleetMonitor(
            self.core.fleet,
            self,
            interval=settings.health_interval,
            timeout=settings.health_timeout,
            model=settings.dispatch.model,
            models_interval=10 * settings.health_interval,
            tls=tls.engines.context,
            key=settings.upstream_key,
        )
        self.shadows = Shadows(settings.shadow, settings.core.policies, settings.core.seed) if settings.shadow else None
        if self.shadows is not None:
            self.core.on_forgotten.append(self.shadows.dropped)
        self.lookup = RedisLookup(settings.shared_redis) if settings.shared_redis is not None else None
        self.breaker: Breaker | None = None
        if settings.breaker is not None:
            self.breaker = Breaker(settings.breaker, self.core.fleet.workers.values, self._circuit_changed)
        self.dispatcher = RequestDispatcher(
            self.core,
            self.monitor,
            self.tokens,
            self.log,
            self.stats,
            settings.dispatch,
            time.monotonic,
            self.shadows,
            self.lookup,
            self.breaker,
            parts.entrance,
            parts.traces,
            settings.upstream_key,
        )
        self.plane = DataPlane(
            self.dispatcher,
            settings.timeouts,
            settings.limits,
            self.plane_stats,
            parts.journal,
            tls=None if tls.clients is None else tls.clients.context,
            engine_tls=tls.engines.context,
            forwarding=forwarding(settings.forwarded, tls=tls.clients is not None),
        )
        registry = CollectorRegistry()
        registry.register(RouterCollector(self.core, self.stats, self.plane_stats))
        registry.register(RoomCollector(self.tokens, self.feed, self.monitor, self.log))
        registry.register(QueueCollector(self.dispatcher.waiting))
        registry.register(FailureCollector(self.core.fleet, self.breaker, self.dispatcher.budget))
        if self.dispatcher.migrations is not None:
            registry.register(MigrationCollector(self.dispatcher.migrations, self.plane_stats))
        if self.core.truth is not None:
            registry.register(TruthCollector(self.core.truth, self.core.fleet))
        if self.core.affinity is not None:
            registry.register(SessionCollector(self.core.affinity))
        if self.shadows is not None:
            registry.register(ShadowCollector(self.shadows))
        if self.core.shared is not None:
            registry.register(SharedCacheCollector(self.core.shared, self.lookup))
        if parts.gate is not None:
            registry.register(CallerCollector(parts.gate))
        if parts.access is not None:
            registry.register(AccessLogCollector(parts.access))
        self.lmcache = None if settings.lmcache is None else self._controller(settings.lmcache, registry)
        admin = AdminApp(
            self.core,
            self.monitor,
            self.dispatcher,
            self.log,
            self.feed,
            registry,
            shown_settings(settings),
            self.lmcache,
        )
        app: ASGIApp = admin.app
        if settings.admin_token is not None:
            app = TokenGuard(app, settings.admin_token, open_metrics=settings.admin_open_metrics)
        self.admin = AdminServer(app)
        self._hurried = asyncio.Event()
        self._reload_due = False
        self._background: set[asyncio.Task[None]] = set()

    def _controller(self, settings: ControllerSettings, registry: CollectorRegistry) -> LMCacheController:
        """Imported here: its kernels take three seconds to compile on a machine's first start, and few need them."""
        from router.lmcache.chunks import warm as warm_chunks
        from router.lmcache.controller import LMCacheController
        from router.lmcache.metrics import LMCacheCollector

        warm_chunks()
        controller = LMCacheController(settings, self.core.fleet)
        self.core.chunks = controller
        registry.register(LMCacheCollector(controller))
        return controller

    # -- the fleet's listener ----------------------------------------------------------------------------------

    def worker_added(self, worker: Worker) -> None:
        self.core.add_slots()
        if self.lmcache is not None:
            self.lmcache.fleet_changed()

    def worker_up(self, worker: Worker, sources: list[EventSource]) -> None:
        self.feed.follow(worker, sources)
        now = time.monotonic()
        if self.breaker is not None:
            self.breaker.came_up(worker, now)
        self._warm_up(worker, now)
        self.dispatcher.waiting.poke()
        self._spawn(self.tokens.check(worker))

    def models_changed(self, worker: Worker) -> None:
        self.dispatcher.waiting.poke()
        self._spawn(self.tokens.check(worker))

    def worker_down(self, worker: Worker, process_gone: bool) -> None:
        self.plane.give_up(worker.endpoint)
        self.plane.forget(worker.endpoint)
        self.dispatcher.waiting.poke()
        if process_gone:
            self.core.engine_gone(worker)
            if self.lmcache is not None:
                self.lmcache.engine_gone(worker.id)

    def worker_removed(self, worker: Worker) -> None:
        self.feed.unfollow(worker)
        self.plane.forget(worker.endpoint)
        self.core.retire(worker)
        self.dispatcher.waiting.poke()
        if self.lmcache is not None:
            self.lmcache.fleet_changed()
        if self.shadows is not None:
            self.shadows.removed(worker.id)
        self.stats.worker_removed(worker.id)
        if self.breaker is not None:
            self.breaker.removed(worker.id)

    def _circuit_changed(self, worker: Worker, circuit: Circuit, why: str) -> None:
        self.core.fleet.circuits_changed()
        self.dispatcher.waiting.poke()
        if circuit is Circuit.OPEN:
            log.warning("Worker %s: its circuit is open: %s", worker.id, why)
        elif circuit is Circuit.CLOSED:
            log.info("Worker %s: its circuit is closed: %s", worker.id, why)
            self._warm_up(worker, time.monotonic())

    def _warm_up(self, worker: Worker, now: float) -> None:
        if self.core.settings.slow_start > 0:
            worker.warm_since = now
            self.core.fleet.changed()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(_log_failure)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # -- life --------------------------------------------------------------------------------------------------

    async def start(self) -> tuple[str, str]:
        """Listens on both ports, asks the workers once. Returns the data and admin URLs.

        Raises:
            StartError: a port is taken, or the workers file cannot be read.
        """
        settings = self.settings
        if settings.admin_token is None and not _loopback(settings.admin_host):
            raise StartError(
                f"--admin-host {settings.admin_host}: whoever reaches the admin port can change the fleet, so beyond "
                "loopback it needs a token: set KVCTL_ADMIN_TOKEN or give --admin-token-file FILE "
                "(--admin-open-metrics leaves /metrics open to a scraper)"
            )
        data = await _listen(self.plane.start, settings.host, settings.port, "--port")
        if self.tls.clients is not None:
            data = data.replace("http", "https", 1)
        admin = await _listen(self.admin.start, settings.admin_host, settings.admin_port, "--admin-port")
        if self.lmcache is not None:
            try:
                self.lmcache.start()
            except OSError as error:
                why = error.strerror or error
                raise StartError(f"--lmcache-controller: cannot listen on {error.filename}: {why}") from None
        for spec in settings.workers:
            self.monitor.add(spec)
        if settings.workers_file is not None:
            try:
                self.monitor.follow_file(settings.workers_file)
            except ValueError as error:
                raise StartError(str(error)) from None
        await self.monitor.first_answers(_FIRST_ANSWERS)
        await self.feed.settled(_FIRST_ANSWERS)
        if not self.core.fleet.workers:
            log.warning(
                "No workers: requests are answered 503 until one is added (--worker URL, --workers-file FILE, "
                "--sim N, or POST /workers on the admin port)"
            )
        self._spawn(self._reclaim())
        self._spawn(follow(self.tls.files))
        self._spawn(self._tick())
        self._spawn(self.parts.follow_keys(_KEYS_EVERY))
        return data, admin

    def reload(self) -> None:
        """Take certificates and keys again, open the access log anew (SIGHUP): soon, and once for a row of signals."""
        if not self._reload_due:
            self._reload_due = True
            asyncio.get_running_loop().call_later(_RELOAD_AFTER, self._reload)

    def _reload(self) -> None:
        self._reload_due = False
        log.info("SIGHUP: certificates, keys and the access log's file are taken again")
        reload_all(self.tls.files)
        self.parts.reopen()

    async def _reclaim(self) -> None:
        while True:
            await asyncio.sleep(_RECLAIM_EVERY)
            self.core.reclaim()
            if self.core.truth is not None:
                self.core.truth.settle(time.monotonic())

    def hurry(self) -> None:
        """Stop at once, also in the middle of `stop`."""
        self._hurried.set()
        self.plane.hurry()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK)
            now = time.monotonic()
            if self.breaker is not None:
                self.breaker.tick(now)
            for worker in self.core.fleet.workers.values():
                since = worker.warm_since
                if since is not None and now - since >= self.core.settings.slow_start:
                    worker.warm_since = None
                    self.core.fleet.changed()

    async def stop(self) -> None:
        """Lets running requests finish and ends. `hurry` cuts it short."""
        self.dispatcher.own.stopping = True
        if self.settings.drain_delay > 0 and not self._hurried.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurried.wait(), self.settings.drain_delay)
        await self.plane.stop(0.0 if self._hurried.is_set() else self.settings.drain_timeout)
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.monitor.close()
        self.feed.close()
        if self.lmcache is not None:
            await self.lmcache.close()
        self.tokens.close()
        self.dispatcher.close()
        if self.lookup is not None:
            await self.lookup.close()
        await self.admin.stop()
        await self.parts.close()


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _log_failure(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        log.error("A background task failed", exc_info=error)


async def _listen(start: Any, host: str, port: int, option: str) -> str:
    host = host.removeprefix("[").removesuffix("]")
    try:
        bound_host, bound_port = await start(host, port)
    except socket.gaierror as error:
        raise StartError(f"cannot listen on '{host}': {error.strerror}; give an address of this machine") from None
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise StartError(f"cannot listen on {host}:{port}: {why}; choose another with {option}") from None
    shown = f"[{bound_host}]" if ":" in bound_host else bound_host
    return f"http://{shown}:{bound_port}"


def shown_settings(settings: ServeSettings) -> dict[str, Any]:
    """The settings as JSON for `GET /config`; they hold no secrets."""
    data: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(settings), default=str))
    return data | {"version": kvctl_version()}


async def _serve(settings: ServeSettings, local: LocalTokenizer | None, tls: RouterTls) -> None:
    router = Router(settings, local, tls)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    if hasattr(signal, "SIGHUP"):
        loop.add_signal_handler(signal.SIGHUP, router.reload)
    starting = loop.create_task(router.start())
    stopped = loop.create_task(stopping.wait())
    try:
        await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            _settle_memory()
            _announce(router, *starting.result())
            await stopped
        log.info("Stopping: running requests have %g s to finish", settings.drain_timeout)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, _hurry, router)
    finally:
        for task in (starting, stopped):
            task.cancel()
        await asyncio.gather(starting, stopped, return_exceptions=True)
        await router.stop()


def _hurry(router: Router) -> None:
    log.warning("Told to stop a second time: what is still running is cut off")
    router.hurry()


def _announce(router: Router, data: str, admin: str) -> None:
    mode, workers = router.settings.dispatch.mode, len(router.core.fleet.workers)
    if router.settings.ready_json:
        ready: dict[str, Any] = {"event": "ready", "url": data, "admin": admin, "mode": mode, "workers": workers}
        if router.lmcache is not None:
            ready["lmcache"] = router.lmcache.shown()["ports"]
        print(json.dumps(ready), flush=True)
    several = "worker" if workers == 1 else "workers"
    log.info("Routing %s for %d %s on %s, admin port on %s", mode, workers, several, data, admin)


def _settle_memory() -> None:
    """What exists now lives as long as the router: the collector need not look at it again, nor run that often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _raise_file_limit() -> None:
    """Each client, each engine connection and each KV source takes descriptors; take as many as the system allows."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run(settings: ServeSettings) -> None:
    """Serves until SIGINT or SIGTERM.

    Raises:
        StartError: the router could not start.
    """
    logging.basicConfig(
        level=settings.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)-7s %(message)s"
    )
    for noisy in ("httpx", "httpcore", "uvicorn"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        tls = router_tls(settings.tls, settings.upstream_tls)
    except TlsError as error:
        raise StartError(str(error)) from None
    local = None
    if settings.tokenizer is not None:
        try:
            local = LocalTokenizer.load(settings.tokenizer)
        except TokenizerError as error:
            raise StartError(f"--tokenizer: {error}") from None
    log.info("Loading the kernels (the first start on a machine compiles them, about half a minute)")
    warm()
    _raise_file_limit()
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with contextlib.suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_serve(settings, local, tls))
