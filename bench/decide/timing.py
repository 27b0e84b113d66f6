"""Our decision, timed: token ids -> block keys -> Decision with every row's terms; the booking beside it.

Warm is one decision after another. Cold is a router that was idle: before each decision the processor's caches are
filled with other memory. Costs as many decisions as asked for.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.decide.fleet import request_of
from router.core import RoutingCore
from router.prefix.hashing import Tokens

COLD_BYTES = 32 << 20

Microseconds = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Times:
    """Microseconds, float64 (repeat,) each. `total`: ids to Decision, so keys and decision together."""

    keys: Microseconds
    decision: Microseconds
    booking: Microseconds
    release: Microseconds

    @property
    def total(self) -> Microseconds:
        both: Microseconds = self.keys + self.decision
        return both


def joined(parts: list[Times]) -> Times:
    return Times(
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("keys", "decision", "booking", "release")
        )
    )


def measure(core: RoutingCore, prompt: Tokens, repeat: int, *, cold: bool = False) -> Times:
    """`repeat` decisions on prompts that differ in their last token."""
    times = np.empty((4, repeat))
    sweep = np.zeros(COLD_BYTES // 8, np.int64)
    clock = time.perf_counter_ns
    for number in range(repeat):
        ids = prompt.copy()
        ids[-1] = number
        if cold:
            sweep += 1
        start = clock()
        keys = core.keys_for(ids)
        hashed = clock()
        request = request_of(ids, keys)
        decision = core.decide(request, "kv", float(number))
        decided = clock()
        booking = core.book(decision, request, float(number))
        booked = clock()
        booking.release()
        released = clock()
        times[:, number] = hashed - start, decided - hashed, booked - decided, released - booked
    times /= 1e3
    return Times(*times)
