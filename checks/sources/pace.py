"""How fast and how many at once: a token bucket and a semaphore, so that an API server is never flooded."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Pace:
    """At most `concurrency` calls at once, `per_second` of them a second after a first `burst`. Thread-safe."""

    def __init__(
        self,
        *,
        concurrency: int,
        per_second: float,
        burst: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._slots = threading.BoundedSemaphore(concurrency)
        self._per_second = per_second
        self._burst = float(burst)
        self._tokens = float(burst)
        self._clock = clock
        self._sleep = sleep
        self._at = clock()
        self._lock = threading.Lock()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Waits for a slot and a token, holds the slot while the block runs."""
        with self._slots:
            if (wait := self._take()) > 0:
                self._sleep(wait)
            yield

    def _take(self) -> float:
        """Takes a token, if need be one of the future; returns the seconds until it is there."""
        with self._lock:
            now = self._clock()
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_second)
            self._at = now
            self._tokens -= 1
            return -self._tokens / self._per_second if self._tokens < 0 else 0.0
