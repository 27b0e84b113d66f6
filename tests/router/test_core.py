"""From a request to a booked decision, without a network: overlap, predictions, loads, what is degraded."""

from __future__ import annotations

import numpy as np
import pytest

from router.core import CoreSettings, RoutingCore
from router.eligibility import BusyThresholds
from router.events.wire import BlockRemoved, BlockStored, Tier
from router.fleet.worker import Health, KvState, Worker
from router.load import Booking
from router.model import AllBusy, Decision, Degraded, NoWorkers, Reason, RouteRequest, WorkerSpec
from router.policies.kv import KvWeights
from router.policies.settings import PolicySettings
from router.reuse import reusable_tokens

B = 16


def core(*names: str, kv: KvState = KvState.LIVE, block_size: int = B, **settings: object) -> RoutingCore:
    made = RoutingCore(CoreSettings(seed=1, **settings))  # type: ignore[arg-type]
    for name in names:
        add(made, name, kv, block_size)
    return made


def add(made: RoutingCore, name: str, kv: KvState = KvState.LIVE, block_size: int = B) -> Worker:
    worker = made.fleet.add(WorkerSpec(url=f"http://{name}:1", id=name))
    worker.health, worker.models, worker.kv = Health.UP, ("m",), kv
    worker.block_size, worker.capacity_blocks = block_size, 1000
    made.fleet.check_block_sizes()
    made.add_slots()
    return worker


def tokens(*blocks: int, tail: int = 0) -> np.ndarray:
    return np.array([t for block in blocks for t in [block] * B] + [7] * tail, np.uint32)


def ask(made: RoutingCore, ids: np.ndarray, now: float = 0.0, mode: str = "kv", **fields: object) -> Decision:
    return made.decide(request(made, ids, **fields), mode, now)


def request(made: RoutingCore, ids: np.ndarray, **fields: object) -> RouteRequest:
    return RouteRequest(id="r", model="m", prompt_tokens=len(ids), keys=made.keys_for(ids), **fields)  # type: ignore[arg-type]


def store(made: RoutingCore, name: str, ids: np.ndarray, first_hash: int, tier: int = 0) -> None:
    count = len(ids) // B
    hashes = np.arange(first_hash, first_hash + count, dtype=np.uint64)
    made.index.store(made.fleet.workers[name].slots[0], tier, None, hashes, ids[: count * B], B)


@pytest.mark.parametrize(
    ("blocks", "prompt", "block_size", "expected"),
    [(100, 500, 32, 480), (100, 512, 32, 480), (100, 513, 32, 512), (3, 500, 32, 96), (5, 0, 16, 0), (1, 16, 16, 0)],
)
def test_an_engine_reuses_whole_blocks_below_the_last_token(
    blocks: int, prompt: int, block_size: int, expected: int
) -> None:
    assert reusable_tokens(blocks, prompt, block_size) == expected


def test_the_worker_that_holds_the_prefix_wins_and_the_hit_is_foretold() -> None:
    made = core("a", "b", "c")
    store(made, "b", tokens(1, 2, 3), 100)
    decision = ask(made, tokens(1, 2, 3, 4, tail=5))
    assert (decision.worker, decision.reason) == ("b", Reason.LOWEST_COST)
    assert decision.predicted_cached_tokens == 48
    assert decision.degraded == ()


def test_the_blocks_of_a_running_request_count_as_held_and_a_moment_longer() -> None:
    made = core("a", "b", predict_ttl=0.5)
    first = request(made, tokens(1, 2, 3))
    decision = made.decide(first, "kv", 0.0)
    booking = made.book(decision, first, 0.0)
    booking.prefill_done()
    again = ask(made, tokens(1, 2, 3, 4), now=100.0)
    assert (again.worker, again.predicted_cached_tokens) == (decision.worker, 48)
    booking.release()
    made.ended(booking, made.fleet.workers[decision.worker], 101.0)
    assert ask(made, tokens(1, 2, 3, 4), now=101.4).predicted_cached_tokens == 48
    assert ask(made, tokens(1, 2, 3, 4), now=101.6).predicted_cached_tokens == 0


