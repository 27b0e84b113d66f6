"""Prefill waiting on each slot, in tokens and in expected seconds, as it goes down while time passes.

Engines prefill in order, so the oldest entry of a slot (the *anchor*) is the one being computed. Without expected
durations the load is the sum of tokens until each first token. With them:

    done  = anchor_tokens * (now - anchor_since) / anchor_expected       load    = max(0, sum(tokens) - done)
                                                                          seconds = max(0, sum(expected) - elapsed)

Source: the prefill load model of NVIDIA Dynamo's router (docs, how it decides). When the anchor goes, the next oldest
takes its place and its time starts. O(1) to add and remove, array arithmetic to read.
"""

from __future__ import annotations

import numpy as np

from router.model import FloatArray, IntArray


class PrefillQueues:
    """`tokens`: int64 (slots,), not yet computed without regard to time; tickets are unique over all slots."""

    def __init__(self, slots: int = 64) -> None:
        self.tokens: IntArray = np.zeros(slots, np.int64)
        self._expected: FloatArray = np.zeros(slots)
        self._rate: FloatArray = np.zeros(slots)
        self._since: FloatArray = np.zeros(slots)
        self._timed = 0
        self._entries: list[dict[int, tuple[int, float]]] = [{} for _ in range(slots)]
        self._next = 0

    def ensure_slots(self, count: int) -> None:
        missing = count - len(self.tokens)
        if missing > 0:
            more = max(missing, len(self.tokens))
            self.tokens = np.concatenate([self.tokens, np.zeros(more, np.int64)])
            self._expected, self._rate, self._since = (
                np.concatenate([column, np.zeros(more)]) for column in (self._expected, self._rate, self._since)
            )
            self._entries += [{} for _ in range(more)]

    def add(self, slot: int, tokens: int, expected_s: float, now: float) -> int:
        """A prompt with `tokens` uncached ones waits on `slot`; `expected_s` 0 is unknown. Returns its ticket."""
        entries = self._entries[slot]
        ticket = self._next
        self._next += 1
        entries[ticket] = tokens, expected_s
        self.tokens[slot] += tokens
        if expected_s > 0:
            self._expected[slot] += expected_s
            self._timed += 1
        if self._timed and len(entries) == 1:
            self._anchor(slot, now)
        return ticket

    def remove(self, slot: int, ticket: int, now: float) -> None:
        entries = self._entries[slot]
        was_anchor = self._timed and next(iter(entries)) == ticket
        tokens, expected_s = entries.pop(ticket)
        self.tokens[slot] -= tokens
        if expected_s > 0:
            self._expected[slot] = self._expected[slot] - expected_s if entries else 0.0
            self._timed -= 1
        if was_anchor:
            self._anchor(slot, now)

    def load(self, slots: IntArray, now: float) -> IntArray:
        """Tokens still to be computed on each of `slots`, int64."""
        total: IntArray = self.tokens[slots]
        if not self._timed:
            return total
        done = self._rate[slots] * np.maximum(now - self._since[slots], 0.0)
        left: IntArray = np.maximum(total - done, 0.0).astype(np.int64)
        return left

    def seconds(self, slots: IntArray, now: float) -> FloatArray:
        """Expected seconds until what waits on each of `slots` is computed."""
        elapsed = np.where(self._rate[slots] > 0, np.maximum(now - self._since[slots], 0.0), 0.0)
        left: FloatArray = np.maximum(self._expected[slots] - elapsed, 0.0)
        return left

    def _anchor(self, slot: int, now: float) -> None:
        """The oldest entry's time starts. Not needed while no entry anywhere has an expected time: all rates are 0."""
        tokens, expected_s = next(iter(self._entries[slot].values()), (0, 0.0))
        self._rate[slot] = tokens / expected_s if expected_s > 0 else 0.0
        self._since[slot] = now
