"""The access log: a line a request, formatted and written off the loop in batches.

The loop only appends to a list. Every fifth of a second what has come is handed to one thread, which formats and
writes it; while that is busy (a slow disk) at most `_MOST` lines wait, and those beyond are counted and dropped: the
log never holds up a request. `reopen` makes the next batch open the file anew, for logrotate.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from router.journal.line import AccessLine, as_json, as_text
from router.journal.log_file import LogFile

log = logging.getLogger("kvctl.access")

_MOST = 50_000
_EVERY = 0.2


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class AccessLogSettings:
    """`path` None is standard output."""

    path: Path | None
    format: LogFormat = LogFormat.TEXT


class AccessLog:
    """Belongs to one loop. `close` writes what is left."""

    def __init__(self, settings: AccessLogSettings) -> None:
        """Raises OSError: the file cannot be opened."""
        self.written = 0
        self.dropped = 0
        self.failures = 0
        self._path = settings.path
        self._format: Callable[[AccessLine], bytes] = as_json if settings.format is LogFormat.JSON else as_text
        self._loop = asyncio.get_running_loop()
        self._lines: list[AccessLine] = []
        self._handed = 0
        self._timer: asyncio.TimerHandle | None = None
        self._busy: asyncio.Future[int] | None = None
        self._stale = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="access-log")
        self._file = LogFile(self._path)

    def add(self, line: AccessLine) -> None:
        if len(self._lines) + self._handed >= _MOST:
            self.dropped += 1
            return
        self._lines.append(line)
        if self._timer is None and self._busy is None:
            self._timer = self._loop.call_later(_EVERY, self._flush)

    def reopen(self) -> None:
        """The file was moved away (SIGHUP): open it anew before the next lines."""
        self._stale = self._path is not None

    def _flush(self) -> None:
        self._timer = None
        lines, self._lines = self._lines, []
        self._handed = len(lines)
        self._busy = self._loop.run_in_executor(self._thread, self._write, lines)
        self._busy.add_done_callback(self._flushed)

    def _flushed(self, done: asyncio.Future[int]) -> None:
        self._busy = None
        lost = 0 if done.cancelled() else done.result()
        self.written += self._handed - lost
        self.dropped += lost
        self._handed = 0
        if self._lines:
            self._timer = self._loop.call_later(_EVERY, self._flush)

    def _write(self, lines: list[AccessLine]) -> int:
        """In the thread. Returns how many lines were lost."""
        try:
            if self._stale:
                self._stale = False
                old, self._file = self._file, LogFile(self._path)
                old.close()
            self._file.write(b"".join(map(self._format, lines)))
        except (OSError, ValueError) as error:
            self.failures += 1
            if self.failures & (self.failures - 1) == 0:  # the 1st, 2nd, 4th, 8th, ...
                log.error("The access log cannot be written: %s; %d lines are lost", error, len(lines))
            return len(lines)
        return 0

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._busy is not None:
            await asyncio.wait([self._busy])
        if self._timer is not None:
            self._timer.cancel()
        if self._lines:
            self._flush()
            if self._busy is not None:
                await asyncio.wait([self._busy])
        self._thread.shutdown()
        self._file.close()
