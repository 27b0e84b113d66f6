"""Rates of an interval: vLLM's periodic line and LMCache's gauges."""

from __future__ import annotations

import pytest

from bench.sim.engine import Counters, Snapshot
from bench.sim.faults import Faults
from bench.sim.keystore import KeyStore
from bench.sim.lmcache import LMCache, Lookup, Recent, Transfer
from bench.sim.statistics import Statistics
from bench.sim.styles import style_named

IDLE = Snapshot(0, 0, 0, 100, 0)
HEALTHY: Faults = frozenset()


class Deaf:
    def looked_up(self, lookup: Lookup) -> None: ...

    def retrieved(self, transfer: Transfer) -> None: ...

    def stored(self, transfer: Transfer) -> None: ...

    def contains_failed(self) -> None: ...

    def put_failed(self, key: int) -> None: ...


def rig(style: str = "lmcache-0.5.6") -> tuple[Statistics, LMCache]:
    cache = LMCache(0, KeyStore(10), Deaf(), HEALTHY)
    return Statistics(style_named(style), cache), cache


def test_an_idle_engine_tells_nothing() -> None:
    statistics, _ = rig()
    assert statistics.roll(Counters(), IDLE, 10.0) is None


def test_the_first_idle_interval_after_work_is_told_and_the_next_not() -> None:
    statistics, _ = rig()
    counters = Counters(prompt_tokens=100, generation_tokens=20)
    told = [statistics.roll(counters, IDLE, 10.0) for _ in range(3)]
    assert [stats is not None for stats in told] == [True, True, False]
    assert told[1] is not None and (told[1].prompt, told[1].generation) == (0, 0)


@pytest.mark.parametrize(("style", "prompt"), [("lmcache-0.4.3", 60.0), ("lmcache-0.5.6", 30.0)])
def test_prompt_throughput_leaves_out_cached_tokens_in_newer_releases_only(style: str, prompt: float) -> None:
    statistics, cache = rig(style)
    cache.counters.local_hits, cache.counters.hits = 100, 200
    stats = statistics.roll(Counters(prompt_tokens=600, generation_tokens=50), IDLE, 10.0)
    assert stats is not None
    assert (stats.prompt, stats.generation) == (prompt, 5.0)


def test_hit_rates_are_those_of_the_last_requests() -> None:
    statistics, cache = rig()
    cache.recent.extend([Recent(1000, 500, 0), Recent(1000, 0, 300)])
    stats = statistics.roll(Counters(generation_tokens=1), Snapshot(3, 2, 25, 100, 0), 10.0)
    assert stats is not None
    assert (stats.prefix_hit_rate, stats.external_hit_rate) == (25.0, 20.0)
    assert (stats.running, stats.waiting, stats.usage) == (3, 2, 25.0)


def test_hit_rates_are_left_out_where_nothing_was_looked_up() -> None:
    statistics, _ = rig()
    stats = statistics.roll(Counters(generation_tokens=1), IDLE, 10.0)
    assert stats is not None
    assert (stats.prefix_hit_rate, stats.external_hit_rate) == (None, None)


def test_lmcaches_gauges_are_of_the_last_interval_and_rest_at_one_and_zero() -> None:
    statistics, cache = rig()
    assert (statistics.retrieve_hit_rate, statistics.lookup_hit_rate) == (1.0, 0.0)
    counters = cache.counters
    counters.requested_tokens, counters.hit_tokens, counters.lookup_tokens, counters.lookup_hits = 512, 256, 1000, 512
    statistics.roll(Counters(), IDLE, 10.0)
    assert (statistics.retrieve_hit_rate, statistics.lookup_hit_rate) == (0.5, 0.512)
    statistics.roll(Counters(), IDLE, 10.0)
    assert (statistics.retrieve_hit_rate, statistics.lookup_hit_rate) == (1.0, 0.0)