def running(made: RoutingCore, ids: np.ndarray) -> Booking:
    """A request on worker `a` that has got its first token."""
    first = request(made, ids)
    booking = made.book(made.decide(first, "kv", 0.0), first, 0.0)
    booking.prefill_done()
    return booking


def end(made: RoutingCore, booking: Booking, now: float) -> None:
    booking.release()
    made.ended(booking, made.fleet.workers["a"], now)


def test_a_block_that_the_engine_gave_up_is_expected_no_longer() -> None:
    made = core("a", predict_ttl=5.0)
    ids, hashes = tokens(1, 2, 3, 4), np.arange(4, dtype=np.uint64)
    booking = running(made, ids)
    end(made, booking, 1.0)
    assert ask(made, tokens(1, 2, 3, 4, 5), now=1.1).predicted_cached_tokens == 64
    made.apply(booking.slot, BlockStored(hashes, None, ids, B))
    made.apply(booking.slot, BlockRemoved(hashes[2:]))
    assert ask(made, tokens(1, 2, 3, 4, 5), now=1.2).predicted_cached_tokens == 32
    made.apply(booking.slot, BlockRemoved(hashes[:1], Tier.HOST))
    assert ask(made, tokens(1, 2, 3, 4, 5), now=1.2).predicted_cached_tokens == 32


def test_blocks_that_were_given_up_before_the_answers_end_was_seen_are_not_expected() -> None:
    made = core("a", predict_ttl=5.0)
    ids, hashes = tokens(1, 2, 3, 4), np.arange(4, dtype=np.uint64)
    booking = running(made, ids)
    made.apply(booking.slot, BlockStored(hashes, None, ids, B))
    made.apply(booking.slot, BlockRemoved(hashes[2:]))
    end(made, booking, 1.0)
    assert ask(made, tokens(1, 2, 3, 4, 5), now=1.1).predicted_cached_tokens == 32


def test_what_the_engine_has_told_needs_no_expectation() -> None:
    made = core("a", predict_ttl=5.0)
    ids = tokens(1, 2)
    booking = running(made, ids)
    made.apply(booking.slot, BlockStored(np.arange(2, dtype=np.uint64), None, ids, B))
    end(made, booking, 1.0)
    assert len(made.predictions) == 0
    assert ask(made, tokens(1, 2, 3), now=100.0).predicted_cached_tokens == 32


def test_a_block_with_a_copy_left_is_still_expected() -> None:
    made = core("a", predict_ttl=5.0)
    ids, hashes = tokens(1, 2), np.arange(2, dtype=np.uint64)
    booking = running(made, ids)
    for _copy in range(2):
        made.apply(booking.slot, BlockStored(hashes, None, ids, B))
    end(made, booking, 1.0)
    made.apply(booking.slot, BlockRemoved(hashes))
    assert ask(made, tokens(1, 2, 3), now=1.1).predicted_cached_tokens == 32
    made.apply(booking.slot, BlockRemoved(hashes))
    assert ask(made, tokens(1, 2, 3), now=1.1).predicted_cached_tokens == 0


def test_a_request_that_was_never_computed_leaves_no_expectation() -> None:
    made = core("a", predict_ttl=0.5)
    first = request(made, tokens(1, 2, 3))
    booking = made.book(made.decide(first, "kv", 0.0), first, 0.0)
    booking.release()
    made.ended(booking, made.fleet.workers["a"], 1.0)
    assert ask(made, tokens(1, 2, 3, 4), now=1.1).predicted_cached_tokens == 0


