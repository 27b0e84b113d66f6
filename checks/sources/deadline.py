"""The end of a collection: a point in time, or the user's Ctrl-C. After it every source answers `timeout` at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")
INTERRUPTED = "interrupted with Ctrl-C"


class Deadline:
    """Thread-safe. `why` says, in words, what ended the collection early; '' while it runs."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = clock() + seconds
        self._said = f"--timeout of {seconds:g} s was over"
        self._why = ""
        self._stopped = threading.Event()

    def left(self) -> float:
        """Seconds left; 0 when it is over."""
        if self._stopped.is_set():
            return 0.0
        left = self._until - self._clock()
        if left <= 0:
            self.stop(self._said)
        return max(0.0, left)

    @property
    def why(self) -> str:
        return self._why

    def stop(self, why: str) -> None:
        """Ends it now; the first reason stays."""
        if not self._stopped.is_set():
            self._why = why
            self._stopped.set()

    def sleep(self, seconds: float) -> None:
        """Waits, at most until the end. Ctrl-C is an end."""
        try:
            self._stopped.wait(min(seconds, self.left()))
        except KeyboardInterrupt:
            self.stop(INTERRUPTED)


def at_once(
    calls: Sequence[Callable[[], T]],
    *,
    threads: int,
    deadline: Deadline,
    done: Callable[[int], None] = lambda count: None,
) -> list[T]:
    """Results of the calls in their order, some at a time. `done` hears, in this thread, how many are ready.

    Ctrl-C ends the deadline, and so lets every call that has not begun answer at once; a second one is raised.
    """
    if not calls:
        return []
    with ThreadPoolExecutor(max_workers=threads, thread_name_prefix="read") as pool:
        futures: list[Future[T]] = [pool.submit(call) for call in calls]
        pending: set[Future[T]] = set(futures)
        interrupted = False
        while pending:
            try:
                finished, pending = wait(pending, timeout=0.2)
                if finished:
                    done(len(futures) - len(pending))
            except KeyboardInterrupt:
                if interrupted:
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise
                interrupted = True
                deadline.stop(INTERRUPTED)
        return [future.result() for future in futures]
