"""From what workers told to blocks of candidates: overlap, whose instance it is, learning, and being told wrong."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import numpy as np
import pytest

from router.core import CoreSettings, RoutingCore
from router.fleet.registry import Fleet
from router.lmcache import wire
from router.lmcache.chunks import Form
from router.lmcache.controller import LMCacheController
from router.lmcache.settings import ControllerSettings
from router.model import Decision, Reason, RouteRequest

from .build import SIZE, fleet, keys, operations, prompt, register

DISK = "LocalDiskBackend"
NONE_HASH = -6197052367682486848


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def controller(of: Fleet, **settings: object) -> LMCacheController:
    return LMCacheController(ControllerSettings(chunk_size=SIZE, **settings), of, Clock())  # type: ignore[arg-type]


def tell(made: LMCacheController, ids: np.ndarray, none_hash: int = 0, **where: object) -> None:
    """The instance admits the prompt's chunks."""
    worker = made.instances.workers[str(where.get("instance", "a")), int(str(where.get("number", 0)))]
    location = worker.locations.get(str(where.get("location", "LocalCPUBackend")))
    first = 0 if location is None or location.last_seq is None else location.last_seq + 1
    now = made._clock()
    listed = [("admit", key, first + at) for at, key in enumerate(keys(ids, none_hash))]
    operations(made.instances, *listed, now=now, **where)  # type: ignore[arg-type]
    made.settle()


def raised(made: LMCacheController, ids: np.ndarray, device: int = 0) -> tuple[list[int], list[int]]:
    view = made.fleet.view
    on_device = np.full(len(view.workers), device)
    host, disk = made.raised(made.prompt(ids), view, on_device, view.zeros, view.zeros)
    return host.tolist(), disk.tolist()


def test_chunks_in_host_memory_are_blocks_beyond_the_device() -> None:
    """48 tokens in blocks of 4: 12 blocks, of which the device holds 5."""
    made = controller(fleet("w", "v", w=("a",)))
    register(made.instances)
    ids = prompt(1)
    tell(made, ids)
    assert raised(made, ids, device=5) == ([7, 0], [0, 0])
    assert raised(made, ids, device=12) == ([0, 0], [0, 0])


def test_chunks_on_disk_come_behind_those_in_host_memory() -> None:
    made = controller(fleet("w", w=("a",)))
    register(made.instances)
    ids = prompt(1)
    tell(made, ids[:SIZE])
    tell(made, ids, location=DISK)
    assert raised(made, ids) == ([4], [8])


def test_a_partial_chunk_counts_for_the_tokens_it_has() -> None:
    made = controller(fleet("w", w=("a",)))
    register(made.instances)
    ids = prompt(1)[: SIZE + 6]
    tell(made, ids)
    assert raised(made, ids) == ([5], [0])


def test_of_the_ranks_of_an_instance_the_one_that_holds_least_counts() -> None:
    made = controller(fleet("w", w=("a",)))
    for number in (0, 1, 2):
        register(made.instances, number=number, port=8001 + number)
    ids = prompt(1)
    tell(made, ids, number=0)
    tell(made, ids[: 2 * SIZE], number=1)
    assert raised(made, ids) == ([8], [0])
    tell(made, prompt(2), number=2)
    assert raised(made, ids) == ([0], [0])


def test_each_rank_of_a_worker_has_its_own_instance() -> None:
    made = controller(fleet("w", ranks=2, w=("a", "b")))
    register(made.instances, "a")
    register(made.instances, "b", port=8002)
    ids = prompt(1)
    tell(made, ids, instance="b")
    assert raised(made, ids) == ([0, 12], [0, 0])


def test_instances_that_may_be_of_several_workers_do_not_count(caplog: pytest.LogCaptureFixture) -> None:
    made = controller(fleet("w", "v", host="10.0.0.1"))
    register(made.instances, "a")
    register(made.instances, "b", port=8002)
    ids = prompt(1)
    tell(made, ids)
    assert raised(made, ids) == ([0, 0], [0, 0])
    assert "LMCache instance a at 10.0.0.1 may be of several workers there" in caplog.text
    assert {one["bound_by"] for one in made.shown()["workers"]} == {"ambiguous"}


