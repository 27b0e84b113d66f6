"""kvaware: a hit that holds nearly all of the prompt decides; else the fallback does, by name."""

from __future__ import annotations

import logging

import pytest

from router.model import Hints, Reason
from router.policies.kv_aware import announce
from router.policies.registry import make_policy
from router.policies.settings import PolicySettings
from tests.router.policies.build import fleet, request, rng


def test_the_worker_that_holds_most_serves() -> None:
    policy = make_policy("kvaware", PolicySettings())
    decision = policy.decide(request(100), fleet(3, device=[2, 5, 0], host=[0, 0, 6]), rng())
    assert (decision.worker, decision.reason, decision.mode) == ("w2", Reason.KV_HIT, "kvaware")


def test_equal_holders_are_told_apart_by_load() -> None:
    policy = make_policy("kvaware", PolicySettings())
    assert policy.decide(request(100), fleet(2, device=[5, 5], active_requests=[3, 1]), rng()).worker == "w1"


def test_a_hit_may_lack_the_threshold_and_not_a_token_more() -> None:
    policy = make_policy("kvaware", PolicySettings(kvaware_threshold=40))
    rows = fleet(2, device=[6, 0])
    assert policy.decide(request(100), rows, rng()).reason is Reason.KV_HIT
    assert policy.decide(request(101), rows, rng()).reason is not Reason.KV_HIT


@pytest.mark.parametrize(
    ("fallback", "reason"),
    [
        ("session", Reason.SESSION),
        ("round-robin", Reason.ROUND_ROBIN),
        ("least-loaded", Reason.LEAST_LOADED),
        ("power-of-two", Reason.POWER_OF_TWO),
        ("random", Reason.RANDOM),
        ("kv", Reason.TIE),
    ],
)
def test_without_a_hit_the_named_fallback_decides(fallback: str, reason: Reason) -> None:
    policy = make_policy("kvaware", PolicySettings(kvaware_fallback=fallback))
    decision = policy.decide(request(100, hints=Hints(session="s")), fleet(3), rng())
    assert (decision.reason, decision.mode) == (reason, "kvaware")
    assert decision.terms[0].name == "held"


def test_a_hit_on_a_worker_that_may_not_serve_is_none() -> None:
    policy = make_policy("kvaware", PolicySettings())
    decision = policy.decide(request(100), fleet(2, device=[9, 0], eligible=[0, 1]), rng())
    assert (decision.worker, decision.reason) == ("w1", Reason.LEAST_LOADED)


def test_hits_and_misses_are_logged_in_the_words_people_grep_for(caplog: pytest.LogCaptureFixture) -> None:
    policy = make_policy("kvaware", PolicySettings())
    with caplog.at_level(logging.DEBUG, "kvctl"):
        announce(policy.decide(request(100), fleet(2, device=[9, 0]), rng()))
        announce(policy.decide(request(100), fleet(2), rng()))
    assert [record.getMessage() for record in caplog.records] == [
        "Routing request to w0 found by kvaware router",
        "Matched instance url None",
    ]


def test_an_unknown_fallback_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="kvaware-fallback must be one of session"):
        PolicySettings(kvaware_fallback="prefixaware")


def test_deciding_without_placing_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "kvctl"):
        make_policy("kvaware", PolicySettings()).decide(request(100), fleet(2, device=[9, 0]), rng())
    assert not caplog.records
