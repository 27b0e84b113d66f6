"""Files that a user names and the router reads, perhaps again while it serves: none may hang it or fill its memory.

A pipe would block whoever opens it until somebody writes, and a device never ends.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


def read_user_file(path: Path, most: int) -> bytes:
    """The bytes of a regular file, `most` of them at most; symbolic links are followed.

    Raises:
        OSError: it cannot be read, is a directory, pipe or device, or is larger; `strerror` says which.
    """
    with open(path, "rb", opener=_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(0, "it is a pipe or a device, not a regular file", str(path))
        raw = file.read(most + 1)
    if len(raw) > most:
        raise OSError(0, f"it has more than the {most} bytes that are read", str(path))
    return raw


def _at_once(path: str, flags: int) -> int:
    """Opens a pipe without waiting for its other end."""
    return os.open(path, flags | os.O_NONBLOCK)
