"""prefixaware: follow the longest known beginning, unless its worker is too busy; forget the least recently used."""

from __future__ import annotations

import numpy as np

from router.model import Candidates, Reason, RouteRequest
from router.policies.prefix_aware import PrefixAware
from tests.router.policies.build import fleet, request, rng


def asks(*keys: int, now: float = 1.0) -> RouteRequest:
    return request(len(keys) * 10, keys={10: np.array(keys, np.uint64)}, now=now)


def send(policy: PrefixAware, rows: Candidates, asked: RouteRequest) -> tuple[str, Reason]:
    decision = policy.decide(asked, rows, rng())
    policy.placed(asked, decision)
    return decision.worker, decision.reason


def test_a_prompt_goes_where_its_beginning_went() -> None:
    policy = PrefixAware()
    first, why = send(policy, fleet(4), asks(1, 2, 3))
    assert why is Reason.LEAST_LOADED
    assert send(policy, fleet(4), asks(1, 2, 9)) == (first, Reason.KNOWN_PREFIX)


def test_the_longest_beginning_wins() -> None:
    policy = PrefixAware()
    send(policy, fleet(2, eligible=[1, 0]), asks(1))
    send(policy, fleet(2, eligible=[0, 1]), asks(1, 2))
    assert send(policy, fleet(2), asks(1, 2, 3)) == ("w1", Reason.KNOWN_PREFIX)


def test_among_equal_beginnings_the_least_busy_serves() -> None:
    policy = PrefixAware()
    for only in range(3):
        send(policy, fleet(3, eligible=[int(row == only) for row in range(3)]), asks(1, 2))
    rows = fleet(3, active_requests=[2, 1, 2])
    assert send(policy, rows, asks(1, 2))[0] == "w1"


def test_a_worker_above_the_bound_is_passed_over() -> None:
    """Of 8 in flight on 2 workers the bound is 1.25 * 9 / 2 = 5.6."""
    policy = PrefixAware()
    send(policy, fleet(2, eligible=[1, 0]), asks(1, 2))
    assert send(policy, fleet(2, active_requests=[5, 3]), asks(1, 2)) == ("w0", Reason.KNOWN_PREFIX)
    assert send(policy, fleet(2, active_requests=[6, 2]), asks(1, 2)) == ("w1", Reason.LEAST_LOADED)


def test_explaining_a_prompt_teaches_nothing() -> None:
    policy = PrefixAware()
    policy.decide(asks(1, 2), fleet(2), rng())
    assert policy.decide(asks(1, 2), fleet(2), rng()).reason is Reason.LEAST_LOADED


def test_a_removed_workers_prompts_are_forgotten() -> None:
    policy = PrefixAware()
    send(policy, fleet(2, eligible=[1, 0]), asks(1, 2))
    policy.dropped("w0", (0,))
    assert policy.decide(asks(1, 2), fleet(2), rng()).reason is Reason.LEAST_LOADED


def test_the_least_recently_used_prompt_is_forgotten_at_the_limit() -> None:
    policy = PrefixAware(limit=4)
    rows = fleet(2, eligible=[1, 0])
    send(policy, rows, asks(1, 2, now=1.0))
    send(policy, rows, asks(3, 4, now=2.0))
    send(policy, rows, asks(1, 2, now=3.0))
    send(policy, rows, asks(5, 6, now=4.0))
    assert policy.decide(asks(1, 2, now=5.0), fleet(2), rng()).reason is Reason.KNOWN_PREFIX
    assert policy.decide(asks(3, 4, now=5.0), fleet(2), rng()).reason is Reason.LEAST_LOADED


def test_a_beginning_below_the_least_match_is_not_followed() -> None:
    policy = PrefixAware(min_match_tokens=20)
    send(policy, fleet(2, eligible=[1, 0]), asks(1, 2))
    assert policy.decide(asks(1, 9), fleet(2), rng()).reason is Reason.LEAST_LOADED
    assert policy.decide(asks(1, 2, 9), fleet(2), rng()).reason is Reason.KNOWN_PREFIX
