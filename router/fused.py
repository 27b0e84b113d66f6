"""The kv decision in one compiled call, for the fleet and request that need nothing special.

Which those are, `FusedKv.applies` says; all others take the general path of `router.core` through `Candidates` and the
policy. Both give the same decision, to the last bit and draw of chance (`tests/router/test_fused.py`). Every row's
loads, overlaps and terms are kept as the general path keeps them.

Cost: about 10 us for an 8,192-token prompt over 64 workers; a third of it is the walk over the prompt's blocks.
"""

from __future__ import annotations

import random
from typing import TypeGuard

import numpy as np

from router.fleet.view import FleetView
from router.load import LoadTracker
from router.model import Candidates, Decision, IntArray, Policy, Reason, RouteRequest, Term
from router.policies.choice import under
from router.policies.kv import Kv
from router.prefix import rows as at
from router.prefix.index import PrefixIndex
from router.prefix.predict import Predictions
from router.reuse import reusable_tokens

_NOBODY: IntArray = np.zeros(0, np.int64)


class FusedKv:
    """Scratch memory of one core. `predicts`: live requests' blocks count as held."""

    def __init__(self, index: PrefixIndex, predictions: Predictions, loads: LoadTracker, *, predicts: bool) -> None:
        self._index = index
        self._predictions = predictions
        self._loads = loads
        self._predicts = predicts
        self._own: IntArray = _NOBODY
        self._view: FleetView | None = None
        self._rows: IntArray = _NOBODY
        self._result: IntArray = _NOBODY

    @staticmethod
    def applies(policy: Policy, request: RouteRequest, view: FleetView) -> TypeGuard[Kv]:
        """Whether the compiled call knows all that counts here. The core's settings are the caller's to look at."""
        return (
            type(policy) is Kv
            and not policy.weights.router_temperature
            and not view.blind
            and len(request.keys) == 1
            and not request.weights
            and request.own_keys is None
            and request.chunks is None
            and not request.hints.preferred_taints
        )

    def decide(
        self, request: RouteRequest, policy: Kv, view: FleetView, codes: IntArray, rng: random.Random, now: float
    ) -> Decision | None:
        """The decision; `codes` is what `eligibility.why_not` says. None if nobody is eligible."""
        if view is not self._view:
            self._look(view)
        may_serve = view.eligible(codes)
        loads, predictions = self._loads, self._predictions
        ((size, keys),) = request.keys.items()
        prompt, count = request.prompt_tokens, len(view.workers)
        expects = len(predictions) > 0
        if expects:
            predictions.expire(now)
        ints = np.empty((at.INTS, count), np.int64)
        floats = np.empty((at.FLOATS if policy.counts_requests else at.FLOATS - 1, count))
        result = self._result
        at.decide(
            self._index.where,
            loads.active.where,
            predictions.where,
            keys,
            self._index.inner,
            loads.pending.table,
            self._own,
            self._rows,
            may_serve,
            loads.prefills.tokens,
            loads.active_requests,
            policy.packed,
            prompt,
            size,
            self._predicts,
            expects,
            ints,
            floats,
            result,
        )
        eligible, winner, ties, best, in_flight = result[: at.TIED].tolist()
        if not eligible:
            return None
        reason = Reason.ONLY_CANDIDATE if eligible == 1 else Reason.LOWEST_COST
        if ties > 1:
            winner, reason = int(result[at.TIED + rng.randrange(ties)]), Reason.TIE
        device, host, disk, shared, prefill, own, decode, new, active, told = ints
        candidates = Candidates(
            view.workers,
            view.ranks,
            view.slots,
            may_serve,
            codes,
            device,
            host,
            disk,
            shared,
            prefill,
            own,
            decode,
            new,
            active,
            view.capacity_blocks,
            view.scoring_block_size,
            view.device_class,
            told=told,
        )
        cost = floats[at.COST]
        terms: tuple[Term, ...] = (
            Term("prefill", "blocks", floats[at.PREFILL_TERM]),
            Term("decode", "blocks", floats[at.DECODE_TERM]),
        )
        if policy.counts_requests:
            terms = (*terms, Term("active_requests", "blocks", floats[at.ACTIVE_TERM]))
        bound = policy.bound
        if bound is not None and eligible > 1 and active[winner] >= bound.most(in_flight, eligible):
            winner, reason = under(bound, winner, reason, cost, candidates, 0.0, rng)
        block = int(view.scoring_block_size[winner])
        held = int(device[winner] + host[winner] + disk[winner] + shared[winner])
        return Decision(
            policy.name,
            winner,
            reason,
            terms,
            cost,
            candidates,
            request_id=request.id,
            model=request.model,
            at=now,
            prompt_tokens=prompt,
            block_size=block,
            predicted_cached_tokens=reusable_tokens(held, prompt, block),
            best_cached_tokens=best,
        )

    def _look(self, view: FleetView) -> None:
        room = min(self._index.slots, self._predictions.slots, self._loads.slots)
        if len(view.slots) and int(view.slots.max()) >= room:
            raise IndexError(f"slot {view.slots.max()} has no room: RoutingCore.add_slots was not called")
        self._view = view
        self._rows = np.stack([view.slots, view.block_size])
        self._result = np.zeros(at.TIED + len(view.workers), np.int64)
        self._own = np.zeros(room, np.int64)
