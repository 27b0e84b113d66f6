"""What every worker is busy with. Booked at decision time, released exactly once, whatever happens.

Per slot: requests in flight, prefill tokens not yet computed (the uncached part of prompts whose first token has not
come), and the distinct KV blocks of live requests: two live requests that share a prefix count it once; a prompt's
last, partial block does not count (`router.prefix.active` says why). Cost: a few array updates and one compiled walk
over the prompt's blocks.
"""

from __future__ import annotations

from types import TracebackType

import numpy as np
import numpy.typing as npt

from router.model import IntArray
from router.pending import PendingPrefills
from router.prefix.active import ActiveBlocks

_NO_KEYS: npt.NDArray[np.uint64] = np.empty(0, np.uint64)


class Booking:
    """One request's share of its slot's load. A context manager; `release` may be called again, and does nothing."""

    __slots__ = ("_loads", "_prefill", "_released", "_ticket", "computed", "given_up_before", "keys", "slot")

    def __init__(
        self, loads: LoadTracker, slot: int, prefill: int, keys: npt.NDArray[np.uint64], ticket: int | None
    ) -> None:
        self._loads = loads
        self.slot = slot
        self.keys = keys
        self._prefill = prefill
        self._ticket = ticket
        self._released = False
        self.given_up_before = int(loads.given_up[slot])
        self.computed = False
        """Whether the engine has computed the prompt, as far as is known."""

    def prefill_done(self) -> None:
        """The first token has come: the prompt is computed."""
        self.computed = True
        self._drop_prefill()

    def _drop_prefill(self) -> None:
        if self._prefill:
            self._loads.prefill_tokens[self.slot] -= self._prefill
            self._prefill = 0
        if self._ticket is not None:
            self._loads.pending.remove(self._ticket)
            self._ticket = None

    def release(self) -> None:
        if self._released:
            return
        self._released = True
        self._drop_prefill()
        loads = self._loads
        loads.active_requests[self.slot] -= 1
        if len(self.keys):
            loads.active.release(self.slot, self.keys)
        loads.open_bookings -= 1

    def __enter__(self) -> Booking:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class LoadTracker:
    """Arrays indexed by slot, int64; `given_up` counts the device blocks that a slot said it evicted. A slot is given
    back by its owner only when `idle(slot)`."""

    def __init__(self, active: ActiveBlocks, slots: int = 64) -> None:
        self.active = active
        self.pending = PendingPrefills()
        self.active_requests: IntArray = np.zeros(slots, np.int64)
        self.prefill_tokens: IntArray = np.zeros(slots, np.int64)
        self.given_up: IntArray = np.zeros(slots, np.int64)
        self.open_bookings = 0

    def ensure_slots(self, count: int) -> None:
        """Room for slots 0..count-1."""
        missing = count - len(self.active_requests)
        if missing > 0:
            more = np.zeros(max(missing, len(self.active_requests)), np.int64)
            self.active_requests = np.concatenate([self.active_requests, more])
            self.prefill_tokens = np.concatenate([self.prefill_tokens, more])
            self.given_up = np.concatenate([self.given_up, more])
        self.active.ensure_slots(count)

    def book(
        self,
        slot: int,
        prompt_tokens: int,
        cached_tokens: int,
        keys: npt.NDArray[np.uint64] | None,
        cached_blocks: int = 0,
    ) -> Booking:
        """Counts a request on `slot`. `keys`: its full prompt blocks, uint64; `cached_tokens`: predicted, a block of
        a slower tier by its weight; `cached_blocks`: the whole blocks among them."""
        keys = _NO_KEYS if keys is None else keys
        prefill = max(prompt_tokens - cached_tokens, 0)
        self.active_requests[slot] += 1
        self.prefill_tokens[slot] += prefill
        if len(keys):
            self.active.acquire(slot, keys)
        self.open_bookings += 1
        ticket = self.pending.add(slot, keys, cached_blocks) if prefill else None
        return Booking(self, slot, prefill, keys, ticket)

    def decode_blocks(self, slots: IntArray) -> IntArray:
        """Blocks of live requests on each of `slots`, int64."""
        counts: IntArray = self.active.counts()[slots]
        return counts

    def idle(self, slot: int) -> bool:
        return bool(self.active_requests[slot] == 0)
