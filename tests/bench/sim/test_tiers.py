"""Tiers behind the engine's own cache: what moves where, what a prompt finds, what is told."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.sim.engine import Engine, EngineConfig, EngineRequest, StepResult
from bench.sim.events import wire_events
from bench.sim.kvcache import Cleared, Removed, Stored
from bench.sim.l2 import MemoryStore
from bench.sim.tiers import SharedStore, TierConfig, Tiers
from bench.sim.timing import FixedTiming, Timing
from router.events.wire import AllBlocksCleared, BlockStored, Tier, WireDecoder
from router.prefix.hashing import block_keys, root_key
from router.prefix.index import PrefixIndex
from router.reuse import reusable_tokens

BLOCK = 4
SEED = 99


class Rig:
    """An engine with tiers, run in virtual time without any time for steps, and an index that hears its events."""

    def __init__(
        self, *, host: int = 0, disk: int = 0, blocks: int = 8, shared: SharedStore | None = None, seed: int = 0
    ) -> None:
        config = EngineConfig(block_size=BLOCK, num_blocks=blocks, max_model_len=blocks * BLOCK, seed=seed)
        self.tiers = Tiers(TierConfig(host, disk, 100.0, 400.0, 1000.0), config, shared)
        self.engine = Engine(config, Timing(FixedTiming(0.0, 0.0)), self.tiers, self.tiers)
        self.index = PrefixIndex(SEED, 16 << 20)
        self.steps: list[StepResult] = []
        self.seconds = 0.0
        self._decoder = WireDecoder()
        self._count = 0

    def run(self, prompt: range | list[int], answer: int = 2, salt: str | None = None) -> int:
        """The cached tokens that the engine reports for the prompt."""
        self._count += 1
        tokens = np.array(prompt, np.uint32)
        self.engine.submit(EngineRequest(str(self._count), tokens, np.ones(answer, np.uint32), salt=salt), 0.0)
        cached = -1
        while (result := self.engine.step(0.0)) is not None:
            self.steps.append(result)
            self.seconds += result.duration
            cached = max([cached, *(output.cached for output in result.outputs)])
            payload = msgspec.msgpack.encode([0.0, wire_events(result.events, BLOCK), 0])
            for event in self._decoder.decode(payload).events:
                self.index.apply(0, event)
        return cached

    def overlap(self, prompt: range | list[int], salt: str | None = None) -> tuple[int, int, int, int]:
        """Blocks of a prompt that the events promise: device, host, disk, shared."""
        keys = block_keys(np.array(prompt, np.uint32), BLOCK, root_key(SEED, BLOCK, None, salt))
        found = self.index.match(keys)
        return int(found.device[0]), int(found.host[0]), int(found.disk[0]), int(found.external[0])

    def held(self) -> tuple[int, int]:
        held = self.tiers.held
        return held.get("CPU", 0), held.get("STORAGE", 0)


def test_a_block_that_the_device_gives_up_goes_to_host_memory() -> None:
    rig = Rig(host=100)
    rig.run(range(24))
    assert rig.held() == (0, 0)
    rig.run(range(100, 124))
    assert rig.held()[0] > 0


def test_a_prompt_comes_back_from_host_memory_with_its_true_cached_tokens() -> None:
    rig = Rig(host=100)
    rig.run(range(24))
    rig.run(range(100, 124))
    rig.run(range(200, 224))
    assert rig.run(range(24)) == 20
    assert rig.tiers.counters.loaded["CPU"] == 5


def test_without_tiers_the_same_prompt_is_lost() -> None:
    rig = Rig()
    for first in (0, 100, 200):
        rig.run(range(first, first + 24))
    assert rig.run(range(24)) == 0
    assert rig.tiers.counters.lost == 0


def test_a_loaded_block_takes_its_time() -> None:
    rig = Rig(host=100)
    for first in (0, 100, 200):
        rig.run(range(first, first + 24))
    assert rig.seconds == 0.0
    rig.run(range(24))
    assert rig.seconds == pytest.approx(5 * 100e-6)


def test_a_loaded_block_moves_out_of_host_memory() -> None:
    rig = Rig(host=100)
    for first in (0, 100, 200):
        rig.run(range(first, first + 24))
    device, host, _disk, _shared = rig.overlap(range(24))
    assert (device, host) == (0, 6)
    rig.run(range(24))
    assert rig.overlap(range(24)) == (6, 0, 0, 0)


def test_what_host_memory_gives_up_goes_to_disk_and_then_away() -> None:
    rig = Rig(host=3, disk=4)
    for first in range(0, 500, 100):
        rig.run(range(first, first + 24))
    assert rig.held() == (3, 4)
    assert rig.tiers.counters.lost > 0


def test_a_disk_without_host_memory_takes_what_the_device_gives_up() -> None:
    rig = Rig(disk=100)
    for first in (0, 100, 200):
        rig.run(range(first, first + 24))
    assert rig.overlap(range(24)) == (0, 0, 6, 0)
    assert rig.run(range(24)) == 20


def test_a_block_with_a_copy_left_on_the_device_is_not_offloaded() -> None:
    rig = Rig(host=100, blocks=8)
    for name in ("a", "b"):
        rig.engine.submit(EngineRequest(name, np.arange(16, dtype=np.uint32), np.ones(1, np.uint32)), 0.0)
    while rig.engine.step(0.0) is not None:
        pass
    assert len(set(rig.engine.cache.cached_keys())) == 4
    assert rig.held() == (0, 0)


def test_events_of_lower_tiers_name_their_medium_and_the_blocks_own_tokens() -> None:
    rig = Rig(host=2, disk=100)
    for first in (0, 100, 200):
        rig.run(range(first, first + 24))
    stored = [event for step in rig.steps for event in step.events if isinstance(event, Stored)]
    host = [event for event in stored if event.medium == "CPU"]
    assert {len(event.keys) for event in host} == {1}
    assert {len(event.tokens) for event in host} == {BLOCK}
    gone = [event.medium for step in rig.steps for event in step.events if isinstance(event, Removed)]
    assert {"GPU", "CPU"} <= set(gone)
    assert {event.medium for event in stored} == {"GPU", "CPU", "STORAGE"}


def test_a_cache_reset_empties_the_local_tiers_too() -> None:
    rig = Rig(host=100)
    for first in (0, 100):
        rig.run(range(first, first + 24))
    assert rig.engine.reset_prefix_cache()
    assert rig.held() == (0, 0)
    assert rig.run(range(24)) == 0
    assert any(isinstance(event, Cleared) for step in rig.steps for event in step.events)


def test_two_engines_share_a_store() -> None:
    store = MemoryStore()
    one, other = Rig(shared=store.client(), seed=1), Rig(shared=store.client(), seed=2)
    one.run(range(24))
    assert other.run(range(24)) == 20
    assert other.seconds == pytest.approx(5 * 1000e-6)
    assert other.tiers.counters.loaded["EXTERNAL"] == 5


def test_the_shared_store_keeps_salts_apart() -> None:
    store = MemoryStore()
    one, other = Rig(shared=store.client(), seed=1), Rig(shared=store.client(), seed=2)
    one.run(range(24), salt="tenant-a")
    assert other.run(range(24), salt="tenant-b") == 0
    assert other.run(range(24), salt="tenant-a") == 20


def test_the_shared_store_has_a_prompts_blocks_when_the_step_that_computed_them_has_ended() -> None:
    store = MemoryStore()
    rig = Rig(shared=store.client())
    rig.engine.submit(EngineRequest("a", np.arange(24, dtype=np.uint32), np.ones(2, np.uint32)), 0.0)
    rig.engine.step(0.0)
    assert len(store) == 0
    rig.engine.step(1.0)
    assert len(store) == 6


def test_only_blocks_that_are_written_are_told_as_shared() -> None:
    class Broken:
        asked = False

        def prefix(self, keys: object) -> int:
            return 0

        def news(self, keys: object) -> int:
            return 0

        def put(self, keys: object) -> int | None:
            self.asked = True
            return 1

        def finished(self) -> list[tuple[int, bool]]:
            return [(1, False)] if self.asked else []

    store = Broken()
    rig = Rig(shared=store)
    rig.engine.submit(EngineRequest("a", np.arange(24, dtype=np.uint32), np.ones(1, np.uint32)), 0.0)
    rig.engine.step(0.0)
    rig.engine.step(0.0)
    assert rig.tiers.take_events() == []
    assert rig.tiers.counters.stored["EXTERNAL"] == 0


def test_shared_blocks_are_told_with_medium_external() -> None:
    rig = Rig(shared=MemoryStore().client())
    rig.run(range(24))
    events = [event for step in rig.steps for event in wire_events(step.events, BLOCK)]
    decoded = WireDecoder().decode(msgspec.msgpack.encode([0.0, events, 0])).events
    shared = [event for event in decoded if isinstance(event, BlockStored) and event.tier is Tier.EXTERNAL]
    assert sum(len(event.hashes) for event in shared) == 6
    assert not any(isinstance(event, AllBlocksCleared) for event in decoded)


def test_external_hits_count_the_loaded_tokens() -> None:
    rig = Rig(host=100)
    for first in (0, 100, 200):
        rig.run(range(first, first + 24))
    rig.run(range(24))
    assert rig.tiers.counters.hits == 20
    assert rig.tiers.counters.queries == 4 * 24


def test_negative_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="disk_blocks must not be negative"):
        TierConfig(disk_blocks=-1)


Prompts = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 7), st.integers(0, 2)), min_size=1, max_size=25)


@settings(max_examples=60, deadline=None)
@given(Prompts, st.integers(0, 12), st.integers(0, 12), st.integers(8, 12), st.booleans())
def test_the_events_foretell_the_cached_tokens_of_every_request(
    prompts: list[tuple[int, int, int]], host: int, disk: int, blocks: int, share: bool
) -> None:
    rig = Rig(host=host, disk=disk, blocks=blocks, shared=MemoryStore().client() if share else None)
    for family, length, tail in prompts:
        prompt = [family * 1000 + position for position in range(length * BLOCK)] + [9000 + tail] * tail
        promised = reusable_tokens(sum(rig.overlap(prompt)), len(prompt), BLOCK)
        assert rig.run(prompt) == promised


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 7), st.integers(1, 9), st.booleans()), min_size=1, max_size=20
    ),
    st.integers(0, 12),
    st.integers(0, 12),
    st.integers(4, 40),
    st.booleans(),
)
def test_under_concurrency_the_events_add_up_to_what_each_tier_holds(
    requests: list[tuple[int, int, int, bool]], host: int, disk: int, budget: int, share: bool
) -> None:
    config = EngineConfig(block_size=BLOCK, num_blocks=12, max_model_len=48, max_num_batched_tokens=budget)
    tiers = Tiers(TierConfig(host, disk), config, MemoryStore().client() if share else None)
    engine = Engine(config, Timing(FixedTiming(1.0, 1.0)), tiers, tiers)
    told: Counter[tuple[str, int]] = Counter()

    def step() -> bool:
        result = engine.step(0.0)
        for event in result.events if result is not None else []:
            assert not isinstance(event, Cleared)
            change = 1 if isinstance(event, Stored) else -1
            for key in event.keys.tolist():
                told[event.medium, key] += change
                assert told[event.medium, key] >= 0 or event.medium != "GPU"
        return result is not None

    for number, (family, length, answer, abort) in enumerate(requests):
        prompt = np.array([family * 1000 + place for place in range(length * BLOCK)], np.uint32)
        engine.submit(EngineRequest(str(number), prompt, np.arange(answer, dtype=np.uint32)), 0.0)
        if number % 2:
            step()
        if abort:
            engine.abort(str(number), 0.0)
    while step():
        pass
    assert engine.snapshot().used_blocks == 0
    held = Counter(medium for (medium, _key), count in told.items() if count and medium in ("CPU", "STORAGE"))
    assert {medium: held[medium] for medium in tiers.held} == tiers.held
    assert min(told.values(), default=0) >= 0
    on_device = {key: count for (medium, key), count in told.items() if medium == "GPU" and count}
    assert on_device == Counter(engine.cache.cached_keys())
