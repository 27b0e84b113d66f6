"""How fast and how many at once."""

from __future__ import annotations

import threading

from checks.sources.pace import Pace


class Time:
    """A clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_the_burst_goes_at_once_and_the_rest_at_the_rate() -> None:
    time = Time()
    pace = Pace(concurrency=1, per_second=10.0, burst=3, clock=time.clock, sleep=time.sleep)
    for _ in range(5):
        with pace.turn():
            pass
    assert [round(wait, 6) for wait in time.slept] == [0.1, 0.1]


def test_a_pause_fills_the_burst_again() -> None:
    time = Time()
    pace = Pace(concurrency=1, per_second=10.0, burst=2, clock=time.clock, sleep=time.sleep)
    for _ in range(2):
        with pace.turn():
            pass
    time.now += 60.0
    for _ in range(2):
        with pace.turn():
            pass
    assert time.slept == []


def test_no_more_run_at_once_than_allowed() -> None:
    pace = Pace(concurrency=2, per_second=1e6, burst=100)
    inside, most, lock, gate = [0], [0], threading.Lock(), threading.Event()

    def work() -> None:
        with pace.turn():
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            gate.wait(0.05)
            with lock:
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert most[0] == 2
