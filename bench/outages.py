"""Does a workload's actions to the fleet while a block runs, and puts the fleet back together after it.

Touches only engines that this program started. An engine is started in a thread: it takes seconds, and the client
must go on sending.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Protocol

from bench.control import Unreachable
from bench.sim.fleet import FleetError
from bench.workload.model import Deed, FleetAction


class Killable(Protocol):
    """A fleet whose engines can be killed and started again."""

    def kill(self, index: int) -> None: ...
    def start_again(self, index: int) -> None: ...
    def alive(self, index: int) -> bool: ...


class Outages:
    """The actions of one workload. `begin` at the start of a block, `end` after it.

    `done` holds (seconds after `begin`, deed, engine) of each action of the block as it was done; of a start, when the
    engine served.
    """

    def __init__(self, fleet: Killable, actions: Sequence[FleetAction]) -> None:
        self._fleet = fleet
        self._actions = sorted(actions, key=lambda action: action.at)
        self._task: asyncio.Task[None] | None = None
        self._starting: asyncio.Future[None] | None = None
        self.done: list[tuple[float, Deed, int]] = []

    def begin(self) -> None:
        """Starts the clock of the actions."""
        self.done = []
        self._task = asyncio.get_running_loop().create_task(self._perform())

    async def end(self) -> None:
        """Leaves out what is not done yet, and starts every engine that is down.

        Raises:
            Unreachable: an action failed, or an engine cannot be started again.
        """
        task, self._task = self._task, None
        try:
            if self._starting is not None:
                await self._starting
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            for worker in sorted({action.worker for action in self._actions}):
                if not self._fleet.alive(worker):
                    await self._start(worker)
        except FleetError as error:
            raise Unreachable(f"an engine that was killed did not come back: {error}") from error

    async def _perform(self) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        for action in self._actions:
            await asyncio.sleep(max(0.0, start + action.at - loop.time()))
            if action.deed is Deed.KILL:
                self._fleet.kill(action.worker)
            else:
                await self._start(action.worker)
            self.done.append((loop.time() - start, action.deed, action.worker))

    async def _start(self, worker: int) -> None:
        """In a thread that nothing interrupts: a start half made would leave an engine without an owner."""
        self._starting = asyncio.ensure_future(asyncio.to_thread(self._fleet.start_again, worker))
        await asyncio.shield(self._starting)
        self._starting = None
