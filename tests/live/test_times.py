"""The cost in time, queued prefill that goes down, and generated blocks as load, live before simulated engines."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator

import pytest

from bench.sim.fleet import SimFleet
from tests.live.conftest import RunningRouter, running_router


@pytest.fixture(scope="module")
def mixed() -> Iterator[RunningRouter]:
    """One engine ten times as slow as the other, a router that counts in time and follows the output."""
    with SimFleet(1, speedup=10) as fast, SimFleet(1, speedup=1) as slow:
        workers = [("fast", fast.engines[0].url), ("slow", slow.engines[0].url)]
        options = [part for name, url in workers for part in ("--worker", f"{url},id={name}")]
        with running_router("--kv-cost", "time", "--router-track-output-blocks", "--seed", "5", *options) as router:
            yield router


def cold(router: RunningRouter, tokens: int = 3000, **headers: str) -> str:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    unique = uuid.uuid4().int
    prompt = [(unique >> (at % 96) & 0x3FF) + at % 7 for at in range(tokens)]
    prompt[0] = unique % 1000
    answer = router.ask(prompt, headers=named, stream=True, max_tokens=4)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-kvctl-worker"]


def test_the_terms_are_milliseconds(mixed: RunningRouter) -> None:
    decision = mixed.decision(mixed.ask("hello"))
    assert [(term["name"], term["unit"]) for term in decision["candidates"][0]["terms"]] == [
        ("queue", "ms"),
        ("prefill", "ms"),
        ("slow_down", "ms"),
    ]


def test_a_slow_engine_is_learned_and_gets_less(mixed: RunningRouter) -> None:
    for worker in ("fast", "slow"):
        for tokens in (500, 1000, 2000, 4000) * 2:
            cold(mixed, tokens, x_kvctl_worker=worker)
    served = Counter(cold(mixed) for _ in range(12))
    assert served["fast"] >= 11


def test_generated_tokens_are_load_while_a_stream_runs_and_none_after(mixed: RunningRouter) -> None:
    def blocks() -> int:
        return sum(row["decode_blocks"] for row in mixed.get("/loads")["loads"])

    mixed.wait("the fleet is idle", lambda: mixed.get("/loads")["open_bookings"] == 0)
    body = {"model": "sim", "prompt": "x" * 40, "max_tokens": 400, "stream": True, "ignore_eos": True}
    most = 0
    with mixed.http.stream("POST", "/v1/completions", json=body, headers={"x-kvctl-worker": "slow"}) as answer:
        for _line in answer.iter_lines():
            most = max(most, blocks()) if most < 8 else most
    assert most >= 8
    mixed.wait("the load is given back", lambda: blocks() == 0)


def test_an_expected_length_is_read_from_the_request(mixed: RunningRouter) -> None:
    def slow_down(tokens: int) -> float:
        decision = mixed.decision(mixed.ask("same", headers={"x-kvctl-osl": str(tokens), "x-kvctl-worker": "slow"}))
        row = next(row for row in decision["candidates"] if row["worker"] == "slow")
        return next(term["value"] for term in row["terms"] if term["name"] == "slow_down")

    short, long = slow_down(10), slow_down(1000)
    assert long == pytest.approx(100 * short, rel=0.2) or short == 0


@pytest.mark.parametrize("option", ["--kv-cost", "--router-prefill-load-model"])
def test_an_unknown_unit_or_model_is_usage(option: str) -> None:
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "kvctl", "serve", option, "magic"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "not 'magic'" in done.stderr
