"""The truth loop: what the engine reports, held against what its index had promised."""

from __future__ import annotations

import random

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from router.core import CoreSettings, RoutingCore
from router.events.wire import AllBlocksCleared, BlockRemoved, BlockStored
from router.fleet.worker import Health, KvState, Worker
from router.load import Booking
from router.metrics import RouterStats
from router.model import Decision, Degraded, RouteRequest, WorkerSpec
from router.policies.kv import KvWeights
from router.records import record, shown_trust
from router.reuse import best_cached_tokens
from router.room_metrics import TruthCollector
from router.truth import IndexTrust, TruthLoop, TruthSettings

B = 16
SETTINGS = TruthSettings(threshold=0.5, restored=0.8, weight=0.1, answers=10, backoff=10.0, longest_backoff=40.0)


class Asked:
    """A truth loop that notes whom it would resynchronise, and when."""

    def __init__(self) -> None:
        self.loop = TruthLoop(SETTINGS)
        self.resyncs: list[tuple[str, float]] = []
        self.now = 0.0
        self.loop.resync = lambda worker, _reason: self.resyncs.append((worker.id, self.now))
        self.core = RoutingCore(CoreSettings(seed=1))
        self.worker = self.core.fleet.add(WorkerSpec(url="http://a:1", id="a", ranks=2))

    def answers(self, count: int, promised: int, reported: int) -> None:
        for _ in range(count):
            self.loop.answered(self.worker, promised, reported, self.now)


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_confidence_is_the_exponential_mean_of_reported_over_promised(asked: Asked) -> None:
    for reported in (50, 0, 100):
        asked.answers(1, 100, reported)
    # 1 -> 1 + .1 (.5 - 1) = .95 -> .95 * .9 = .855 -> .855 + .1 (1 - .855) = .8695
    assert asked.loop.of(asked.worker).confidence == pytest.approx(0.8695)


def test_a_report_above_the_promise_counts_as_kept(asked: Asked) -> None:
    asked.answers(5, 100, 400)
    trust = asked.loop.of(asked.worker)
    assert (trust.confidence, trust.answers, trust.shortfalls) == (1.0, 5, 0)


def test_nothing_promised_is_nothing_to_judge(asked: Asked) -> None:
    asked.answers(50, 0, 0)
    assert asked.loop.of(asked.worker).answers == 0


def test_a_verdict_needs_enough_answers(asked: Asked) -> None:
    asked.answers(9, 100, 0)
    assert asked.loop.of(asked.worker).confidence < SETTINGS.threshold
    assert not asked.loop.of(asked.worker).distrusted
    asked.answers(1, 100, 0)
    assert asked.loop.of(asked.worker).distrusted


def test_a_few_shortfalls_among_kept_promises_change_nothing(asked: Asked) -> None:
    for _ in range(30):
        asked.answers(2, 100, 0)
        asked.answers(4, 100, 100)
    assert asked.resyncs == []
    assert asked.loop.factor is None


def test_distrust_resynchronises_at_once_and_then_at_doubled_intervals_up_to_the_longest(asked: Asked) -> None:
    for second in range(300):
        asked.now = float(second)
        asked.answers(10, 100, 0)
    assert asked.resyncs == [("a", 0.0), ("a", 10.0), ("a", 30.0), ("a", 70.0)] + [
        ("a", 110.0 + 40 * n) for n in range(5)
    ]


def test_the_factor_is_the_confidence_on_every_rank_and_one_elsewhere(asked: Asked) -> None:
    other = asked.core.fleet.add(WorkerSpec(url="http://b:1", id="b"))
    asked.answers(10, 100, 0)
    weights = asked.loop.weights(np.array([*asked.worker.slots, *other.slots]))
    assert weights is not None
    assert weights.tolist() == pytest.approx([0.9**10, 0.9**10, 1.0])
    assert asked.loop.weights(np.array(other.slots)) is None


def test_trust_comes_back_when_the_reports_agree_again(asked: Asked) -> None:
    asked.answers(10, 100, 0)
    kept = 0
    while asked.loop.of(asked.worker).distrusted:
        asked.answers(1, 100, 100)
        kept += 1
    # 1 - (1 - .9**10) .9**n >= .8 first for n = 12
    assert kept == 12
    assert asked.loop.factor is None
    assert len(asked.resyncs) == 1


