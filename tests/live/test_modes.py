"""Each mode, live over HTTP before simulated engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.live.conftest import RunningRouter, running_router

WORKERS = {"sim-0", "sim-1", "sim-2", "sim-3"}


@pytest.fixture(scope="module")
def any_mode(worker_options: list[str]) -> Iterator[RunningRouter]:
    with running_router(
        "--router-mode", "round-robin", "--allow-mode-override", "--seed", "1", *worker_options
    ) as router:
        yield router


def served(router: RunningRouter, count: int, **headers: str) -> list[str]:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    answers = [router.ask(f"request {number}", headers=names) for number in range(count)]
    assert {answer.status_code for answer in answers} == {200}
    return [answer.headers["x-kvctl-worker"] for answer in answers]


def test_round_robin_goes_round(any_mode: RunningRouter) -> None:
    workers = served(any_mode, 8)
    assert Counter(workers) == dict.fromkeys(WORKERS, 2)
    assert workers[:4] == workers[4:]


@pytest.mark.parametrize("mode", ["random", "power-of-two", "least-loaded"])
def test_a_mode_without_knowledge_of_caches_spreads_requests(any_mode: RunningRouter, mode: str) -> None:
    assert set(served(any_mode, 40, x_kvctl_mode=mode)) == WORKERS


@pytest.mark.parametrize("mode", ["kv", "random", "round_robin", "PowerOfTwo", "leastloaded"])
def test_the_decision_names_the_mode_it_was_made_by(any_mode: RunningRouter, mode: str) -> None:
    answer = any_mode.ask("x", headers={"x-kvctl-mode": mode})
    assert any_mode.decision(answer)["mode"].replace("-", "") == mode.lower().replace("_", "")


def test_direct_takes_the_worker_that_is_named(any_mode: RunningRouter) -> None:
    assert set(served(any_mode, 3, x_kvctl_mode="direct", x_kvctl_worker="sim-2")) == {"sim-2"}


def test_direct_without_a_worker_is_the_callers_mistake(any_mode: RunningRouter) -> None:
    answer = any_mode.ask(headers={"x-kvctl-mode": "direct"})
    assert answer.status_code == 400
    assert "x-kvctl-worker" in answer.json()["error"]["message"]


def test_a_pin_holds_in_every_mode(any_mode: RunningRouter) -> None:
    assert set(served(any_mode, 4, x_kvctl_mode="kv", x_kvctl_worker="sim-1")) == {"sim-1"}


def test_an_unknown_mode_in_a_header_is_a_400_that_lists_the_modes(any_mode: RunningRouter) -> None:
    answer = any_mode.ask(headers={"x-kvctl-mode": "fastest"})
    assert answer.status_code == 400
    assert "round-robin" in answer.json()["error"]["message"]


def test_least_loaded_avoids_a_worker_with_a_running_request(any_mode: RunningRouter) -> None:
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(any_mode.ask, "long", {"x-kvctl-worker": "sim-3"}, max_tokens=600)
        any_mode.wait(
            "the long request is running",
            lambda: any(load["active_requests"] for load in any_mode.get("/loads")["loads"]),
        )
        workers = served(any_mode, 12, x_kvctl_mode="least-loaded")
        assert not long.done(), "the long request ended too soon to show anything"
        assert long.result().status_code == 200
    assert "sim-3" not in workers


def test_mode_override_must_be_allowed(kv_router: RunningRouter) -> None:
    answer = kv_router.ask(headers={"x-kvctl-mode": "random"})
    assert answer.status_code == 400
    assert "--allow-mode-override" in answer.json()["error"]["message"]


def test_kv_keeps_a_growing_conversation_on_one_worker_and_foretells_its_hits(kv_router: RunningRouter) -> None:
    prompt = list(range(100, 400))
    answers = []
    for turn in range(5):
        answers.append(kv_router.ask(prompt))
        prompt = prompt + [500 + turn] * 80
    assert len({answer.headers["x-kvctl-worker"] for answer in answers}) == 1
    decisions = [kv_router.decision(answer) for answer in answers]
    reported = [answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert reported[1:] == [288, 368, 448, 528]
    assert [decision["predicted_cached_tokens"] for decision in decisions] == reported
    assert [decision["engine_cached_tokens"] for decision in decisions] == reported


def test_kv_keeps_a_burst_of_siblings_together_before_the_first_event(kv_router: RunningRouter) -> None:
    prefix = [900 + number % 50 for number in range(1600)]
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda tail: kv_router.ask([*prefix, tail]), range(3)))
    decisions = sorted((kv_router.decision(answer) for answer in answers), key=lambda found: found["at"])
    assert len({decision["winner"]["worker"] for decision in decisions}) == 1
    assert [decision["predicted_cached_tokens"] for decision in decisions] == [0, 1600, 1600]


def test_kv_on_an_idle_fleet_breaks_ties_over_all_workers(kv_router: RunningRouter) -> None:
    answers = [kv_router.ask([1000 + number] * 40) for number in range(40)]
    assert {answer.headers["x-kvctl-worker"] for answer in answers} == WORKERS