def test_siblings_of_a_prefilling_request_join_it_until_their_own_parts_weigh_more() -> None:
    made = core("a", "b")
    prefix = tokens(*range(1, 21))
    workers = []
    for number in range(14):
        sibling = request(made, np.concatenate([prefix, tokens(1000 + number, 2000 + number)]))
        decision = made.decide(sibling, "kv", 0.0)
        made.book(decision, sibling, 0.0)
        workers.append(decision.worker)
    other = next(number for number, worker in enumerate(workers) if worker != workers[0])
    assert 4 <= other <= 8
    assert set(workers) == {"a", "b"}


def test_with_predictions_off_a_siblings_queue_is_a_strangers_queue() -> None:
    made = core("a", "b", predict_ttl=0.0)
    first = request(made, tokens(1, 2, 3, 4))
    decision = made.decide(first, "kv", 0.0)
    made.book(decision, first, 0.0)
    assert ask(made, tokens(1, 2, 3, 4)).worker != decision.worker


def test_a_worker_without_events_is_flagged_and_remembered_by_what_was_routed_there() -> None:
    made = core("a", "b", kv=KvState.NONE, approximate_ttl=120.0, predict_ttl=5.0)
    first = request(made, tokens(1, 2, 3))
    decision = made.decide(first, "kv", 0.0)
    made.book(decision, first, 0.0).release()
    assert decision.degraded == (Degraded.NO_KV_EVENTS,)
    assert ask(made, tokens(1, 2, 3, 4), now=100.0).worker == decision.worker
    assert ask(made, tokens(1, 2, 3, 4), now=121.0).predicted_cached_tokens == 0


def test_lost_events_are_flagged() -> None:
    assert ask(core("a", kv=KvState.LOST), tokens(1)).degraded == (Degraded.KV_EVENTS_LOST,)


def test_a_mode_that_needs_no_blocks_is_not_degraded_by_missing_events() -> None:
    assert ask(core("a", kv=KvState.NONE), tokens(1), mode="least-loaded").degraded == ()


def test_each_worker_is_matched_in_its_own_block_size() -> None:
    made = core("a", "b")
    add(made, "odd", block_size=32)
    ids = tokens(1, 1, 2, 2, 3)
    made.index.store(made.fleet.workers["odd"].slots[0], 0, None, np.array([5, 6], np.uint64), ids[:64], 32)
    store(made, "a", tokens(1), 100)
    decision = ask(made, ids)
    held = dict(zip(decision.candidates.workers, decision.candidates.device.tolist()))
    assert held == {"a": 1, "b": 0, "odd": 2}
    assert decision.worker == "odd"
    assert Degraded.BLOCK_SIZE_DIFFERS in decision.degraded


def test_a_forgotten_worker_holds_nothing() -> None:
    made = core("a", "b")
    store(made, "b", tokens(1, 2, 3), 100)
    made.forget(made.fleet.workers["b"])
    assert ask(made, tokens(1, 2, 3)).predicted_cached_tokens == 0


def test_a_removed_workers_slot_goes_to_a_newcomer_only_after_its_last_request() -> None:
    made = core("a")
    gone = made.fleet.workers["a"]
    placed = request(made, tokens(1, 2))
    booking = made.book(made.decide(placed, "kv", 0.0), placed, 0.0)
    made.fleet.remove("a")
    made.retire(gone)
    assert add(made, "b").slots != gone.slots
    booking.release()
    made.reclaim()
    newcomer = add(made, "c")
    assert newcomer.slots == gone.slots
    assert made.loads.active_requests.sum() == 0
    assert ask(made, tokens(1, 2), pin_worker="c").candidates.device.sum() == 0


def test_salted_prompts_share_nothing_with_plain_ones() -> None:
    made = core("a", "b")
    store(made, "b", tokens(1, 2, 3), 100)
    salted = RouteRequest("r", "m", 48, made.keys_for(tokens(1, 2, 3), salt="tenant"))
    assert made.decide(salted, "kv", 0.0).predicted_cached_tokens == 0


