"""Wakes the event loop at a point of the monotonic clock, to some tens of microseconds.

uvloop's and asyncio's own timers count in milliseconds, too coarse for a decode step of a few milliseconds.
On Linux this uses a timerfd (through the C library: the standard library has it only from Python 3.13);
elsewhere the loop's timer. Cost: two system calls an alarm.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1
_TFD_FLAGS = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)


class _Timespec(ctypes.Structure):
    _fields_ = (("sec", ctypes.c_long), ("nsec", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class LoopAlarm:
    """The loop's own timer: precise to a millisecond or so."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._handle: asyncio.Handle | None = None

    def set(self, due: float) -> None:
        """Call back at `due` (seconds of `time.monotonic`), or in the next turn of the loop if that has
        passed.
        """
        self.cancel()
        delay = due - time.monotonic()
        if delay > 0:
            self._handle = self._loop.call_later(delay, self._callback)
        else:
            self._handle = self._loop.call_soon(self._callback)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def close(self) -> None:
        self.cancel()


class TimerfdAlarm:
    """A Linux timerfd watched by the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._loop = loop
        self._callback = callback
        self._soon: asyncio.Handle | None = None
        self._spec = _Itimerspec()
        self._fd: int = self._libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_FLAGS)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        loop.add_reader(self._fd, self._ring)

    def set(self, due: float) -> None:
        """Call back at `due` (seconds of `time.monotonic`), or in the next turn of the loop if that has
        passed.
        """
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if due <= time.monotonic():
            self._arm(0, 0)
            self._soon = self._loop.call_soon(self._callback)
            return
        seconds = int(due)
        self._arm(seconds, int((due - seconds) * 1e9) or 1)

    def cancel(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        self._arm(0, 0)

    def close(self) -> None:
        self.cancel()
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _arm(self, seconds: int, nanoseconds: int) -> None:
        self._spec.value.sec = seconds
        self._spec.value.nsec = nanoseconds
        if self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(self._spec), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def _ring(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # the alarm was set anew after it rang
            return
        self._callback()


Alarm = LoopAlarm | TimerfdAlarm


def make_alarm(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> Alarm:
    """The most precise alarm that this system has."""
    return TimerfdAlarm(loop, callback) if sys.platform == "linux" else LoopAlarm(loop, callback)