def test_a_worker_added_later_is_bound_then() -> None:
    workers = fleet("w")
    made = controller(workers)
    register(made.instances, "v")
    assert made.shown()["workers"][0]["worker"] is None
    for worker in fleet("v").workers.values():
        workers.add(worker.spec)
    made.fleet_changed()
    assert made.state_of("v")[0]["bound_by"] == "id"


def test_after_the_engine_died_nothing_is_held() -> None:
    made = controller(fleet("w", w=("a",)))
    register(made.instances)
    ids = prompt(1)
    tell(made, ids)
    made.engine_gone("w")
    while made.index.sweeping:
        made.index.sweep()
    assert raised(made, ids) == ([0], [0])
    assert made.shown()["workers"][0]["full_sync_wanted"] == "engine_was_down"


def test_a_worker_that_leaves_takes_its_blocks_along() -> None:
    made = controller(fleet("w", w=("a",)))
    register(made.instances)
    ids = prompt(1)
    tell(made, ids)
    assert raised(made, ids)[0] == [12]
    made.instances.take(wire.DeRegisterMsg("a", 0, "10.0.0.1", 8001), 0, 0, 100.0)
    made.settle()
    assert raised(made, ids) == ([0], [0])


async def learn(made: LMCacheController) -> None:
    await made._learn(made._clock())


async def test_a_none_hash_of_its_own_is_learnt_for_each_worker() -> None:
    made = controller(fleet("w", "v", w=("a",), v=("b",)))
    register(made.instances, "a")
    register(made.instances, "b", port=8002)
    for seed, instance, worker, none_hash in ((1, "a", "w", NONE_HASH), (2, "b", "v", 77)):
        made.placed(made.prompt(prompt(seed)), worker)
        tell(made, prompt(seed), none_hash, instance=instance)
    assert raised(made, prompt(1)) == ([0, 0], [0, 0])
    await learn(made)
    assert raised(made, prompt(1)) == ([12, 0], [0, 0])
    assert raised(made, prompt(2)) == ([0, 12], [0, 0])
    assert [one.hash_state for one in made.instances.workers.values()] == ["verified", "verified"]


async def test_prompts_show_whose_instance_it_is() -> None:
    made = controller(fleet("w", "v", host="10.0.0.1"))
    register(made.instances, "a")
    register(made.instances, "b", port=8002)
    for seed in (1, 2):
        made.placed(made.prompt(prompt(seed)), "v")
        tell(made, prompt(seed), NONE_HASH)
    await learn(made)
    assert {one["instance"]: one["worker"] for one in made.shown()["workers"]} == {"a": "v", "b": "w"}
    assert {one["instance"]: one["bound_by"] for one in made.shown()["workers"]} == {"a": "prompts", "b": "ip"}


async def test_a_prompt_that_two_workers_were_sent_shows_nothing() -> None:
    made = controller(fleet("w", "v", host="10.0.0.1"))
    register(made.instances, "a")
    register(made.instances, "b", port=8002)
    for seed in (1, 2, 3):
        for worker in ("w", "v"):
            made.placed(made.prompt(prompt(seed)), worker)
        tell(made, prompt(seed), NONE_HASH)
    await learn(made)
    assert {one["bound_by"] for one in made.shown()["workers"]} == {"ambiguous"}


async def test_a_wrong_chunk_size_is_put_right() -> None:
    made = controller(fleet("w", w=("a",)))
    register(made.instances)
    ids = prompt(1, 3, 64)
    made.placed(made.prompt(ids), "w")
    listed = [("admit", key, at) for at, key in enumerate(keys(ids, NONE_HASH, Form(chunk_size=64)))]
    operations(made.instances, *listed, now=101.0)
    made.settle()
    await learn(made)
    assert made.shown()["workers"][0]["hash"]["chunk_size"] == 64
    assert raised(made, ids) == ([48], [0])


def judged(made: LMCacheController, seeds: range, tell_too: bool) -> None:
    for seed in seeds:
        made.placed(made.prompt(prompt(seed)), "w")
        if tell_too:
            tell(made, prompt(seed))
    made._clock.now += 11.0  # type: ignore[attr-defined]
    made._judge(made._clock())


def test_prompts_that_are_known_ten_seconds_later_are_counted_as_matched() -> None:
    made = controller(fleet("w", w=("a",)))
    register(made.instances)
    judged(made, range(3), tell_too=True)
    worker = made.instances.workers["a", 0]
    assert (worker.matched, worker.unmatched, worker.hash_state) == (3, 0, "verified")


