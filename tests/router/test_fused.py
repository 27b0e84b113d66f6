"""The fused kv decision against the general path: the same rows, terms, winner, reason and draws, on random fleets."""

from __future__ import annotations

import random
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core import CoreSettings, RoutingCore
from router.eligibility import BusyThresholds
from router.fleet.worker import Health, KvState
from router.fused import FusedKv
from router.load import Booking
from router.model import Candidates, Decision, Hints, NoWorkers, Reason, RouteRequest, WorkerSpec
from router.policies.kv import KvWeights
from router.policies.settings import PolicySettings
from router.reuse import best_cached_tokens

B = 4
PROMPTS = [[a] * 8 + [b] * 8 + [c] * 9 for a in (1, 2) for b in (3, 4) for c in (5, 6)]
WEIGHTS: list[dict[str, Any]] = [
    {},
    {"overlap_score_credit": 0.7, "overlap_score_credit_decay": 0.5},
    {"decode_active_request_weight": 2.0, "prefill_load_scale": 0.3},
    {"track_prefill_tokens": False},
    {"host_cache_hit_weight": 0.6, "disk_cache_hit_weight": 0.1, "shared_cache_multiplier": 0.9},
]


def fleet(workers: int, weights: dict[str, Any] | None = None, **extra: Any) -> RoutingCore:
    policies = PolicySettings(weights=KvWeights(**(weights or {})), load_bound=extra.pop("load_bound", 1.25))
    core = RoutingCore(CoreSettings(seed=3, policies=policies, **extra))
    for number in range(workers):
        worker = core.fleet.add(WorkerSpec(url=f"http://w{number}:1", id=f"w{number}"))
        worker.health, worker.models, worker.kv = Health.UP, ("m",), KvState.LIVE
        worker.block_size, worker.capacity_blocks = B, 1000
    core.fleet.changed()
    core.add_slots()
    return core


def ask(core: RoutingCore, prompt: list[int], **said: Any) -> RouteRequest:
    keys = core.keys_for(np.array(prompt, np.uint32))
    return RouteRequest(id="r", model="m", prompt_tokens=len(prompt), keys=keys, **said)


def both(core: RoutingCore, request: RouteRequest, now: float) -> tuple[Decision, Decision]:
    """The fused decision and the general one, from the same state of chance; the core goes on with the first's."""
    state = core.rng.getstate()
    fused = core.decide(request, "kv", now)
    after = core.rng.getstate()
    core.rng.setstate(state)
    core._fuses = False
    general = core.decide(request, "kv", now)
    core._fuses = True
    assert core.rng.getstate() == after
    return fused, general


def assert_equal(fused: Decision, general: Decision) -> None:
    assert best_cached_tokens(fused) == best_cached_tokens(general)
    for spec in fields(Decision):
        if spec.name not in ("terms", "cost", "candidates"):
            assert getattr(fused, spec.name) == getattr(general, spec.name), spec.name
    assert fused.cost.tolist() == general.cost.tolist()
    assert [(term.name, term.unit, term.values.tolist()) for term in fused.terms] == [
        (term.name, term.unit, term.values.tolist()) for term in general.terms
    ]
    for spec in fields(Candidates):
        one, other = getattr(fused.candidates, spec.name), getattr(general.candidates, spec.name)
        if isinstance(other, np.ndarray):
            assert one.dtype == other.dtype
            assert one.tolist() == other.tolist(), spec.name
        else:
            assert one == other, spec.name


steps = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.integers(0, 8), st.sampled_from(PROMPTS), st.integers(0, 3), st.integers(1, 6)),
        st.tuples(st.just("book"), st.sampled_from(PROMPTS)),
        st.tuples(st.just("first token"), st.integers(0, 20)),
        st.tuples(st.just("end"), st.integers(0, 20)),
        st.tuples(st.just("later"), st.floats(0.0, 9.0)),
        st.tuples(st.just("down"), st.integers(0, 8)),
    ),
    max_size=25,
)


