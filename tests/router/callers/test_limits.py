"""A caller's limits: the window of a minute against a plain reference, and what refusals say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.callers.keys import Caller
from router.callers.limits import Account, CallerLimit, Window


class Reference:
    """All that was added, with the second of each."""

    def __init__(self) -> None:
        self.added: list[tuple[int, int]] = []

    def total(self, now: float) -> int:
        return sum(amount for second, amount in self.added if second > int(now) - 60)


@given(st.lists(st.tuples(st.floats(0, 40), st.integers(0, 100)), max_size=60))
def test_window_counts_the_last_sixty_seconds(steps: list[tuple[float, int]]) -> None:
    window, reference, now = Window(), Reference(), 1000.0
    for pause, amount in steps:
        now += pause
        reference.added.append((int(now), amount))
        window.add(amount, now)
        assert window.total == reference.total(now)


@given(
    st.lists(st.tuples(st.floats(0, 20), st.integers(1, 100)), min_size=1, max_size=30),
    st.integers(1, 300),
)
def test_after_the_time_it_names_so_much_is_free(steps: list[tuple[float, int]], wanted: int) -> None:
    window, now = Window(), 1000.0
    for pause, amount in steps:
        now += pause
        window.add(amount, now)
    before = window.total
    wait = window.frees(wanted, now)
    window.advance(now + wait + 1e-6)
    assert before - window.total >= min(wanted, before)
    assert 0 <= wait <= 60


def test_correction_upwards_counts_from_now_on() -> None:
    window = Window()
    second = window.add(10, 1000.0)
    window.correct(second, 90, 1055.0)
    assert window.total == 100
    window.advance(1061.0)
    assert window.total == 90


def test_correction_downwards_takes_back_what_was_charged() -> None:
    window = Window()
    second = window.add(100, 1000.0)
    window.correct(second, -70, 1030.0)
    assert window.total == 30


def test_correction_downwards_of_what_is_too_old_takes_back_nothing() -> None:
    window = Window()
    second = window.add(100, 1000.0)
    window.add(7, 1100.0)
    window.correct(second, -70, 1100.0)
    assert window.total == 7


def account(**limits: int) -> Account:
    return Account(Caller("a", bytes(32), "a", **limits))  # type: ignore[arg-type]


def test_request_past_the_limit_of_a_minute_is_refused_with_limit_value_and_current() -> None:
    mine = account(requests_per_minute=2)
    mine.enter(1000.0)
    mine.enter(1010.0)
    with pytest.raises(CallerLimit) as caught:
        mine.enter(1020.0)
    assert caught.value.status == 429
    assert caught.value.extra == {"limit": "requests-per-minute", "value": 2, "current": 2}
    assert caught.value.retry_after == 40


def test_refused_request_is_not_open() -> None:
    mine = account(requests_per_minute=1)
    mine.enter(1000.0)
    with pytest.raises(CallerLimit):
        mine.enter(1001.0)
    assert mine.open == 1


def test_concurrent_request_past_the_limit_is_refused_and_let_in_when_one_has_ended() -> None:
    mine = account(concurrent_requests=1)
    mine.enter(1000.0)
    with pytest.raises(CallerLimit, match="concurrent-requests: limit 1, now 1"):
        mine.enter(1000.0)
    mine.leave()
    mine.enter(1000.0)


def test_tokens_are_charged_by_estimate_and_settled_by_use() -> None:
    mine = account(tokens_per_minute=1000)
    charge = mine.charge(800, 1000.0)
    with pytest.raises(CallerLimit, match="limit 1000, now 800"):
        mine.charge(300, 1001.0)
    mine.settle(charge, 100, 1002.0)
    mine.charge(300, 1003.0)
    assert mine.tokens.total == 400


def test_request_that_alone_is_past_the_limit_is_told_so() -> None:
    with pytest.raises(CallerLimit, match="this request alone is expected to take 1001"):
        account(tokens_per_minute=1000).charge(1001, 1000.0)
