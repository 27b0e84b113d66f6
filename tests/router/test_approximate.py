"""Workers without KV events: what was routed there counts as held, by time or by capacity."""

from __future__ import annotations

import numpy as np
import pytest

from router.core import ApproximatePolicy, CoreSettings, RoutingCore
from router.events.wire import BlockStored
from router.fleet.worker import Health, KvState, Worker
from router.load import Booking
from router.model import Degraded, RouteRequest, WorkerSpec

B = 16


def core(*names: str, capacity: int = 8, kv: KvState = KvState.NONE, **settings: object) -> RoutingCore:
    made = RoutingCore(CoreSettings(seed=1, approximate_policy=ApproximatePolicy.LRU, **settings))  # type: ignore[arg-type]
    for name in names:
        add(made, name, capacity, kv)
    return made


def add(made: RoutingCore, name: str, capacity: int = 8, kv: KvState = KvState.NONE, ranks: int = 1) -> Worker:
    worker = made.fleet.add(WorkerSpec(url=f"http://{name}:1", id=name, ranks=ranks))
    worker.health, worker.models, worker.kv = Health.UP, ("m",), kv
    worker.block_size, worker.capacity_blocks = B, capacity
    made.fleet.changed()
    made.add_slots()
    return worker


def tokens(*blocks: int) -> np.ndarray:
    return np.repeat(np.array(blocks, np.uint32), B)


def request(made: RoutingCore, ids: np.ndarray, **fields: object) -> RouteRequest:
    return RouteRequest("r", "m", len(ids), made.keys_for(ids), **fields)  # type: ignore[arg-type]


def start(made: RoutingCore, ids: np.ndarray, now: float = 0.0, **fields: object) -> Booking:
    asked = request(made, ids, **fields)
    booking = made.book(made.decide(asked, "kv", now), asked, now)
    made.first_token(booking, 0.1, now)
    return booking


def end(made: RoutingCore, booking: Booking, output: int | None = None, now: float = 0.0) -> None:
    booking.reported_output = output
    booking.release(now)
    worker = next(worker for worker in made.fleet.workers.values() if booking.slot in worker.slots)
    made.ended(booking, worker, now)


def serve(made: RoutingCore, ids: np.ndarray, output: int | None = None, now: float = 0.0, **fields: object) -> None:
    end(made, start(made, ids, now, **fields), output, now)


def held(made: RoutingCore, ids: np.ndarray, now: float = 0.0) -> list[int]:
    return made.decide(request(made, ids), "kv", now).candidates.device.tolist()


def test_what_was_sent_there_counts_as_held_however_long_ago() -> None:
    made = core("a")
    serve(made, tokens(1, 2, 3))
    assert held(made, tokens(1, 2, 3, 4), now=1e6) == [3]


def test_what_no_longer_fits_does_not_count() -> None:
    made = core("a", capacity=8)
    for first in (10, 20, 30):
        serve(made, tokens(first, first + 1, first + 2))
    assert [held(made, tokens(*range(first, first + 3))) for first in (10, 20, 30)] == [[2], [3], [3]]


def test_output_takes_its_room_one_token_late() -> None:
    made = core("a", capacity=5)
    serve(made, tokens(1, 2))
    serve(made, tokens(11, 12), output=16)  # 47 tokens in the cache: no block of output
    assert held(made, tokens(1, 2)) == [2]
    serve(made, tokens(11, 12), output=17)  # 48: one block
    assert held(made, tokens(1, 2)) == [2]
    serve(made, tokens(21), output=17)
    assert held(made, tokens(1, 2)) == [0]


def test_counted_items_stand_in_where_the_engine_reports_no_output() -> None:
    made = core("a", capacity=4)
    booking = start(made, tokens(1, 2))
    booking.generated(33)
    end(made, booking, output=None)
    assert made.capacity is not None
    assert made.capacity.held(0) == 4


def test_a_prompt_that_was_never_computed_is_not_touched_again_at_its_end() -> None:
    made = core("a", capacity=4)
    asked = request(made, tokens(1, 2))
    failed = made.book(made.decide(asked, "kv", 0.0), asked, 0.0)
    serve(made, tokens(11, 12))
    end(made, failed)
    serve(made, tokens(21, 22))
    assert held(made, tokens(1, 2)) == [0]
    assert held(made, tokens(11, 12)) == [2]


def test_a_long_running_prompt_is_fresh_when_it_ends() -> None:
    made = core("a", capacity=4)
    running = start(made, tokens(1, 2))
    for first in (10, 20, 30):
        serve(made, tokens(first, first + 1))
    assert held(made, tokens(1, 2)) == [2]  # it runs: its blocks are in use
    end(made, running)
    assert held(made, tokens(1, 2)) == [2]


def test_each_rank_has_its_own_capacity() -> None:
    made = core()
    add(made, "a", capacity=2, ranks=2)
    for rank in (0, 1):
        serve(made, tokens(10 * rank + 1, 10 * rank + 2), pin_worker="a", pin_rank=rank)
    assert held(made, tokens(1, 2)) == [2, 0]
    assert held(made, tokens(11, 12)) == [0, 2]


def test_a_worker_that_does_not_say_how_much_it_holds_counts_by_time() -> None:
    made = core("a", capacity=0, approximate_ttl=120.0)
    serve(made, tokens(1, 2))
    assert held(made, tokens(1, 2), now=119.0) == [2]
    assert held(made, tokens(1, 2), now=121.0) == [0]


def test_a_worker_with_events_is_believed_and_nothing_else() -> None:
    made = core("a", kv=KvState.LIVE, predict_ttl=0.0)
    serve(made, tokens(1, 2))
    assert made.capacity is not None
    assert len(made.capacity) == 0
    made.apply(0, BlockStored(np.arange(2, dtype=np.uint64), None, tokens(1, 2), B))
    assert held(made, tokens(1, 2)) == [2]


def test_what_was_guessed_does_not_count_once_events_arrive() -> None:
    made = core("a", predict_ttl=0.0)
    serve(made, tokens(1, 2))
    made.fleet.workers["a"].kv = KvState.LIVE
    made.fleet.changed()
    assert held(made, tokens(1, 2)) == [0]


def test_a_process_that_died_holds_nothing() -> None:
    made = core("a")
    serve(made, tokens(1, 2))
    made.forget(made.fleet.workers["a"])
    assert held(made, tokens(1, 2)) == [0]


def test_the_decision_says_that_it_had_no_events() -> None:
    made = core("a")
    assert made.decide(request(made, tokens(1, 2)), "kv", 0.0).degraded == (Degraded.NO_KV_EVENTS,)


def test_the_table_is_bounded_by_the_limit_of_the_index() -> None:
    made = core("a", capacity=1 << 20, index_limit=128 * 100)
    for first in range(0, 3000, 50):
        serve(made, tokens(*range(first + 1, first + 51)))
    assert made.capacity is not None
    assert len(made.capacity) == 100


@pytest.mark.parametrize("name", ["ttl", "lru"])
def test_the_policies_have_the_names_of_the_option(name: str) -> None:
    assert ApproximatePolicy(name).value == name
