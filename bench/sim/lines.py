"""Log lines in the shapes that `kubectl logs` shows, and where they go.

`Lines` gives a message the head of its writer (LMCache, vLLM, the router, AWS's plain form) and, where the image
does so, the process prefix. `LogFile` and `LogStream` take whole lines; with `timestamps` each is preceded by the
kubelet's, as `kubectl logs --timestamps` shows it. Cost: a write system call a record.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import IO, Protocol

from bench.sim.styles import Style

log = logging.getLogger(__name__)

ROTATE_BYTES = 10 * 1024 * 1024
"""The kubelet's default size of a container log; what was before is kept in one file more."""

_COLOURS = {"DEBUG": "1m", "INFO": "32;20m", "WARNING": "33;20m", "ERROR": "31;20m", "CRITICAL": "31;1m"}
_RESET = "\x1b[0m"


class LogSink(Protocol):
    """Takes the lines of one container."""

    def write(self, record: str) -> None: ...

    def close(self) -> None: ...


class LogFile:
    """One container's log in a file that is begun anew, and rotated once it is as large as the kubelet allows."""

    def __init__(self, path: Path, *, timestamps: bool = False, rotate_bytes: int = ROTATE_BYTES) -> None:
        self.path = path
        self._timestamps = timestamps
        self._rotate_bytes = rotate_bytes
        self._size = 0
        self._file: IO[bytes] | None = path.open("wb", buffering=0)

    def write(self, record: str) -> None:
        if self._file is None:
            return
        data = _encoded(record, self._timestamps, "")
        try:
            if self._size and self._size + len(data) > self._rotate_bytes:
                self._file.close()
                self.path.replace(self.path.with_name(self.path.name + ".1"))
                self._file = self.path.open("wb", buffering=0)
                self._size = 0
            self._file.write(data)
        except OSError as error:
            log.error("cannot write %s any more: %s", self.path, error.strerror)
            self.close()
            return
        self._size += len(data)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class LogStream:
    """A stream that outlives us (standard error); `prefix` tells containers apart, as `kubectl logs --prefix` does."""

    def __init__(self, stream: IO[str], *, prefix: str = "", timestamps: bool = False) -> None:
        self._stream: IO[str] | None = stream
        self._prefix = prefix
        self._timestamps = timestamps

    def write(self, record: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(_encoded(record, self._timestamps, self._prefix).decode())
            self._stream.flush()
        except (OSError, ValueError) as error:
            self._stream = None
            log.error("cannot write log lines to the standard error any more: %s", error)

    def close(self) -> None:
        self._stream = None


class NoLog:
    """For a container whose log nobody asked for."""

    def write(self, record: str) -> None:
        pass

    def close(self) -> None:
        pass


def _encoded(record: str, timestamps: bool, prefix: str) -> bytes:
    before = prefix
    if timestamps:
        now = time.time_ns()
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 1_000_000_000))
        before += f"{seconds}.{now % 1_000_000_000:09d}Z "
    return "".join(f"{before}{line}\n" for line in record.split("\n")).encode(errors="replace")


class Lines:
    """Writes the records of one container."""

    def __init__(self, style: Style, sink: LogSink) -> None:
        self.style = style
        self._sink = sink
        self._pid = os.getpid()

    def lmcache(self, level: str, message: str, place: str, *, child: bool = True) -> None:
        """A record of LMCache: coloured whether or not it goes to a terminal. `place` is `file:line:logger`."""
        head = f"\x1b[{_COLOURS[level]}[{_clock()}] LMCache {level}:{_RESET}"
        self._write(f"{head} {message} \x1b[3m({place}){_RESET}", child)

    def vllm(self, message: str, place: str, *, process: str | None = None, level: str = "INFO") -> None:
        """A record of vLLM; `process` None is the engine core. A message of several lines has a head a line."""
        name = process or self.style.core
        now = time.strftime("%m-%d %H:%M:%S")
        for line in message.split("\n"):
            self._sink.write(f"({name} pid={self._pid}) {level} {now} [{place}] {line}")

    def router(self, level: str, message: str, place: str) -> None:
        """A record of the production stack's router: LMCache's shape without its name and without colour."""
        self._sink.write(f"[{_clock()}] {level}: {message} ({place})")

    def plain(self, level: str, message: str) -> None:
        """A record with the level alone for a head, as AWS's are."""
        self._sink.write(f"{level}: {message}")

    def http(self, level: str, message: str) -> None:
        """The same of vLLM's HTTP server."""
        prefix = f"(APIServer pid={self._pid}) " if self.style.prefixes_all else ""
        self._sink.write(f"{prefix}{level}: {message}")

    def _write(self, record: str, child: bool) -> None:
        if child and self.style.prefixes_all:
            prefix = f"({self.style.core} pid={self._pid}) "
            record = "\n".join(prefix + line for line in record.split("\n"))
        self._sink.write(record)


def _clock() -> str:
    now = time.time()
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now)) + f",{int(now % 1 * 1000):03d}"
