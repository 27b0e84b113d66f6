"""The end of a collection: a point in time, Ctrl-C, or SIGTERM. After it every source answers `timeout` at once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")
INTERRUPTED = "interrupted with Ctrl-C"
TERMINATED = "ended by SIGTERM"
SIGNALS = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}
_LOOK_S = 0.2
"""How soon an end is seen by who waits for something else."""


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

    def bounded(self, fetch: Callable[[], T], instead: Callable[[str], T], *, within_s: float = float("inf")) -> T:
        """What `fetch` gives, in a thread of its own; `instead(why)` once the end, or `within_s`, has come.

        A fetch that is no longer waited for ends with the process at the latest. Ctrl-C is an end.
        """
        done = threading.Event()
        given: list[T] = []
        failed: list[BaseException] = []

        def work() -> None:
            try:
                given.append(fetch())
            except BaseException as error:
                failed.append(error)
            done.set()

        until = time.monotonic() + within_s
        threading.Thread(target=work, name="fetch", daemon=True).start()
        try:
            while not done.wait(_LOOK_S):
                if self.left() <= 0:
                    return instead(self.why)
                if time.monotonic() > until:
                    return instead(f"it took longer than {within_s:g} s")
        except KeyboardInterrupt:
            self.stop(INTERRUPTED)
            return instead(self.why)
        if failed:
            raise failed[0]
        return given[0]

    @contextmanager
    def signalled(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end it in place of whatever else runs; the second of them does what it did before.

        Only in the main thread: in others nothing changes.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in SIGNALS}
        heard: set[int] = set()

        def told(number: int, frame: FrameType | None) -> None:
            again = before[signal.Signals(number)] if number in heard else None
            heard.add(number)
            self.stop(SIGNALS[signal.Signals(number)])
            if callable(again):
                again(number, frame)

        try:
            for number in SIGNALS:
                signal.signal(number, told)
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


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
