"""The model of LMCache, alone and beside an engine in virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from bench.sim.engine import Engine, EngineConfig, EngineRequest
from bench.sim.faults import Fault, Faults
from bench.sim.keystore import KeyStore
from bench.sim.lmcache import LMCache, Lookup, Transfer, none_hash
from bench.sim.timing import FixedTiming, Timing

TOKEN_BYTES = 131_072
MIB = 1 << 20


@dataclass
class Heard:
    """What a cache told."""

    lookups: list[Lookup] = field(default_factory=list)
    retrieves: list[Transfer] = field(default_factory=list)
    stores: list[Transfer] = field(default_factory=list)
    failed_asks: int = 0
    failed_puts: int = 0

    def looked_up(self, lookup: Lookup) -> None:
        self.lookups.append(lookup)

    def retrieved(self, transfer: Transfer) -> None:
        self.retrieves.append(transfer)

    def stored(self, transfer: Transfer) -> None:
        self.stores.append(transfer)

    def contains_failed(self) -> None:
        self.failed_asks += 1

    def put_failed(self, key: int) -> None:
        self.failed_puts += 1


class Rig:
    """An engine beside a cache, stepped until it is idle."""

    def __init__(
        self,
        *,
        seed: str = "1",
        remote: KeyStore | None = None,
        faults: Faults = frozenset(),
        time_scale: float = 1.0,
        **engine: int,
    ) -> None:
        self.heard = Heard()
        self.remote = remote if remote is not None else KeyStore(1000)
        self.cache = LMCache(none_hash(seed), self.remote, self.heard, faults, time_scale)
        sizes = {"num_blocks": 1024, "max_model_len": 8192} | engine
        self.engine = Engine(EngineConfig(**sizes), Timing(FixedTiming(0.0, 0.0)), self.cache)
        self.durations: list[float] = []
        self.prefilled = 0

    def run(self, *prompts: range, salt: str | None = None, answer: int = 2) -> list[int]:
        """The cached tokens of each prompt, sent together."""
        base = len(self.heard.lookups)
        for number, prompt in enumerate(prompts):
            name = f"{base}-{number}"
            tokens = np.array(prompt, np.uint32)
            self.engine.submit(EngineRequest(name, tokens, np.ones(answer, np.uint32), salt=salt), 0.0)
        cached: dict[str, int] = {}
        while (result := self.engine.step(0.0)) is not None:
            self.durations.append(result.duration)
            self.prefilled += result.work.prefill_tokens
            cached |= {output.id: output.cached for output in result.outputs}
        return [cached[name] for name in sorted(cached)]

    def forget(self) -> None:
        """Empty the engine's own cache."""
        assert self.engine.reset_prefix_cache()


def test_whole_chunks_of_a_prompt_are_stored() -> None:
    rig = Rig()
    rig.run(range(600))
    assert [(store.tokens, store.asked, store.total) for store in rig.heard.stores] == [(512, 512, 512)]
    assert rig.cache.counters.stored_tokens == 512
    assert len(rig.cache.local) == len(rig.remote) == 2


def test_a_prompt_below_a_chunk_is_not_stored() -> None:
    rig = Rig()
    rig.run(range(255))
    assert (rig.heard.stores, rig.cache.counters.store_requests) == ([], 0)


def test_what_the_engine_forgot_is_loaded_instead_of_computed() -> None:
    rig = Rig()
    rig.run(range(600))
    rig.forget()
    rig.prefilled = 0
    assert rig.run(range(600)) == [512]
    assert rig.prefilled == 88
    assert rig.heard.lookups[-1][1:] == (600, 0, 512, 512)
    assert [(load.tokens, load.asked, load.total) for load in rig.heard.retrieves] == [(512, 512, 512)]


def test_what_the_engine_still_has_is_not_loaded() -> None:
    rig = Rig()
    rig.run(range(600))
    assert rig.run(range(600)) == [592]
    assert rig.heard.lookups[-1][1:] == (600, 592, 512, 0)
    assert rig.heard.retrieves == []


def test_a_prompt_that_is_held_whole_still_computes_its_last_token() -> None:
    rig = Rig()
    rig.run(range(512))
    rig.forget()
    rig.prefilled = 0
    assert rig.run(range(512)) == [511]
    assert rig.prefilled == 1


def test_a_stored_prompt_is_not_stored_again() -> None:
    rig = Rig()
    rig.run(range(600))
    rig.forget()
    rig.run(range(600))
    assert rig.cache.counters.store_requests == 1


def test_a_longer_prompt_stores_only_its_new_chunks() -> None:
    rig = Rig()
    rig.run(range(600))
    rig.run(range(800))
    assert [store.tokens for store in rig.heard.stores] == [512, 256]


def test_the_chunks_of_a_long_prompt_are_stored_as_its_steps_end() -> None:
    rig = Rig(max_num_batched_tokens=400)
    rig.run(range(1000))
    assert [store.tokens for store in rig.heard.stores] == [256, 512]


def test_nothing_is_found_before_the_step_that_computes_it_has_ended() -> None:
    rig = Rig()
    rig.run(range(300), range(300))
    assert [lookup.hit for lookup in rig.heard.lookups] == [0, 0]


def test_another_worker_finds_what_is_in_the_shared_store() -> None:
    remote = KeyStore(1000)
    Rig(remote=remote).run(range(600))
    other = Rig(remote=remote)
    assert other.run(range(600)) == [512]
    assert other.cache.counters.remote_reads == 2


def test_what_came_from_the_shared_store_is_kept_in_host_memory() -> None:
    remote = KeyStore(1000)
    Rig(remote=remote).run(range(600))
    other = Rig(remote=remote)
    other.run(range(600))
    other.forget()
    other.run(range(600))
    assert (other.cache.counters.remote_reads, other.cache.counters.retrieve_requests) == (2, 2)


