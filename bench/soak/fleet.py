"""Engines that can be killed, hung and started again, each a process: `with ForkedFleet(20) as fleet`.

The parent's side of `bench.soak.forked`. Signals go straight to the engines, by their process ids.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from types import TracebackType

from bench.soak.forked import ForkSettings

_READY = 120.0


class State(StrEnum):
    UP = "up"
    HUNG = "hung"
    KILLED = "killed"


@dataclass(slots=True)
class ForkedEngine:
    """One engine. `pid` is that of its process now, `since` when it came into its state (time.monotonic)."""

    id: str
    number: int
    url: str
    kv: str
    replay: str
    pid: int
    state: State = State.UP
    since: float = 0.0

    @property
    def spec(self) -> str:
        return f"{self.url},id={self.id},kv={self.kv},replay={self.replay}"


class ForkedFleet:
    """`count` engines. `start` of one blocks for some tens of milliseconds."""

    def __init__(self, count: int, settings: ForkSettings | None = None) -> None:
        self.count = count
        self.engines: list[ForkedEngine] = []
        self._settings = settings or ForkSettings()
        self._server: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ForkedFleet:
        self._server = subprocess.Popen(
            [sys.executable, "-P", "-m", "bench.soak.forked", json.dumps(asdict(self._settings))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
        try:
            self.engines = [self._start(number) for number in range(self.count)]
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        server, self._server = self._server, None
        if server is None or server.stdin is None or server.stdout is None:
            return
        server.stdin.close()
        try:
            server.wait(20.0)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        server.stdout.close()

    def kill(self, engine: ForkedEngine) -> None:
        self._signal(engine, signal.SIGKILL, State.KILLED)

    def hang(self, engine: ForkedEngine) -> None:
        self._signal(engine, signal.SIGSTOP, State.HUNG)

    def wake(self, engine: ForkedEngine) -> None:
        self._signal(engine, signal.SIGCONT, State.UP)

    def restart(self, engine: ForkedEngine) -> None:
        """Starts a killed engine, empty, at the ports it had."""
        fresh = self._start(engine.number)
        engine.pid, engine.state, engine.since = fresh.pid, State.UP, fresh.since

    def _signal(self, engine: ForkedEngine, number: signal.Signals, state: State) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(engine.pid, number)
        engine.state, engine.since = state, time.monotonic()

    def _start(self, number: int) -> ForkedEngine:
        server = self._server
        assert server is not None and server.stdin is not None and server.stdout is not None
        server.stdin.write(b"start %d\n" % number)
        line = b""
        deadline = time.monotonic() + _READY
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([server.stdout], [], [], left)[0]:
                raise RuntimeError(f"engine {number} was not ready after {_READY:g} s")
            data = os.read(server.stdout.fileno(), 65536)
            if not data:
                raise RuntimeError(f"the engines' host ended with exit code {server.wait()}")
            line += data
        row = json.loads(line)
        return ForkedEngine(row["id"], number, row["url"], row["kv"], row["replay"], row["pid"], since=time.monotonic())
