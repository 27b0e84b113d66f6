"""The routing core: a request in, a booked decision out. No I/O, no clock; the live server, `explain` and any replay
share it.

It owns the index of KV blocks, the predictions, the load tracker and the policies; whoever holds the core calls it
from one thread. Cost of a decision: one compiled walk over the prompt's blocks in each of index, predictions and live
blocks, then a few array expressions over the rows.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from router.affinity import SessionAffinity
from router.chunk_source import ChunkSource
from router.core_settings import ApproximatePolicy, CoreSettings
from router.eligibility import last_resort, refusal, slow_start, why_not
from router.engine_time import EngineTiming, PrefillModel
from router.events.cache_events import AllBlocksCleared, BlockMoved, BlockRemoved, Event, Tier
from router.fleet.registry import Fleet
from router.fleet.view import FleetView
from router.fleet.worker import Worker
from router.fused import FusedKv
from router.load import Booking, LoadTracker
from router.missing import missing
from router.model import (
    Candidates,
    Decision,
    Degraded,
    FloatArray,
    IntArray,
    Learns,
    Policy,
    Reason,
    RouteRequest,
)
from router.overlap import behind, shared_beyond
from router.policies.kv import Kv
from router.policies.registry import make_policy, mode_name
from router.prefix.active import ActiveBlocks
from router.prefix.capacity import CapacityLru, output_blocks
from router.prefix.hashing import Keys, Tokens
from router.prefix.index import PrefixIndex
from router.prefix.predict import Predictions
from router.reuse import reusable_tokens, weighted_blocks
from router.shared.blocks import SharedBlocks
from router.taints import taint_factor
from router.truth import TruthLoop

if TYPE_CHECKING:
    pass

__all__ = ["ApproximatePolicy", "ChunkSource", "CoreSettings", "RoutingCore"]

_LRU_ENTRY_BYTES = 128
FALLBACK_BLOCK_SIZE = 16
_LEAST_SHARE = 0.1


class RoutingCore:
    def __init__(self, settings: CoreSettings) -> None:
        self.settings = settings
        self.thresholds = settings.thresholds
        self.fleet = Fleet()
        self.hash_seed = int.from_bytes(os.urandom(8)) if settings.seed is None else settings.seed
        self.rng = random.Random(settings.seed)
        self.index = PrefixIndex(seed=self.hash_seed, limit_bytes=settings.index_limit)
        self.predictions = Predictions(ttl=max(settings.predict_ttl, 0.001))
        self.loads = LoadTracker(ActiveBlocks(), track_output=settings.track_output, shares=settings.assume_kv_reuse)
        timed = settings.time_model is not PrefillModel.NONE
        self.timing = EngineTiming(settings.time_model) if timed else None
        """Estimates of engines' times, where a setting asks for them."""
        self._predicts = settings.predict_ttl > 0
        self.capacity: CapacityLru | None = None
        if settings.approximate_policy is ApproximatePolicy.LRU:
            self.capacity = CapacityLru(max(settings.index_limit // _LRU_ENTRY_BYTES, 1))
        self.truth = None if settings.truth is None else TruthLoop(settings.truth)
        self._fused = FusedKv(self.index, self.predictions, self.loads, predicts=self._predicts)
        self._fuses = (
            not timed
            and settings.assume_kv_reuse
            and not settings.track_output
            and not settings.shared_cache
            and settings.affinity is None
        )
        """Whether these settings leave kv decisions to `router.fused` where a request does."""
        self.affinity = None if settings.affinity is None else SessionAffinity(settings.affinity)
        self._policies: dict[str, Policy] = {}
        self._learners: dict[str, Learns] = {}
        self.shared = SharedBlocks(self.hash_seed, settings.index_limit // 8) if settings.shared_cache else None
        """What events tell of a store that all workers share, where there is one."""
        self._lower_tiers = False
        self._retired: list[Worker] = []
        self.on_forgotten: list[Callable[[str, tuple[int, ...]], None]] = []
        """Told of a worker and its slots when what they held is gone."""
        self.chunks: ChunkSource | None = None
        """The LMCache controller, where one runs."""

    # -- the fleet ---------------------------------------------------------------------------------------------

    def add_slots(self) -> None:
        """Room for every slot the fleet has given out; call after `fleet.add`."""
        count = self.fleet.slot_count
        self.index.ensure_slots(count)
        self.predictions.ensure_slots(count)
        self.loads.ensure_slots(count)
        if self.capacity is not None:
            self.capacity.ensure_slots(count)
        if self.timing is not None:
            self.timing.ensure_slots(count)

    def forget(self, worker: Worker, rank: int | None = None) -> None:
        """Drops what is known and expected of a worker's cache; `engine_gone` where the engine itself is gone."""
        slots = worker.slots if rank is None else worker.slots[rank : rank + 1]
        for slot in slots:
            self.loads.given_up[slot] += self.index.blocks(slot)
            self.index.clear(slot)
            self.predictions.drop(slot)
            if self.truth is not None:
                self.truth.cleared(slot)
            if self.capacity is not None:
                self.capacity.drop(slot)
        for learner in self._learners.values():
            learner.dropped(worker.id, slots)
        for told in self.on_forgotten:
            told(worker.id, slots)

    def engine_gone(self, worker: Worker) -> None:
        """A worker's process died, or it was removed: what was learned of the engine itself goes as well."""
        self.forget(worker)
        if self.truth is not None:
            self.truth.forget(worker)
        if self.timing is not None:
            for slot in worker.slots:
                self.timing.forget(slot)

    def apply(self, slot: int, event: Event) -> None:
        """A KV event of a worker's. What the worker says it gave up on its device is expected there no longer.

        Raises:
            ValueError: the event contradicts itself.
        """
        self.index.apply(slot, event)
        if not self._lower_tiers and not isinstance(event, AllBlocksCleared | BlockRemoved):
            self._lower_tiers = isinstance(event, BlockMoved) or event.tier is not Tier.DEVICE
        if isinstance(event, BlockRemoved) and event.tier in (Tier.DEVICE, None) and len(self.index.gone):
            self.predictions.remove(slot, self.index.gone)
            if self.truth is not None:
                self.truth.removed(slot, self.index.gone)
            self.loads.given_up[slot] += len(self.index.gone)
        elif isinstance(event, BlockMoved) and event.source is Tier.DEVICE:
            self.loads.given_up[slot] += len(event.hashes)

    def retire(self, worker: Worker) -> None:
        """After `fleet.remove`: forget the worker, and give its slots back once its last request has ended."""
        self.engine_gone(worker)
        self._retired.append(worker)
        self.reclaim()

    def reclaim(self) -> None:
        still = []
        for worker in self._retired:
            if all(self.loads.idle(slot) for slot in worker.slots):
                self.engine_gone(worker)
                self.fleet.free_slots(worker.slots)
            else:
                still.append(worker)
        self._retired = still

    def reset(self) -> None:
        """Forgets every block, every prediction and what policies remember of prompts. Loads, sessions, engines' times
        and what an LMCache controller was told stay."""
        if self.shared is not None:
            self.shared.clear()
        for worker in self.fleet.workers.values():
            self.forget(worker)

    # -- a request ---------------------------------------------------------------------------------------------

    def keys_for(
        self, tokens: Tokens, lora: str | None = None, salt: str | None = None, media: str | None = None
    ) -> dict[int, Keys]:
        """Block keys of a prompt for each block size in the fleet, 16 where no worker has told its own yet."""
        sizes = self.fleet.view.block_sizes or (FALLBACK_BLOCK_SIZE,)
        return {size: self.index.keys(tokens, size, lora, salt, media) for size in sizes}

    def candidates(self, request: RouteRequest, now: float) -> Candidates:
        """The fleet as `request` sees it, who may serve it included."""
        view = self.fleet.view
        slots = view.slots
        prefill = self.loads.prefills.load(slots, now)
        own = view.zeros
        decode = self.loads.decode_blocks(slots)
        codes = why_not(request, view, self.thresholds, prefill, decode)
        if view.warming and request.pin_worker is None:
            codes = slow_start(codes, view, self.loads.active_requests[slots], self.warm_shares(view, now))
        device = host = disk = shared = told = view.zeros
        new_blocks = view.zeros
        for size, keys in request.keys.items():
            found = self.index.match(keys)
            if request.own_keys is not None:
                keys = request.own_keys[size]
            live = self.loads.active.shared_depth(keys)[slots] if self.settings.assume_kv_reuse else view.zeros
            overlap = says = found.device[slots]
            if self._predicts:
                overlap = np.maximum(overlap, live)
            expected = self._expected(keys, view, now)
            if expected is not None:
                overlap = np.maximum(overlap, expected)
                if view.blind:
                    says = np.where((view.no_events > 0) & (live < expected), expected, says)
            mine_queued = self.loads.pending.own_blocks(keys, self.fleet.slot_count) if self._predicts else None
            if mine_queued is not None:
                own = np.minimum(mine_queued[slots] * (view.block_size == size) * size + own, prefill)
            fresh = len(keys) - live
            if len(request.keys) == 1:
                device, told, new_blocks = overlap, says, fresh
                host, disk, shared = found.host[slots], found.disk[slots], found.external[slots]
                if self._lower_tiers:
                    host, disk, shared = behind(overlap, found, slots)
                continue
            mine = view.block_size == size
            device = np.where(mine, overlap, device)
            told = np.where(mine, says, told)
            its_host, its_disk, its_shared = behind(overlap, found, slots)
            host = np.where(mine, its_host, host)
            disk = np.where(mine, its_disk, disk)
            shared = np.where(mine, its_shared, shared)
            new_blocks = np.where(mine, fresh, new_blocks)
        trust = None if self.truth is None else self.truth.weights(slots)
        if trust is not None:
            device, host, disk, shared = ((blocks * trust).astype(np.int64) for blocks in (device, host, disk, shared))
        if request.chunks is not None and self.chunks is not None:
            host, disk = self.chunks.raised(request.chunks, view, device, host, disk)
        if self.shared is not None:
            shared = shared_beyond(request, view, self.shared, device + host + disk)
        times = None
        if self.timing is not None:
            times = self.timing.times(slots, self.loads.prefills.seconds(slots, now), request.hints.osl)
        return Candidates(
            workers=view.workers,
            ranks=view.ranks,
            slots=slots,
            eligible=view.eligible(codes),
            why_not=codes,
            device=device,
            host=host,
            disk=disk,
            shared=shared,
            prefill_tokens=prefill,
            own_prefill_tokens=own,
            decode_blocks=decode,
            new_blocks=new_blocks,
            active_requests=self.loads.active_requests[slots],
            capacity_blocks=view.capacity_blocks,
            block_size=view.scoring_block_size,
            device_class=view.device_class,
            taint_factor=taint_factor(request, view) if request.hints.preferred_taints else None,
            times=times,
            told=told,
            trust=trust,
        )

    def _expected(self, keys: Keys, view: FleetView, now: float) -> IntArray | None:
        """Blocks of a prompt that each row probably holds although no event says so; None if there are none."""
        found = self.predictions.match(keys, now)[view.slots] if len(self.predictions) else None
        if self.capacity is None or not view.blind:
            return found
        fits: IntArray = self.capacity.match(keys)[view.slots] * view.no_events
        return fits if found is None else np.maximum(found, fits)

    def decide(self, request: RouteRequest, mode: str, now: float) -> Decision:
        """Who should serve `request`. Books nothing.

        Raises:
            RoutingError: nobody may serve it (the message says which rule removed whom), or the request is at fault.
        """
        request.now = self.loads.now = now
        policy = self.policy(mode)
        if self._fuses and FusedKv.applies(policy, request, self.fleet.view):
            decision = self._decide_fused(request, policy, now)
            if decision is not None:
                return decision
        candidates = self.candidates(request, now)
        desperate = not np.count_nonzero(candidates.eligible)
        if desperate and not self._last_resort(request, candidates):
            error = refusal(
                request,
                self.fleet.view,
                candidates.why_not,
                self.thresholds,
                candidates.prefill_tokens,
                candidates.decode_blocks,
            )
            error.candidates = candidates
            raise error
        bound = None if self.affinity is None else self.affinity.row(request, candidates)
        decision = policy.decide(request, candidates, self.rng)
        if bound is not None:
            decision.winner, decision.reason = bound, Reason.AFFINITY
        winner = decision.winner
        block = int(candidates.block_size[winner])
        decision.request_id = request.id
        decision.model = request.model
        decision.at = now
        decision.prompt_tokens = request.prompt_tokens
        decision.block_size = block
        decision.degraded += missing(request, policy, candidates, self.fleet.view)
        if desperate:
            decision.degraded += (Degraded.LAST_RESORT,)
        if request.prompt_tokens:
            tiers = candidates.device, candidates.host, candidates.disk, candidates.shared
            held = int(sum(blocks[winner] for blocks in tiers))
            decision.predicted_cached_tokens = reusable_tokens(held, request.prompt_tokens, block)
        return decision

    def _last_resort(self, request: RouteRequest, candidates: Candidates) -> bool:
        """Lets in workers whose circuit is open, if that helps."""
        loads = candidates.prefill_tokens, candidates.decode_blocks
        codes = last_resort(request, self.fleet.view, candidates.why_not, self.thresholds, loads)
        if codes is not None:
            candidates.why_not, candidates.eligible = codes, codes == 0
        return codes is not None

    def warm_shares(self, view: FleetView, now: float) -> FloatArray:
        """What each row of `view.warming` may have of the others' mean load: from a tenth to all."""
        since = np.array([view.members[row].warm_since or 0.0 for row in view.warming])
        shares: FloatArray = np.clip((now - since) / max(self.settings.slow_start, 1e-9), _LEAST_SHARE, 1.0)
        return shares

    def _decide_fused(self, request: RouteRequest, policy: Kv, now: float) -> Decision | None:
        """None where the general path has to say why nobody is eligible, or knows more than the fused one."""
        view = self.fleet.view
        if self.thresholds.any or view.warming or (self.truth is not None and self.truth.factor is not None):
            return None
        codes = why_not(request, view, self.thresholds, view.zeros, view.zeros)
        decision = self._fused.decide(request, policy, view, codes, self.rng, now)
        if decision is not None:
            decision.degraded = missing(request, policy, decision.candidates, view)
        return decision

    def home(self, request: RouteRequest) -> tuple[str, int] | None:
        """The only (worker, dp rank) that may serve the request because its session is bound there, if it is."""
        return None if self.affinity is None else self.affinity.home(request, self.loads.now)

    def finished(self, request: RouteRequest, now: float) -> None:
        """A placed request has ended, in whatever way."""
        if self.affinity is not None:
            self.affinity.request_ended(request, now)

    def policy(self, mode: str) -> Policy:
        policy = self._policies.get(mode)
        if policy is None:
            name = mode_name(mode)
            policy = self._policies.setdefault(name, make_policy(name, self.settings.policies))
            if isinstance(policy, Learns):
                self._learners[name] = policy
        return policy

    def book(self, decision: Decision, request: RouteRequest, now: float) -> Booking:
        """Counts the request on the winner.

        As long as it runs its blocks count as held there (predict-on-route). Where no KV events will ever confirm
        them, they go on counting for `approximate_ttl`.
        """
        row = decision.winner
        candidates = decision.candidates
        slot = int(candidates.slots[row])
        keys = (request.own_keys or request.keys).get(decision.block_size)
        cached, weights = 0, self.settings.policies.weights
        if request.prompt_tokens and weights.track_prefill_tokens:
            held = int(candidates.device[row]), int(candidates.host[row]), int(candidates.disk[row])
            cached = int(weighted_blocks(*held, weights) * decision.block_size)
        elif request.prompt_tokens:
            cached = request.prompt_tokens
        uncached = max(request.prompt_tokens - cached, 0)
        booking = self.loads.book(
            slot,
            request.prompt_tokens,
            cached,
            keys,
            int(candidates.device[row]),
            expected_s=0.0 if self.timing is None else self.timing.prefill_seconds(slot, uncached),
            block_size=decision.block_size,
            expected_output=request.hints.osl,
        )
        if self.affinity is not None:
            self.affinity.request_placed(request, decision, now)
        if self._learners and (learner := self._learners.get(decision.mode)) is not None:
            learner.placed(request, decision)
        if request.chunks is not None and self.chunks is not None:
            self.chunks.placed(request.chunks, decision.worker)
        if keys is not None and len(keys):
            worker = self.fleet.view.members[row]
            blind = not worker.tells or Degraded.APPROXIMATE_TOKENS in request.degraded
            if blind and self.capacity is not None and not worker.tells and worker.capacity_blocks:
                self.capacity.touch(slot, keys, worker.capacity_blocks)
            elif blind and self.settings.approximate_ttl > 0:
                self.predictions.add(slot, keys, now, ttl=self.settings.approximate_ttl)
        return booking

    def first_token(self, booking: Booking, waited: float, now: float) -> None:
        """The first token of a booked request has come, `waited` seconds after it was placed."""
        booking.prefill_done(now)
        booking.given_up_by_then = int(self.loads.given_up[booking.slot])
        if self.timing is not None and booking.alone:
            self.timing.saw_prefill(booking.slot, booking.prefill, waited)

    def streamed(self, booking: Booking, gap_s: float, output_tokens: int) -> None:
        """A stream has ended well: the mean gap between its items, and how many tokens it had."""
        if self.timing is None:
            return
        slot = booking.slot
        blocks = int(self.loads.decode_blocks(np.array([slot]))[0])
        self.timing.saw_output(output_tokens)
        self.timing.saw_steps(slot, int(self.loads.active_requests[slot]), blocks, gap_s)

    def ended(self, booking: Booking, worker: Worker, now: float) -> None:
        """A released booking: where the engine's own word on its blocks is late, they count as held until it comes.

        An engine that gave up blocks in the meantime may have given up these: then nothing is expected. Where blocks
        are counted by capacity, the engine has let go of the prompt's and of those that the answer filled.
        """
        if self.capacity is not None and booking.computed and worker.capacity_blocks and not worker.tells:
            output = booking.output_tokens if booking.reported_output is None else booking.reported_output
            filled = output_blocks(booking.prompt_tokens, output, booking.block_size) if booking.block_size else 0
            self.capacity.touch(booking.slot, booking.keys, worker.capacity_blocks, filled)
            return
        ttl, slot, keys = self.settings.predict_ttl, booking.slot, booking.keys
        if not booking.computed or not len(keys) or ttl <= 0 or not worker.tells:
            return
        told = int(self.index.match(keys).device[slot]) >= len(keys)
        if not told and self.loads.given_up[slot] == booking.given_up_before:
            self.predictions.add(slot, keys, now, ttl=ttl)

    def reported(
        self, request: RouteRequest, decision: Decision, booking: Booking, worker: Worker, cached: int, now: float
    ) -> None:
        """The engine says how many tokens of a request's one prompt it found in its cache."""
        told, size = decision.candidates.told, decision.block_size
        if self.truth is None or told is None:
            return
        by_then = booking.given_up_by_then
        given_up = int(self.loads.given_up[booking.slot] if by_then is None else by_then) - booking.given_up_before
        blocks = max(int(told[decision.winner]) - given_up, 0)
        promised = reusable_tokens(blocks, decision.prompt_tokens, size)
        keys, first = request.keys.get(size), cached // size if size else 0
        missing = None
        if worker.tells and keys is not None and 0 <= first < len(keys):
            missing = booking.slot, int(keys[first])
        self.truth.answered(worker, promised, cached, now, missing)
