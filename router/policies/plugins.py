"""A user's own policies: entry points of the group `kvctl.policies`, found by name when a mode asks for them.

An entry point is called with the `PolicySettings` and returns a policy. What it then does wrong (an exception, a row
that may not serve) costs one request its policy, never the request: the least loaded worker serves, the decision says
`policy_failed`, the metric counts it and the log has the error, at most once a minute.
"""

from __future__ import annotations

import logging
import operator
import random
from functools import cache
from importlib.metadata import EntryPoint, entry_points

import numpy as np

from router.model import (
    Candidates,
    Decision,
    Degraded,
    FloatArray,
    Learns,
    Need,
    Policy,
    Reason,
    RouteRequest,
    Term,
)
from router.policies.least_loaded import LeastLoaded
from router.policies.settings import PolicySettings

log = logging.getLogger("kvctl")

GROUP = "kvctl.policies"
_LOG_EVERY_S = 60.0


class PluginError(ValueError):
    """An entry point that cannot be loaded or is no policy; says which and why."""


@cache
def installed() -> dict[str, EntryPoint]:
    """Policies of installed packages by name, in lower case."""
    return {point.name.lower(): point for point in entry_points(group=GROUP)}


def load(point: EntryPoint, settings: PolicySettings) -> Policy:
    """Raises PluginError."""
    where = f"policy '{point.name}' ({point.value})"
    try:
        policy = point.load()(settings)
    except Exception as error:
        raise PluginError(f"{where} cannot be loaded: {type(error).__name__}: {error}") from error
    needs = getattr(policy, "needs", None)
    if not callable(getattr(policy, "decide", None)) or not isinstance(needs, set | frozenset) or not needs <= {*Need}:
        raise PluginError(f"{where} is no policy: it has to have needs (a set of Need) and decide()")
    return _GuardedLearner(point.name.lower(), policy) if isinstance(policy, Learns) else Guarded(point.name, policy)


class Guarded:
    """A plugin's policy behind a fence."""

    def __init__(self, name: str, policy: Policy) -> None:
        self.name = name.lower()
        self.needs = frozenset(policy.needs)
        self.policy = policy
        self._instead = LeastLoaded()
        self._said_at = -_LOG_EVERY_S

    def decide(self, request: RouteRequest, candidates: Candidates, rng: random.Random) -> Decision:
        try:
            decision = self.policy.decide(request, candidates, rng)
            _check(decision, candidates)
        except Exception as error:
            self.failed(request, error)
            decision = self._instead.decide(request, candidates, rng)
            decision.degraded += (Degraded.POLICY_FAILED,)
        decision.mode = self.name
        return decision

    def failed(self, request: RouteRequest, error: Exception) -> None:
        if request.now - self._said_at >= _LOG_EVERY_S:
            self._said_at = request.now
            log.error("Policy %s failed: %s: %s", self.name, type(error).__name__, error, exc_info=error)


def _check(decision: Decision, candidates: Candidates) -> None:
    """Makes plain numbers of what a plugin answered. Raises ValueError or TypeError where that is no decision."""
    rows = len(candidates)
    if not isinstance(decision, Decision):
        raise TypeError(f"decide() returned {type(decision).__name__}, not a Decision")
    if decision.candidates is not candidates:
        raise ValueError("its decision is about other candidates")
    if isinstance(decision.winner, bool | np.bool_):
        raise TypeError("the winner is the number of a row, not a truth value")
    decision.winner = operator.index(decision.winner)
    if not 0 <= decision.winner < rows or not candidates.eligible[decision.winner]:
        raise ValueError(f"it chose row {decision.winner}, which may not serve")
    decision.reason = Reason(decision.reason)
    decision.degraded = tuple(Degraded(flag) for flag in decision.degraded)
    decision.cost = _numbers(decision.cost, rows, "costs")
    decision.terms = tuple(
        Term(str(term.name), str(term.unit), _numbers(term.values, rows, f"values of the term '{term.name}'"))
        for term in decision.terms
    )


def _numbers(values: object, rows: int, what: str) -> FloatArray:
    numbers: FloatArray = np.asarray(values, np.float64)
    if numbers.shape != (rows,):
        raise ValueError(f"it gave {what} of the shape {numbers.shape} for {rows} rows")
    if np.isnan(numbers).any():
        raise ValueError(f"among its {what} is one that is no number")
    return numbers


class _GuardedLearner(Guarded):
    """The same for a policy that remembers."""

    def placed(self, request: RouteRequest, decision: Decision) -> None:
        assert isinstance(self.policy, Learns)
        try:
            self.policy.placed(request, decision)
        except Exception as error:
            self.failed(request, error)

    def dropped(self, worker: str, slots: tuple[int, ...]) -> None:
        assert isinstance(self.policy, Learns)
        try:
            self.policy.dropped(worker, slots)
        except Exception as error:
            log.error("Policy %s failed: %s: %s", self.name, type(error).__name__, error, exc_info=error)
