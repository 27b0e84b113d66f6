"""The file behind the access log: whole batches, unbuffered, so that what is counted as lost stays lost.

Called in the log's thread. A buffer of Python's would keep the lines of a failed write, bring them back in pieces later
and fail again when the file is closed. Whoever reads a pipe may stop reading: nothing here waits for longer than
`_PATIENCE`.
"""

from __future__ import annotations

import os
import select
import stat
import sys
from pathlib import Path

_PATIENCE = 2.0
_PIECE = select.PIPE_BUF
"""What a pipe that polls as writable takes without blocking."""


class LogFile:
    """Appends to `path`, or to standard output if that is None. Raises OSError: it cannot be opened."""

    def __init__(self, path: Path | None) -> None:
        self._own = path is not None
        if path is None:
            self._descriptor = sys.stdout.fileno()
        else:  # O_NONBLOCK: a pipe that nobody reads is an error and no wait
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
            self._descriptor = os.open(path, flags, 0o666)
        self._regular = stat.S_ISREG(os.fstat(self._descriptor).st_mode)
        self._torn = False

    def write(self, lines: bytes) -> None:
        """Raises OSError: not all of it was written; a line that was cut short is ended before the next ones."""
        rest = memoryview(b"\n" + lines if self._torn else lines)
        while rest:
            if not self._regular:
                self._await()
            written = os.write(self._descriptor, rest if self._regular else rest[:_PIECE])
            self._torn = rest[written - 1] != ord("\n")
            rest = rest[written:]

    def _await(self) -> None:
        ready = select.poll()
        ready.register(self._descriptor, select.POLLOUT)
        if not ready.poll(_PATIENCE * 1000):
            raise TimeoutError(f"its reader took nothing for {_PATIENCE:g} s")

    def close(self) -> None:
        """Standard output stays open."""
        if self._own:
            os.close(self._descriptor)
