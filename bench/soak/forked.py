"""The program that hosts simulated engines in a process each: `python -m bench.soak.forked`.

Twenty interpreters would take a minute of processor time to start and two gigabytes. This one loads everything once
and forks, so that an engine starts in some milliseconds and shares its memory; killing or stopping one of them is
what it is for an engine of its own. Reads commands on standard input (`start N`), prints a line of JSON for each
engine that is ready. When its standard input closes, it kills its engines and ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import numpy as np
import uvloop

from bench.sim.api import ApiConfig
from bench.sim.engine import Engine, EngineConfig, EngineRequest
from bench.sim.events import PublisherConfig
from bench.sim.process import EngineAddress, HostConfig, PortError, serve
from bench.sim.timing import FixedTiming, Timing

_PORT_PATIENCE = 10.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class ForkSettings:
    """`decode_ms`, `prefill_ms`: what a step takes; `drop`: share of KV-event frames that is lost."""

    decode_ms: float = 25.0
    prefill_ms: float = 15.0
    num_blocks: int = 2000
    drop: float = 0.0


def host_config(settings: ForkSettings) -> HostConfig:
    return HostConfig(
        timing=Timing(FixedTiming(settings.prefill_ms, settings.decode_ms)),
        engine=EngineConfig(block_size=16, num_blocks=settings.num_blocks, max_model_len=8192),
        api=ApiConfig(),
        publisher=PublisherConfig(drop=settings.drop, buffer_steps=2000),
    )


def _load_kernels(config: HostConfig) -> None:
    """One request on an engine without sockets: what is compiled is then loaded before the forks."""
    engine = Engine(config.engine, config.timing)
    engine.submit(EngineRequest("warm", np.arange(64, dtype=np.uint32), np.arange(4, dtype=np.uint32), "length"), 0.0)
    while engine.step(0.0) is not None:
        pass


class Forks:
    """The engines that were started, by number; each keeps the ports that it had first."""

    def __init__(self, config: HostConfig) -> None:
        self._config = config
        self._ports: dict[int, tuple[int, int, int]] = {}
        self._pids: set[int] = set()

    def start(self, number: int) -> str:
        """Forks engine `number`; the line that says where it is. Raises RuntimeError if it did not come up."""
        self.reap()
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            self._engine(number, writing)
        os.close(writing)
        self._pids.add(pid)
        with os.fdopen(reading, "rb") as pipe:
            line = pipe.readline()
        if not line:
            raise RuntimeError(f"engine {number} ended before it was ready")
        row = json.loads(line)
        self._ports[number] = (_port(row["url"]), _port(row["kv"]), _port(row["replay"]))
        return json.dumps({**row, "id": f"sim-{number}", "pid": pid, "number": number})

    def _engine(self, number: int, ready: int) -> None:
        """The child: never returns."""
        code = 1
        try:
            os.setsid()
            if sys.platform == "linux":
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            port, kv_port, replay_port = self._ports.get(number, (0, 0, 0))
            config = replace(
                self._config,
                port=port,
                kv_port=kv_port,
                replay_port=replay_port,
                engine=replace(self._config.engine, seed=number),
                publisher=replace(self._config.publisher, seed=number),
            )

            def told(addresses: list[EngineAddress]) -> None:
                (one,) = addresses
                os.write(ready, json.dumps({"url": one.url, "kv": one.kv, "replay": one.replay}).encode() + b"\n")
                os.close(ready)

            deadline = time.monotonic() + _PORT_PATIENCE
            while True:
                try:
                    uvloop.run(serve(config, told))
                    code = 0
                    break
                except PortError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.1)
        except BaseException as error:
            print(f"engine {number}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)

    def reap(self) -> None:
        """Takes leave of those that have ended."""
        for pid in tuple(self._pids):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._pids.discard(pid)

    def close(self) -> None:
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
        for pid in self._pids:
            os.waitpid(pid, 0)
        self._pids.clear()


def _port(url: str) -> int:
    return urlsplit(url).port or 0


def main() -> None:
    settings = ForkSettings(**json.loads(sys.argv[1])) if len(sys.argv) > 1 else ForkSettings()
    config = host_config(settings)
    _load_kernels(config)
    forks = Forks(config)
    try:
        for line in sys.stdin:
            command, _, number = line.strip().partition(" ")
            if command == "start":
                print(forks.start(int(number)), flush=True)
    finally:
        forks.close()


if __name__ == "__main__":
    main()
