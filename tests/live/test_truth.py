"""The truth loop, live: an engine whose KV events promise what it does not hold, beside one that tells the truth."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from bench.sim.fleet import SimFleet
from tests.live.conftest import RunningRouter, running_router
from tests.router.events.engine import ScriptedEngine
from tests.router.events.frames import frame, stored

SIZE, BLOCKS, CHAINS = 16, 5, 40
REUSABLE = SIZE * (BLOCKS - 1)


def chain(number: int) -> list[int]:
    """A prompt of five blocks that shares nothing with the others."""
    rng = random.Random(number)
    return [rng.randrange(300, 900) for _ in range(SIZE * BLOCKS)]


@pytest.fixture(scope="module")
def engines() -> Iterator[SimFleet]:
    with SimFleet(2, speedup=50, num_blocks=4000, block_size=SIZE) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def liar() -> Iterator[ScriptedEngine]:
    """A publisher that says of its engine that it holds every chain."""
    publisher = ScriptedEngine()
    for number in range(CHAINS):
        hashes = [1000 * number + block for block in range(BLOCKS)]
        publisher.buffer.append((number, frame(stored(hashes, chain(number), size=SIZE))))
    publisher.next = CHAINS
    yield publisher
    publisher.close()


def options(engines: SimFleet, liar: ScriptedEngine) -> list[str]:
    """The liar's engine tells its events where the scripted publisher is, as far as the router knows."""
    honest, lying = engines.engines
    lies = f"{lying.url},id=liar,kv={liar.endpoint},replay={liar.replay_endpoint}"
    return ["--seed", "5", "--worker", f"{honest.url},id=honest", "--worker", lies]


def trust(router: RunningRouter) -> dict[str, Any]:
    found: dict[str, Any] = router.get("/workers/liar")["index_trust"]
    return found


def pinned(router: RunningRouter, number: int) -> dict[str, Any]:
    answer = router.ask(chain(number), headers={"x-kvctl-worker": "liar"})
    assert answer.status_code == 200, answer.text
    return router.decision(answer)


def row(decision: dict[str, Any], worker: str) -> dict[str, Any]:
    return next(row for row in decision["candidates"] if row["worker"] == worker)


def metric(router: RunningRouter, name: str) -> float:
    text = router.control.get("/metrics").text
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))
    )


@pytest.fixture(scope="module")
def router(engines: SimFleet, liar: ScriptedEngine) -> Iterator[RunningRouter]:
    with running_router(*options(engines, liar)) as running:
        running.wait("the lies are indexed", lambda: running.get("/workers/liar")["cached_blocks"] == CHAINS * BLOCKS)
        yield running


def test_a_worker_whose_engine_reuses_less_than_promised_loses_credit_and_gets_it_back(
    router: RunningRouter, liar: ScriptedEngine
) -> None:
    asked_for = len(liar.requests)
    for number in range(9):
        decision = pinned(router, number)
        assert (decision["predicted_cached_tokens"], decision["engine_cached_tokens"]) == (REUSABLE, 0)
        assert decision["degraded"] == []
    assert not trust(router)["distrusted"]
    pinned(router, 9)
    router.wait("the events that would explain it are late no more", lambda: trust(router)["distrusted"])
    found = trust(router)
    assert (found["distrusted"], found["answers"], found["shortfalls"], found["resyncs"]) == (True, 10, 10, 1)
    assert "learnt anew" in router.log()
    router.wait("its events are replayed", lambda: len(liar.requests) == asked_for + 1)
    router.wait("they are indexed", lambda: router.get("/workers/liar")["cached_blocks"] == CHAINS * BLOCKS)

    decision = router.decision(router.ask(chain(20)))
    assert decision["degraded"] == ["index_distrusted"]
    confidence = row(decision, "liar")["index_confidence"]
    assert 0 < confidence < 0.5
    assert row(decision, "liar")["overlap"]["device"] == int(BLOCKS * confidence)
    assert row(decision, "honest")["index_confidence"] == 1
    assert metric(router, "kvctl_worker_index_distrusted") == 1
    assert metric(router, "kvctl_worker_index_resyncs_total") == 1
    assert metric(router, "kvctl_degraded_decisions_total") > 0

    for _round in range(3):
        for number in range(10):  # these it holds by now: what its events say has become true
            pinned(router, number)
    assert not trust(router)["distrusted"]
    assert pinned(router, 3)["degraded"] == []
    assert metric(router, "kvctl_worker_index_distrusted") == 0


def test_without_the_truth_loop_the_lies_keep_their_credit(engines: SimFleet, liar: ScriptedEngine) -> None:
    with running_router("--no-truth-loop", *options(engines, liar)) as router:
        router.wait("the lies are indexed", lambda: router.get("/workers/liar")["cached_blocks"] == CHAINS * BLOCKS)
        for number in range(22, 34):
            decision = pinned(router, number)
            assert (decision["engine_cached_tokens"], decision["degraded"]) == (0, [])
        assert row(decision, "liar")["overlap"]["device"] == BLOCKS
        assert router.get("/workers/liar")["index_trust"] is None
        assert metric(router, "kvctl_worker_index_confidence") == 0


def test_an_honest_engine_that_evicts_all_the_time_is_never_distrusted() -> None:
    """Its cache holds a fraction of what is asked; events of evictions come a moment after the decisions."""
    with SimFleet(2, speedup=50, num_blocks=40, block_size=SIZE) as engines:
        workers = [option for engine in engines.engines for option in ("--worker", f"{engine.url},id={engine.id}")]
        with running_router("--seed", "5", *workers) as router:
            rng = random.Random(1)
            for _ in range(150):
                assert router.ask(chain(rng.randrange(25))).status_code == 200
            trusts = [worker["index_trust"] for worker in router.get("/workers")["workers"]]
            assert sum(found["answers"] for found in trusts) > 30
            assert [found["distrusted"] for found in trusts] == [False, False]
            assert [found["resyncs"] for found in trusts] == [0, 0]
            assert min(found["confidence"] for found in trusts) > 0.8
            assert metric(router, "kvctl_best_eligible_cached_tokens_total") >= metric(
                router, "kvctl_selected_cached_tokens_total"
            )
            reused = metric(router, "kvctl_engine_reused_tokens_total")
            kept = sum(one["engine_cached_tokens"] for one in router.get("/decisions?limit=1000")["decisions"])
            assert 0 < reused == kept


def test_approximate_workers_are_taken_to_hold_what_fits() -> None:
    """Engines without KV events, 40 blocks each: what was sent there first is gone, however little time has passed."""
    with SimFleet(1, speedup=50, num_blocks=40, block_size=SIZE, no_kv_events=True) as engines:
        worker = ("--worker", f"{engines.engines[0].url},id=blind,block-size={SIZE}")
        with running_router("--approximate-cache-policy", "lru", *worker) as router:
            for number in range(20):
                router.ask(chain(number), max_tokens=1)
            newest, oldest = (router.decision(router.ask(chain(number))) for number in (19, 0))
            assert (newest["predicted_cached_tokens"], newest["engine_cached_tokens"]) == (REUSABLE, REUSABLE)
            assert (oldest["predicted_cached_tokens"], oldest["engine_cached_tokens"]) == (0, 0)
            assert "no_kv_events" in newest["degraded"]
