"""session: the ring holds sessions to workers, moves only a share when the fleet changes, and bounds the load."""

from __future__ import annotations

import numpy as np

from router.model import Candidates, Degraded, Hints, Reason
from router.policies.session import Session
from tests.router.policies.build import fleet, request, rng

MANY = [f"session-{n}" for n in range(2000)]


def place(policy: Session, rows: Candidates, session: str | None) -> str:
    return policy.decide(request(hints=Hints(session=session)), rows, rng()).worker


def test_a_session_always_goes_to_the_same_worker() -> None:
    rows = fleet(8)
    first = [place(Session(), rows, session) for session in MANY[:50]]
    assert [place(Session(), rows, session) for session in MANY[:50]] == first


def test_sessions_spread_over_the_workers() -> None:
    policy, rows = Session(), fleet(8)
    homes = [place(policy, rows, session) for session in MANY]
    counts = np.unique(homes, return_counts=True)[1]
    assert len(counts) == 8
    assert counts.min() > 0.5 * 250
    assert counts.max() < 1.5 * 250


def test_a_worker_that_leaves_moves_only_its_own_sessions() -> None:
    before, after = fleet(8), fleet(8)
    after.eligible[3] = False
    policy = Session()
    homes = {session: place(policy, before, session) for session in MANY}
    moved = [session for session in MANY if place(policy, after, session) != homes[session]]
    assert {homes[session] for session in moved} == {"w3"}


def test_a_worker_that_joins_takes_only_about_its_share() -> None:
    policy = Session()
    homes = {session: place(policy, fleet(7), session) for session in MANY}
    moved = [session for session in MANY if place(policy, fleet(8), session) != homes[session]]
    assert 0.5 / 8 < len(moved) / len(MANY) < 2 / 8
    assert {place(policy, fleet(8), session) for session in moved} == {"w7"}


def test_a_worker_above_the_bound_is_passed_over() -> None:
    """Of 8 in flight over 2 workers the bound is ceil(1.25 * 9 / 2) = 6: six in flight is too many, five is not."""
    policy = Session()
    home = place(policy, fleet(2), "s")
    mine = int(home[1])
    assert place(policy, fleet(2, active_requests=[6, 2] if mine == 0 else [2, 6]), "s") != home
    assert place(policy, fleet(2, active_requests=[5, 3] if mine == 0 else [3, 5]), "s") == home


def test_without_a_session_the_least_loaded_serves_and_the_decision_says_so() -> None:
    decision = Session().decide(request(), fleet(3, active_requests=[2, 1, 2]), rng())
    assert (decision.worker, decision.reason) == ("w1", Reason.LEAST_LOADED)
    assert decision.degraded == (Degraded.NO_SESSION,)


def test_the_dp_ranks_of_a_worker_share_its_sessions() -> None:
    rows = fleet(4)
    rows.workers, rows.ranks = ("a", "a", "b", "b"), (0, 1, 0, 1)
    policy = Session()
    homes = {policy.decide(request(hints=Hints(session=session)), rows, rng()).winner for session in MANY[:200]}
    assert homes == {0, 1, 2, 3}
