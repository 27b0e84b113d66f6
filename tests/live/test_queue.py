"""The queue in front of selection, live: waiting, order, limits, and clients that leave."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from bench.sim.fleet import SimFleet
from tests.live.conftest import RunningRouter, running_router

PROMPT = list(range(100, 164))


@pytest.fixture(scope="module")
def one() -> Iterator[SimFleet]:
    """One engine with its own pace, so that a request can be seen waiting."""
    with SimFleet(1, speedup=1) as fleet:
        yield fleet


@pytest.fixture
def router(one: SimFleet) -> Iterator[RunningRouter]:
    """Busy with any block in use: one request at a time, two may wait."""
    engine = one.engines[0]
    options = ("--active-decode-blocks-threshold", "0", "--queue-limit", "2", "--queue-timeout", "20")
    with running_router(*options, "--tenant-limit", "2", "--worker", f"{engine.url},id=w") as running:
        yield running


@contextlib.contextmanager
def running_stream(router: RunningRouter, **headers: str) -> Iterator[httpx.Response]:
    """A stream that occupies the worker until the block is left."""
    body = {"model": "sim", "prompt": PROMPT, "max_tokens": 5000, "stream": True, "ignore_eos": True}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with router.http.stream("POST", "/v1/completions", json=body, headers=named) as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()
        next(lines)
        yield answer


class Asked:
    """A request in a thread of its own."""

    def __init__(self, router: RunningRouter, done: list[str], name: str, **headers: str) -> None:
        self.answer: httpx.Response | None = None
        self._named = {key.replace("_", "-"): value for key, value in headers.items()}
        self._router, self._done, self._name = router, done, name
        self.thread = threading.Thread(target=self._ask)
        self.thread.start()

    def _ask(self) -> None:
        body = {"model": "sim", "prompt": PROMPT, "max_tokens": 2}
        self.answer = httpx.post(f"{self._router.url}/v1/completions", json=body, headers=self._named, timeout=30.0)
        self._done.append(self._name)


def waiting(router: RunningRouter) -> int:
    return int(router.get("/queue")["waiting"])


def error(answer: httpx.Response | None) -> dict[str, Any]:
    assert answer is not None
    found: dict[str, Any] = answer.json()["error"]
    return found


def test_a_request_waits_until_the_worker_is_free_and_is_served(router: RunningRouter) -> None:
    done: list[str] = []
    with running_stream(router):
        asked = Asked(router, done, "a")
        router.wait("it waits", lambda: waiting(router) == 1)
    asked.thread.join(20)
    assert asked.answer is not None
    assert asked.answer.status_code == 200
    assert router.get("/queue")["outcomes"]["placed"] == 1


def test_a_strict_priority_is_served_first(router: RunningRouter) -> None:
    done: list[str] = []
    with running_stream(router):
        first = Asked(router, done, "first")
        router.wait("it waits", lambda: waiting(router) == 1)
        second = Asked(router, done, "strict", x_kvctl_strict_priority="1")
        router.wait("both wait", lambda: waiting(router) == 2)
    for asked in (first, second):
        asked.thread.join(20)
    assert done == ["strict", "first"]


def test_a_full_queue_refuses_by_knob_limit_and_current_value(router: RunningRouter) -> None:
    done: list[str] = []
    with running_stream(router):
        inside = [Asked(router, done, str(number)) for number in range(2)]
        router.wait("both wait", lambda: waiting(router) == 2)
        answer = router.ask(PROMPT)
        assert answer.status_code == 529
        assert answer.headers["retry-after"]
        assert {key: error(answer)[key] for key in ("limit", "value", "current")} == {
            "limit": "queue-limit",
            "value": 2,
            "current": 2,
        }
    for asked in inside:
        asked.thread.join(20)
    assert sorted(done) == ["0", "1"]


def test_a_client_that_leaves_the_queue_leaves_no_trace(router: RunningRouter) -> None:
    with running_stream(router):
        with pytest.raises(httpx.ReadTimeout):
            body = {"model": "sim", "prompt": PROMPT, "max_tokens": 2}
            httpx.post(f"{router.url}/v1/completions", json=body, timeout=0.4)
        router.wait("it is gone", lambda: waiting(router) == 0)
        assert router.get("/queue")["outcomes"]["cancelled"] == 1
    router.wait("the load is given back", lambda: router.get("/loads")["open_bookings"] == 0)


def test_a_deadline_that_passes_in_the_queue_is_a_504(router: RunningRouter) -> None:
    with running_stream(router):
        began = time.monotonic()
        answer = router.ask(PROMPT, headers={"x-kvctl-deadline-ms": "300"})
        assert answer.status_code == 504
        assert error(answer)["code"] == "deadline_passed"
        assert time.monotonic() - began < 10


def test_a_tenant_past_its_limit_is_refused_and_others_are_not(router: RunningRouter) -> None:
    done: list[str] = []
    with running_stream(router, x_tenant_id="acme"):
        mine = Asked(router, done, "mine", x_tenant_id="acme")
        router.wait("it waits", lambda: waiting(router) == 1)
        answer = router.ask(PROMPT, headers={"x-tenant-id": "acme"})
        assert answer.status_code == 429
        assert error(answer)["limit"] == "tenant-limit"
        other = Asked(router, done, "other", x_tenant_id="bolt")
        router.wait("both wait", lambda: waiting(router) == 2)
    for asked in (mine, other):
        asked.thread.join(20)
    assert sorted(done) == ["mine", "other"]


def test_raising_a_threshold_lets_those_who_wait_in(router: RunningRouter) -> None:
    done: list[str] = []
    with running_stream(router):
        asked = Asked(router, done, "a")
        router.wait("it waits", lambda: waiting(router) == 1)
        assert router.control.post("/busy-thresholds", json={"decode_blocks": 1.0}).status_code == 200
        asked.thread.join(20)
        assert done == ["a"]


def test_those_who_wait_for_a_worker_that_is_removed_are_refused_at_once(router: RunningRouter) -> None:
    done: list[str] = []
    with running_stream(router):
        asked = Asked(router, done, "a")
        router.wait("it waits", lambda: waiting(router) == 1)
        assert router.control.delete("/workers/w").status_code == 200
        asked.thread.join(10)
        assert asked.answer is not None
        assert asked.answer.status_code == 503
    router.wait("the load is given back", lambda: router.get("/loads")["open_bookings"] == 0)


def test_those_who_wait_are_served_by_a_worker_that_drains_no_longer(one: SimFleet, sims: SimFleet) -> None:
    done: list[str] = []
    workers = [f"{one.engines[0].url},id=w", f"{sims.engines[0].url},id=v"]
    options = [part for worker in workers for part in ("--worker", worker)]
    with running_router("--active-decode-blocks-threshold", "0", "--queue-limit", "2", *options) as router:
        assert router.control.post("/workers/v/drain").status_code == 200
        with running_stream(router):
            asked = Asked(router, done, "a")
            router.wait("it waits", lambda: waiting(router) == 1)
            assert router.control.post("/workers/v/undrain").status_code == 200
            asked.thread.join(10)
            assert asked.answer is not None
            assert asked.answer.headers["x-kvctl-worker"] == "v"


def test_those_who_wait_for_one_worker_hold_up_nobody_else(one: SimFleet, sims: SimFleet) -> None:
    done: list[str] = []
    workers = [f"{one.engines[0].url},id=w", f"{sims.engines[0].url},id=v"]
    options = [part for worker in workers for part in ("--worker", worker)]
    limits = ("--active-decode-blocks-threshold", "0", "--queue-limit", "9")
    with running_router(*limits, "--session-affinity-ttl", "60", *options) as router:
        with running_stream(router, x_kvctl_worker="w"):
            pinned = [
                Asked(router, done, f"p{number}", x_kvctl_worker="w", x_session_id=f"s{number}") for number in range(4)
            ]
            router.wait("they wait", lambda: waiting(router) == 4)
            other = Asked(router, done, "other", x_session_id="t")
            other.thread.join(10)
            assert done == ["other"]
        for asked in pinned:
            asked.thread.join(20)
        assert len(done) == 5
