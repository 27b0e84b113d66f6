"""The client goes first: a load generator that waits for the processor measures itself.

Raises this process's scheduling priority while it measures, where the system allows it (it needs the privilege).
Children started before are not touched. Costs nothing; what was done is part of the result.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

NICENESS = -10


@contextlib.contextmanager
def raised_priority() -> Iterator[bool]:
    """Yields whether the priority could be raised; gives it back at the end."""
    if not hasattr(os, "setpriority"):
        yield False
        return
    before = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, min(before, NICENESS))
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)
