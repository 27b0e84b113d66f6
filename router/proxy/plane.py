"""The data plane as a whole: the listening socket, the clients, a pool for each endpoint, and the way to stop.

`DataPlane` is what the server wires up. `Plane` is the part of it that connections see.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Protocol

from router.proxy.downstream import ClientConnection
from router.proxy.draining import Draining
from router.proxy.forwarded import Forwarding
from router.proxy.interface import Dispatcher, Endpoint, Journal, Limits, Outcome, PlaneStats, Timeouts
from router.proxy.request_ids import RequestIds
from router.proxy.sweeper import Sweeper
from router.proxy.upstream import EnginePool

log = logging.getLogger(__name__)

_COARSEST_SWEEP = 0.5
_BACKLOG = 4096
_LAST_WORDS = 1.0


class Plane(Protocol):
    """What a connection may know of its surroundings."""

    loop: asyncio.AbstractEventLoop
    dispatcher: Dispatcher
    timeouts: Timeouts
    limits: Limits
    stats: PlaneStats
    journal: Journal | None
    ids: RequestIds
    forwarding: Forwarding | None
    draining: bool
    stopped: bool

    def pool(self, endpoint: Endpoint) -> EnginePool: ...
    def joined(self, client: ClientConnection) -> None: ...
    def left(self, client: ClientConnection) -> None: ...
    def released(self) -> None: ...


class DataPlane:
    """An HTTP/1.1 reverse proxy whose every request is placed by a `Dispatcher`. Belongs to one event loop."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        timeouts: Timeouts,
        limits: Limits,
        stats: PlaneStats,
        journal: Journal | None = None,
        tls: ssl.SSLContext | None = None,
        engine_tls: ssl.SSLContext | None = None,
        forwarding: Forwarding | None = None,
    ) -> None:
        """`tls`: for clients, who speak plain HTTP without it; `engine_tls`: for endpoints that are https."""
        self.dispatcher = dispatcher
        self.journal = journal
        self.ids = RequestIds()
        self.timeouts = timeouts
        self.limits = limits
        self.stats = stats
        self.draining = False
        self.stopped = False
        self._hurried = False
        self.forwarding = forwarding
        self._tls = tls
        self._engine_tls = engine_tls
        self.loop: asyncio.AbstractEventLoop
        self._sweeper: Sweeper
        self._server: asyncio.Server | None = None
        self._clients: set[ClientConnection] = set()
        self._pools: dict[Endpoint, EnginePool] = {}
        self._quiet: asyncio.Event | None = None
        self._empty: asyncio.Event | None = None

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen. Returns the address taken (port 0: the kernel's choice).

        Raises:
            OSError: the address cannot be had.
        """
        self.loop = asyncio.get_running_loop()
        t = self.timeouts
        shortest = min(t.connect, t.first_byte, t.idle, t.request, t.keepalive, t.pool_idle)
        self._sweeper = Sweeper(self.loop, min(shortest / 4, _COARSEST_SWEEP))
        try:
            self._server = await self._listen(host, port)
        except OSError:
            self._sweeper.stop()
            raise
        name = self._server.sockets[0].getsockname()
        return name[0], name[1]

    async def _listen(self, host: str, port: int) -> asyncio.Server:
        if self._tls is None:
            return await self.loop.create_server(lambda: ClientConnection(self), host, port, backlog=_BACKLOG)
        return await self.loop.create_server(
            self._accepted,
            host,
            port,
            backlog=_BACKLOG,
            ssl=self._tls,
            ssl_handshake_timeout=self.timeouts.handshake,
            ssl_shutdown_timeout=_LAST_WORDS,
        )

    def _accepted(self) -> ClientConnection:
        self.stats.tls_begun += 1
        return ClientConnection(self)

    async def stop(self, drain: float) -> None:
        """Refuse new requests, let running ones end for up to `drain` seconds, then end what is left and listen no
        more. `hurry` ends the wait."""
        if self._server is None or self.draining:
            return
        self.draining = True
        self.dispatcher = Draining(self.dispatcher)
        for client in tuple(self._clients):
            client.drain()
        await self._wait_quiet(drain)
        self._server.close()
        self._server = None
        self.stopped = True
        for client in tuple(self._clients):
            client.drain()
        if self.stats.open_requests:
            log.warning("%d requests were still running and are cut off", self.stats.open_requests)
        for client in tuple(self._clients):
            if client.busy:
                client.abort(Outcome.CUT)
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()
        await self._wait_gone()
        self._sweeper.stop()

    def hurry(self) -> None:
        """Wait for no request any longer, if `stop` does or when it will."""
        self._hurried = True
        if self._quiet is not None:
            self._quiet.set()

    async def _wait_quiet(self, seconds: float) -> None:
        """Until no request is in progress, at most so long."""
        if self.stats.open_requests == 0 or self._hurried:
            return
        self._quiet = asyncio.Event()
        try:
            await asyncio.wait_for(self._quiet.wait(), seconds)
        except TimeoutError:
            log.info("The drain timeout of %g s is over", seconds)

    async def _wait_gone(self) -> None:
        """Until the last bytes are with the clients, at most a second; then close under them."""
        if not self._clients:
            return
        self._empty = asyncio.Event()
        try:
            await asyncio.wait_for(self._empty.wait(), _LAST_WORDS)
        except TimeoutError:
            for client in tuple(self._clients):
                client.abort()
            await asyncio.sleep(0)

    def give_up(self, endpoint: Endpoint) -> None:
        """A worker answers no longer: requests that have not begun there go elsewhere, where there is somebody."""
        pool = self._pools.get(endpoint)
        if pool is not None:
            pool.give_up()

    def forget(self, endpoint: Endpoint) -> None:
        """A worker is gone: drop its idle connections; those in use are closed when their request ends."""
        pool = self._pools.pop(endpoint, None)
        if pool is not None:
            pool.close()

    # What connections ask for.

    def pool(self, endpoint: Endpoint) -> EnginePool:
        pool = self._pools.get(endpoint)
        if pool is None:
            pool = EnginePool(
                endpoint, self.loop, self.timeouts, self.limits, self.stats, self._sweeper, self._engine_tls
            )
            self._pools[endpoint] = pool
        return pool

    def joined(self, client: ClientConnection) -> None:
        self._clients.add(client)
        self._sweeper.add(client)
        self.stats.connections += 1
        if self._tls is not None:
            self.stats.tls_done += 1

    def left(self, client: ClientConnection) -> None:
        self._clients.discard(client)
        self._sweeper.discard(client)
        self.stats.connections -= 1
        if self._empty is not None and not self._clients:
            self._empty.set()

    def released(self) -> None:
        """A request is no longer in progress."""
        self.stats.open_requests -= 1
        if self._quiet is not None and self.stats.open_requests == 0:
            self._quiet.set()
