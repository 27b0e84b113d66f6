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
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from bench.sim.connector import Connector
from bench.sim.kvcache import CacheEvent, Ids, KVCache, LowerTier
from bench.sim.timing import StepWork, Timing
from router.prefix.hashing import Keys, Tokens, block_keys, root_key


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes of one engine; the defaults are vLLM's. `seed` makes this engine's block hashes its own."""

    block_size: int = 16
    num_blocks: int = 16384
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int = 131072
    prefix_caching: bool = True
    record_events: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        sizes = {
            "block_size": self.block_size,
            "num_blocks": self.num_blocks,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "max_model_len": self.max_model_len,
        }
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} must be at least 1, not {size}")
        if self.max_model_len > self.num_blocks * self.block_size:
            raise ValueError(
                f"max_model_len {self.max_model_len} does not fit into {self.num_blocks} blocks of"
                f" {self.block_size} tokens ({self.num_blocks * self.block_size}): lower it or add blocks"
            )


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A prompt and the answer that it will get.

    `answer` is known beforehand (the simulated model is a function of the prompt), at least one token.
    `finish` is the reason given with the last one. `lora` and `salt` keep prompts apart in the cache.
    """

    id: str
    prompt: Tokens
    answer: Tokens
    finish: str = "length"
    lora: str | None = None
    salt: str | None = None


class Output(NamedTuple):
    """One generated token. `position` counts from 0; `finish` is set on the last; `cached` is the prompt
    tokens reused.
    """

    id: str
    position: int
    token: int
    finish: str | None
    cached: int


class StepResult(NamedTuple):
    """`duration` in seconds from the `now` of the step; outputs and events are those of its end."""

    duration: float
    outputs: list[Output]
    events: list[CacheEvent]
    work: StepWork


@dataclass(slots=True)
class Counters:
    """Totals since the engine was made. Cache queries and hits are tokens, counted at first admission."""

    steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    cache_queries: int = 0
    cache_hits: int = 0
    preemptions: int = 0
    aborted: int = 0
    finished: dict[str, int] = field(default_factory=dict)


class Snapshot(NamedTuple):
    running: int
    waiting: int
    used_blocks: int
    num_blocks: int
    cached_blocks: int


class _Sequence:
    """A request in the engine. `known` tokens exist, `computed` of them have KV; `stored` blocks are
    findable.
    """

    __slots__ = (
        "answered",
        "cached",
        "computed",
        "decoding",
        "done",
        "held",
        "ids",
        "keys",
        "known",
        "prompt_len",
        "request",
        "stored",
        "tokens",
        "total",
    )

    def __init__(self, request: EngineRequest, keys: Keys, tokens: Tokens, blocks: int) -> None:
        self.request = request
        self.keys = keys
        self.tokens = tokens
        self.prompt_len = len(request.prompt)
        self.total = len(tokens)
        self.ids: Ids = np.empty(blocks, np.int32)
        self.held = 0
        self.stored = 0
        self.computed = 0
        self.known = self.prompt_len
        self.answered: list[int] = request.answer.tolist()
        self.cached = -1
        self.decoding = False
        self.done = False


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
        self._sequences: dict[str, _Sequence] = {}
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self._any_done = False
        self._connector = connector

    def submit(self, request: EngineRequest, now: float) -> None:
        """Queue a request. `now` is not earlier than the last step's; the request takes part from the next
        step on.

        Raises:
            ValueError: the id is in use, or prompt and answer do not fit into the model's context.
        """
        if request.id in self._sequences:
            raise ValueError(f"request id {request.id} is in use")
        total = len(request.prompt) + len(request.answer)
        if not len(request.prompt) or not len(request.answer) or total > self.config.max_model_len:
            raise ValueError(
                f"a request needs a prompt, an answer and at most {self.config.max_model_len} tokens of both"
            )
        block_size = self.config.block_size
        tokens = np.concatenate((request.prompt, request.answer)).astype(np.uint32, copy=False)
        root = root_key(self.config.seed, block_size, request.lora, request.salt)
        keys = block_keys(tokens, block_size, root)
        sequence = _Sequence(request, keys, tokens, -(-total // block_size))
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

    def step(self, now: float) -> StepResult | None:
        """End the last step and plan the next one, beginning at `now`. None if there is nothing to do."""
        connector = self._connector
        if connector is not None:
            connector.step_ended()
        self._retire()
        if not self._running and not self._waiting:
            return None
        budget = self.config.max_num_batched_tokens
        planned: list[_Sequence] = []
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

    def _plan_running(self, planned: list[_Sequence], budget: int) -> tuple[int, int, int, int, bool]:
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
                    self._connector.computed(sequence.request, sequence.tokens[:stop], last=last)
            budget -= stop - computed
            sequence.computed = stop
            if stop // block_size > sequence.stored:
                self._store(sequence, stop // block_size)
            planned.append(sequence)
            i += 1
        return prefill, decodes, context, budget, preempted

    def _make_room(self, sequence: _Sequence, tokens: int) -> tuple[bool, bool]:
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

    def _preempt(self, victim: _Sequence) -> None:
        self.cache.release(victim.ids, victim.held)
        victim.held = victim.stored = victim.computed = 0
        victim.decoding = False
        self._waiting.appendleft(victim)
        self.counters.preemptions += 1

    def _admit(self, planned: list[_Sequence], budget: int) -> int:
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
                reused += connector.match(sequence.request, tokens, local, first=sequence.cached < 0)
            stop = min(known, reused + budget)
            sequence.held = self.cache.hold(sequence.ids, hits, stop)
            sequence.stored = hits
            sequence.computed = stop
            if sequence.cached < 0:
                sequence.cached = reused
                self.counters.cache_queries += known
                self.counters.cache_hits += local
            if connector is not None:
                connector.computed(sequence.request, sequence.tokens[:stop], last=stop == known)
            if stop // block_size > hits:
                self._store(sequence, stop // block_size)
            budget -= stop - reused
            prefill += stop - reused
            planned.append(sequence)
        return prefill

    def _store(self, sequence: _Sequence, full: int) -> None:
        request = sequence.request
        self.cache.store(
            sequence.ids, sequence.keys, sequence.stored, full, sequence.tokens, request.lora, request.salt
        )
        sequence.stored = full

    def _sample(self, planned: list[_Sequence]) -> list[Output]:
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
            outputs.append(Output(request.id, position, sequence.answered[position], finish, sequence.cached))
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
