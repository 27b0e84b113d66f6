"""What engines and router say themselves that a block's requests took: durations that they add up on /metrics.

Reads /metrics before and after a block, never during it. A server that does not answer, or does not add these up, is
left out: its times are then not known, which the explanation says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.arms import Arm
from bench.control import ENGINE_CLOCKS, ROUTER_CLOCKS, Clock, Control, Unreachable


@dataclass(frozen=True, slots=True)
class BlockClocks:
    """By name (see `bench.control`). `engines`: the sums of all engines; empty where one of them does not say."""

    engines: dict[str, Clock] = field(default_factory=dict)
    router: dict[str, Clock] = field(default_factory=dict)

    def since(self, before: BlockClocks) -> BlockClocks:
        """What was added since `before`, of what both have."""
        return BlockClocks(_since(self.engines, before.engines), _since(self.router, before.router))


async def read_clocks(control: Control, arm: Arm) -> BlockClocks:
    """The clocks of an arm's router and engines, as far as they are known and answer."""
    wanted: list[tuple[str, Mapping[str, Sequence[str]]]] = [(engine.url, ENGINE_CLOCKS) for engine in arm.engines]
    if arm.admin:
        wanted.append((arm.admin, ROUTER_CLOCKS))
    found = await asyncio.gather(*(control.clocks(url, names) for url, names in wanted), return_exceptions=True)
    read: list[dict[str, Clock]] = []
    for one in found:
        if isinstance(one, dict):
            read.append(one)
        elif isinstance(one, Unreachable):
            read.append({})
        else:
            raise one
    router = read.pop() if arm.admin else {}
    engines: dict[str, Clock] = {}
    if read:
        for name in set.intersection(*(set(one) for one in read)):
            total = Clock(0.0, 0.0)
            for one in read:
                total = total.plus(one[name])
            engines[name] = total
    return BlockClocks(engines, router)


def _since(after: dict[str, Clock], before: dict[str, Clock]) -> dict[str, Clock]:
    return {name: clock.since(before[name]) for name, clock in after.items() if name in before}
