"""One mode of a replay: arrivals in virtual time, each decided, served and measured. Deterministic, no I/O, no clock.
Python's collector of cycles rests meanwhile: nothing here makes any.

Open-loop requests arrive when the schedule says; a turn that waits for an answer arrives its think time after that
answer's end, and finds every engine as it is then. Equal arrivals go in the order of the schedule.
"""

from __future__ import annotations

import gc
import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from bench.client.table import Table
from bench.client.timing import Events, Timing
from bench.replay.engines import Engines, Gaps, Tokens
from bench.replay.oracle import MODE as ORACLE
from bench.replay.oracle import Oracle
from bench.replay.prompts import Prompts
from bench.replay.routing import Place, VirtualRouter, WorkerSize
from bench.sim.engine import Engine, EngineConfig, SymbolicRequest
from bench.sim.kvcache import CacheEvent
from bench.sim.timing import Timing as EngineTiming
from router.core_settings import CoreSettings
from router.model import Need, RoutingError
from router.policies.registry import make_policy

_TELL_EVERY = 256


@dataclass(frozen=True, slots=True)
class FleetShape:
    """The engines: one timing each, all else alike. `config.seed` is that of every engine's block hashes."""

    config: EngineConfig
    timings: tuple[EngineTiming, ...]
    adapters: tuple[str, ...] = ()


@dataclass(slots=True)
class Replayed:
    """What one mode did. `table`: of each request, of its gaps only the longest; `predicted`: cached tokens that the
    router expected; `decided`: the worker of each request, -1 where it was not placed; `counts`: of router and engines.
    """

    mode: str
    table: Table
    predicted: list[int | None]
    gaps: Gaps
    decided: list[int]
    counts: dict[str, int] = field(default_factory=dict)


def replay(
    prompts: Prompts,
    fleet: FleetShape,
    mode: str,
    settings: CoreSettings,
    *,
    lag: float = 0.0,
    on_progress: Callable[[int], None] | None = None,
) -> Replayed:
    """Runs one mode over all requests.

    Args:
        prompts: with the fleet's block size.
        fleet: the engines.
        mode: as the registry spells it, or `oracle`.
        settings: of the core, with a seed.
        lag: seconds from the end of a step until its KV events are applied.
        on_progress: told how many requests have ended.
    """
    if settings.seed is None:
        raise ValueError("a replay needs a seed, or it could not be repeated")
    collects = gc.isenabled()
    gc.disable()
    try:
        return _Replay(prompts, fleet, mode, settings, lag, on_progress).run()
    finally:
        if collects:
            gc.enable()


