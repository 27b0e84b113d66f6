"""The truth loop: does a worker's index keep its promises?

An answer that reports its cached tokens is held against what the worker's index had promised for that prompt when the
request was placed. The exponential mean of reported / promised is the worker's *confidence*. Below a threshold, over
enough answers, the index is distrusted: its overlap counts only times the confidence, and the worker is
resynchronised (its events replayed from the beginning, or what is known of it dropped), at growing intervals until the
reports agree again.

Only what the index itself says is judged, never predict-on-route, so a late "stored" event is no shortfall. Nor is a
late "removed" event: a shortfall counts only if the first block that was missing is not told as removed within a grace
time. Pure: no I/O, no clock. Cost: a few float operations an answer that reports, a look-up a removed block while
shortfalls wait for their verdict; nothing on a decision unless a worker is distrusted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from router.fleet.worker import Worker
from router.model import FloatArray, IntArray
from router.prefix.hashing import Keys

log = logging.getLogger("kvctl.truth")

_MOST_WAITING = 4096


@dataclass(frozen=True, slots=True)
class TruthSettings:
    """`threshold` and `restored`: confidence (0..1) below which an index is distrusted and from which on it is trusted
    again. `weight`: of the newest answer in the mean. `answers`: how many are judged before a verdict. `grace`: seconds
    that the event which explains a shortfall may be late. `backoff`: seconds to the second resynchronisation, doubled
    each time up to `longest_backoff`."""

    threshold: float = 0.5
    restored: float = 0.8
    weight: float = 0.1
    answers: int = 10
    grace: float = 2.0
    backoff: float = 10.0
    longest_backoff: float = 600.0


@dataclass(slots=True)
class IndexTrust:
    """One worker. `answers` were judged since it came, `shortfalls` of them reported less than was promised, and all of
    them together `reused` tokens.
    `resync_at`: the core's clock before which there is no further resynchronisation."""

    confidence: float = 1.0
    answers: int = 0
    shortfalls: int = 0
    reused: int = 0
    distrusted: bool = False
    resyncs: int = 0
    resync_at: float = float("-inf")
    backoff: float = 0.0


@dataclass(slots=True)
class _Shortfall:
    worker: Worker
    kept: float
    reported: int
    due: float


class TruthLoop:
    """`resync(worker, reason)` is called when a worker's index has to be learnt anew; set it before the first answer.

    `factor`: what the overlap of each slot counts, float64 (slots,), 1 where trusted; None while every worker is.
    """

    def __init__(self, settings: TruthSettings) -> None:
        self.settings = settings
        self.factor: FloatArray | None = None
        self.resync: Callable[[Worker, str], None] = _nobody
        self._trust: dict[str, IndexTrust] = {}
        self._distrusted: dict[str, Worker] = {}
        self._waiting: dict[tuple[int, int], list[_Shortfall]] = {}

    def of(self, worker: Worker) -> IndexTrust:
        """What is known of a worker; a fresh one before its first judged answer."""
        return self._trust.get(worker.id) or IndexTrust()

    def forget(self, worker: Worker) -> None:
        """Its process is gone: the next one starts trusted."""
        for slot in worker.slots:
            self.cleared(slot)
        self._trust.pop(worker.id, None)
        if self._distrusted.pop(worker.id, None) is not None:
            self._weigh()

    def answered(
        self, worker: Worker, promised: int, reported: int, now: float, missing: tuple[int, int] | None = None
    ) -> None:
        """An answer of `worker` reported so many cached tokens where its index had promised so many. `missing`: the
        slot and the key of the first block that the engine did not find, where events would tell its removal. Nothing
        was promised: nothing to judge."""
        self.settle(now)
        if promised <= 0:
            return
        kept = min(max(reported, 0) / promised, 1.0)
        if kept == 1.0 or missing is None or len(self._waiting) >= _MOST_WAITING:
            self._judge(worker, kept, reported, now)
        else:
            shortfall = _Shortfall(worker, kept, reported, now + self.settings.grace)
            self._waiting.setdefault(missing, []).append(shortfall)

    def removed(self, slot: int, keys: Keys) -> None:
        """The worker of `slot` says that it gave up these blocks: shortfalls that they explain are none."""
        if self._waiting:
            for key in keys.tolist():
                self._waiting.pop((slot, key), None)

    def cleared(self, slot: int) -> None:
        """Nothing of what the index said of `slot` counts any more."""
        for missing in [missing for missing in self._waiting if missing[0] == slot]:
            del self._waiting[missing]

    def settle(self, now: float) -> None:
        """Judge the shortfalls that nothing has explained in time. To be called now and then."""
        while self._waiting:
            missing = next(iter(self._waiting))
            if self._waiting[missing][0].due > now:
                return
            for shortfall in self._waiting.pop(missing):
                self._judge(shortfall.worker, shortfall.kept, shortfall.reported, now)

    def _judge(self, worker: Worker, kept: float, reported: int, now: float) -> None:
        if worker.removed:
            return
        trust = self._trust.get(worker.id)
        if trust is None:
            trust = self._trust[worker.id] = IndexTrust()
        trust.answers += 1
        trust.shortfalls += kept < 1.0
        trust.reused += reported
        trust.confidence += self.settings.weight * (kept - trust.confidence)
        if trust.distrusted:
            self._review(worker, trust, now)
        elif trust.answers >= self.settings.answers and trust.confidence < self.settings.threshold:
            self._distrust(worker, trust, now)

    def _distrust(self, worker: Worker, trust: IndexTrust, now: float) -> None:
        trust.distrusted = True
        trust.backoff = self.settings.backoff
        self._distrusted[worker.id] = worker
        hint = "Are all its KV-event sources followed, and is its block size right?"
        if not trust.reused:
            hint = "It has never reported a cached token; if it never does, use --no-truth-loop."
        log.warning(
            "Worker %s: its engine reuses %.0f%% of what its KV events promise; its cached blocks count that much less "
            "until the two agree. %s",
            worker.id,
            100 * trust.confidence,
            hint,
        )
        self._learn_anew(worker, trust, now)
        self._weigh()

    def _review(self, worker: Worker, trust: IndexTrust, now: float) -> None:
        if trust.confidence >= self.settings.restored:
            trust.distrusted = False
            del self._distrusted[worker.id]
            log.info("Worker %s: its engine reuses what its KV events promise again", worker.id)
        elif trust.confidence < self.settings.threshold and now >= trust.resync_at:
            self._learn_anew(worker, trust, now)
        self._weigh()

    def _learn_anew(self, worker: Worker, trust: IndexTrust, now: float) -> None:
        trust.resyncs += 1
        trust.resync_at = now + trust.backoff
        trust.backoff = min(2 * trust.backoff, self.settings.longest_backoff)
        self.resync(worker, f"the engine reused {trust.confidence:.0%} of what was expected")

    def _weigh(self) -> None:
        if not self._distrusted:
            self.factor = None
            return
        slots = max(slot for worker in self._distrusted.values() for slot in worker.slots) + 1
        factor = np.ones(slots)
        for worker_id, worker in self._distrusted.items():
            factor[list(worker.slots)] = self._trust[worker_id].confidence
        self.factor = factor

    def weights(self, slots: IntArray) -> FloatArray | None:
        """The factor of each of `slots`, float64; None if all of them are trusted."""
        factor = self.factor
        if factor is None:
            return None
        found: FloatArray = np.where(slots < len(factor), factor[np.minimum(slots, len(factor) - 1)], 1.0)
        return found if (found < 1.0).any() else None


def _nobody(worker: Worker, reason: str) -> None:
    raise RuntimeError("the truth loop has nobody who resynchronises")