@pytest.mark.parametrize(("before", "hint"), [(0, "--no-truth-loop"), (1, "KV-event sources")])
def test_the_log_names_the_worker_and_what_to_look_at(
    asked: Asked, caplog: pytest.LogCaptureFixture, before: int, hint: str
) -> None:
    asked.answers(before, 100, 100)
    asked.answers(15, 100, 0)
    (message,) = [record.getMessage() for record in caplog.records if record.name == "kvctl.truth"]
    assert message.startswith("Worker a: its engine reuses")
    assert hint in message


def test_a_new_process_starts_trusted(asked: Asked) -> None:
    asked.answers(10, 100, 0)
    asked.loop.forget(asked.worker)
    assert asked.loop.factor is None
    assert asked.loop.of(asked.worker).confidence == 1.0


def test_a_removed_worker_is_not_judged(asked: Asked) -> None:
    asked.core.fleet.remove("a")
    asked.answers(20, 100, 0)
    assert asked.resyncs == []


# -- in the core ---------------------------------------------------------------------------------------------------


def core(*names: str, kv: KvState = KvState.LIVE, **settings: object) -> RoutingCore:
    made = RoutingCore(CoreSettings(seed=1, **settings))  # type: ignore[arg-type]
    for name in names:
        worker = made.fleet.add(WorkerSpec(url=f"http://{name}:1", id=name))
        worker.health, worker.models, worker.kv = Health.UP, ("m",), kv
        worker.block_size, worker.capacity_blocks = B, 1000
    made.fleet.changed()
    made.add_slots()
    if made.truth is not None:
        made.truth.resync = lambda worker, reason: None
    return made


def tokens(*blocks: int) -> np.ndarray:
    return np.repeat(np.array(blocks, np.uint32), B)


class Placed:
    """A request that was decided and booked."""

    def __init__(self, made: RoutingCore, ids: np.ndarray, now: float = 0.0) -> None:
        self.made = made
        self.request = RouteRequest(id="r", model="m", prompt_tokens=len(ids), keys=made.keys_for(ids))
        self.decision: Decision = made.decide(self.request, "kv", now)
        self.booking: Booking = made.book(self.decision, self.request, now)
        self.worker: Worker = made.fleet.workers[self.decision.worker]

    def first_token(self, now: float = 0.0) -> None:
        self.made.first_token(self.booking, 0.1, now)

    def reports(self, cached: int, now: float = 0.0) -> None:
        self.made.reported(self.request, self.decision, self.booking, self.worker, cached, now)
        self.booking.release()


LATER = 100.0
"""After the grace time."""


def settled(made: RoutingCore, name: str = "a") -> IndexTrust:
    assert made.truth is not None
    made.truth.settle(LATER)
    return made.truth.of(made.fleet.workers[name])


def tell(made: RoutingCore, event: BlockRemoved | AllBlocksCleared) -> None:
    """As the feed does it."""
    if isinstance(event, AllBlocksCleared):
        made.forget(made.fleet.workers["a"], 0)
    else:
        made.apply(0, event)


def hashes(count: int, first: int = 100) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.uint64)


def answer(made: RoutingCore, ids: np.ndarray, cached: int, now: float = 0.0) -> Decision:
    placed = Placed(made, ids, now)
    placed.first_token(now)
    placed.reports(cached, now)
    return placed.decision


def test_the_promise_is_what_the_index_said_below_the_last_token() -> None:
    made = core("a")
    made.apply(0, BlockStored(hashes(3), None, tokens(1, 2, 3), B))
    answer(made, tokens(1, 2, 3), 32)  # 48 tokens held, 32 reusable
    trust = settled(made)
    assert (trust.answers, trust.shortfalls) == (1, 0)


def test_what_is_only_expected_is_not_judged() -> None:
    made = core("a", predict_ttl=5.0)
    running = Placed(made, tokens(1, 2, 3))
    sibling = answer(made, tokens(1, 2, 3, 4), 0)
    assert sibling.predicted_cached_tokens == 48
    assert settled(made).answers == 0
    running.booking.release()


@pytest.mark.parametrize("event", [BlockRemoved(hashes(3)), BlockRemoved(hashes(3), None), AllBlocksCleared()])
def test_blocks_given_up_before_the_first_token_explain_a_shortfall(event: BlockRemoved | AllBlocksCleared) -> None:
    made = core("a")
    made.apply(0, BlockStored(hashes(3), None, tokens(1, 2, 3), B))
    placed = Placed(made, tokens(1, 2, 3, 4))
    tell(made, event)
    placed.first_token()
    placed.reports(0)
    assert settled(made).answers == 0


