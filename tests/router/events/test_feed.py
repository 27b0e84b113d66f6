"""From an engine's sockets into the index: ranks, epochs, resynchronisation, and what is counted on the way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator

import numpy as np
import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry

from router.core import CoreSettings, RoutingCore
from router.feed import KvFeed
from router.fleet.monitor import FleetMonitor
from router.fleet.probe import EventSource
from router.fleet.spec import parse_spec
from router.fleet.worker import Health, KvState, Worker
from router.model_tokens import ModelTokens
from router.prefix.hashing import block_keys
from router.records import DecisionLog
from router.room_metrics import RoomCollector

from .engine import TOPIC, ScriptedEngine
from .frames import frame, removed, stored

SIZE = 2


class Fed:
    """A core with one worker, fed by the scripted engines it follows."""

    def __init__(self, ranks: int) -> None:
        self.core = RoutingCore(CoreSettings(seed=1))
        self.feed = KvFeed(self.core, asyncio.get_running_loop())
        self.worker: Worker = self.core.fleet.add(parse_spec(f"http://127.0.0.1:1,id=w,ranks={ranks}"))
        self.worker.health = Health.UP
        self.core.add_slots()

    def follow(self, *engines: ScriptedEngine) -> None:
        sources = [
            EventSource(rank, engine.endpoint, engine.replay_endpoint, TOPIC.decode())
            for rank, engine in enumerate(engines)
        ]
        self.feed.follow(self.worker, sources)
        for engine in engines:
            engine.wait_for_reader()

    def blocks(self) -> list[int]:
        return [self.core.index.blocks(slot) for slot in self.worker.slots]

    def depths(self, *ids: int) -> list[int]:
        keys = block_keys(np.array(ids, np.uint32), SIZE, self.core.index.root(SIZE, None, None))
        return self.core.index.match(keys).device[list(self.worker.slots)].tolist()

    async def becomes(self, fact: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not fact():
            assert time.monotonic() < deadline, f"it did not come true: {self.feed.states('w')}"
            await asyncio.sleep(0.005)


@pytest_asyncio.fixture
async def fed() -> AsyncIterator[Callable[..., Fed]]:
    made: list[Fed] = []

    def make(ranks: int = 1) -> Fed:
        made.append(Fed(ranks))
        return made[-1]

    yield make
    for one in made:
        one.feed.close()


@pytest.fixture
def engines() -> Iterator[Callable[..., ScriptedEngine]]:
    made: list[ScriptedEngine] = []

    def make(**options: int) -> ScriptedEngine:
        made.append(ScriptedEngine(**options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def tell(engine: ScriptedEngine, *events: object, rank: int | None = None) -> None:
    payload = frame(*events, rank=rank)
    engine.buffer.append((engine.next, payload))
    engine.send(engine.next, payload)
    engine.next += 1


async def test_a_publisher_a_rank_as_sglang_has_it(fed, engines) -> None:
    """Each rank has its own port, and names its rank in the batch."""
    one, first, second = fed(2), engines(), engines()
    one.follow(first, second)
    tell(first, stored([1], [1, 2]), rank=0)
    tell(second, stored([1, 2], [1, 2, 3, 4]), rank=1)
    await one.becomes(lambda: one.blocks() == [1, 2])
    assert one.depths(1, 2, 3, 4) == [1, 2]


async def test_ranks_in_the_batch_over_one_socket(fed, engines) -> None:
    one, engine = fed(2), engines()
    one.follow(engine)
    tell(engine, stored([1], [1, 2]), rank=0)
    tell(engine, stored([1, 2], [1, 2, 3, 4]), rank=1)
    await one.becomes(lambda: one.blocks() == [1, 2])
    assert one.depths(1, 2, 3, 4) == [1, 2]


async def test_the_clear_of_a_rank_leaves_the_others(fed, engines) -> None:
    one, engine = fed(2), engines()
    one.follow(engine)
    for rank in (0, 1):
        tell(engine, stored([1], [1, 2]), rank=rank)
    await one.becomes(lambda: one.blocks() == [1, 1])
    tell(engine, ["AllBlocksCleared"], rank=1)
    await one.becomes(lambda: one.blocks() == [1, 0])


async def test_frames_of_a_rank_that_is_not_registered_touch_nobody(fed, engines) -> None:
    one, engine = fed(1), engines()
    one.follow(engine)
    tell(engine, stored([1], [1, 2]), rank=7)
    tell(engine, stored([1], [1, 2]), rank=0)
    await one.becomes(lambda: one.blocks() == [1])


@pytest.mark.parametrize("replay", [True, False])
async def test_an_engine_that_counts_from_the_start_again_starts_clean(fed, engines, replay: bool) -> None:
    """It restarted behind the same address: what it told before is not believed, in no rank it had named."""
    one, engine = fed(2), engines(replay=replay)
    one.follow(engine)
    for rank in (0, 1):
        tell(engine, stored([1, 2], [1, 2, 3, 4]), rank=rank)
    await one.becomes(lambda: one.blocks() == [2, 2])
    engine.buffer.clear()
    engine.next = 0
    tell(engine, stored([9], [5, 6]), rank=0)
    await one.becomes(lambda: one.blocks() == [1, 0])
    assert (one.depths(1, 2), one.depths(5, 6)) == ([0, 0], [1, 0])
    assert one.feed.states("w")[0]["epochs"] == 1
    assert one.worker.kv is not KvState.LOST


async def test_a_resynchronised_worker_is_learnt_again_from_the_start_of_its_buffer(fed, engines) -> None:
    one, engine = fed(1), engines()
    one.follow(engine)
    tell(engine, stored([1, 2], [1, 2, 3, 4]))
    await one.becomes(lambda: one.blocks() == [2])
    one.core.index.store(one.worker.slots[0], 0, None, np.array([77], np.uint64), np.array([8, 9], np.uint32), SIZE)
    assert one.depths(8, 9) == [1]  # wrong: the engine never said so
    one.feed.resync(one.worker, "a test")
    await one.becomes(lambda: one.depths(8, 9) == [0] and one.blocks() == [2])
    assert one.depths(1, 2, 3, 4) == [2]
    assert one.feed.states("w")[0]["resyncs"] == 1
    tell(engine, stored([3], [5, 6], parent=2))
    await one.becomes(lambda: one.depths(1, 2, 3, 4, 5, 6) == [3])


async def test_a_resynchronised_worker_without_replay_is_known_by_nothing_and_grows_anew(fed, engines) -> None:
    one, engine = fed(1), engines(replay=False)
    one.follow(engine)
    tell(engine, stored([1, 2], [1, 2, 3, 4]))
    await one.becomes(lambda: one.blocks() == [2])
    one.feed.resync(one.worker, "a test")
    await one.becomes(lambda: one.blocks() == [0])
    tell(engine, stored([3], [5, 6], parent=2), stored([4], [7, 8]))
    await one.becomes(lambda: one.blocks() == [1])
    assert one.depths(7, 8) == [1]
    assert one.core.index.counters.orphan_stores == 1
    await one.becomes(lambda: one.worker.kv is KvState.LIVE)


async def test_a_resynchronised_worker_without_any_events_loses_what_was_guessed(fed) -> None:
    one = fed(1)
    one.feed.follow(one.worker, [])
    keys = block_keys(np.array([1, 2], np.uint32), SIZE, one.core.index.root(SIZE, None, None))
    one.core.predictions.add(one.worker.slots[0], keys, 0.0, ttl=100.0)
    one.feed.resync(one.worker, "a test")
    assert len(one.core.predictions) == 0


async def test_the_other_workers_of_a_resynchronised_one_are_left_alone(fed, engines) -> None:
    one, engine, other_engine = fed(1), engines(), engines()
    other = one.core.fleet.add(parse_spec("http://127.0.0.1:2,id=v"))
    one.core.add_slots()
    one.follow(engine)
    one.feed.follow(other, [EventSource(0, other_engine.endpoint, other_engine.replay_endpoint, TOPIC.decode())])
    other_engine.wait_for_reader()
    tell(engine, stored([1], [1, 2]))
    tell(other_engine, stored([1], [1, 2]))
    await one.becomes(lambda: one.blocks() == [1] and one.core.index.blocks(other.slots[0]) == 1)
    asked = len(other_engine.requests)
    one.feed.resync(one.worker, "a test")
    await one.becomes(lambda: one.feed.states("w")[0]["resyncs"] == 1 and one.blocks() == [1])
    assert len(other_engine.requests) == asked
    assert one.core.index.blocks(other.slots[0]) == 1


async def test_what_is_left_out_or_unknown_is_exported_by_reason(fed, engines) -> None:
    one, engine = fed(1), engines()
    one.follow(engine)
    tell(
        engine,
        stored([1], [1, 2], group_idx=0, kv_cache_spec_kind="full_attention"),
        stored([2], [1, 2], group_idx=1, kv_cache_spec_kind="sliding_window"),
        removed([2], group_idx=1),
        stored([3], [1, 2], medium="TAPE"),
        ["BlockPinned", 1],
        stored([4], [7, 8], parent=99),
        removed([98]),
    )
    await one.becomes(lambda: one.core.index.counters.unknown_removals == 1)
    registry = CollectorRegistry()
    tokens = ModelTokens(one.core.fleet, None)
    monitor = FleetMonitor(one.core.fleet, None)  # type: ignore[arg-type]
    registry.register(RoomCollector(tokens, one.feed, monitor, DecisionLog()))
    ignored = {
        reason: registry.get_sample_value("kvctl_kv_events_ignored_total", {"worker": "w", "reason": reason})
        for reason in ("other_group", "unknown_medium", "unknown_type")
    }
    assert ignored == {"other_group": 2.0, "unknown_medium": 1.0, "unknown_type": 1.0}
    assert one.core.index.counters.orphan_stores == 1
    assert one.blocks() == [1]
    tokens.close()
    await monitor.close()
