"""Simulated engines in a child process: `with SimFleet(4, speedup=10) as fleet: fleet.engines[0].url`.

Starts `python -m kvctl sim`, waits for its ready line and ends it again. The child also ends by itself when this
process dies, however it dies, because its standard input closes.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any

Option = str | int | float | bool | list[str]


class FleetError(RuntimeError):
    """The engines could not be started; the message has what the child said."""


@dataclass(frozen=True, slots=True)
class SimEngine:
    """One running engine. `kv` and `replay` are None without KV events, `instance` (its LMCache instance id) without
    `log_style`, `log` (the path of its log) without `log_file`.
    """

    id: str
    url: str
    kv: str | None
    replay: str | None
    instance: str | None = None
    log: str | None = None

    @property
    def spec(self) -> str:
        """The engine as `--worker` takes it."""
        parts = [self.url, f"id={self.id}"]
        if self.kv:
            parts.append(f"kv={self.kv}")
        if self.replay:
            parts.append(f"replay={self.replay}")
        return ",".join(parts)


class SimFleet:
    """`count` engines in one child.

    Args:
        count: engines.
        timeout: seconds until the child has to be ready; a first start compiles its kernels in them.
        options: options of `kvctl sim`, with underscores: `block_size=32`, `speedup=10`; True is a bare flag, a list
            an option given several times.
            Only these count: the child does not see the KVCTL_ variables of our environment.
    """

    def __init__(self, count: int, *, timeout: float = 180.0, **options: Option) -> None:
        self.count = count
        self.timeout = timeout
        self.engines: list[SimEngine] = []
        self.model = ""
        self.block_size = 0
        self._options = options
        self._child: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Of the child, while it runs."""
        return self._child.pid if self._child is not None else None

    def start(self) -> SimFleet:
        """Start the child and wait until it is ready.

        Raises:
            FleetError: it ended or was not ready in time.
        """
        command = [sys.executable, "-P", "-m", "kvctl", "sim", "--count", str(self.count), "--port", "0"]
        command += ["--exit-with-parent", "-o", "json", *_arguments(self._options)]
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by stop)
        ours = {name: value for name, value in os.environ.items() if not name.startswith("KVCTL_")}
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            bufsize=0,
            env=ours,
            start_new_session=True,
        )
        try:
            self._read_ready(json.loads(self._ready_line(self._child)))
        except BaseException:
            self.stop()
            raise
        return self

    def kill(self) -> None:
        """SIGKILL: the engines are gone at once, with all that they held and all that they were sending."""
        if self._child is not None:
            self._child.kill()
            self.stop()

    def stop(self) -> int | None:
        """End the child and wait until it is gone; its exit code. Safe to call twice, the second time gives None."""
        child, self._child = self._child, None
        if child is not None:
            if child.stdin is not None:
                child.stdin.close()
            child.terminate()
            try:
                child.wait(5.0)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            if child.stdout is not None:
                child.stdout.close()
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None
        return child.returncode if child is not None else None

    def __enter__(self) -> SimFleet:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _read_ready(self, ready: dict[str, Any]) -> None:
        self.model = ready["model"]
        self.block_size = ready["block_size"]
        self.engines = [SimEngine(**row) for row in ready["engines"]]

    def _ready_line(self, child: subprocess.Popen[bytes]) -> bytes:
        assert child.stdout is not None
        deadline = time.monotonic() + self.timeout
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([child.stdout], [], [], left)[0]:
                raise FleetError(f"kvctl sim was not ready after {self.timeout:g} s{self._said()}")
            data = os.read(child.stdout.fileno(), 65536)
            if not data:
                raise FleetError(f"kvctl sim ended with exit code {child.wait()}{self._said()}")
            line += data
        return line

    def _said(self) -> str:
        """The end of the child's standard error."""
        if self._stderr is None:
            return ""
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - 2000))
        text = self._stderr.read().decode(errors="replace").strip()
        return f": {text}" if text else ""


def _arguments(options: dict[str, Option]) -> list[str]:
    arguments = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            arguments.append(flag)
        elif isinstance(value, list):
            arguments += [part for each in value for part in (flag, each)]
        elif value is not False:
            arguments += [flag, str(value)]
    return arguments
