"""What follows from a worker's messages: registration, heartbeats, sequence gaps, full syncs, restarts, peers."""

from __future__ import annotations

import logging

import pytest

from router.lmcache import wire
from router.lmcache.index import MAX_BITS
from router.lmcache.registry import Instances
from router.lmcache.worker import MAX_LOCATIONS, MAX_RECENT, State

from .build import CPU, beat, held, instances, operations, register

DISK = "LocalDiskBackend"


def batch(made: Instances, number: int, keys: list[int], sync: str = "s", now: float = 0.0) -> None:
    made.take(wire.FullSyncBatchMsg("a", 0, CPU, sync, number, keys), 0, len(keys), now)


def begin(made: Instances, batches: int, sync: str = "s", now: float = 0.0) -> wire.FullSyncStartRetMsg:
    answer = made.answer(wire.FullSyncStartMsg("a", 0, CPU, sync, 9, batches), now)
    assert isinstance(answer, wire.FullSyncStartRetMsg)
    return answer


def end(made: Instances, sync: str = "s") -> None:
    made.take(wire.FullSyncEndMsg("a", 0, CPU, sync, 9), 0, 0, 0.0)


def status(made: Instances, sync: str = "s") -> wire.FullSyncStatusRetMsg:
    answer = made.answer(wire.FullSyncStatusMsg("a", 0, sync), 0.0)
    assert isinstance(answer, wire.FullSyncStatusRetMsg)
    return answer


