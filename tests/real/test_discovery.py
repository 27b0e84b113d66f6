"""What the router finds out by itself when it is told nothing but an engine's URL."""

from __future__ import annotations

from collections.abc import Sequence

import httpx

from .engines import BLOCK_SIZE, Engine
from .router_process import Router

FLEET = "pair"


def test_the_kv_endpoints_are_found(router: Router, engines: Sequence[Engine]) -> None:
    workers = router.workers()
    found = {
        engine.url: (workers[engine.url]["kv_endpoint"], workers[engine.url]["replay_endpoint"]) for engine in engines
    }
    assert found == {engine.url: (engine.kv_endpoint, engine.replay_endpoint) for engine in engines}


def test_kv_events_are_live(router: Router, engines: Sequence[Engine]) -> None:
    assert {worker["kv_events"] for worker in router.workers().values()} == {"live"}


def test_the_block_size_is_the_engines(router: Router, engines: Sequence[Engine]) -> None:
    assert {worker["block_size"] for worker in router.workers().values()} == {BLOCK_SIZE}


def test_the_capacity_is_the_engines(router: Router, engines: Sequence[Engine]) -> None:
    assert {worker["capacity_blocks"] for worker in router.workers().values()} == {engines[0].blocks}


def test_the_model_and_its_length_are_the_engines(router: Router, engines: Sequence[Engine]) -> None:
    facts = {(tuple(worker["models"]), worker["max_model_len"]) for worker in router.workers().values()}
    assert facts == {((engines[0].model,), engines[0].max_model_len)}


def test_nothing_is_warned_of(router: Router, engines: Sequence[Engine]) -> None:
    assert [worker["warnings"] for worker in router.workers().values()] == [{}, {}]


def test_a_decision_is_not_degraded(router: Router, engines: Sequence[Engine]) -> None:
    answer = httpx.post(
        f"{router.url}/v1/completions",
        json={"model": engines[0].model, "prompt": "import os\n" * 50, "max_tokens": 1},
        timeout=60.0,
    ).raise_for_status()
    assert router.decision(answer.headers["x-kvctl-decision"])["degraded"] == []