@pytest.mark.parametrize("event", [BlockRemoved(hashes(3)), BlockRemoved(hashes(3), None), AllBlocksCleared()])
def test_so_do_blocks_told_as_given_up_within_the_grace_time(event: BlockRemoved | AllBlocksCleared) -> None:
    made = core("a")
    made.apply(0, BlockStored(hashes(3), None, tokens(1, 2, 3), B))
    answer(made, tokens(1, 2, 3, 4), 0)
    tell(made, event)
    assert settled(made).answers == 0


@pytest.mark.parametrize(
    ("cached", "gone", "shortfalls"),
    [(0, slice(0, 1), 0), (0, slice(1, 3), 1), (16, slice(1, 2), 0), (16, slice(0, 1), 1), (32, slice(2, 3), 0)],
)
def test_only_the_first_block_that_was_missing_explains_a_shortfall(cached: int, gone: slice, shortfalls: int) -> None:
    made = core("a")
    made.apply(0, BlockStored(hashes(3), None, tokens(1, 2, 3), B))
    answer(made, tokens(1, 2, 3, 4), cached)
    made.apply(0, BlockRemoved(hashes(3)[gone]))
    assert settled(made).shortfalls == shortfalls


def test_a_shortfall_counts_once_the_grace_time_is_over() -> None:
    made = core("a")
    made.apply(0, BlockStored(hashes(3), None, tokens(1, 2, 3), B))
    answer(made, tokens(1, 2, 3, 4), 0, now=5.0)
    assert made.truth is not None
    made.truth.settle(6.9)
    assert made.truth.of(made.fleet.workers["a"]).answers == 0
    made.truth.settle(7.0)
    assert made.truth.of(made.fleet.workers["a"]).shortfalls == 1
    made.apply(0, BlockRemoved(hashes(3)))
    assert made.truth.of(made.fleet.workers["a"]).shortfalls == 1


def test_blocks_that_another_worker_gave_up_explain_nothing() -> None:
    made = core("a", "b")
    for slot in (0, 1):
        made.apply(slot, BlockStored(hashes(3), None, tokens(1, 2, 3), B))
    placed = Placed(made, tokens(1, 2, 3, 4))
    other = 1 - placed.booking.slot
    placed.first_token()
    placed.reports(0)
    made.apply(other, BlockRemoved(hashes(3)))
    assert settled(made, placed.worker.id).shortfalls == 1


def distrusted(**settings: object) -> RoutingCore:
    """Worker `a` holds blocks 1 to 8, as its events say; its engine never finds them."""
    made = core("a", "b", **settings)
    made.apply(0, BlockStored(hashes(8), None, tokens(*range(1, 9)), B))
    for _ in range(10):
        answer(made, tokens(*range(1, 9), 99), 0)
    if made.truth is not None:
        made.truth.settle(LATER)
    return made


def test_a_distrusted_workers_overlap_counts_times_its_confidence_and_the_decision_says_so() -> None:
    made = distrusted()
    decision = Placed(made, tokens(*range(1, 9), 99)).decision
    assert decision.degraded == (Degraded.INDEX_DISTRUSTED,)
    assert decision.candidates.device.tolist() == [int(8 * 0.9**10), 0]
    rows = record(decision, KvWeights())["candidates"]
    assert [row["index_confidence"] for row in rows] == pytest.approx([0.9**10, 1.0])


def test_an_honest_worker_with_less_wins_over_a_distrusted_one_with_more() -> None:
    made = distrusted()
    made.apply(1, BlockStored(hashes(4), None, tokens(1, 2, 3, 4), B))
    assert Placed(made, tokens(*range(1, 9), 99)).worker.id == "b"


def test_a_distrusted_worker_goes_on_being_judged_by_its_whole_promise() -> None:
    made = distrusted()
    for _ in range(12):
        placed = Placed(made, tokens(*range(1, 9), 99))
        placed.decision.winner, placed.worker = 0, made.fleet.workers["a"]
        placed.reports(128, LATER)
    assert made.truth is not None
    assert made.truth.factor is None