class _Replay:
    """The audience of the engines, and the client."""

    def __init__(
        self,
        prompts: Prompts,
        fleet: FleetShape,
        mode: str,
        settings: CoreSettings,
        lag: float,
        on_progress: Callable[[int], None] | None,
    ) -> None:
        every = self._all = prompts.all
        config = fleet.config
        self._waiting = dict(prompts.waiting)
        self._unborn = sum(prompt.request.after is not None for prompt in every)
        self._context = config.max_model_len
        size = WorkerSize(
            config.num_blocks, config.block_size, config.max_num_batched_tokens, config.max_model_len, fleet.adapters
        )
        oracle = mode == ORACLE
        tells = oracle or needs_events(mode, settings)
        config = replace(config, record_events=tells)
        engines = [Engine(config, timing) for timing in fleet.timings]
        self._engines = Engines(engines, self, every_token=settings.track_output)
        chooser = Oracle(self._engines, {p.request.id: p.output for p in every}) if oracle else None
        self._router = VirtualRouter(settings, mode, [size] * len(engines), lag=lag, chooser=chooser)
        self._open: dict[str, tuple[int, Place]] = {}
        self._due = [(p.request.at, index) for index, p in enumerate(every) if p.request.after is None]
        heapq.heapify(self._due)
        self._on_progress = on_progress
        self._ended = 0
        count = len(every)
        self._result = Replayed(mode, Table(count), [None] * count, self._engines.gaps, [-1] * count)

    def run(self) -> Replayed:
        engines, due = self._engines, self._due
        while True:
            now = due[0][0] if due else math.inf
            if self._unborn:
                if engines.advance_to_end(now) is not None:
                    continue
            else:
                engines.advance(now)
            if not due:
                break
            while due and due[0][0] == now:
                self._arrive(heapq.heappop(due)[1], now)
            engines.start(now)
        counters = [member.engine.counters for member in engines.members]
        index = self._router.core.index.counters
        self._result.counts = {
            "engine_steps": engines.gaps.steps,
            "preemptions": sum(one.preemptions for one in counters),
            "blocks_stored": index.stored,
            "blocks_removed": index.removed,
            "orphan_stores": index.orphan_stores,
            "unknown_removals": index.unknown_removals,
        }
        return self._result

    def _arrive(self, index: int, now: float) -> None:
        prompt = self._all[index]
        request = prompt.request
        tokens = prompt.length + prompt.output
        if tokens > self._context:
            self._fail(index, now, "http_400", f"{tokens} tokens; the engines take {self._context}")
            return
        keys = prompt.symbols[: prompt.of_prompt]
        try:
            place = self._router.place(request.id, prompt.length, keys, request.session, prompt.lora, now)
        except RoutingError as error:
            self._fail(index, now, f"http_{error.status}", str(error))
            return
        self._open[request.id] = index, place
        self._result.decided[index] = place.worker
        if place.decision.prompt_tokens:
            self._result.predicted[index] = place.decision.predicted_cached_tokens
        submitted = SymbolicRequest(request.id, prompt.length, prompt.output, prompt.symbols, lora=prompt.lora)
        self._engines.submit(place.worker, submitted, now)

    # -- what the engines tell ---------------------------------------------------------------------------------

    def told(self, engine: int, at: float, events: list[CacheEvent]) -> None:
        self._router.told(engine, at, events)

    def tokens(self, engine: int, at: float, made: Tokens) -> None:
        index, place = self._open[made.id]
        router = self._router
        if made.first:
            router.first_token(place, made.begin, made.cached)
            place.first_at = made.begin
        router.generated(place, at, made.many)
        if not made.finished:
            return
        prompt = self._all[index]
        aborted = prompt.request.abort_after is not None and prompt.output < prompt.request.output_len
        router.ended(place, at, prompt.output, whole=not aborted)
        del self._open[made.id]
        sched = place.placed
        timing = Timing(
            sched, sched, sched, place.first_at, at, at, 200,
            worker=f"w{place.worker}", decision=place.decision.id, prompt_tokens=prompt.length,
            cached_tokens=place.cached, n_out=prompt.output, n_out_source="usage",
            events=Events(content=prompt.output), aborted=aborted,
            gaps=[made.stall] if prompt.output > 1 else [], abort_after=prompt.request.abort_after, t_over=at,
        )  # fmt: skip
        self._put(index, timing)

    # -- the client's side -------------------------------------------------------------------------------------

    def _fail(self, index: int, now: float, kind: str, detail: str) -> None:
        timing = Timing(now, now)
        timing.fail(now, kind, detail)
        self._put(index, timing)

    def _put(self, index: int, timing: Timing) -> None:
        ended = [(index, timing)]
        while ended:
            index, timing = ended.pop()
            self._result.table.put(index, timing)
            self._ended += 1
            if self._on_progress is not None and self._ended % _TELL_EVERY == 0:
                self._on_progress(self._ended)
            request = self._all[index].request
            for waiting in self._waiting.pop(request.id, ()):
                self._unborn -= 1
                follower = self._all[waiting].request
                due = timing.t_over + follower.think
                if not timing.ok and follower.session == request.session:
                    skipped = Timing(due)
                    skipped.fail(due, "previous_failed", "the turn before it failed, so it was not sent")
                    ended.append((waiting, skipped))
                else:
                    heapq.heappush(self._due, (due, waiting))


def needs_events(mode: str, settings: CoreSettings) -> bool:
    """Whether a mode asks what workers hold; else no KV events are made, as no decision depends on them."""
    return Need.BLOCKS in make_policy(mode, settings.policies).needs


def speeds(timing: EngineTiming, factors: Sequence[float], workers: int) -> tuple[EngineTiming, ...]:
    """A timing for each of `workers`, `factors` in turn: 2 is twice as fast."""
    return tuple(replace(timing, slow=timing.slow / factors[i % len(factors)]) for i in range(workers))
