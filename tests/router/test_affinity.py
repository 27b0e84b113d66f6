"""Session affinity: bindings live while a session runs and for its time to live after."""

from __future__ import annotations

import numpy as np
import pytest

from router.affinity import AffinityMode, AffinitySettings, SessionAffinity
from router.core import CoreSettings, RoutingCore
from router.eligibility import BusyThresholds
from router.fleet.worker import Health
from router.model import AllBusy, Hints, Reason, RouteRequest, WorkerSpec


def bound(affinity: SessionAffinity, session: str, now: float) -> str | None:
    found = affinity.target(session, now)
    return None if found is None else found.worker


def test_a_session_is_bound_until_it_was_idle_for_its_time_to_live() -> None:
    affinity = SessionAffinity(AffinitySettings(ttl=10))
    affinity.placed("s", "a", 0, now=0.0)
    affinity.ended("s", now=5.0)
    assert bound(affinity, "s", 14.9) == "a"
    assert bound(affinity, "s", 15.0) is None


def test_a_running_request_keeps_the_session_bound() -> None:
    affinity = SessionAffinity(AffinitySettings(ttl=10))
    affinity.placed("s", "a", 0, now=0.0)
    assert bound(affinity, "s", 1000.0) == "a"


def test_each_of_several_requests_must_end_before_the_session_is_idle() -> None:
    affinity = SessionAffinity(AffinitySettings(ttl=10))
    affinity.placed("s", "a", 0, now=0.0)
    affinity.placed("s", "a", 0, now=1.0)
    affinity.ended("s", now=2.0)
    assert bound(affinity, "s", 100.0) == "a"
    affinity.ended("s", now=101.0)
    assert bound(affinity, "s", 112.0) is None


def test_at_the_limit_the_session_that_was_used_longest_ago_goes() -> None:
    affinity = SessionAffinity(AffinitySettings(ttl=100, limit=2))
    for at, session in enumerate(("one", "two", "one", "three")):
        affinity.placed(session, "a", 0, now=float(at))
        affinity.ended(session, now=float(at))
    assert [bound(affinity, session, 5.0) for session in ("one", "two", "three")] == ["a", None, "a"]


@pytest.mark.parametrize("ttl", [0.0, -1.0, 4e7, float("nan")])
def test_a_time_to_live_out_of_range_is_refused(ttl: float) -> None:
    with pytest.raises(ValueError, match="session-affinity-ttl must be between"):
        AffinitySettings(ttl=ttl)


def core(mode: AffinityMode) -> RoutingCore:
    made = RoutingCore(
        CoreSettings(seed=1, affinity=AffinitySettings(60, mode), thresholds=BusyThresholds(prefill_tokens=100))
    )
    for name in ("a", "b", "c"):
        worker = made.fleet.add(WorkerSpec(url=f"http://{name}:1", id=name))
        worker.health, worker.models, worker.block_size = Health.UP, ("m",), 16
    made.fleet.changed()
    made.add_slots()
    return made


def ask(made: RoutingCore, now: float, tokens: int = 10) -> tuple[str, Reason]:
    request = RouteRequest(id="r", model="m", prompt_tokens=tokens, hints=Hints(session="s"))
    decision = made.decide(request, "round-robin", now)
    made.book(decision, request, now)
    return decision.worker, decision.reason


def test_a_bound_session_stays_in_any_mode() -> None:
    made = core(AffinityMode.HARD)
    first, _why = ask(made, 0.0)
    assert [ask(made, float(at)) for at in (1, 2, 3)] == [(first, Reason.AFFINITY)] * 3


def test_hard_a_busy_worker_refuses_its_session() -> None:
    made = core(AffinityMode.HARD)
    first, _why = ask(made, 0.0, tokens=101)
    with pytest.raises(AllBusy, match=f"bound to worker '{first}', which is busy"):
        ask(made, 1.0)


def test_soft_a_busy_workers_session_moves_and_stays_moved() -> None:
    made = core(AffinityMode.SOFT)
    first, _why = ask(made, 0.0, tokens=101)
    second, _why = ask(made, 1.0)
    assert second != first
    assert ask(made, 2.0) == (second, Reason.AFFINITY)


def test_a_session_whose_worker_died_is_bound_anew() -> None:
    made = core(AffinityMode.HARD)
    first, _why = ask(made, 0.0)
    made.fleet.workers[first].health = Health.DOWN
    made.fleet.changed()
    second, why = ask(made, 1.0)
    assert second != first
    assert why is not Reason.AFFINITY
    assert ask(made, 2.0) == (second, Reason.AFFINITY)


def test_the_record_of_a_bound_decision_still_shows_what_it_would_have_cost() -> None:
    made = core(AffinityMode.HARD)
    ask(made, 0.0)
    request = RouteRequest(
        id="r", model="m", prompt_tokens=32, hints=Hints(session="s"), keys={16: np.array([1, 2], np.uint64)}
    )
    decision = made.decide(request, "kv", 1.0)
    assert decision.reason is Reason.AFFINITY
    assert [term.name for term in decision.terms] == ["prefill", "decode"]
