"""Host memory and a shared Redis behind simulated engines, and what the router makes of them, over HTTP."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from bench.sim.fleet import SimEngine, SimFleet
from tests.live.conftest import RunningRouter, running_router
from tests.redis_server import RedisServer, redis_server

BLOCK = 16
BLOCKS = 20
TOKENS = BLOCKS * BLOCK
_numbers = itertools.count(1)


def prompt() -> list[int]:
    """320 token ids that no other prompt begins with."""
    number = next(_numbers)
    return [300 + number, *(100 + (number * 7 + place * 13) % 150 for place in range(TOKENS - 1))]


def eventually(what: str, true: Callable[[], Any], patience: float = 20.0) -> None:
    deadline = time.monotonic() + patience
    while not true():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.02)


def complete(engine: SimEngine, ids: list[int]) -> int:
    """The cached tokens that an engine reports for a prompt it is asked directly."""
    body = {"model": "sim", "prompt": ids, "max_tokens": 2}
    answer = httpx.post(f"{engine.url}/v1/completions", json=body, timeout=30.0)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def stats(engine: SimEngine) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{engine.url}/sim/stats", timeout=30.0).json()
    return found


def row(decision: dict[str, Any], worker: str) -> dict[str, Any]:
    return next(one for one in decision["candidates"] if one["worker"] == worker)


def metric(router: RunningRouter, name: str) -> float:
    lines = router.control.get("/metrics").text.splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def settled(router: RunningRouter, ids: list[int], **headers: str) -> dict[str, Any]:
    """The decision on a prompt, with its engine's report."""
    answer = router.ask(ids, headers={name.replace("_", "-"): value for name, value in headers.items()})
    assert answer.status_code == 200, answer.text
    return router.decision(answer)


# -- the shared store ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(scope="module")
def pair(store: RedisServer) -> Iterator[tuple[SimEngine, SimEngine]]:
    """Two engines in two processes, sharing the Redis."""
    with SimFleet(1, speedup=20, l2=store.url, seed=1) as one, SimFleet(1, speedup=20, l2=store.url, seed=2) as other:
        yield one.engines[0], other.engines[0]


@pytest.fixture(scope="module")
def router(store: RedisServer, pair: tuple[SimEngine, SimEngine]) -> Iterator[RunningRouter]:
    workers = [part for name, engine in zip("ab", pair) for part in ("--worker", f"{engine.url},id={name}")]
    with running_router("--seed", "5", "--shared-cache", store.url, "--shared-cache-timeout", "1", *workers) as running:
        yield running


def shared(store: RedisServer, engine: SimEngine) -> list[int]:
    """A prompt that an engine has computed and written to the store."""
    ids, before = prompt(), store.keys()
    complete(engine, ids)
    eventually("the prompt is in the store", lambda: store.keys() >= before + BLOCKS)
    return ids


def test_what_one_process_computed_the_other_loads(store: RedisServer, pair: tuple[SimEngine, SimEngine]) -> None:
    one, other = pair
    before = stats(other)["tiers"]["counters"]
    assert complete(other, shared(store, one)) == TOKENS - BLOCK
    after = stats(other)["tiers"]["counters"]
    assert after["loaded"]["EXTERNAL"] - before["loaded"]["EXTERNAL"] == BLOCKS - 1
    assert after["load_seconds"] > before["load_seconds"]


def test_a_decision_shows_what_each_worker_would_find_in_the_store(
    store: RedisServer, pair: tuple[SimEngine, SimEngine], router: RunningRouter
) -> None:
    ids = shared(store, pair[0])
    seen: dict[str, Any] = {}

    def told() -> bool:
        seen.update(settled(router, ids, x_kvctl_worker="a"))
        return bool(row(seen, "a")["overlap"]["device"] == BLOCKS)

    eventually("the events have come", told)
    assert seen["degraded"] == []
    assert row(seen, "a")["overlap"] == {"device": BLOCKS, "host": 0, "disk": 0, "shared": 0}
    assert row(seen, "b")["overlap"] == {"device": 0, "host": 0, "disk": 0, "shared": BLOCKS}


def test_a_shared_block_counts_half_in_the_cost(
    store: RedisServer, pair: tuple[SimEngine, SimEngine], router: RunningRouter
) -> None:
    found = settled(router, shared(store, pair[0]), x_kvctl_workers="b")
    assert row(found, "b")["terms"][0] == {"name": "prefill", "value": BLOCKS - 0.5 * BLOCKS, "unit": "blocks"}


def test_the_prediction_of_a_shared_prompt_is_what_the_engine_reports(
    store: RedisServer, pair: tuple[SimEngine, SimEngine], router: RunningRouter
) -> None:
    found = settled(router, shared(store, pair[0]), x_kvctl_worker="b")
    assert found["predicted_cached_tokens"] == TOKENS - BLOCK
    assert found["engine_cached_tokens"] == TOKENS - BLOCK


