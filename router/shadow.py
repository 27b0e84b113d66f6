"""Shadow policies: what other modes would have done with each request, without acting.

Each has its own policy object and its own chance; it sees the live state that the acting mode made, so figures say what
it would do next, not what the fleet would look like had it ruled for long. Winners are compared by the kv cost of both
rows, in blocks: positive means that the shadow's choice looked dearer. Cost of a shadow: one more decision a request.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from router.model import Decision, Degraded, Learns, Policy, RouteRequest
from router.policies.kv import Kv
from router.policies.registry import make_policy, mode_name
from router.policies.settings import PolicySettings
from router.reuse import reusable_tokens


@dataclass(slots=True)
class ShadowCounts:
    """Sums over the decisions that a shadow saw."""

    decisions: int = 0
    agreed: int = 0
    failed: int = 0
    cost_difference: float = 0.0
    """Blocks by kv's cost: shadow's winner less the acting mode's."""
    cached_difference: int = 0
    """Predicted cached tokens: shadow's winner less the acting mode's."""
    chosen: dict[str, int] = field(default_factory=dict)
    """Requests that each worker would have got."""


class Shadows:
    def __init__(self, modes: tuple[str, ...], settings: PolicySettings, seed: int | None) -> None:
        self._judge = Kv(settings.weights)
        self._rng = random.Random(None if seed is None else seed + 1)
        self._policies: dict[str, Policy] = {name: make_policy(name, settings) for name in map(mode_name, modes)}
        self.counts = {name: ShadowCounts() for name in self._policies}

    def saw(self, request: RouteRequest, acted: Decision) -> None:
        """A request was placed by the acting mode."""
        rows = acted.candidates
        cost = sum((term.values for term in self._judge.terms(request, rows)), np.zeros(len(rows)))
        for name, policy in self._policies.items():
            counts = self.counts[name]
            try:
                decision = policy.decide(request, rows, self._rng)
            except Exception:
                counts.failed += 1
                continue
            if Degraded.POLICY_FAILED in decision.degraded:
                counts.failed += 1
                continue
            if isinstance(policy, Learns):
                policy.placed(request, decision)
            mine, other = decision.winner, acted.winner
            counts.decisions += 1
            counts.agreed += mine == other
            counts.cost_difference += float(cost[mine] - cost[other])
            counts.cached_difference += _cached(acted, mine) - _cached(acted, other)
            worker = rows.workers[mine]
            counts.chosen[worker] = counts.chosen.get(worker, 0) + 1

    def dropped(self, worker: str, slots: tuple[int, ...]) -> None:
        """What the worker held on these slots is gone."""
        for policy in self._policies.values():
            if isinstance(policy, Learns):
                policy.dropped(worker, slots)

    def removed(self, worker: str) -> None:
        for counts in self.counts.values():
            counts.chosen.pop(worker, None)


def _cached(acted: Decision, row: int) -> int:
    rows = acted.candidates
    held = int(rows.device[row] + rows.host[row] + rows.disk[row] + rows.shared[row])
    return reusable_tokens(held, acted.prompt_tokens, int(rows.block_size[row]))
