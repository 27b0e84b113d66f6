"""Logs from files, for systems without a cluster. Reads the first and the last bytes of a file, never more."""

from __future__ import annotations

from pathlib import Path

from checks.model import Reason
from checks.sources.tape import Answer


def head(path: Path, limit: int) -> Answer:
    """The first `limit` bytes. `at` is the file's time of change."""
    return _read(path, limit, tail=False)


def tail(path: Path, limit: int) -> Answer:
    """The last bytes, from a line's start; empty where the head held it all."""
    return _read(path, limit, tail=True)


def _read(path: Path, limit: int, *, tail: bool) -> Answer:
    try:
        status = path.stat()
        with path.open("rb") as file:
            if tail:
                if status.st_size <= limit:
                    return Answer(200, "", at=status.st_mtime)
                file.seek(max(limit, status.st_size - limit))
                file.readline()
            data = file.read(limit)
    except FileNotFoundError:
        return Answer(0, "", Reason.GONE, f"{path}: no such file")
    except OSError as error:
        return Answer(0, "", Reason.UNREACHABLE, f"{path}: {error.strerror}")
    return Answer(200, data.decode("utf-8", "replace"), at=status.st_mtime)
