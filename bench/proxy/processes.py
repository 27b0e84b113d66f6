"""Child processes on cores of their own, and what the kernel says of them. Linux: reads /proc.

A child ends with us: its standard input is a pipe that we hold, or it is ended by `stop`, which ends its whole group.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_TICKS = os.sysconf("SC_CLK_TCK")
_FILES = 20_000


class NotStarted(Exception):
    """A process did not come up; the message says why, with the last of what it wrote."""


@dataclass(slots=True)
class Child:
    """`log` is the file that has its standard error (and output, unless that is `out`)."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pids(self) -> list[int]:
        """Itself and its descendants."""
        return tree(self.process.pid)

    @property
    def out(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    @property
    def into(self) -> IO[bytes]:
        assert self.process.stdin is not None
        return self.process.stdin

    def check(self) -> None:
        """Raises NotStarted if it has ended."""
        code = self.process.poll()
        if code is not None:
            raise NotStarted(f"ended with code {code}: {self.said()}")

    def said(self) -> str:
        """The last lines it wrote, on one line."""
        lines = self.log.read_text("utf-8", "replace").strip().splitlines()
        return " | ".join(line.strip() for line in lines[-3:])[-400:] or "it wrote nothing"

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def start(
    command: Sequence[str], core: int | None, log: Path, *, env: dict[str, str] | None = None, out: bool = False
) -> Child:
    """Starts `command` on one core (None: on any). `out`: its standard output is a pipe.

    Raises:
        NotStarted: there is no such program.
    """

    def settle() -> None:
        if core is not None:
            os.sched_setaffinity(0, {core})
        raise_file_limit()

    with log.open("wb") as file:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if out else file,
                stderr=file,
                env={**os.environ, **(env or {})},
                start_new_session=True,
                preexec_fn=settle,
            )
        except OSError as error:
            raise NotStarted(f"{command[0]}: {error.strerror}") from None
    return Child(process, log)


def raise_file_limit() -> int:
    """As many descriptors as are allowed, 20,000 at most wanted. Returns the limit."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return soft


def tree(pid: int) -> list[int]:
    """`pid` and all that descend from it."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields:
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, look = [], [pid]
    while look:
        one = look.pop()
        found.append(one)
        look += parents.get(one, [])
    return found


def cpu_seconds(pids: Sequence[int]) -> float:
    """User and system time of all threads of `pids`, so far. In steps of a hundredth on most machines."""
    total = 0
    for pid in pids:
        fields = _stat(pid)
        if fields:
            total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def memory_bytes(pids: Sequence[int]) -> int:
    """Resident memory of `pids`."""
    pages = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def core_busy(core: int) -> float:
    """Seconds for which a core has done anything so far."""
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name == f"cpu{core}":
            user, nice, system, _idle, _wait, irq, soft, *_ = map(int, fields)
            return (user + nice + system + irq + soft) / _TICKS
    return 0.0


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name: state first, parent second."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def wait_until(ready: object, seconds: float, child: Child) -> None:
    """Until `ready()` is true. Raises NotStarted when it is not in time, or the child ends."""
    assert callable(ready)
    until = time.monotonic() + seconds
    while not ready():
        child.check()
        if time.monotonic() > until:
            raise NotStarted(f"was not ready within {seconds:g} s: {child.said()}")
        time.sleep(0.05)