def test_explain_looks_into_the_store_too(
    store: RedisServer, pair: tuple[SimEngine, SimEngine], router: RunningRouter
) -> None:
    ids = shared(store, pair[0])
    answer = router.control.post("/explain", json={"model": "sim", "prompt": ids, "max_tokens": 1})
    assert row(answer.json(), "b")["overlap"]["shared"] == BLOCKS


def test_no_request_fails_when_the_redis_is_killed_in_mid_run(
    store: RedisServer, pair: tuple[SimEngine, SimEngine], router: RunningRouter
) -> None:
    assert settled(router, prompt())["degraded"] == []
    store.kill()
    for _each in range(6):
        assert settled(router, prompt())["degraded"] == ["shared_cache_unreachable"]
    assert metric(router, 'kvctl_degraded_decisions_total{what="shared_cache_unreachable"}') >= 6
    assert metric(router, "kvctl_shared_cache_up") == 0
    assert router.log().count("cannot be asked") == 1
    engines = [stats(engine)["l2"] for engine in pair]
    assert not all(one["up"] for one in engines)
    assert sum(one["counters"]["lookup_errors"] + one["counters"]["write_errors"] for one in engines) >= 1

    assert store.start()
    eventually("the router asks again", lambda: settled(router, prompt())["degraded"] == [])
    eventually("the engines write again", lambda: settled(router, prompt()) and store.keys() > 0)


def test_a_redis_that_hangs_is_named_and_asked_again(store: RedisServer, router: RunningRouter) -> None:
    eventually("Redis is asked", lambda: settled(router, prompt())["degraded"] == [])
    store.pause()
    assert settled(router, prompt())["degraded"] == ["shared_cache_unreachable"]
    assert metric(router, 'kvctl_shared_cache_lookups_total{outcome="late"}') >= 1
    store.resume()
    eventually("it is asked again", lambda: settled(router, prompt())["degraded"] == [])


def test_events_alone_tell_one_worker_of_what_another_has_stored() -> None:
    with SimFleet(2, speedup=20, l2="memory") as fleet:
        workers = [part for engine in fleet.engines for part in ("--worker", f"{engine.url},id={engine.id}")]
        with running_router("--shared-cache", "events", *workers) as router:
            ids = prompt()
            settled(router, ids, x_kvctl_worker="sim-0")
            seen: dict[str, Any] = {}

            def told() -> bool:
                answer = router.control.post("/explain", json={"model": "sim", "prompt": ids, "max_tokens": 1})
                seen.update(row(answer.json(), "sim-1")["overlap"])
                return bool(seen["shared"])

            eventually("the store's blocks are told", told)
            assert seen == {"device": 0, "host": 0, "disk": 0, "shared": BLOCKS}
            found = settled(router, ids, x_kvctl_worker="sim-1")
            assert found["predicted_cached_tokens"] == found["engine_cached_tokens"] == TOKENS - BLOCK


# -- host memory and disk ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiered() -> Iterator[tuple[SimEngine, RunningRouter]]:
    """An engine with room for two prompts on its device and one in host memory, and a router before it."""
    with SimFleet(1, speedup=20, num_blocks=50, host_blocks=25, disk_blocks=1000) as fleet:
        engine = fleet.engines[0]
        with running_router("--worker", f"{engine.url},id=a") as running:
            yield engine, running


def overlap(router: RunningRouter, ids: list[int]) -> dict[str, int]:
    answer = router.control.post("/explain", json={"model": "sim", "prompt": ids, "max_tokens": 1})
    found: dict[str, int] = row(answer.json(), "a")["overlap"]
    return found


def test_evicted_blocks_come_back_from_host_memory_as_the_decision_says(
    tiered: tuple[SimEngine, RunningRouter],
) -> None:
    engine, router = tiered
    first = prompt()
    settled(router, first)

    def pushed_out() -> bool:
        return bool(settled(router, prompt()) and overlap(router, first)["host"])

    eventually("the prompt has moved to host memory", pushed_out)
    before = stats(engine)["tiers"]["counters"]["loaded"]["CPU"]
    found = settled(router, first)
    seen = row(found, "a")["overlap"]
    assert seen["host"] > 0
    assert sum(seen.values()) == BLOCKS
    assert found["engine_cached_tokens"] == found["predicted_cached_tokens"] == TOKENS - BLOCK
    loaded = stats(engine)["tiers"]["counters"]["loaded"]["CPU"] - before
    assert loaded == seen["host"] - (seen["disk"] == 0)


def test_what_host_memory_gives_up_counts_as_on_disk(tiered: tuple[SimEngine, RunningRouter]) -> None:
    _engine, router = tiered
    first = prompt()
    settled(router, first)

    def pushed_out() -> bool:
        return bool(settled(router, prompt()) and overlap(router, first)["disk"] == BLOCKS)

    eventually("the prompt has moved to disk", pushed_out)
    found = settled(router, first)
    assert row(found, "a")["overlap"] == {"device": 0, "host": 0, "disk": BLOCKS, "shared": 0}
    assert found["engine_cached_tokens"] == found["predicted_cached_tokens"] == TOKENS - BLOCK
