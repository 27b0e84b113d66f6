"""Which requests may be sent twice, and how many retries there may be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.proxy.interface import Inbound
from router.retry import RetryBudget, RetrySettings, repeatable


def asked(method: str, path: str) -> bool:
    return repeatable(Inbound(method, path.encode(), path, [], b"", True, 0.0))


@pytest.mark.parametrize(
    "path", ["/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/embeddings", "/tokenize", "/rerank"]
)
def test_generation_and_other_computing_may_be_done_twice(path: str) -> None:
    assert asked("POST", path)


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches/b-1", "/v1/responses/r-1"])
def test_reading_may_be_done_twice(path: str) -> None:
    assert asked("GET", path)
    assert asked("HEAD", path)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/files"),
        ("POST", "/v1/batches"),
        ("POST", "/v1/fine_tuning/jobs"),
        ("POST", "/v1/load_lora_adapter"),
        ("POST", "/v1/completions/x"),
        ("DELETE", "/v1/files/f-1"),
        ("PUT", "/v1/completions"),
        ("DELETE", "/v1/responses/r-1"),
    ],
)
def test_what_may_leave_something_behind_is_not_done_twice(method: str, path: str) -> None:
    assert not asked(method, path)


def taken(budget: RetryBudget, requests: int, now: float) -> int:
    count = 0
    while count < 10_000 and budget.take(requests, now):
        count += 1
    return count


def test_requests_earn_their_share_of_retries() -> None:
    budget = RetryBudget(RetrySettings(share=0.2, floor=0))
    budget.left(0, 100.0)
    assert taken(budget, 1000, 101.0) == 200


def test_the_floor_allows_retries_of_a_quiet_router() -> None:
    budget = RetryBudget(RetrySettings(share=0.2, floor=10))
    assert taken(budget, 1, 0.0) == 100
    assert taken(budget, 1, 0.5) == 5


def test_an_empty_budget_counts_what_it_refuses() -> None:
    budget = RetryBudget(RetrySettings(share=0, floor=0))
    assert not budget.take(1000, 5.0)
    assert not budget.take(2000, 6.0)
    assert budget.exhausted == 2


def test_what_requests_earned_long_ago_is_gone() -> None:
    budget = RetryBudget(RetrySettings(share=0.2, floor=0))
    budget.left(1000, 0.0)
    assert taken(budget, 1000, 20.0) == 0


def test_a_long_time_without_retries_earns_no_more_than_ten_seconds_of_requests() -> None:
    budget = RetryBudget(RetrySettings(share=0.2, floor=0))
    budget.left(0, 0.0)
    assert taken(budget, 100 * 3600, 3600.0) == pytest.approx(200, abs=1)


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 200)), min_size=1, max_size=30))
def test_retries_never_exceed_what_was_earned_and_the_floor(course: list[tuple[float, int]]) -> None:
    settings = RetrySettings(share=0.2, floor=2)
    budget = RetryBudget(settings)
    now, requests, retries = 0.0, 0, 0
    for wait, more in course:
        now += wait
        requests += more
        retries += taken(budget, requests, now)
        assert retries <= settings.share * requests + settings.floor * (now + 10) + 1e-6
