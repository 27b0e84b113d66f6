"""Calls on the running loop that all end together. Cost: one timer of the loop for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Timers:
    """A call that fails is reported by the loop and does not come again."""

    def __init__(self) -> None:
        self._handles: dict[int, asyncio.TimerHandle] = {}
        self._next = 0

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call once in `seconds`."""
        self._set(self._new(), seconds, call, again=False)

    def every(self, seconds: float, call: Callable[[], None]) -> None:
        """Call in `seconds` and then as often as they pass, counted from the end of a call."""
        self._set(self._new(), seconds, call, again=True)

    def close(self) -> None:
        for handle in self._handles.values():
            handle.cancel()
        self._handles.clear()

    def _new(self) -> int:
        self._next += 1
        return self._next

    def _set(self, number: int, seconds: float, call: Callable[[], None], *, again: bool) -> None:
        loop = asyncio.get_running_loop()
        self._handles[number] = loop.call_later(seconds, self._ring, number, seconds, call, again)

    def _ring(self, number: int, seconds: float, call: Callable[[], None], again: bool) -> None:
        del self._handles[number]
        call()
        if again:
            self._set(number, seconds, call, again=True)