def test_nobody_eligible_is_an_error_that_says_why() -> None:
    made = core("a")
    made.fleet.workers["a"].health = Health.DOWN
    made.fleet.changed()
    with pytest.raises(NoWorkers, match="a: unhealthy"):
        ask(made, tokens(1))


def test_thresholds_can_be_changed_while_running() -> None:
    made = core("a")
    placed = request(made, tokens(1, 2))
    made.book(made.decide(placed, "kv", 0.0), placed, 0.0)
    made.thresholds = BusyThresholds(prefill_tokens=10)
    with pytest.raises(AllBusy):
        ask(made, tokens(1))


def test_a_lower_tier_counts_by_its_weight_and_is_foretold() -> None:
    made = core("a", "b", policies=PolicySettings(KvWeights(host_cache_hit_weight=0.5)))
    store(made, "a", tokens(1, 2, 3, 4), 100, tier=1)
    decision = ask(made, tokens(1, 2, 3, 4, tail=1))
    assert decision.candidates.host.tolist() == [4, 0]
    assert decision.terms[0].values.tolist() == [65 / 16 - 2.0, 65 / 16]
    assert decision.predicted_cached_tokens == 64


def test_the_same_seed_makes_the_same_decisions() -> None:
    def winners() -> list[str]:
        made = core("a", "b", "c", "d")
        return [ask(made, tokens(number)).worker for number in range(40)]

    assert winners() == winners()


def test_prompts_under_an_adapter_match_the_blocks_that_the_engine_stored_under_its_name() -> None:
    made = core("a", "b")
    ids = tokens(1, 2, 3)
    hashes = np.arange(3, dtype=np.uint64)
    made.index.store(made.fleet.workers["b"].slots[0], 0, None, hashes, ids, B, lora_name="tuned")
    plain = made.decide(RouteRequest("r", "m", 48, made.keys_for(ids)), "kv", 0.0)
    tuned = made.decide(RouteRequest("r", "m", 48, made.keys_for(ids, lora="tuned")), "kv", 0.0)
    assert (plain.predicted_cached_tokens, tuned.predicted_cached_tokens) == (0, 32)
    assert tuned.worker == "b"


def test_without_assumed_reuse_a_live_prefix_counts_again() -> None:
    made = core("a", assume_kv_reuse=False)
    first = request(made, tokens(1, 2, 3, 4))
    made.book(made.decide(first, "kv", 0.0), first, 0.0)
    rows = made.candidates(request(made, tokens(1, 2, 3, 4)), 0.0)
    assert (rows.decode_blocks.tolist(), rows.new_blocks.tolist()) == ([4], [4])


def test_what_was_learned_of_an_engines_pace_outlives_its_cache_and_not_the_engine() -> None:
    made = core("a", policies=PolicySettings(kv_cost="time"))
    worker, timing = made.fleet.workers["a"], made.timing
    assert timing is not None
    before = timing.prefill_seconds(worker.slots[0], 1000)
    for _ in range(20):
        timing.saw_prefill(worker.slots[0], 1000, 10 * before)
    learned = timing.prefill_seconds(worker.slots[0], 1000)
    assert learned > 5 * before
    made.forget(worker)
    made.reset()
    assert timing.prefill_seconds(worker.slots[0], 1000) == learned
    made.engine_gone(worker)
    assert timing.prefill_seconds(worker.slots[0], 1000) == before


def test_prefixaware_remembers_nothing_of_a_worker_whose_slot_another_has_now() -> None:
    made = core("a")
    ids = tokens(1, 2, 3)
    asked = request(made, ids)
    running = made.book(made.decide(asked, "prefixaware", 0.0), asked, 0.0)
    gone = made.fleet.remove("a")
    assert gone is not None
    made.retire(gone)
    running.release()
    made.reclaim()
    newcomer = add(made, "b")
    assert newcomer.slots == gone.slots
    assert ask(made, ids, mode="prefixaware").terms[0].values.tolist() == [0.0]
