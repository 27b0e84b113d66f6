"""A simulated fleet of which some engines run in a child process of their own, so that they can be killed and started
again at the same ports while the others go on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import TracebackType
from urllib.parse import urlsplit

from bench.sim.fleet import FleetError, Option, SimEngine, SimFleet


class SplitFleet:
    """`count` engines, those numbered in `apart` in a child each. `options`: as of `SimFleet`."""

    def __init__(
        self, count: int, apart: Collection[int], options: Mapping[str, Option] | None = None, *, timeout: float = 180.0
    ) -> None:
        if not all(0 <= index < count for index in apart):
            raise ValueError(f"engines {sorted(apart)} of a fleet of {count}")
        self.count = count
        self.engines: list[SimEngine] = []
        self.model = ""
        self.block_size = 0
        self._timeout = timeout
        self._options = dict(options or {})
        self._apart = {index: SimFleet(1, timeout=timeout, **self._options) for index in sorted(apart)}
        self._rest = (
            SimFleet(count - len(self._apart), timeout=timeout, **self._options) if count > len(apart) else None
        )

    def kill(self, index: int) -> None:
        """SIGKILL to engine `index`, one of `apart`; nothing if it is down already."""
        self._apart[index].kill()

    def start_again(self, index: int) -> None:
        """Starts a killed engine, empty, at the ports that it had. Blocks until it serves.

        Raises:
            FleetError: it is not ready in time, or a port was taken meanwhile.
        """
        if self._apart[index].pid is not None:
            return
        engine = self.engines[index]
        ports = {"port": engine.url, "kv_port": engine.kv, "replay_port": engine.replay}
        options = self._options | {name: _port(url) for name, url in ports.items() if url}
        self._apart[index] = SimFleet(1, timeout=self._timeout, **options).start()

    def alive(self, index: int) -> bool:
        """Whether an engine of `apart` is up."""
        return self._apart[index].pid is not None

    def __enter__(self) -> SplitFleet:
        try:
            rest = list(self._rest.start().engines) if self._rest is not None else []
            for index in range(self.count):
                own = self._apart.get(index)
                engine = own.start().engines[0] if own is not None else rest.pop(0)
                self.engines.append(replace(engine, id=f"sim-{index}"))
            some = self._rest or next(iter(self._apart.values()))
            self.model, self.block_size = some.model, some.block_size
        except FleetError:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for fleet in (*self._apart.values(), self._rest):
            if fleet is not None:
                fleet.stop()


def _port(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port