@settings(max_examples=120, deadline=None)
@given(
    st.integers(1, 9), st.sampled_from(WEIGHTS), st.sampled_from([5.0, 0.0]), st.sampled_from([0.0, 1.0, 1.25]), steps
)
def test_the_fused_decision_is_the_general_one_whatever_happened_before(
    workers: int, weights: dict[str, Any], predict_ttl: float, load_bound: float, happened: list[tuple[Any, ...]]
) -> None:
    core = fleet(workers, weights, predict_ttl=predict_ttl, load_bound=load_bound)
    hashes, now = iter(range(10**6)), 0.0
    open_bookings: list[tuple[Booking, Decision]] = []
    for what, *how in happened:
        if what == "store":
            number, prompt, tier, blocks = how
            told = np.array([next(hashes) for _ in range(blocks)], np.uint64)
            ids = np.array(prompt[: blocks * B], np.uint32)
            core.index.store(number % workers, tier, None, told, ids, B)
            core._lower_tiers |= tier > 0
        elif what == "book":
            request = ask(core, how[0])
            fused, general = both(core, request, now)
            assert_equal(fused, general)
            open_bookings.append((core.book(fused, request, now), fused))
        elif what == "first token" and open_bookings:
            core.first_token(open_bookings[how[0] % len(open_bookings)][0], 0.1, now)
        elif what == "end" and open_bookings:
            booking, decision = open_bookings.pop(how[0] % len(open_bookings))
            booking.release()
            core.ended(booking, core.fleet.workers[decision.worker], now)
        elif what == "later":
            now += how[0]
        elif what == "down" and how[0] % workers:
            core.fleet.workers[f"w{how[0] % workers}"].health = Health.DOWN
            core.fleet.changed()
    for prompt in (PROMPTS[0], PROMPTS[5][:7], [1], [9] * 40):
        assert_equal(*both(core, ask(core, prompt), now))


def test_hints_that_only_rule_workers_out_are_decided_the_same() -> None:
    core = fleet(5)
    for said in (
        {"pin_worker": "w3"},
        {"tried": frozenset({"w0", "w1"})},
        {"hints": Hints(allowed=frozenset({"w2", "w4"}))},
    ):
        assert_equal(*both(core, ask(core, PROMPTS[0], **said), 0.0))


def test_draws_among_equals_are_the_general_paths_draws() -> None:
    core = fleet(6)
    pairs = [both(core, ask(core, PROMPTS[0]), 0.0) for _ in range(40)]
    assert [fused.winner for fused, _ in pairs] == [general.winner for _, general in pairs]
    assert {fused.winner for fused, _ in pairs} == set(range(6))
    assert {fused.reason for fused, _ in pairs} == {Reason.TIE}


@pytest.mark.parametrize(
    "said",
    [
        {"weights": {"prefill_load_scale": 2.0}},
        {"hints": Hints(preferred_taints=(("a", 1.0),))},
        {"own_keys": {B: np.zeros(1, np.uint64)}},
    ],
)
def test_what_needs_more_takes_the_general_path(said: dict[str, Any]) -> None:
    core = fleet(2)
    assert FusedKv.applies(core.policy("kv"), ask(core, PROMPTS[0]), core.fleet.view)
    assert not FusedKv.applies(core.policy("kv"), ask(core, PROMPTS[0], **said), core.fleet.view)


def test_a_fleet_with_a_worker_that_tells_nothing_takes_the_general_path() -> None:
    core = fleet(2)
    core.fleet.workers["w1"].kv = KvState.NONE
    core.fleet.changed()
    assert not FusedKv.applies(core.policy("kv"), ask(core, PROMPTS[0]), core.fleet.view)


def test_a_busy_threshold_set_later_is_heeded() -> None:
    core = fleet(2, load_bound=0.0)
    request = ask(core, PROMPTS[0])
    decision = core.decide(request, "kv", 0.0)
    core.book(decision, request, 0.0)
    core.thresholds = BusyThresholds(prefill_tokens=1)
    assert core.decide(ask(core, PROMPTS[0]), "kv", 0.0).winner != decision.winner


def test_nobody_eligible_is_refused_with_the_reason() -> None:
    core = fleet(2)
    with pytest.raises(NoWorkers, match="already_tried"):
        core.decide(ask(core, PROMPTS[0], tried=frozenset({"w0", "w1"})), "kv", 0.0)


def test_a_worker_without_room_in_the_tables_is_an_error_and_no_wild_write() -> None:
    core = fleet(1)
    for number in range(200):
        worker = core.fleet.add(WorkerSpec(url=f"http://n{number}:1", id=f"n{number}"))
        worker.health, worker.models, worker.kv, worker.block_size = Health.UP, ("m",), KvState.LIVE, B
    core.fleet.changed()
    with pytest.raises(IndexError, match="add_slots"):
        core.decide(ask(core, PROMPTS[0]), "kv", 0.0)


def test_a_fleet_that_grows_past_the_first_tables_is_decided_alike() -> None:
    core = fleet(3)
    rng = random.Random(5)
    for number in range(150):
        worker = core.fleet.add(WorkerSpec(url=f"http://n{number}:1", id=f"n{number}"))
        worker.health, worker.models, worker.kv, worker.block_size = Health.UP, ("m",), KvState.LIVE, B
        core.fleet.changed()
        core.add_slots()
        prompt = rng.choice(PROMPTS)
        slot = rng.randrange(number + 1)
        core.index.store(slot, 0, None, np.arange(3, dtype=np.uint64) + number * 3, np.array(prompt[:12], np.uint32), B)
        if number % 10 == 9:
            core.index.clear(slot)
        fused, general = both(core, request := ask(core, prompt), float(number))
        assert_equal(fused, general)
        core.book(fused, request, float(number))
