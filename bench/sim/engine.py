"""The simulated engine: continuous batching over a paged KV cache, in whatever time the caller keeps.

Pure: no I/O, no clock, no randomness. `step(now)` ends the step before, plans the next one and says how long
it takes and what it brings; the caller releases the outputs when that time has passed (live: on the loop;
replay: at once, in virtual time) and only then calls `step` again. Between two calls the engine looks as it
does during the step.

The order of work is vLLM's (v1 scheduler, checked against 0.32): running sequences first, in order of
admission, then waiting ones while the token budget lasts; prompts in chunks; a sequence is let in only if its
whole prompt fits; when blocks run out the latest sequence is preempted and recomputed later; a step that
preempted admits nobody. Blocks become findable when the step that fills them is planned, so a sibling in the
same step already reuses them. The newest token of an answer has no KV yet: its block is stored one step late.

Cost: about a microsecond a decoding sequence and step; a compiled call at block boundaries.
"""

from __future__ import annotations

from collections import deque
from typing import cast

import numpy as np

from bench.sim import ahead, step_time
from bench.sim.connector import Connector
from bench.sim.kvcache import CacheEvent, KVCache, LowerTier, Removed, Stored
from bench.sim.nouns import (
    SYMBOLS,
    Ahead,
    Counters,
    EngineConfig,
    EngineRequest,
    FloatArray,
    Outlook,
    Output,
    Sequence,
    Snapshot,
    StepResult,
    SymbolicRequest,
)
from bench.sim.timing import StepWork, Timing
from router.prefix.hashing import Keys, block_keys, root_key

__all__ = [
    "SYMBOLS",
    "Ahead",
    "Counters",
    "Engine",
    "EngineConfig",
    "EngineRequest",
    "Output",
    "Snapshot",
    "StepResult",
    "SymbolicRequest",
]

_AHEAD_STEPS = 4096
_AHEAD_LOG = 8192


