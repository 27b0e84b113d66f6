"""Who is registered, by a router's log: the last event counts, losses are counted in a window."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks.logs.ledger import Ledger, Registration, ledger
from checks.logs.patterns import Patterns
from checks.logs.read import read_log

STARTED = datetime(2026, 8, 1, 10, tzinfo=UTC).timestamp()


def registered(inst: str = "i", wid: int = 0, url: str = "10.0.0.1:8001") -> str:
    return f"Registered instance-worker ('{inst}', {wid}) with URL {url}"


def duplicate(inst: str = "i", wid: int = 0) -> str:
    return f"Instance-worker ('{inst}', {wid}) already registered, skip registration"


def deregistered(inst: str = "i", wid: int = 0) -> str:
    return f"Deregistered instance-worker ('{inst}', {wid})"


def reaped(inst: str = "i", wid: int = 0) -> str:
    return f"Worker {inst}_{wid} last heartbeat time: 1.0, current time: 40.0, more than 30 seconds"


def reregister(inst: str = "i", wid: int = 0) -> str:
    return f"('{inst}', {wid}) has not been registered, re-register the worker."


def aws(inst: str = "i") -> str:
    return f"Worker registered: {inst}"


def replay(*events: str | tuple[float, str], head_complete: bool = True) -> Ledger:
    """The ledger of a router's log with these messages; a pair stands at so many seconds, others have no timestamp."""
    lines = []
    for event in events:
        at, message = event if isinstance(event, tuple) else (None, event)
        kubelet = "" if at is None else datetime.fromtimestamp(STARTED + at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ ")
        lines.append(f"{kubelet}[2026-08-01 10:00:00,000] LMCache INFO: {message} (a.py:1:lmcache.b)")
    view = read_log("\n".join(lines), where="r", started_at=STARTED, patterns=Patterns.load())
    return ledger(replace(view, head_complete=head_complete))


def only(*events: str | tuple[float, str]) -> Registration:
    (one,) = replay(*events).registrations.values()
    return one


@pytest.mark.parametrize(
    ("events", "alive"),
    [
        ([registered()], True),
        ([aws()], True),
        ([duplicate()], True),
        ([registered(), duplicate()], True),
        ([registered(), deregistered()], False),
        ([registered(), reaped()], False),
        ([registered(), reaped(), deregistered()], False),
        ([registered(), deregistered(), registered()], True),
        ([registered(), reaped(), deregistered(), reregister(), registered()], True),
        ([deregistered()], False),
        ([reregister()], True),
    ],
)
def test_the_last_event_counts(events: list[str], alive: bool) -> None:
    assert only(*events).alive is alive


def test_each_rank_of_an_instance_stands_for_itself() -> None:
    book = replay(registered(wid=0), registered(wid=1), deregistered(wid=1))
    assert [one.worker_id for one in book.alive] == [0]
    assert [one.worker_id for one in book.lost] == [1]


def test_an_instance_id_with_underscores_and_digits_is_told_from_the_rank() -> None:
    book = replay(registered("engine_7_ab", 12), reaped("engine_7_ab", 12))
    assert list(book.registrations) == [("engine_7_ab", 12)]
    assert not book.alive


def test_the_address_is_that_of_the_last_registration() -> None:
    one = only(registered(url="10.0.0.1:8001"), deregistered(), registered(url="10.0.0.9:8002"))
    assert (one.ip, one.port) == ("10.0.0.9", 8002)


def test_events_without_an_address_keep_it() -> None:
    one = only(registered(url="10.0.0.1:8001"), duplicate(), reaped())
    assert (one.ip, one.port) == ("10.0.0.1", 8001)


def test_registrations_are_found_by_address_and_by_instance() -> None:
    book = replay(registered("a", 0, "10.0.0.1:1"), registered("a", 1, "10.0.0.1:2"), registered("b", 0, "10.0.0.2:1"))
    assert [one.name for one in book.at("10.0.0.1")] == ["a worker 0", "a worker 1"]
    assert [one.name for one in book.of_instance("b")] == ["b worker 0"]


def test_a_worker_whose_heartbeats_stayed_away_is_told_from_one_that_signed_off() -> None:
    assert only(registered(), reaped(), deregistered()).reaped
    assert not only(registered(), deregistered()).reaped


def test_a_worker_that_came_back_is_no_longer_reaped() -> None:
    assert not only(registered(), reaped(), registered()).reaped


def test_the_last_event_is_the_evidence() -> None:
    one = only((1, registered()), (40, reaped()))
    assert one.last.pattern == "lmcache-reaped"
    assert one.evidence.text == reaped()
    assert one.evidence.time.startswith("2026-08-01T10:00:40")


def test_aws_line_names_an_instance_without_a_rank() -> None:
    one = only(aws("inst-1"))
    assert (one.instance, one.worker_id, one.name) == ("inst-1", None, "inst-1")


def test_aws_line_beside_upstreams_is_not_a_second_registration() -> None:
    assert list(replay(aws(), registered(wid=0)).registrations) == [("i", 0)]
    assert list(replay(registered(wid=0), aws()).registrations) == [("i", 0)]


def test_aws_line_brings_a_lost_rank_back() -> None:
    assert only(registered(), deregistered(), aws()).alive


# Flapping.


def test_each_loss_after_a_registration_is_one_pair() -> None:
    one = only((0, registered()), (40, reaped()), (40, deregistered()), (50, registered()), (90, deregistered()))
    assert one.times_lost == (STARTED + 40, STARTED + 90)
    assert one.times_up == (STARTED, STARTED + 50)


def test_a_registration_of_a_worker_that_is_up_opens_no_new_pair() -> None:
    one = only((0, registered()), (1, registered()), (2, duplicate()), (40, deregistered()))
    assert one.times_up == (STARTED,)
    assert one.times_lost == (STARTED + 40,)


def test_a_loss_of_a_worker_that_was_never_seen_up_is_no_pair() -> None:
    assert only((0, deregistered())).times_lost == ()


@pytest.mark.parametrize(
    ("lost_at", "window", "most"),
    [
        ([], 600, 0),
        ([10], 600, 1),
        ([10, 610], 600, 2),
        ([10, 611], 600, 1),
        ([10, 100, 1000, 1100, 1200], 600, 3),
        ([10, 20, 30], 0, 1),
    ],
)
def test_losses_are_counted_in_the_busiest_window(lost_at: list[float], window: float, most: int) -> None:
    events: list[tuple[float, str]] = [(0, registered())]
    for at in lost_at:
        events += [(at, deregistered()), (at + 1, registered())]
    assert only(*events).most_losses(window) == most


def test_losses_without_a_time_count_as_near() -> None:
    assert only(registered(), deregistered(), registered(), deregistered()).most_losses(600) == 2


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3000), max_size=12, unique=True), st.integers(1, 1500))
def test_the_busiest_window_is_that_of_the_plain_count(seconds: list[int], window: int) -> None:
    times = sorted(seconds)
    one = replace(only(registered()), times_lost=tuple(float(time) for time in times))
    plain = max((sum(start <= time <= start + window for time in times) for start in times), default=0)
    assert one.most_losses(window) == plain


# What is not known.


def test_with_the_logs_beginning_the_ledger_is_complete() -> None:
    assert replay(registered(), head_complete=True).complete


def test_without_the_logs_beginning_others_may_be_registered() -> None:
    assert not replay(registered(), head_complete=False).complete


def test_a_ledger_whose_older_events_were_dropped_is_not_complete() -> None:
    view = read_log(registered(), where="r", started_at=None, patterns=Patterns.load())
    assert not ledger(replace(view, head_complete=True, dropped={"lmcache-registered": 3})).complete


def test_a_log_without_events_has_an_empty_ledger() -> None:
    book = replay("Starting pull request handler on 0.0.0.0:9000")
    assert not book.registrations
    assert book.complete
