"""Load returns to zero after any mix of completions, errors, client aborts and worker deaths."""

from __future__ import annotations

import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from bench.sim.fleet import SimFleet
from tests.live.conftest import RunningRouter, running_router

ACTIONS = ("whole", "stream", "abort", "abort", "bad", "unknown_model", "pinned", "too_long", "plain")


def act(router: RunningRouter, seed: int) -> tuple[str, int]:
    """One client of a random kind; returns its kind and status, 0 for a connection that broke off."""
    chance = random.Random(seed)
    kind = chance.choice(ACTIONS)
    prompt = [100 + chance.randrange(4)] * chance.randrange(1, 900)
    body = {"model": "sim", "prompt": prompt, "max_tokens": chance.randrange(1, 80)}
    try:
        with httpx.Client(base_url=router.url, timeout=30.0) as client:
            if kind == "bad":
                return kind, client.post("/v1/completions", content=b"{").status_code
            if kind == "unknown_model":
                return kind, client.post("/v1/completions", json=body | {"model": "x"}).status_code
            if kind == "pinned":
                pin = {"x-kvctl-worker": chance.choice(["w0", "w1", "w2", "w9"])}
                return kind, client.post("/v1/completions", json=body, headers=pin).status_code
            if kind == "too_long":
                return kind, client.post("/v1/completions", json=body | {"prompt": [1] * 9000}).status_code
            if kind == "plain":
                return kind, client.post("/tokenize", json={"model": "sim", "prompt": "x"}).status_code
            if kind == "whole":
                return kind, client.post("/v1/completions", json=body).status_code
            with client.stream("POST", "/v1/completions", json=body | {"stream": True, "max_tokens": 200}) as answer:
                for number, _part in enumerate(answer.iter_raw()):
                    if kind == "abort" and number >= chance.randrange(3):
                        break
                return kind, answer.status_code
    except httpx.TransportError:
        return kind, 0


@pytest.mark.parametrize("mode", ["kv", "least-loaded"])
def test_load_is_zero_after_any_mix_of_ends(mode: str) -> None:
    fleets = [SimFleet(1, speedup=10, max_model_len=8000, num_blocks=600) for _ in range(3)]
    try:
        options = [
            option
            for number, fleet in enumerate(fleets)
            for option in ("--worker", f"{fleet.start().engines[0].url},id=w{number}")
        ]
        with running_router("--router-mode", mode, "--health-interval", "0.3", *options) as router:
            with ThreadPoolExecutor(24) as pool:
                first = [pool.submit(act, router, seed) for seed in range(120)]
                second = [pool.submit(act, router, 1000 + seed) for seed in range(60)]
                first[60].result()
                pid = fleets[2].pid
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                ends = [future.result() for future in first + second]
            statuses = {status for _kind, status in ends}
            assert {200, 400, 404} <= statuses
            assert any(kind == "abort" for kind, _status in ends)
            router.wait(
                "all loads are zero",
                lambda: (
                    router.get("/loads")["open_bookings"] == 0
                    and all(
                        load["active_requests"] == load["prefill_tokens"] == load["decode_blocks"] == 0
                        for load in router.get("/loads")["loads"]
                    )
                ),
            )
            survivors = [worker for worker in router.get("/workers")["workers"] if worker["health"] == "up"]
            assert {worker["id"] for worker in survivors} == {"w0", "w1"}
            not_begun = [end for end in ends if end[0] in ("whole", "plain") and end[1] >= 500]
            assert not not_begun, "a request that had not begun failed though others could serve it"
    finally:
        for fleet in fleets:
            fleet.stop()


def test_an_abort_while_queued_in_the_engine_leaves_nothing_behind(kv_router: RunningRouter) -> None:
    with pytest.raises(httpx.ReadTimeout):
        kv_router.http.post(
            "/v1/completions", json={"model": "sim", "prompt": [3] * 20_000, "max_tokens": 900}, timeout=0.05
        )
    kv_router.wait("the booking is released", lambda: kv_router.get("/loads")["open_bookings"] == 0)
