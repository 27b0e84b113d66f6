"""Watching the fleet: health, facts, and the workers file. Tells a `FleetListener` what changed.

One small task a worker, which ends by itself after the worker was removed: a cancelled `httpx` call can keep its
connection for good. A refused or broken connection takes a worker out at once, silence after `patience` checks in
a row; a worker that comes back is asked everything anew, since it may be another process with another block size.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Protocol

from router.events.endpoint import resolve_endpoint
from router.fleet.probe import EngineFacts, EventSource, Prober, Reach
from router.fleet.registry import MAX_ROWS, Fleet
from router.fleet.spec import SpecError, read_workers_file
from router.fleet.worker import Health, Worker
from router.model import WorkerSpec
from router.secret import Secret

log = logging.getLogger("kvctl.fleet")

_CHECKS_A_SECOND = 100
"""In all; a large fleet is checked less often. The data plane tells of a worker that refuses at once anyway."""


class FleetListener(Protocol):
    def worker_up(self, worker: Worker, sources: list[EventSource]) -> None:
        """Reachable, first or again; `sources` are its KV-event publishers, empty if there are none."""
        ...

    def worker_down(self, worker: Worker, process_gone: bool) -> None:
        """Not to be used now. `process_gone`: the connection was refused or broken, its cache is surely lost."""
        ...

    def models_changed(self, worker: Worker) -> None:
        """It lists other models than before: an adapter was loaded or unloaded."""
        ...

    def worker_added(self, worker: Worker) -> None: ...

    def worker_removed(self, worker: Worker) -> None: ...


class FleetMonitor:
    def __init__(
        self,
        fleet: Fleet,
        listener: FleetListener,
        *,
        interval: float = 1.0,
        timeout: float = 3.0,
        patience: int = 3,
        model: str | None = None,
        models_interval: float = 10.0,
        tls: ssl.SSLContext | None = None,
        key: Secret | None = None,
    ) -> None:
        self.fleet = fleet
        self.listener = listener
        self.interval = interval
        self.patience = patience
        self.model = model
        self.models_interval = models_interval
        """Seconds after which a worker is asked for its models again."""
        self.file_errors = 0
        self._prober = Prober(timeout, tls, key)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._wake: dict[str, asyncio.Event] = {}
        self._asked: dict[str, asyncio.Event] = {}
        self._file_task: asyncio.Task[None] | None = None
        self._from_file: set[str] = set()

    # -- membership --------------------------------------------------------------------------------------------

    def add(self, spec: WorkerSpec) -> Worker:
        worker = self.fleet.add(spec)
        self.listener.worker_added(worker)
        self._wake[spec.id] = asyncio.Event()
        self._asked[spec.id] = asyncio.Event()
        self._tasks[spec.id] = asyncio.get_running_loop().create_task(self._watch(worker))
        return worker

    def remove(self, worker_id: str) -> bool:
        worker = self.fleet.remove(worker_id)
        if worker is None:
            return False
        leaving = self._tasks.pop(worker_id)
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        self._wake.pop(worker_id).set()
        self._asked.pop(worker_id).set()
        self._from_file.discard(worker_id)
        self.listener.worker_removed(worker)
        return True

    async def first_answers(self, patience: float) -> None:
        """Until every worker registered now was asked once, at most `patience` seconds."""
        waits = [event.wait() for event in self._asked.values()]
        if waits:
            try:
                async with asyncio.timeout(patience):
                    await asyncio.gather(*waits)
            except TimeoutError:
                log.info("Not all workers have answered yet; they join when they do")

    async def close(self) -> None:
        tasks = [*self._tasks.values(), *self._leaving]
        if self._file_task is not None:
            tasks.append(self._file_task)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._prober.close()

    # -- health ------------------------------------------------------------------------------------------------

    def connection_failed(self, worker: Worker, why: str) -> None:
        """The data plane could not reach the worker: out at once, and asked again soon."""
        if not worker.removed and worker.health is Health.UP:
            self._down(worker, why, process_gone=True)
        self._hurry(worker)

    def suspect(self, worker: Worker) -> None:
        """An answer broke off: ask now rather than at the next round."""
        self._hurry(worker)

    def _hurry(self, worker: Worker) -> None:
        event = self._wake.get(worker.id)
        if event is not None:
            event.set()

    async def _watch(self, worker: Worker) -> None:
        wake = self._wake[worker.id]
        asked = self._asked[worker.id]
        while not worker.removed:
            try:
                await self._check(worker)
            except asyncio.CancelledError:
                raise
            except Exception:
                log.exception("Worker %s: the health check itself failed", worker.id)
            asked.set()
            try:
                async with asyncio.timeout(max(self.interval, len(self._tasks) / _CHECKS_A_SECOND)):
                    await wake.wait()
            except TimeoutError:
                pass
            if wake.is_set():
                wake.clear()
                await asyncio.sleep(min(0.05, self.interval))

    async def _check(self, worker: Worker) -> None:
        reach, why = await self._prober.health(worker.spec.url)
        if worker.removed:
            return
        if reach is Reach.OK:
            worker.failures = 0
            now = asyncio.get_running_loop().time()
            if worker.health is not Health.UP:
                worker.models_at = now
                await self._up(worker)
            elif now - worker.models_at >= self.models_interval:
                worker.models_at = now
                await self._ask_models(worker)
            return
        worker.failures += 1
        if worker.health is Health.STARTING:
            worker.health, worker.health_why = Health.DOWN, why
            log.warning("Worker %s is not reachable: %s; it joins when it is", worker.id, why)
            self.fleet.changed()
        elif worker.health is Health.UP and (reach is not Reach.TIMEOUT or worker.failures >= self.patience):
            self._down(worker, why, process_gone=reach is Reach.REFUSED)
        else:
            worker.health_why = why

    def _down(self, worker: Worker, why: str, *, process_gone: bool) -> None:
        worker.health, worker.health_why = Health.DOWN, why
        log.warning("Worker %s is down: %s", worker.id, why)
        self.fleet.changed()
        self.listener.worker_down(worker, process_gone)

    async def _up(self, worker: Worker) -> None:
        facts = await self._prober.facts(worker.spec.url)
        if worker.removed:
            return
        self._take(worker, facts)
        worker.health, worker.health_why = Health.UP, "ok"
        self.fleet.check_block_sizes()
        log.info(
            "Worker %s is up: %s, models %s, block size %s, %s blocks",
            worker.id,
            worker.spec.url,
            ", ".join(worker.models) or "unknown",
            worker.block_size or "unknown",
            worker.capacity_blocks or "unknown",
        )
        self.listener.worker_up(worker, self._sources(worker, facts))

    async def _ask_models(self, worker: Worker) -> None:
        """Adapters come and go while an engine runs. A worker that was told by its spec what it serves serves that."""
        found = await self._prober.models(worker.spec.url)
        if found is None or worker.removed or worker.spec.model:
            return
        models, adapters, shortest = found
        if not models or (models, adapters, shortest) == (worker.models, worker.adapters, worker.max_model_len):
            return
        log.info("Worker %s serves %s now", worker.id, ", ".join(models))
        worker.models, worker.adapters, worker.max_model_len = models, adapters, shortest
        self.fleet.check_block_sizes()
        self.listener.models_changed(worker)

    def _take(self, worker: Worker, facts: EngineFacts) -> None:
        spec = worker.spec
        worker.models = (spec.model,) if spec.model else facts.models
        worker.adapters = facts.adapters
        worker.max_model_len = facts.max_model_len
        worker.engine_version = facts.version
        worker.capacity_blocks = facts.capacity_blocks or 0
        if facts.block_size:
            told = spec.block_size
            if told and told != facts.block_size:
                log.warning(
                    "Worker %s: its spec says block-size=%d, the engine says %d; the engine is believed",
                    worker.id,
                    told,
                    facts.block_size,
                )
            worker.block_size, worker.block_size_from = facts.block_size, "the engine's metrics"
        if not facts.models and not facts.version and not facts.block_size:
            log.warning(
                "Worker %s answers at %s, but not like an engine: it tells no models, no version and no block size. Is "
                "the URL right?",
                worker.id,
                spec.url,
            )
        if self.model and worker.models and self.model not in worker.models:
            log.warning("Worker %s serves %s, not '%s'", worker.id, ", ".join(worker.models), self.model)

    @staticmethod
    def _sources(worker: Worker, facts: EngineFacts) -> list[EventSource]:
        if worker.spec.kv is not None:
            topic = facts.sources[0].topic if facts.sources else ""
            return [
                EventSource(
                    rank,
                    _of_rank(worker.spec.kv, rank),
                    _of_rank(worker.spec.replay, rank) if worker.spec.replay else None,
                    topic,
                )
                for rank in range(worker.ranks)
            ]
        beyond = [source.rank for source in facts.sources if source.rank >= worker.ranks]
        if beyond:
            log.warning(
                "Worker %s publishes KV events of dp rank %d, but is registered with ranks=%d; give ranks=%d",
                worker.id,
                max(beyond),
                worker.ranks,
                max(beyond) + 1,
            )
        return [source for source in facts.sources if source.rank < worker.ranks]

    # -- the workers file --------------------------------------------------------------------------------------

    def follow_file(self, path: Path) -> None:
        """Takes the file's workers now, and again whenever it changes.

        Raises:
            SpecError: the file cannot be taken now (later mistakes are logged and the old list stays).
        """
        self._apply_file(read_workers_file(path))
        self._file_task = asyncio.get_running_loop().create_task(self._follow(path, _stamp(path)))

    async def _follow(self, path: Path, stamp: object) -> None:
        while True:
            await asyncio.sleep(self.interval)
            now = _stamp(path)
            if now == stamp:
                continue
            stamp = now
            try:
                self._apply_file(await asyncio.to_thread(read_workers_file, path))
            except ValueError as error:
                self.file_errors += 1
                log.error("%s; the workers stay as they were", error)
            except Exception:
                self.file_errors += 1
                log.exception("The workers file %s could not be taken", path)

    def _apply_file(self, specs: list[WorkerSpec]) -> None:
        wanted = {spec.id: spec for spec in specs}
        others = self.fleet.workers.keys() - self._from_file
        for worker_id in wanted.keys() & others:
            raise SpecError(f"workers file: '{worker_id}' is registered already from elsewhere")
        rows = sum(self.fleet.workers[worker_id].ranks for worker_id in others) + sum(s.ranks or 1 for s in specs)
        if rows > MAX_ROWS:
            raise SpecError(f"workers file: {rows} (worker, rank) pairs are more than the {MAX_ROWS} of a fleet")
        for worker_id in list(self._from_file):
            if wanted.get(worker_id) != self.fleet.workers[worker_id].spec:
                self.remove(worker_id)
        for worker_id, spec in wanted.items():
            if worker_id not in self.fleet.workers:
                self.add(spec)
                self._from_file.add(worker_id)


def _of_rank(endpoint: str, rank: int) -> str:
    """Where dp rank `rank` publishes, from the endpoint of rank 0 (vLLM: one port further a rank)."""
    return resolve_endpoint(endpoint, "*", rank) if rank else endpoint


def _stamp(path: Path) -> object:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