def test_registration_tells_where_heartbeats_go(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    made = instances()
    assert register(made) == wire.RegisterRetMsg({"heartbeat_url": "10.0.0.1-side:9002"})
    assert made.workers["a", 0].state is State.REGISTERED
    assert "Worker registered: a" in caplog.messages
    assert "Registered instance-worker ('a', 0) with URL 10.0.0.1:8001" in caplog.messages


def test_admits_and_evicts_in_order_are_kept() -> None:
    made = instances()
    register(made)
    operations(made, ("admit", 1, 0), ("admit", 2, 1))
    operations(made, ("evict", 1, 2))
    assert held(made) == {2}
    assert made.workers["a", 0].gaps == 0


def test_a_signed_key_and_its_unsigned_twin_are_one() -> None:
    made = instances()
    register(made)
    operations(made, ("admit", -1, 0))
    assert made.index.holders(2**64 - 1) == 1


def test_a_gap_asks_for_a_full_sync_at_the_next_heartbeat_and_not_again_at_once() -> None:
    made = instances()
    register(made)
    operations(made, ("admit", 1, 0), ("admit", 2, 5))
    assert made.workers["a", 0].gaps == 1
    assert beat(made, 1.0) == ["sequence_gap"]
    assert beat(made, 2.0) == []
    assert beat(made, 32.0) == ["sequence_gap"]


def test_a_full_sync_replaces_what_was_known() -> None:
    made = instances()
    register(made)
    operations(made, ("admit", 1, 0), ("admit", 2, 5))
    assert begin(made, 2).accepted
    assert made.workers["a", 0].state is State.SYNCING
    batch(made, 0, [2, 3])
    batch(made, 1, [4])
    end(made)
    assert held(made) == {2, 3, 4}
    assert made.workers["a", 0].wants_sync is None
    assert status(made) == wire.FullSyncStatusRetMsg("s", True, 1.0, True)
    assert beat(made, 1.0) == []


def test_operations_during_a_full_sync_are_not_lost() -> None:
    made = instances()
    register(made)
    begin(made, 1)
    batch(made, 0, [1, 2])
    operations(made, ("admit", 5, 0), ("evict", 1, 1))
    end(made)
    assert held(made) == {2, 5}


def test_a_sync_with_missing_batches_is_not_over_and_names_them() -> None:
    made = instances()
    register(made)
    begin(made, 3)
    batch(made, 1, [1])
    end(made)
    assert status(made) == wire.FullSyncStatusRetMsg("s", False, 0.0, False, [0, 2])
    batch(made, 0, [2])
    batch(made, 2, [3])
    end(made)
    assert status(made).can_exit_freeze


def test_a_batch_taken_in_pieces_counts_when_its_last_piece_has_come() -> None:
    made = instances()
    register(made)
    begin(made, 1)
    message = wire.FullSyncBatchMsg("a", 0, CPU, "s", 0, [1, 2, 3])
    made.take(message, 0, 2, 0.0)
    assert status(made).missing_batches == [0]
    made.take(message, 2, 3, 0.0)
    assert status(made).missing_batches == []


def test_a_worker_does_not_stay_frozen_for_a_sync_that_is_not_known() -> None:
    made = instances()
    register(made)
    assert status(made, "of another controller").can_exit_freeze


def test_batches_of_another_sync_are_not_taken() -> None:
    made = instances()
    register(made)
    begin(made, 1)
    batch(made, 0, [1], sync="old")
    assert held(made) == set()
    assert made.counts["unknown_syncs"] == 1


def test_a_sync_that_stops_is_asked_again() -> None:
    made = instances()
    register(made)
    begin(made, 2, now=0.0)
    beat(made, 290.0)
    made.look(301.0)
    assert beat(made, 302.0) == ["sync_stopped"]


def test_a_gap_on_disk_forgets_the_disk_since_no_sync_brings_it_back() -> None:
    made = instances()
    register(made)
    operations(made, ("admit", 1, 0))
    operations(made, ("admit", 2, 0), ("admit", 3, 7), location=DISK)
    assert held(made) == {1, 3}
    assert beat(made, 1.0) == []


def test_registering_again_starts_with_nothing_known() -> None:
    made = instances()
    register(made)
    operations(made, ("admit", 1, 0))
    register(made, ip="10.0.0.2")
    assert held(made) == set()
    operations(made, ("admit", 2, 0))
    assert made.workers["a", 0].gaps == 0
    assert len(made.workers) == 1


def test_a_new_instance_at_the_same_address_takes_the_place_of_the_old() -> None:
    """LMCache makes up a new id at each start: a crashed worker never says goodbye."""
    made = instances()
    register(made, "old")
    register(made, "new")
    assert list(made.workers) == [("new", 0)]


def test_the_loopback_address_is_everybodys() -> None:
    """What LMCache gives where a machine has no route: pods that do so are not one worker."""
    made = instances()
    register(made, "a", ip="127.0.0.1")
    register(made, "b", ip="127.0.0.1")
    assert len(made.workers) == 2


def test_deregistration_forgets_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    made = instances()
    register(made)
    operations(made, ("admit", 1, 0))
    made.take(wire.DeRegisterMsg("a", 0, "10.0.0.1", 8001), 0, 0, 1.0)
    assert made.workers == {}
    assert "Deregistered instance-worker ('a', 0)" in caplog.messages


def test_a_late_goodbye_of_the_process_before_does_no_harm() -> None:
    made = instances()
    register(made, port=8001)
    register(made, port=8002)
    made.take(wire.DeRegisterMsg("a", 0, "10.0.0.1", 8001), 0, 0, 1.0)
    assert ("a", 0) in made.workers


def test_a_heartbeat_right_after_the_goodbye_does_not_register_again() -> None:
    made = instances()
    register(made)
    made.take(wire.DeRegisterMsg("a", 0, "10.0.0.1", 8001), 0, 0, 10.0)
    assert beat(made, 11.0) == []
    assert made.workers == {}
    assert beat(made, 20.0) == ["worker_re_registered"]


def test_a_heartbeat_of_nobody_known_registers_and_asks_for_all_keys(caplog: pytest.LogCaptureFixture) -> None:
    made = instances()
    assert beat(made, 1.0) == ["worker_re_registered"]
    assert ("a", 0) in made.workers
    assert "('a', 0) has not been registered, re-register the worker." in caplog.messages


def test_a_missing_heartbeat_degrades_and_keeps_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    made = instances(patience=30.0)
    register(made)
    operations(made, ("admit", 1, 0))
    beat(made, 10.0)
    made.look(39.0)
    assert made.workers["a", 0].state is State.LIVE
    made.look(41.0)
    assert made.workers["a", 0].state is State.DEGRADED
    assert held(made) == {1}
    assert "more than 30 seconds" in caplog.text
    assert beat(made, 50.0) == []
    assert made.workers["a", 0].state is State.LIVE


def test_a_worker_that_never_sent_a_heartbeat_is_degraded_too() -> None:
    made = instances(patience=30.0)
    register(made)
    made.look(31.0)
    assert made.workers["a", 0].state is State.DEGRADED


def test_a_silent_worker_is_dropped_only_if_it_is_of_no_registered_engine() -> None:
    made = instances()
    register(made, "mine")
    register(made, "lost", port=8002)
    made.look(31.0)
    made.forget_lost(lambda instance: instance == "mine", 599.0)
    assert len(made.workers) == 2
    made.forget_lost(lambda instance: instance == "mine", 601.0)
    assert list(made.workers) == [("mine", 0)]


def test_after_its_engine_died_a_worker_holds_nothing_and_is_asked() -> None:
    made = instances()
    register(made)
    operations(made, ("admit", 1, 0))
    made.emptied(made.workers["a", 0])
    assert held(made) == set()
    assert beat(made, 1.0) == ["engine_was_down"]


def test_operations_of_an_unknown_worker_are_counted() -> None:
    made = instances()
    operations(made, ("admit", 1, 0))
    assert made.counts["unknown_worker"] == 1


def test_an_unknown_operation_is_counted_and_does_nothing() -> None:
    made = instances()
    register(made)
    operations(made, ("pin", 1, 0))
    assert held(made) == set()
    assert made.counts["unknown_operations"] == 1


def test_locations_workers_and_recent_keys_are_bounded() -> None:
    made = instances()
    register(made)
    for number in range(MAX_LOCATIONS + 3):
        operations(made, ("admit", number, 0), location=f"l{number}")
    assert len(made.workers["a", 0].locations) == MAX_LOCATIONS
    assert made.counts["too_many_locations"] == 3
    operations(made, *[("admit", 1000 + number, number + 1) for number in range(2 * MAX_RECENT)], location="l0")
    assert len(made.workers["a", 0].recent) == MAX_RECENT
    answers = [register(made, f"b{number}", port=number % 65536, ip=f"x{number}") for number in range(MAX_BITS)]
    assert isinstance(answers[-1], wire.ErrorMsg)
    assert len(made.workers) == MAX_BITS
    assert isinstance(made.answer(wire.HeartbeatMsg("new", 0, "y", 1), 0.0), wire.ErrorMsg)


def test_a_full_index_refuses_keys_and_a_sync_does_not_keep_them_elsewhere() -> None:
    made = instances(limit=1000)
    register(made)
    begin(made, 1)
    batch(made, 0, list(range(1000)))
    sync = made.workers["a", 0].sync
    assert sync is not None
    assert len(sync.keys) < 20
    assert made.index.refused > 900


def peer(made: Instances, hashes: list[int], instance: str = "a") -> tuple[str, str, int, str]:
    answer = made.answer(wire.BatchedP2PLookupMsg(hashes, instance, 0), 0.0)
    assert isinstance(answer, wire.BatchedP2PLookupRetMsg)
    [found] = answer.layout_info
    return found


def test_a_peer_is_the_one_that_holds_most_of_the_keys() -> None:
    made = instances()
    for number, (name, url) in enumerate((("a", "a:1"), ("b", "b:1"), ("c", "c:1"), ("d", None))):
        register(made, name, ip=name, port=number, peer_init_url=url)
    operations(made, *[("admit", key, key) for key in range(4)], instance="a")
    operations(made, ("admit", 0, 0), instance="b")
    operations(made, ("admit", 0, 0), ("admit", 1, 1), instance="c")
    operations(made, *[("admit", key, key) for key in range(4)], instance="d")
    assert peer(made, [0, 1, 2, 3]) == ("c", CPU, 2, "c:1")
    assert peer(made, [50]) == ("", "", 0, "")
    assert peer(made, []) == ("", "", 0, "")
