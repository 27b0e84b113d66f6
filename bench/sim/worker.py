"""Imitated workers: their caches, logs, heartbeats and periodic lines, beside the engines.

Exists only when a log style is asked for. Runs timers on the loop and writes logs; what is told comes from the
engine that a worker stands beside. Cost: some records a request, and a timer each for heartbeat, ping and statistics.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

from bench.sim.engine import EngineConfig
from bench.sim.faults import Fault, Faults
from bench.sim.keystore import KeyStore
from bench.sim.lines import Lines, LogFile, LogSink, LogStream, NoLog
from bench.sim.live import LiveEngine
from bench.sim.lmcache import L2_CHUNKS, LMCache, none_hash
from bench.sim.router_log import Controller, RouterLog
from bench.sim.statistics import Statistics
from bench.sim.styles import Style
from bench.sim.timers import Timers
from bench.sim.timing import Timing
from bench.sim.worker_log import WorkerFacts, WorkerLog
from router.prefix.hashing import text_key

PORTS = (9000, 9001, 9002)
"""Of the controller, as the lines name them: KV messages, replies, heartbeats. Nothing listens there."""
WORKER_PORT = 8001
REMOTE_URL = "redis://127.0.0.1:6379"
HASH_SEED = "123"
STATISTICS_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Imitation:
    """What a fleet imitates.

    `faults` has an entry an engine. Logs go to `folder/ID.log` and the controller's to `folder/controller.log`, or
    all to the standard error if there is no folder: one engine's as it is, of several each line after its
    container's name, with the controller's. `heartbeat` is the seconds between two heartbeats and before the first;
    after three times as long a worker is dropped, an answer is given up, and the remote store is asked again.
    """

    style: Style
    faults: tuple[Faults, ...]
    folder: Path | None = None
    timestamps: bool = False
    heartbeat: float = 10.0

    @property
    def patience(self) -> float:
        return round(3 * self.heartbeat, 3)


class LogError(OSError):
    """A log file cannot be written; the message names it and why."""


class WorkerFleet:
    """What the workers of one process share: the L2 store, the controller and the kind of log.

    Raises:
        LogError: a log file cannot be written.
    """

    def __init__(self, imitation: Imitation) -> None:
        self.imitation = imitation
        self.remote = KeyStore(L2_CHUNKS)
        self._timers = Timers()
        self._sinks: list[LogSink] = []
        if imitation.folder is not None:
            try:
                imitation.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise LogError(f"cannot make the folder {imitation.folder}: {error.strerror}") from error
        self._log = RouterLog(Lines(imitation.style, self._controller_sink()))
        self.controller = Controller(self._log, imitation.patience)

    def began(self) -> None:
        """The controller starts: before its workers, which then find it."""
        interval = self.imitation.heartbeat / 2
        self._log.began(none_hash(HASH_SEED), interval, PORTS)
        self._timers.every(interval, lambda: self.controller.check(time.time()))

    def discovered(self, name: str, host: str, model: str) -> None:
        """The router finds an engine that answers, whatever becomes of its cache."""
        self._log.discovered(name, host, [model])

    def log_path(self, name: str) -> Path | None:
        folder = self.imitation.folder
        return folder / f"{name}.log" if folder is not None else None

    def sink(self, name: str, container: str) -> LogSink:
        """Where a container's log goes; closed with the fleet."""
        path = self.log_path(name)
        stamps = self.imitation.timestamps
        if path is not None:
            try:
                self._sinks.append(LogFile(path, timestamps=stamps))
            except OSError as error:
                raise LogError(f"cannot write {path}: {error.strerror}") from error
        else:
            prefix = f"[pod/{name}/{container}] " if len(self.imitation.faults) > 1 else ""
            self._sinks.append(LogStream(sys.stderr, prefix=prefix, timestamps=stamps))
        return self._sinks[-1]

    def close(self) -> None:
        self._timers.close()
        for sink in self._sinks:
            sink.close()

    def _controller_sink(self) -> LogSink:
        alone = self.imitation.folder is None and len(self.imitation.faults) == 1
        return NoLog() if alone else self.sink("controller", "router-container")


