"""The end of a collection."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from checks.sources.deadline import Deadline, at_once


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_time_left_is_counted_down() -> None:
    clock = Clock()
    deadline = Deadline(10.0, clock=clock)
    clock.now = 4.0
    assert deadline.left() == 6.0
    assert deadline.why == ""


def test_it_says_that_the_timeout_ended_it() -> None:
    clock = Clock()
    deadline = Deadline(10.0, clock=clock)
    clock.now = 11.0
    assert deadline.left() == 0.0
    assert deadline.why == "--timeout of 10 s was over"


def test_the_first_reason_stays() -> None:
    deadline = Deadline(10.0)
    deadline.stop("one")
    deadline.stop("two")
    assert (deadline.why, deadline.left()) == ("one", 0.0)


def test_a_sleep_ends_with_the_deadline() -> None:
    deadline = Deadline(3600.0)
    threading.Timer(0.05, deadline.stop, ["enough"]).start()
    deadline.sleep(600.0)
    assert deadline.why == "enough"


def test_results_come_in_the_order_of_the_calls() -> None:
    def call(number: int) -> int:
        time.sleep(0.02 * (3 - number))
        return number

    calls = [lambda number=number: call(number) for number in range(4)]
    assert at_once(calls, threads=4, deadline=Deadline(60)) == [0, 1, 2, 3]


def test_progress_reaches_the_number_of_calls() -> None:
    told: list[int] = []
    at_once([lambda: 1] * 5, threads=2, deadline=Deadline(60), done=told.append)
    assert told[-1] == 5
    assert told == sorted(told)


def test_no_calls_give_no_results() -> None:
    assert at_once([], threads=2, deadline=Deadline(60)) == []


def test_ctrl_c_ends_the_deadline_and_keeps_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    import checks.sources.deadline as module

    real, struck = module.wait, []

    def wait(pending: object, timeout: float) -> object:
        if not struck:
            struck.append(True)
            raise KeyboardInterrupt
        return real(pending, timeout=timeout)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "wait", wait)
    deadline = Deadline(60)
    assert at_once([lambda: 1, lambda: 2], threads=1, deadline=deadline) == [1, 2]
    assert deadline.why == "interrupted with Ctrl-C"


def test_a_bounded_call_gives_its_result() -> None:
    assert Deadline(60).bounded(lambda: 7, lambda why: 0) == 7


def test_a_bounded_call_raises_what_it_raises() -> None:
    with pytest.raises(ZeroDivisionError):
        Deadline(60).bounded(lambda: 1 // 0, lambda why: 0)


def test_a_call_that_hangs_is_left_when_the_end_comes() -> None:
    deadline, free = Deadline(60), threading.Event()
    threading.Timer(0.05, deadline.stop, ["enough"]).start()
    assert deadline.bounded(free.wait, lambda why: why) == "enough"
    free.set()


def test_a_call_that_hangs_is_left_after_its_own_time() -> None:
    free = threading.Event()
    told = Deadline(60).bounded(free.wait, lambda why: why, within_s=0.05)
    free.set()
    assert told == "it took longer than 0.05 s"


@pytest.mark.parametrize(
    ("number", "why"), [(signal.SIGINT, "interrupted with Ctrl-C"), (signal.SIGTERM, "ended by SIGTERM")]
)
def test_a_signal_ends_it_and_the_handler_is_put_back(number: signal.Signals, why: str) -> None:
    before, deadline = signal.getsignal(number), Deadline(60)
    with deadline.signalled():
        signal.raise_signal(number)
        assert (deadline.why, deadline.left()) == (why, 0.0)
    assert signal.getsignal(number) is before


def test_the_second_ctrl_c_is_a_keyboard_interrupt() -> None:
    """With Python's own handler below; a shell starts background jobs with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), Deadline(60).signalled():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