def test_without_the_truth_loop_nothing_is_judged_and_nothing_loses_credit() -> None:
    made = distrusted(truth=None)
    decision = Placed(made, tokens(*range(1, 9), 99)).decision
    assert (decision.worker, decision.degraded) == ("a", ())
    assert decision.candidates.device.tolist() == [8, 0]


def test_a_policy_that_does_not_look_at_blocks_is_not_degraded_by_distrust() -> None:
    made = distrusted()
    ids = tokens(1, 2)
    assert made.decide(RouteRequest("r", "m", len(ids), made.keys_for(ids)), "random", 0.0).degraded == ()


def test_a_blind_workers_expectations_are_judged_once_nothing_there_is_in_flight() -> None:
    made = core("a", kv=KvState.NONE, approximate_ttl=120.0)
    first = Placed(made, tokens(1, 2, 3))
    answer(made, tokens(1, 2, 3, 4), 0)  # the sibling still runs: its blocks may not be there yet
    assert made.truth is not None
    assert made.truth.of(made.fleet.workers["a"]).answers == 0
    first.booking.release()
    answer(made, tokens(1, 2, 3, 5), 0)
    assert made.truth.of(made.fleet.workers["a"]).shortfalls == 1


def test_the_three_counters_of_cached_tokens() -> None:
    """Best eligible: the most that any worker had. Selected: what the choice had. Engine-reused: what it reports."""
    stats = RouterStats()
    made = core("a", "b")
    made.apply(0, BlockStored(hashes(8), None, tokens(*range(1, 9)), B))
    made.loads.book(0, 10_000, 0, None)
    decision = Placed(made, tokens(*range(1, 9), 99)).decision
    stats.decided(decision, best_cached_tokens(decision))
    stats.joined(decision.predicted_cached_tokens, 16)
    assert (stats.best_eligible_tokens, stats.selected_tokens, stats.engine_reused_tokens) == (128, 0, 16)


def test_confidence_and_resyncs_are_shown_and_exported() -> None:
    made = distrusted()
    assert made.truth is not None
    shown = shown_trust(made.truth.of(made.fleet.workers["a"]))
    assert shown == {
        "confidence": round(0.9**10, 4),
        "distrusted": True,
        "answers": 10,
        "shortfalls": 10,
        "resyncs": 1,
    }
    registry = CollectorRegistry()
    registry.register(TruthCollector(made.truth, made.fleet))
    labels = {"worker": "a"}
    assert registry.get_sample_value("kvctl_worker_index_confidence", labels) == pytest.approx(0.9**10)
    assert registry.get_sample_value("kvctl_worker_index_distrusted", labels) == 1
    assert registry.get_sample_value("kvctl_worker_index_resyncs_total", labels) == 1
    assert registry.get_sample_value("kvctl_worker_index_answers_total", labels | {"kept": "no"}) == 10
    assert registry.get_sample_value("kvctl_worker_index_confidence", {"worker": "b"}) == 1


@pytest.mark.parametrize(("late", "events_in_time"), [(0, True), (1, True), (4, True), (4, False)])
def test_events_that_come_late_are_no_reason_for_distrust(late: int, events_in_time: bool) -> None:
    """An engine that holds 8 of 25 prompts and evicts the least recently used; its events arrive so many requests
    after the answers, within the grace time or past it."""
    made, rng = core("a", predict_ttl=0.0), random.Random(late)
    held: dict[int, None] = {}
    told: list[list[BlockStored | BlockRemoved]] = []
    step = 0.1 if events_in_time else 1.0
    for number in range(600):
        now, name = number * step, rng.randrange(1, 26)
        ids = tokens(*range(100 * name, 100 * name + 5), 7)
        placed = Placed(made, ids, now)
        hit = 5 * B if name in held else 0
        placed.first_token(now)
        events: list[BlockStored | BlockRemoved] = []
        if not hit and len(held) == 8:
            gone = next(iter(held))
            del held[gone]
            events.append(BlockRemoved(hashes(5, 100 * gone)))
        if not hit:
            events.append(BlockStored(hashes(5, 100 * name), None, ids[: 5 * B], B))
        held.pop(name, None)
        held[name] = None
        told.append(events)
        placed.reports(hit, now)
        for event in told[number - late] if number >= late else []:
            made.apply(0, event)
    trust = settled(made)
    assert trust.answers > 100
    assert (trust.shortfalls > 0) == (not events_in_time)
    assert trust.resyncs == 0 or not events_in_time