class SimWorker:
    """One imitated worker, named `name` and `index`-th of the fleet; `cache` goes into its engine."""

    def __init__(
        self, fleet: WorkerFleet, index: int, name: str, model: str, engine: EngineConfig, timing: Timing
    ) -> None:
        imitation = fleet.imitation
        self.style = imitation.style
        self.faults = imitation.faults[index]
        self.model = model
        self.instance = _instance(self.style, name, engine.seed)
        self.log_path = fleet.log_path(name)
        self._name = name
        self._fleet = fleet
        self._timers = Timers()
        self._ids = count()
        self._address = ""
        seed = f"{HASH_SEED}, not that of worker {index}" if Fault.NONE_HASH_DIFFERS in self.faults else HASH_SEED
        root = none_hash(seed)
        facts = WorkerFacts(
            model=model,
            instance=self.instance,
            worker_port=WORKER_PORT + index,
            none_hash=root,
            remote_url=REMOTE_URL,
            pull_url=f"127.0.0.1:{PORTS[0]}",
            reply_url=f"127.0.0.1:{PORTS[1]}",
            heartbeat_url=f"tcp://127.0.0.1:{PORTS[2]}",
            heartbeat_delay=imitation.heartbeat,
            heartbeat_time=imitation.heartbeat,
            ping_interval=imitation.patience,
            receive_timeout=imitation.patience,
            block_size=engine.block_size,
            num_blocks=engine.num_blocks,
            max_model_len=engine.max_model_len,
            init_fails=Fault.INIT_FAILURE in self.faults,
        )
        self._port = facts.worker_port
        self._log = WorkerLog(Lines(self.style, fleet.sink(name, "vllm")), facts)
        self.cache = LMCache(root, fleet.remote, self._log, self.faults, timing.scale)
        self.statistics = Statistics(self.style, self.cache)

    @property
    def registered(self) -> bool:
        """Whether the controller knows this worker now."""
        return self._fleet.controller.knows(self.instance, 0)

    @property
    def exports_metrics(self) -> bool:
        """Whether LMCache's metrics reach the engine's `/metrics` (PROMETHEUS_MULTIPROC_DIR is set)."""
        return Fault.NO_LMCACHE_METRICS not in self.faults

    def request_id(self, public: str) -> str:
        """The engine's own id of a sequence, with the suffix by which vLLM keeps equal ids apart."""
        return f"{public}-{next(self._ids):08x}"

    def serves(self, url: str, live: LiveEngine) -> None:
        """The engine can be reached at `url`: write the start-up, and begin what goes on by itself."""
        host = urlsplit(url).hostname or ""
        self._address = f"{host}:{self._port}"
        self._fleet.discovered(self._name, host, self.model)
        self._log.began()
        self._timers.every(STATISTICS_SECONDS, lambda: self._periodic(live))
        if not self.cache.active:
            self._log.failed_to_initialize(url)
            return
        self._log.initialized()
        patience, heartbeat = self._fleet.imitation.patience, self._fleet.imitation.heartbeat
        if Fault.REGISTRATION_FAILED in self.faults:
            self._timers.after(patience, self._log.registration_failed)
        else:
            self._fleet.controller.register(self.instance, 0, self._address, time.time())
            self._log.registered()
            self._timers.after(heartbeat, self._begin_heartbeat)
        self._log.started(url)
        self._ping()
        self._timers.every(patience, self._ping)

    def close(self) -> None:
        self._timers.close()

    def _begin_heartbeat(self) -> None:
        self._log.heartbeat_begins()
        self._heartbeat()

    def _heartbeat(self) -> None:
        self._log.heartbeat_sent()
        if Fault.HEARTBEAT_LOST in self.faults:
            self._timers.after(self._fleet.imitation.patience, self._give_up_heartbeat)
            return
        self._fleet.controller.heartbeat(self.instance, 0, self._address, time.time())
        self._log.heartbeat_answered()
        self._timers.after(self._fleet.imitation.heartbeat, self._heartbeat)

    def _give_up_heartbeat(self) -> None:
        self._log.heartbeat_timed_out()
        self._timers.after(self._fleet.imitation.heartbeat, self._heartbeat)

    def _ping(self) -> None:
        if not self.cache.ping():
            self._log.ping_failed()

    def _periodic(self, live: LiveEngine) -> None:
        engine = live.engine
        stats = self.statistics.roll(engine.counters, engine.snapshot(), STATISTICS_SECONDS)
        if stats is not None:
            self._log.periodic(stats)


def _instance(style: Style, name: str, seed: int) -> str:
    """The LMCache instance id: the pod's name, as the production stack sets it, or what LMCache makes up."""
    return f"lmcacheengineconfig_{text_key(name.encode(), seed):016x}" if style.aws else name
