"""Health checks that do not depend on each other, and workers that come and go."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from router.fleet.monitor import FleetMonitor
from router.fleet.probe import EventSource
from router.fleet.registry import Fleet
from router.fleet.spec import SpecError
from router.fleet.worker import Health, Worker
from router.model import WorkerSpec


class Nobody:
    def worker_up(self, worker: Worker, sources: list[EventSource]) -> None: ...

    def worker_down(self, worker: Worker, process_gone: bool) -> None: ...

    def models_changed(self, worker: Worker) -> None: ...

    def worker_added(self, worker: Worker) -> None: ...

    def worker_removed(self, worker: Worker) -> None: ...


class Engine:
    """Answers every GET with an empty 200 after `pause` seconds; counts its open connections."""

    def __init__(self, pause: float) -> None:
        self.pause = pause
        self.open = 0
        self.asked = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.asked += 1
                await asyncio.sleep(self.pause)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            writer.close()


@contextlib.asynccontextmanager
async def engine(pause: float = 0.0) -> AsyncIterator[Engine]:
    found = Engine(pause)
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield found
    finally:
        server.close()


async def until(fact: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not fact():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_workers_removed_while_they_are_asked_leave_no_connection_behind() -> None:
    monitor = FleetMonitor(Fleet(), Nobody(), interval=0.05, timeout=20)
    async with engine() as slow:
        monitor.add(WorkerSpec(url=slow.url, id="stays"))
        for number in range(400):
            monitor.add(WorkerSpec(url=slow.url, id="w"))
            await asyncio.sleep(0.0001 * (number % 100))
            monitor.remove("w")
        await until(lambda: slow.open <= 2)
        await monitor.close()


async def test_engines_that_hang_do_not_make_others_unhealthy() -> None:
    monitor = FleetMonitor(Fleet(), Nobody(), interval=0.05, timeout=60)
    async with engine(pause=3600) as hung, engine() as well:
        for number in range(80):
            monitor.add(WorkerSpec(url=hung.url, id=f"hung-{number}"))
        await until(lambda: hung.asked >= 64)
        worker = monitor.add(WorkerSpec(url=well.url, id="well"))
        await until(lambda: worker.health is Health.UP)
        await monitor.close()


async def test_a_file_with_more_workers_than_a_fleet_holds_is_refused_whole(tmp_path: Path) -> None:
    monitor = FleetMonitor(Fleet(), Nobody())
    path = tmp_path / "workers.txt"
    path.write_text("".join(f"http://127.0.0.1:1,id=w{number},ranks=64\n" for number in range(129)))
    with pytest.raises(SpecError, match="8256"):
        monitor.follow_file(path)
    assert not monitor.fleet.workers
    await monitor.close()