def test_a_hash_that_never_matches_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    made = controller(fleet("w", w=("a",)))
    register(made.instances)
    tell(made, prompt(1000), none_hash=5)
    judged(made, range(25), tell_too=False)
    worker = made.instances.workers["a", 0]
    assert (worker.matched, worker.unmatched, worker.hash_state) == (0, 25, "never_matches")
    assert sum("never match" in message for message in caplog.messages) == 1


def core_with(made: LMCacheController) -> RoutingCore:
    core = RoutingCore(CoreSettings(seed=1))
    core.fleet = made.fleet
    core.chunks = made
    core.add_slots()
    return core


def decide(core: RoutingCore, made: LMCacheController, ids: np.ndarray, mode: str) -> Decision:
    request = RouteRequest(id="r", model="m", prompt_tokens=len(ids), keys=core.keys_for(ids), chunks=made.prompt(ids))
    return core.decide(request, mode, 0.0)


@pytest.mark.parametrize("mode", ["kv", "kvaware"])
def test_kv_and_kvaware_go_to_the_instance_that_holds_the_prompt(mode: str) -> None:
    for holder in ("w", "v"):
        made = controller(fleet("w", "v", **{holder: ("a",)}))
        register(made.instances)
        ids = prompt(1)
        tell(made, ids)
        decision = decide(core_with(made), made, ids, mode)
        assert decision.worker == holder
        assert decision.predicted_cached_tokens == 44
        assert decision.reason is (Reason.KV_HIT if mode == "kvaware" else Reason.LOWEST_COST)


def test_a_block_in_host_memory_is_worth_its_weight_to_kv() -> None:
    """12 blocks of prompt, 0.75 each where LMCache holds them: 12 - 9 = 3 blocks of prefill."""
    made = controller(fleet("w", "v", w=("a",)))
    register(made.instances)
    ids = prompt(1)
    tell(made, ids)
    decision = decide(core_with(made), made, ids, "kv")
    assert decision.terms[0].values.tolist() == [3.0, 12.0]


def test_a_booked_request_is_what_is_learnt_from() -> None:
    made = controller(fleet("w", w=("a",)))
    register(made.instances)
    core = core_with(made)
    ids = prompt(1)
    request = RouteRequest(id="r", model="m", prompt_tokens=48, keys=core.keys_for(ids), chunks=made.prompt(ids))
    core.book(core.decide(request, "kv", 0.0), request, 0.0)
    assert [one.worker for one in made._prompts] == ["w"]


@pytest.fixture
async def listening() -> AsyncIterator[LMCacheController]:
    made = LMCacheController(ControllerSettings(pull=0, reply=0, heartbeat=0), fleet("w"))
    made.start()
    yield made
    await made.close()


async def test_the_heartbeat_address_is_the_one_that_a_worker_reaches(listening: LMCacheController) -> None:
    assert listening.sockets is not None
    port = listening.sockets.ports[2]
    assert listening._heartbeat_url("10.0.0.1") == f"127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (ControllerSettings(host="0.0.0.0"), "127.0.0.1:9002"),
        (ControllerSettings(host="0.0.0.0", advertise="router.local"), "router.local:9002"),
        (ControllerSettings(host="::1"), "[::1]:9002"),
    ],
)
def test_the_heartbeat_address_of_other_settings(settings: ControllerSettings, expected: str) -> None:
    assert LMCacheController(settings, fleet())._heartbeat_url("127.0.0.1") == expected


async def test_a_wide_listener_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    made = LMCacheController(ControllerSettings("0.0.0.0", 0, 0, 0), fleet())
    made.start()
    await made.close()
    assert "whoever reaches its ports can lie about caches" in caplog.text


async def test_a_start_logs_the_ports_as_the_production_stack_does(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    made = LMCacheController(ControllerSettings("127.0.0.1", 0, 0, 0), fleet())
    pull, reply, heartbeat = made.start()
    await made.close()
    assert f"Starting pull request handler on 127.0.0.1:{pull}" in caplog.messages
    assert f"Starting reply request handler on 127.0.0.1:{reply}" in caplog.messages
    assert f"Starting heartbeat request handler on 127.0.0.1:{heartbeat}" in caplog.messages
