"""What every worker is busy with. Booked at decision time, released exactly once, whatever happens.

Per slot: requests in flight, prefill tokens not yet computed (the uncached part of prompts whose first token has not
come, `router.prefills`), and the distinct KV blocks of live requests: two live requests that share a prefix count it
once; a prompt's last, partial block does not count (`router.prefix.active` says why). With output tracking the blocks
of generated tokens count too. Cost: a few array updates and one compiled call.
"""

from __future__ import annotations

from types import TracebackType

import numpy as np
import numpy.typing as npt

from router.model import FloatArray, IntArray
from router.pending import PendingPrefills
from router.prefills import PrefillQueues
from router.prefix.active import ActiveBlocks

_ODD = 0x9E3779B97F4A7C15
_NO_KEYS: npt.NDArray[np.uint64] = np.empty(0, np.uint64)


class Booking:
    """One request's share of its slot's load. A context manager; `release` may be called again, and does nothing.

    `prefill`: its uncached prompt tokens when it was placed; `alone`: nothing else waited for prefill there then.
    `output_tokens`: generated so far, as far as they were counted; `reported_output`: as the engine says at the end.
    """

    __slots__ = (
        "_counted",
        "_expected_output",
        "_live",
        "_loads",
        "_prefill_ticket",
        "_released",
        "_ticket",
        "alone",
        "block_size",
        "computed",
        "given_up_before",
        "given_up_by_then",
        "keys",
        "output_tokens",
        "prefill",
        "prompt_tokens",
        "reported_output",
        "slot",
    )

    def __init__(
        self,
        loads: LoadTracker,
        slot: int,
        prompt_tokens: int,
        prefill: int,
        keys: npt.NDArray[np.uint64],
        ticket: int | None,
        prefill_ticket: int | None,
        *,
        block_size: int,
        expected_output: int | None,
        alone: bool,
        live: npt.NDArray[np.uint64],
    ) -> None:
        self._loads = loads
        self.slot = slot
        self.keys = keys
        self._live = live
        self.prompt_tokens = prompt_tokens
        self.prefill = prefill
        self.alone = alone
        self.block_size = block_size
        self.output_tokens = 0
        self._expected_output = expected_output
        self._counted = 0.0
        self._ticket = ticket
        self._prefill_ticket = prefill_ticket
        self._released = False
        self.given_up_before = int(loads.given_up[slot])
        self.given_up_by_then: int | None = None
        """`given_up` of the slot when the first token had come, if somebody noted it."""
        self.reported_output: int | None = None
        self.computed = False
        """Whether the engine has computed the prompt, as far as is known."""

    def prefill_done(self, now: float | None = None) -> None:
        """The first token has come: the prompt is computed. `now`: the core's clock, else that of the last decision."""
        self.computed = True
        self._drop_prefill(now)

    def generated(self, tokens: int) -> None:
        """So many more tokens have come. Counts every block they fill, weighted by what is still expected.

        With an expected length the blocks of output weigh max(0, 1 - tokens / expected), as in Dynamo: they will be
        free soon. A hint that proves too short is doubled, so that a long answer does not weigh nothing for ever.
        """
        self.output_tokens += tokens
        if not self._loads.track_output or not self.block_size or self._released:
            return
        size, before = self.block_size, self.prompt_tokens
        blocks = -(-(before + self.output_tokens) // size) + (-before // size)
        weight = 1.0
        if self._expected_output is not None:
            while self.output_tokens >= self._expected_output:
                self._expected_output = max(2 * self._expected_output, 16)
            weight = 1.0 - self.output_tokens / self._expected_output
        self._count(blocks * weight)

    def _count(self, blocks: float) -> None:
        self._loads.output_blocks[self.slot] += blocks - self._counted
        self._counted = blocks

    def _drop_prefill(self, now: float | None) -> None:
        loads = self._loads
        if self._prefill_ticket is not None:
            loads.prefills.remove(self.slot, self._prefill_ticket, loads.now if now is None else now)
            self._prefill_ticket = None
        if self._ticket is not None:
            loads.pending.remove(self._ticket)
            self._ticket = None

    def release(self, now: float | None = None) -> None:
        if self._released:
            return
        self._drop_prefill(now)
        self._released = True
        loads = self._loads
        loads.active_requests[self.slot] -= 1
        if len(self.keys):
            loads.active.release(self.slot, self._live)
        loads.open_bookings -= 1
        if self._counted:
            self._count(0.0)
            if not loads.active_requests[self.slot]:
                loads.output_blocks[self.slot] = 0.0

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
    back by its owner only when `idle(slot)`. `now` is the core's clock at the last decision."""

    def __init__(
        self, active: ActiveBlocks, slots: int = 64, *, track_output: bool = False, shares: bool = True
    ) -> None:
        self.active = active
        self.shares = shares
        """Whether live requests with a common prefix share its blocks; else each counts all of its own."""
        self._bookings = 0
        self.track_output = track_output
        self.pending = PendingPrefills()
        self.prefills = PrefillQueues(slots)
        self.active_requests: IntArray = np.zeros(slots, np.int64)
        self.given_up: IntArray = np.zeros(slots, np.int64)
        self.output_blocks: FloatArray = np.zeros(slots)
        self.open_bookings = 0
        self.now = 0.0

    @property
    def prefill_tokens(self) -> IntArray:
        """Uncached tokens of prompts without a first token yet, int64 (slots,), without regard to time."""
        return self.prefills.tokens

    @property
    def slots(self) -> int:
        """Slots that every array here has room for."""
        return min(len(self.active_requests), len(self.prefills.tokens), self.active.slots)

    def ensure_slots(self, count: int) -> None:
        """Room for slots 0..count-1."""
        missing = count - len(self.active_requests)
        if missing > 0:
            more = np.zeros(max(missing, len(self.active_requests)), np.int64)
            self.active_requests = np.concatenate([self.active_requests, more])
            self.given_up = np.concatenate([self.given_up, more])
            self.output_blocks = np.concatenate([self.output_blocks, more.astype(np.float64)])
        self.prefills.ensure_slots(count)
        self.active.ensure_slots(count)

    def book(
        self,
        slot: int,
        prompt_tokens: int,
        cached_tokens: int,
        keys: npt.NDArray[np.uint64] | None,
        cached_blocks: int = 0,
        *,
        expected_s: float = 0.0,
        block_size: int = 0,
        expected_output: int | None = None,
    ) -> Booking:
        """Counts a request on `slot`. `keys`: its full prompt blocks, uint64; `cached_tokens`: predicted, a block of
        a slower tier by its weight; `cached_blocks`: the whole blocks among them; `expected_s`: how long its prefill
        should take, 0 if unknown; `expected_output`: tokens of its answer, if somebody said."""
        keys = _NO_KEYS if keys is None else keys
        prefill = max(prompt_tokens - cached_tokens, 0)
        alone = not self.prefills.tokens[slot]
        self.active_requests[slot] += 1
        live = keys
        if len(keys):
            if not self.shares:
                self._bookings += 1
                live = keys ^ np.uint64(self._bookings * _ODD & 0xFFFFFFFFFFFFFFFF)
            self.active.acquire(slot, live)
        self.open_bookings += 1
        ticket = self.pending.add(slot, keys, cached_blocks) if prefill else None
        prefill_ticket = self.prefills.add(slot, prefill, expected_s, self.now) if prefill else None
        return Booking(
            self,
            slot,
            prompt_tokens,
            prefill,
            keys,
            ticket,
            prefill_ticket,
            block_size=block_size,
            expected_output=expected_output,
            alone=alone,
            live=live,
        )

    def decode_blocks(self, slots: IntArray) -> IntArray:
        """Blocks of live requests on each of `slots`, int64; with output tracking those of generated tokens too."""
        counts: IntArray = self.active.counts_of(slots)
        if self.track_output:
            counts = counts + np.rint(self.output_blocks[slots]).astype(np.int64)
        return counts

    def idle(self, slot: int) -> bool:
        return bool(self.active_requests[slot] == 0)