class Engine:
    """`connector` is a cache beside the engine's own; None costs a test an admission, a prefill chunk and a step.
    `lower` gets the blocks that the engine's cache gives up; None costs a test an eviction.
    """

    def __init__(
        self,
        config: EngineConfig,
        timing: Timing,
        connector: Connector | None = None,
        lower: LowerTier | None = None,
    ) -> None:
        self.config = config
        self.timing = timing
        self.counters = Counters()
        self.cache = KVCache(
            config.num_blocks,
            config.block_size,
            reuse=config.prefix_caching,
            record=config.record_events,
            lower=lower,
        )
        self._sequences: dict[str, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._any_done = False
        self._connector = connector
        self._runs_ahead = connector is None and lower is None and timing.speedup > 0
        self._ends = np.empty(_AHEAD_STEPS) if self._runs_ahead else np.empty(0)
        self._log = np.empty((_AHEAD_LOG + 2 * config.max_num_seqs, 4), np.int64) if self._runs_ahead else None

    def submit(self, request: EngineRequest | SymbolicRequest, now: float) -> None:
        """Queue a request. `now` is not earlier than the last step's; the request takes part from the next
        step on.

        Raises:
            ValueError: the id is in use, prompt and answer do not fit into the model's context, or symbols are missing.
        """
        if request.id in self._sequences:
            raise ValueError(f"request id {request.id} is in use")
        if isinstance(request, SymbolicRequest):
            lengths = request.prompt_len, request.answer_len
        else:
            lengths = len(request.prompt), len(request.answer)
        total = sum(lengths)
        if min(lengths) < 1 or total > self.config.max_model_len:
            raise ValueError(
                f"a request needs a prompt, an answer and at most {self.config.max_model_len} tokens of both"
            )
        block_size = self.config.block_size
        answered: list[int] | None = None
        if isinstance(request, SymbolicRequest):
            tokens, unit = request.symbols, SYMBOLS
            if len(tokens) != total // block_size * SYMBOLS:
                raise ValueError(f"{len(tokens)} symbols are not {SYMBOLS} for each of {total // block_size} blocks")
            if self._connector is not None:
                raise ValueError("an engine with a connector needs tokens, not symbols")
        else:
            tokens, unit = np.concatenate((request.prompt, request.answer)).astype(np.uint32, copy=False), block_size
            answered = request.answer.tolist()
        root = root_key(self.config.seed, block_size, request.lora, request.salt)
        keys = block_keys(tokens, unit, root)
        sequence = Sequence(request, keys, tokens, unit, lengths, -(-total // block_size), answered)
        self._sequences[request.id] = sequence
        self._waiting.append(sequence)

    def abort(self, request_id: str, now: float) -> bool:
        """Forget a request and free its blocks at once. False if it is not here (any more)."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is None:
            return False
        if not sequence.done:
            self.counters.aborted += 1
        if sequence in self._running:
            self._running.remove(sequence)
            self.cache.release(sequence.ids, sequence.held)
        else:
            self._waiting.remove(sequence)
        if self._connector is not None:
            self._connector.forget(request_id)
        return True

    def reset_prefix_cache(self, *, preempt: bool = False) -> bool:
        """Forget all cached blocks; `preempt` sends running sequences back to the queue for it. False if
        blocks are held. The next step's events tell it, before what that step stores.
        """
        if preempt:
            self._retire()
            while self._running:
                self._preempt(self._running.pop())
        return self.cache.clear()

    def snapshot(self) -> Snapshot:
        cache = self.cache
        return Snapshot(len(self._running), len(self._waiting), cache.used, cache.num_blocks, cache.cached)

    def tokens_to_go(self) -> int:
        """Tokens that the request nearest to its end still has to get: as many steps at least. 0 without requests."""
        return min((sequence.total - sequence.known for sequence in self._sequences.values()), default=0)

    def quiet(self) -> tuple[int, float]:
        """(steps, seconds): so many of the next steps at least only give each running sequence one token more, fill and
        take no block and finish nobody, and each takes at least so long. (0, 0.0): nothing of the kind can be said.
        """
        if self._waiting or not self._runs_ahead or not self._running:
            return 0, 0.0
        block = self.config.block_size
        steps, context = 1 << 40, 0
        for sequence in self._running:
            known = sequence.known
            if not sequence.decoding or sequence.done:
                return 0, 0.0
            full = (sequence.stored + 1) * block
            steps = min(steps, sequence.total - known - 1, full - known, sequence.held * block - known + 1)
            context += known
        cache, timing, count = self.cache, self.timing, len(self._running)
        if steps <= 0 or count > self.config.max_num_batched_tokens:
            return 0, 0.0
        ms = step_time.decode_ms(timing.form, count, context, cache.used * block, cache.num_blocks * block)
        return steps, float(ms) * timing.slow / timing.speedup / 1000.0

    def outlook(self, keys: Keys) -> Outlook:
        """What a request with these block keys would find here, by this engine's own keys; nothing changes."""
        cache, block = self.cache, self.config.block_size
        ids = np.empty(max((len(s.keys) for s in self._waiting), default=0) + len(keys), np.int32)
        left = sum(s.known - s.computed for s in self._running if not s.decoding)
        for waiting in self._waiting:
            left += waiting.known - cache.cached_prefix(waiting.keys, (waiting.known - 1) // block, ids) * block
        decoding = [s for s in self._running if s.decoding and not s.done]
        to_go = np.array([s.total - s.known for s in decoding], np.int64)
        context = sum(s.known for s in decoding)
        return Outlook(cache.cached_prefix(keys, len(keys), ids), left, context, cache.used, to_go)

    def step(self, now: float) -> StepResult | None:
        """End the last step and plan the next one, beginning at `now`. None if there is nothing to do."""
        connector = self._connector
        if connector is not None:
            connector.step_ended()
        self._retire()
        if not self._running and not self._waiting:
            return None
        budget = self.config.max_num_batched_tokens
        planned: list[Sequence] = []
        prefill, decodes, context, budget, preempted = self._plan_running(planned, budget)
        if self._waiting and not preempted:
            prefill += self._admit(planned, budget)
        block_size = self.config.block_size
        work = StepWork(prefill, decodes, context, self.cache.used * block_size, self.config.num_blocks * block_size)
        outputs = self._sample(planned)
        self.counters.steps += 1
        seconds = self.timing.step_seconds(work)
        events = self.cache.take_events()
        if connector is not None:
            seconds += connector.take_seconds()
            events += connector.take_events()
        return StepResult(seconds, outputs, events, work)

    def ahead(self, now: float, until: float) -> Ahead | None:
        """Like `step` again and again, as long as a step begins before `until` and all there is to do is to decode;
        at most 4,096 steps, and none after one that finishes a sequence. None: there is more to do, or nothing.

        The engine then looks as it does during the last of these steps, which ends at `ends[-1]`.
        """
        self._retire()
        running = self._running
        log = self._log
        count = len(running)
        if self._waiting or not running or log is None or count > self.config.max_num_batched_tokens:
            return None
        rows = np.empty((count, ahead.COLUMNS), np.int64)
        for place, sequence in enumerate(running):
            if not sequence.decoding:
                return None
            rows[place] = (
                sequence.computed,
                sequence.known,
                sequence.total,
                sequence.held,
                sequence.stored,
                *sequence.addresses,
            )
        timing, block_size = self.timing, self.config.block_size
        steps, logged, _finishes = ahead.decode_ahead(
            rows, block_size, timing.form, timing.slow, timing.speedup, now, until, *self.cache.arrays, self._ends, log
        )
        if not steps:
            return None
        finished: list[str] = []
        for sequence, (computed, known, _, held, stored, _, _) in zip(running, rows.tolist(), strict=True):
            sequence.computed, sequence.known, sequence.held, sequence.stored = computed, known, held, stored
            if known == sequence.total:
                reason = sequence.request.finish
                sequence.done = self._any_done = True
                self.counters.finished[reason] = self.counters.finished.get(reason, 0) + 1
                finished.append(sequence.request.id)
        self.counters.steps += steps
        self.counters.generation_tokens += steps * count
        ends = self._ends[:steps].copy()
        events = self._told(log[:logged].tolist(), ends) if logged and self.config.record_events else []
        return Ahead(ends, [sequence.request.id for sequence in running], finished, events)

    def _told(self, log: list[list[int]], ends: FloatArray) -> list[tuple[float, list[CacheEvent]]]:
        """What the cache would have told of a compiled run."""
        told: list[tuple[float, list[CacheEvent]]] = []
        last = -1
        for step, kind, value, first in log:
            if step != last:
                told.append((float(ends[step]), []))
                last = step
            if kind == ahead.REMOVED:
                told[-1][1].append(Removed(np.array([value], np.int64).view(np.uint64)))
                continue
            sequence = self._running[value]
            request, keys = sequence.request, sequence.keys
            span = sequence.tokens[first * sequence.unit : (first + 1) * sequence.unit]
            parent = int(keys[first - 1]) if first else None
            told[-1][1].append(Stored(keys[first : first + 1], parent, span, request.lora, request.salt))
        return told

    def _plan_running(self, planned: list[Sequence], budget: int) -> tuple[int, int, int, int, bool]:
        prefill = decodes = context = 0
        preempted = False
        block_size = self.config.block_size
        running = self._running
        i = 0
        while i < len(running) and budget > 0:
            sequence = running[i]
            computed = sequence.computed
            stop = sequence.known
            if stop - computed > budget:
                stop = computed + budget
            if stop > sequence.held * block_size:
                room, lost = self._make_room(sequence, stop)
                preempted = preempted or lost
                if not room:
                    break
            if sequence.decoding:
                decodes += 1
                context += stop
            else:
                prefill += stop - computed
                if self._connector is not None:
                    last = stop == sequence.known
                    self._connector.computed(cast("EngineRequest", sequence.request), sequence.tokens[:stop], last=last)
            budget -= stop - computed
            sequence.computed = stop
            if stop // block_size > sequence.stored:
                self._store(sequence, stop // block_size)
            planned.append(sequence)
            i += 1
        return prefill, decodes, context, budget, preempted

    def _make_room(self, sequence: Sequence, tokens: int) -> tuple[bool, bool]:
        """Room for `tokens` of a running sequence, if need be at the cost of the latest ones: (got it,
        preempted any).
        """
        lost = False
        while True:
            held = self.cache.grow(sequence.ids, sequence.held, tokens)
            if held >= 0:
                sequence.held = held
                return True, lost
            victim = self._running.pop()
            self._preempt(victim)
            lost = True
            if victim is sequence:
                return False, lost

    def _preempt(self, victim: Sequence) -> None:
        self.cache.release(victim.ids, victim.held)
        victim.held = victim.stored = victim.computed = 0
        victim.decoding = False
        self._waiting.appendleft(victim)
        self.counters.preemptions += 1

    def _admit(self, planned: list[Sequence], budget: int) -> int:
        """Let waiting sequences in; returns the prompt tokens that they compute in this step."""
        prefill = 0
        block_size = self.config.block_size
        while self._waiting and budget > 0 and len(self._running) < self.config.max_num_seqs:
            sequence = self._waiting[0]
            known = sequence.known
            hits = self.cache.lookup(sequence.keys, (known - 1) // block_size, sequence.ids, known)
            if hits < 0:
                break
            self._waiting.popleft()
            self._running.append(sequence)
            local = reused = hits * block_size
            connector = self._connector
            if connector is not None:
                tokens = sequence.tokens[:known]
                request = cast("EngineRequest", sequence.request)
                reused += connector.match(request, tokens, local, first=sequence.cached < 0)
            stop = min(known, reused + budget)
            sequence.held = self.cache.hold(sequence.ids, hits, stop)
            sequence.stored = hits
            sequence.computed = stop
            if sequence.cached < 0:
                sequence.cached = reused
                self.counters.cache_queries += known
                self.counters.cache_hits += local
            if connector is not None:
                connector.computed(cast("EngineRequest", sequence.request), sequence.tokens[:stop], last=stop == known)
            if stop // block_size > hits:
                self._store(sequence, stop // block_size)
            budget -= stop - reused
            prefill += stop - reused
            planned.append(sequence)
        return prefill

    def _store(self, sequence: Sequence, full: int) -> None:
        request = sequence.request
        ids, keys, tokens = sequence.ids, sequence.keys, sequence.tokens
        self.cache.store(ids, keys, sequence.stored, full, tokens, request.lora, request.salt, sequence.unit)
        sequence.stored = full

    def _sample(self, planned: list[Sequence]) -> list[Output]:
        """The tokens of all planned sequences that have caught up with what is known."""
        outputs = []
        for sequence in planned:
            known = sequence.known
            if sequence.computed < known:
                continue
            sequence.decoding = True
            position = known - sequence.prompt_len
            sequence.known = known = known + 1
            request = sequence.request
            finish = None
            if known == sequence.total:
                finish = request.finish
                sequence.done = self._any_done = True
                self.counters.finished[finish] = self.counters.finished.get(finish, 0) + 1
            if not position:
                self.counters.prompt_tokens += sequence.prompt_len
            answered = sequence.answered
            outputs.append(Output(request.id, position, answered[position] if answered else 0, finish, sequence.cached))
        self.counters.generation_tokens += len(outputs)
        return outputs

    def _retire(self) -> None:
        """Free what finished in the step that has ended."""
        if not self._any_done:
            return
        self._any_done = False
        still = []
        for sequence in self._running:
            if sequence.done:
                self.cache.release(sequence.ids, sequence.held)
                del self._sequences[sequence.request.id]
            else:
                still.append(sequence)
        self._running = still
