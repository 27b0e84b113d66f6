"""The queue's order, its shares and its limits."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.admission import (
    AdmissionQueue,
    AdmissionSettings,
    ClassSettings,
    Entry,
    Order,
    QueueFull,
    TenantLimit,
    Tenants,
    parse_class,
)
from router.model import Hints, RouteRequest


def queue(*classes: ClassSettings, limit: int = 2000) -> AdmissionQueue:
    return AdmissionQueue(AdmissionSettings(limit=limit, classes=classes))


def entry(name: str, cost: int = 100, arrived: float = 0.0, pin: str | None = None, **hints: object) -> Entry:
    request = RouteRequest(id=name, model="m", pin_worker=pin, hints=Hints(**hints))  # type: ignore[arg-type]
    return Entry(request, cost, arrived, None)


def served(waiting: AdmissionQueue, most: int = 1000) -> list[str]:
    order = []
    while len(order) < most and (head := waiting.next(set())) is not None:
        waiting.leave(head, served=True)
        order.append(head.request.id)
    return order


def test_fcfs_serves_in_the_order_of_arrival() -> None:
    waiting = queue()
    for name, arrived in (("b", 2.0), ("a", 1.0), ("c", 3.0)):
        waiting.enter(entry(name, arrived=arrived))
    assert served(waiting) == ["a", "b", "c"]


def test_a_level_of_priority_is_worth_a_second_of_waiting() -> None:
    waiting = queue()
    waiting.enter(entry("early", arrived=0.0))
    waiting.enter(entry("urgent", arrived=2.5, priority=3))
    waiting.enter(entry("hardly", arrived=2.5, priority=2))
    assert served(waiting) == ["urgent", "early", "hardly"]


def test_a_strict_priority_goes_before_everything() -> None:
    waiting = queue(ClassSettings("batch", quantum=1))
    waiting.enter(entry("first", priority=100))
    waiting.enter(entry("strict", arrived=9.0, cost=10_000, strict_priority=1, policy_class="batch"))
    assert served(waiting) == ["strict", "first"]


def test_wspt_serves_what_is_done_soonest_for_its_weight() -> None:
    """Costs over 1 + priority: 300, 200/1, 500/5: 100 first, then 200, then 300."""
    waiting = queue(ClassSettings("default", order=Order.WSPT))
    waiting.enter(entry("long", cost=300))
    waiting.enter(entry("short", cost=200))
    waiting.enter(entry("weighty", cost=500, priority=4))
    assert served(waiting) == ["weighty", "short", "long"]


def test_classes_share_the_turns_by_their_quanta() -> None:
    """Quanta 512 and 128, equal costs: four of five turns go to the first."""
    waiting = queue(ClassSettings("big", quantum=512), ClassSettings("small", quantum=128))
    for number in range(600):
        waiting.enter(entry(f"big {number}", policy_class="big"))
        waiting.enter(entry(f"small {number}", policy_class="small"))
    shares = Counter(name.split()[0] for name in served(waiting, most=320))
    assert 252 <= shares["big"] <= 260


def test_a_dear_request_of_a_small_class_is_served_in_the_end() -> None:
    waiting = queue(ClassSettings("big", quantum=512), ClassSettings("small", quantum=128))
    waiting.enter(entry("dear", cost=5000, policy_class="small"))
    for number in range(500):
        waiting.enter(entry(f"cheap {number}", cost=100, policy_class="big"))
    place = served(waiting).index("dear")
    assert 150 < place < 250


def test_a_class_that_was_not_set_up_is_the_default_one() -> None:
    waiting = queue()
    waiting.enter(entry("x", policy_class="invented"))
    assert list(waiting.depths()) == [("default", 1, 100)]


def test_a_blocked_lane_does_not_hold_up_the_others() -> None:
    waiting = queue()
    pinned = entry("pinned", pin="w1", arrived=0.0)
    waiting.enter(pinned)
    waiting.enter(entry("free", arrived=1.0))
    head = waiting.next({pinned.lane})
    assert head is not None
    assert head.request.id == "free"


def test_one_who_left_is_not_served() -> None:
    waiting = queue()
    gone = entry("gone")
    waiting.enter(gone)
    waiting.enter(entry("stays", arrived=1.0))
    waiting.leave(gone, served=False)
    waiting.leave(gone, served=False)
    assert len(waiting) == 1
    assert served(waiting) == ["stays"]


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (AdmissionSettings(limit=1), "queue-limit"),
        (AdmissionSettings(limit=9, classes=(ClassSettings("default", limit=1),)), "limit of class default"),
        (
            AdmissionSettings(limit=9, classes=(ClassSettings("default", token_limit=100),)),
            "token limit of class default",
        ),
    ],
)
def test_a_limit_refuses_by_name_value_and_current(settings: AdmissionSettings, name: str) -> None:
    waiting = AdmissionQueue(settings)
    waiting.enter(entry("in"))
    with pytest.raises(QueueFull) as full:
        waiting.enter(entry("out"))
    assert full.value.extra is not None
    assert full.value.extra["limit"] == name
    assert len(waiting) == 1


def test_a_tenant_may_have_so_many_and_no_more() -> None:
    tenants = Tenants(2)
    tenants.began("acme")
    tenants.check("acme")
    tenants.began("acme")
    with pytest.raises(TenantLimit, match="tenant-limit: limit 2, now 2"):
        tenants.check("acme")
    tenants.check("other")
    tenants.ended("acme")
    tenants.check("acme")


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 900), st.sampled_from(["a", "b", "c"])), max_size=60))
def test_counts_come_back_to_zero_and_everybody_is_served_once(steps: list[tuple[int, int, str]]) -> None:
    waiting = queue(ClassSettings("a", quantum=10), ClassSettings("b", quantum=700, order=Order.WSPT))
    inside: list[Entry] = []
    entered, done = 0, []
    for number, (action, cost, name) in enumerate(steps):
        if action < 2 or not inside:
            one = entry(str(number), cost=cost, arrived=float(number), policy_class=name)
            waiting.enter(one)
            inside.append(one)
            entered += 1
        elif action == 2:
            gone = inside.pop(cost % len(inside))
            waiting.leave(gone, served=False)
            done.append(gone.request.id)
        else:
            head = waiting.next(set())
            assert head in inside
            waiting.leave(head, served=True)
            inside.remove(head)
            done.append(head.request.id)
    done += served(waiting)
    assert sorted(done) == sorted(set(done))
    assert len(done) == entered
    assert [(requests, tokens) for _name, requests, tokens in waiting.depths()] == [(0, 0)] * 3


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("batch", ClassSettings("batch")),
        ("batch:order=wspt,quantum=64", ClassSettings("batch", Order.WSPT, 64)),
        ("x:limit=5,token-limit=900", ClassSettings("x", limit=5, token_limit=900)),
    ],
)
def test_a_class_is_read_from_its_option(text: str, settings: ClassSettings) -> None:
    assert parse_class(text) == settings


@pytest.mark.parametrize("text", ["", ":order=fcfs", "a:order=lifo", "a:quantum=0", "a:limit", "a:x=1"])
def test_a_class_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--queue-class"):
        parse_class(text)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("eeelmrbb"), st.integers(0, 30)), max_size=80))
def test_the_turn_is_always_the_first_waiting_entry_outside_the_blocked_lanes(steps: list[tuple[str, int]]) -> None:
    """Against a plain search: entries enter and leave, move to a home, and rounds block lanes one after another."""
    waiting = queue()
    inside: list[tuple[tuple[int, float, int], Entry]] = []
    blocked: set[tuple[object, ...]] = set()

    def expected() -> Entry | None:
        free = [item for item in inside if item[1].lane not in blocked]
        return min(free, key=lambda item: item[0])[1] if free else None

    for number, (action, value) in enumerate(steps):
        if action == "e":
            one = entry(str(number), arrived=float(value), pin=f"w{value % 4}", strict_priority=value % 2)
            waiting.enter(one)
            inside.append(((-(value % 2), float(value), number), one))
        elif action == "l" and inside:
            waiting.leave(inside.pop(value % len(inside))[1], served=bool(value % 2))
        elif action == "r":
            blocked = set()
        else:
            head = waiting.next(blocked)
            assert head is expected()
            if head is not None and action == "m":
                waiting.rehome(head, value % 3)
            if head is not None:
                blocked.add(head.lane)
        assert waiting.next(blocked) is expected()


def test_entries_that_left_are_not_kept_behind_one_who_stays() -> None:
    waiting = queue(ClassSettings("default", order=Order.WSPT))
    waiting.enter(entry("stays", cost=1, pin="w0"))
    for number in range(5000):
        one = entry(str(number), cost=100, pin=f"w{number % 50}")
        waiting.enter(one)
        waiting.leave(one, served=False)
    lanes = waiting._classes["default"].lanes
    assert sum(len(lane.heap) for lane in lanes.values()) < 100