def test_workers_whose_none_hash_differs_share_nothing() -> None:
    remote = KeyStore(1000)
    Rig(remote=remote, seed="1").run(range(600))
    assert Rig(remote=remote, seed="2").run(range(600)) == [0]


def test_prompts_with_different_salts_share_nothing() -> None:
    rig = Rig()
    rig.run(range(600), salt="a")
    assert rig.run(range(600), salt="b") == [0]


def test_a_failed_initialisation_never_looks_up_or_stores() -> None:
    rig = Rig(faults=frozenset({Fault.INIT_FAILURE}))
    rig.run(range(600))
    rig.forget()
    assert rig.run(range(600)) == [0]
    counters = rig.cache.counters
    assert (counters.lookup_requests, counters.store_requests, counters.queries, counters.hits) == (0, 0, 1200, 0)
    assert [lookup.hit for lookup in rig.heard.lookups] == [0, 0]
    assert len(rig.remote) == 0


def test_a_dead_remote_store_fails_each_lookup_that_needs_it_and_every_put() -> None:
    rig = Rig(faults=frozenset({Fault.L2_DOWN}))
    rig.run(range(600))
    rig.run(range(5000, 5600))
    rig.run(range(100))
    assert (rig.heard.failed_asks, rig.heard.failed_puts) == (2, 4)
    assert (len(rig.remote), rig.cache.counters.remote_writes, rig.cache.counters.puts_failed) == (0, 0, 4)


def test_a_dead_remote_store_leaves_host_memory_working() -> None:
    rig = Rig(faults=frozenset({Fault.L2_DOWN}))
    rig.run(range(600))
    rig.forget()
    assert rig.run(range(600)) == [512]


@pytest.mark.parametrize(("faults", "code"), [(frozenset(), 0), (frozenset({Fault.L2_DOWN}), -2)])
def test_a_ping_tells_whether_the_remote_store_is_there(faults: Faults, code: int) -> None:
    cache = Rig(faults=faults).cache
    assert cache.ping() is (code == 0)
    counters = cache.counters
    assert (counters.pings, counters.ping_errors, counters.ping_code) == (int(code == 0), int(code != 0), code)


def test_the_hit_rate_has_no_request_without_a_hit() -> None:
    rig = Rig()
    rig.run(range(600))
    rig.forget()
    rig.run(range(600))
    assert rig.cache.counters.lookup_0_hit_requests == 1
    assert sum(rig.cache.histograms.hit_rate.counts) == 1
    assert rig.cache.histograms.hit_rate.total == pytest.approx(512 / 600)


def test_a_transfer_takes_the_bytes_over_the_bandwidth() -> None:
    rig = Rig()
    rig.run(range(512))
    assert rig.durations[0] == pytest.approx(512 * TOKEN_BYTES / 20e9)
    assert rig.heard.stores[0].size == 64 * MIB
    assert rig.heard.stores[0].seconds == pytest.approx(512 * TOKEN_BYTES / 20e9)


def test_without_time_a_transfer_is_not_in_the_histograms_of_times() -> None:
    rig = Rig(time_scale=0.0)
    rig.run(range(512))
    assert rig.durations == [0.0, 0.0]
    assert sum(rig.cache.histograms.time_to_store.counts) == 0


def test_a_store_of_chunks_drops_the_one_used_longest_ago() -> None:
    store = KeyStore(2)
    assert [store.add(1), store.add(2)] == [False, False]
    assert store.prefix([1]) == 1
    assert store.add(3) is True
    assert [store.prefix([key]) for key in (1, 2, 3)] == [1, 0, 1]


def test_host_memory_holds_its_five_gib_and_evictions_are_counted() -> None:
    rig = Rig(num_blocks=4096, max_model_len=65536)
    rig.run(range(100_000, 100_000 + 170 * 256), answer=1)
    assert len(rig.cache.local) == 5 * 1024 // 32 == 160
    assert rig.cache.local_bytes == 5 << 30
    assert rig.cache.counters.evictions == 10


def test_an_aborted_request_leaves_nothing_behind() -> None:
    rig = Rig(max_num_batched_tokens=400)
    rig.engine.submit(EngineRequest("a", np.arange(1000, dtype=np.uint32), np.ones(1, np.uint32)), 0.0)
    rig.engine.step(0.0)
    assert rig.engine.abort("a", 0.0)
    assert rig.cache._saved == {}


def test_a_preempted_request_counts_once_for_vllm_and_again_for_lmcache() -> None:
    rig = Rig(num_blocks=40, max_model_len=640)
    rig.run(range(300), range(1000, 1300), answer=100)
    assert rig.engine.counters.preemptions > 0
    assert rig.cache.counters.queries == rig.engine.counters.cache_queries - rig.engine.counters.cache_hits == 600
    assert rig.cache.counters.lookup_requests == 2 + rig.engine.counters.preemptions


@pytest.mark.parametrize("block_size", [7, 16, 48])
def test_the_engine_ends_with_all_blocks_free_whatever_was_loaded(block_size: int) -> None:
    rig = Rig(block_size=block_size, num_blocks=900, max_model_len=4096, max_num_batched_tokens=300)
    for start in (0, 0, 50, 0):
        rig.run(range(start, start + 1100), range(start, start + 700))
        rig.forget()
    assert rig.engine.snapshot().used_blocks == 0
    assert rig.cache.counters.hits > 0


def test_the_keys_of_equal_seeds_are_equal_and_fit_a_signed_word() -> None:
    assert none_hash("0") == none_hash("0") != none_hash("1")
    assert all(-(1 << 63) <= none_hash(str(seed)) < 1 << 63 for seed in range(50))
    assert min(none_hash(str(seed)) for seed in range(50)) < 0
