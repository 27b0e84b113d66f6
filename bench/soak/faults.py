"""What happens to the engines while a soak runs: killed, hung, started again, drained; never more than a share at once.

Draws from a seeded generator, so that a course can be had again as far as the machine allows.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass

from bench.soak.fleet import ForkedEngine, ForkedFleet, State
from bench.soak.watch import AdminClient


@dataclass(frozen=True, slots=True)
class FaultSettings:
    """`every`: mean seconds between two deeds. `most`: share of the engines that may be ill at a time. A hung engine
    is woken or killed after `hang` seconds (drawn from that range), a killed one started again after `down`."""

    every: float = 1.5
    most: float = 0.4
    hang: tuple[float, float] = (0.5, 8.0)
    down: tuple[float, float] = (0.5, 6.0)
    seed: int = 1


class Faults:
    """Does deeds until it is stopped; then everything is well again."""

    def __init__(self, fleet: ForkedFleet, admin: AdminClient, settings: FaultSettings) -> None:
        self.deeds: Counter[str] = Counter()
        self._fleet = fleet
        self._admin = admin
        self._settings = settings
        self._chance = random.Random(settings.seed)
        self._due: dict[str, float] = {}
        self._drained: dict[str, float] = {}

    async def run(self, stop: asyncio.Event) -> None:
        following = time.monotonic() + self._pause()
        while not stop.is_set():
            try:
                async with asyncio.timeout(0.2):
                    await stop.wait()
            except TimeoutError:
                pass
            now = time.monotonic()
            await self._recover(now)
            if now >= following:
                following = now + self._pause()
                await self._strike(now)
        await self._recover(float("inf"))

    def _pause(self) -> float:
        return self._chance.expovariate(1 / self._settings.every)

    async def _strike(self, now: float) -> None:
        well = [one for one in self._fleet.engines if one.state is State.UP and one.id not in self._drained]
        if len(well) - 1 < (1 - self._settings.most) * len(self._fleet.engines):
            return
        engine = self._chance.choice(well)
        deed = self._chance.choices(("kill", "hang", "drain"), (5, 4, 1))[0]
        self.deeds[deed] += 1
        if deed == "kill":
            self._fleet.kill(engine)
            self._due[engine.id] = now + self._chance.uniform(*self._settings.down)
        elif deed == "hang":
            self._fleet.hang(engine)
            self._due[engine.id] = now + self._chance.uniform(*self._settings.hang)
        else:
            await self._admin.post(f"/workers/{engine.id}/drain")
            self._drained[engine.id] = now + self._chance.uniform(*self._settings.down)

    async def _recover(self, now: float) -> None:
        for engine in self._fleet.engines:
            if self._due.get(engine.id, float("inf")) <= now or (now == float("inf") and engine.state is not State.UP):
                await self._heal(engine, last=now == float("inf"))
        for name in [name for name, due in self._drained.items() if due <= now]:
            await self._admin.post(f"/workers/{name}/undrain")
            del self._drained[name]

    async def _heal(self, engine: ForkedEngine, *, last: bool) -> None:
        self._due.pop(engine.id, None)
        if engine.state is State.HUNG:
            if not last and self._chance.random() < 0.3:
                self.deeds["kill a hung one"] += 1
                self._fleet.kill(engine)
                self._due[engine.id] = time.monotonic() + self._chance.uniform(*self._settings.down)
                return
            self.deeds["wake"] += 1
            self._fleet.wake(engine)
        elif engine.state is State.KILLED:
            self.deeds["restart"] += 1
            await asyncio.to_thread(self._fleet.restart, engine)
