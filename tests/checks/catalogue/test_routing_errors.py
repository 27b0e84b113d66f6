"""KV503, KV504: what goes wrong inside the router."""

from __future__ import annotations

import pytest

from checks.model import Reason, Status
from checks.snapshot import Member, Snapshot
from tests.checks.build import NOW, kubelet_time, only, router, snapshot, statuses, worker

KVAWARE = ("--routing-logic", "kvaware")


def line(message: str, at: float = NOW - 60, level: str = "INFO") -> str:
    return f"{kubelet_time(at)} [2026-08-01 10:29:00,000] {level}: {message} (routing_logic.py:6:vllm_router.routers)"


def routed() -> str:
    return line(
        "Routing request 8f0c-1 with session id None to http://10.0.0.1:8000 at 1785578460.0, process time = 0.1"
    )


def kvaware(text: str = "", **more: object) -> Member:
    return router(args=KVAWARE, log=text, **more)  # type: ignore[arg-type]


# -- KV503 -----------------------------------------------------------------------------------------------------------


def error(text: str) -> str:
    return line(
        f'Exception in route\nTraceback (most recent call last):\n  File "/r/routing_logic.py", line 9\n{text}',
        level="ERROR",
    )


def test_kv503_passes_without_exceptions() -> None:
    assert statuses("KV503", snapshot(kvaware(routed()))) == {"router-0": Status.PASS}


def test_kv503_fails_for_an_instance_without_endpoint() -> None:
    found = only("KV503", snapshot(kvaware(error("KeyError: 'lmcacheengineconfig_ab12'"))))
    assert found.status is Status.FAIL
    assert found.message == "1 requests failed: instance lmcacheengineconfig_ab12 is mapped to no endpoint"


def test_kv503_knows_an_instance_by_its_registration() -> None:
    text = line("Registered instance-worker ('w-0', 0) with URL 10.0.0.1:8001") + "\n" + error("KeyError: 'w-0'")
    assert statuses("KV503", snapshot(kvaware(text))) == {"router-0": Status.FAIL}


@pytest.mark.parametrize("what", ["KeyError: 'model'", "IndexError: list index out of range"])
def test_kv503_warns_of_other_exceptions(what: str) -> None:
    assert statuses("KV503", snapshot(kvaware(error(what)))) == {"router-0": Status.WARN}


def test_kv503_skips_the_router_whose_log_was_not_read() -> None:
    of = snapshot(kvaware(routed()), router("router-1", log=None, log_missing=Reason.GONE))
    assert statuses("KV503", of) == {"router-0": Status.PASS, "router-1": Status.SKIP}


def test_kv503_skips_without_any_log() -> None:
    assert only("KV503", snapshot(router(log=None))).reason is Reason.NO_DATA


# -- KV504 -----------------------------------------------------------------------------------------------------------


def mapping(text: str, workers: int = 1) -> Snapshot:
    members = [worker(f"w-{number}", ip=f"10.0.0.{number + 1}") for number in range(workers)]
    return snapshot(kvaware(line(f"Instance id to ip mapping: {text}")), *members)


def test_kv504_passes_where_every_worker_is_mapped() -> None:
    assert statuses("KV504", mapping("{'a': 'http://10.0.0.1:8000'}")) == {"router-0": Status.PASS}


@pytest.mark.parametrize("text", ["{None: 'http://10.0.0.1:8000'}", "{'a': None}"])
def test_kv504_fails_where_none_stands_in_it(text: str) -> None:
    assert statuses("KV504", mapping(text)) == {"router-0": Status.FAIL}


def test_kv504_warns_where_a_worker_is_missing() -> None:
    found = only("KV504", mapping("{'a': 'http://10.0.0.1:8000'}", workers=2))
    assert (found.status, found.message) == (Status.WARN, "1 of 2 workers are mapped to an instance")


def test_kv504_skips_where_it_was_not_printed() -> None:
    assert only("KV504", snapshot(kvaware(routed()), worker())).reason is Reason.NO_DATA


def test_kv504_says_so_where_it_cannot_be_read() -> None:
    found = only("KV504", mapping("{'a': <object at 0x1>}"))
    assert (found.status, found.reason) == (Status.ERROR, Reason.PARSE)


def test_kv504_skips_without_a_log() -> None:
    assert only("KV504", snapshot(router(args=KVAWARE, log=None))).reason is Reason.NO_DATA


def test_kv504_is_not_asked_of_another_strategy() -> None:
    assert only("KV504", snapshot(router(args=("--routing-logic", "session")))).reason is Reason.NOT_APPLICABLE


SCRAPE = "Failed to scrape metrics from http://10.0.0.1:8000: connection refused"
MODELS = "Failed to get model names from http://10.0.0.1:8000: timed out"


def unreached(*messages: str, at: float = NOW - 60, **more: object) -> Snapshot:
    text = "\n".join(line(one, at, "ERROR") for one in messages)
    return snapshot(kvaware(text), worker(**more))  # type: ignore[arg-type]


def test_kv503_warns_of_a_ready_engine_that_the_router_could_not_reach_three_times() -> None:
    assert statuses("KV503", unreached(SCRAPE, MODELS, SCRAPE)) == {"router-0": Status.PASS, "w-0": Status.WARN}


@pytest.mark.parametrize("at", [NOW - 60, NOW - 1000])
def test_kv503_lets_few_or_old_failures_to_reach_an_engine_be(at: float) -> None:
    times = 2 if at > NOW - 900 else 9
    assert statuses("KV503", unreached(*[SCRAPE] * times, at=at)) == {"router-0": Status.PASS}


def test_kv503_does_not_wonder_at_an_engine_that_is_not_ready() -> None:
    assert statuses("KV503", unreached(*[SCRAPE] * 9, ready=False)) == {"router-0": Status.PASS}


@pytest.mark.parametrize(("again", "status"), [(1, Status.PASS), (2, Status.WARN)])
def test_kv503_warns_where_more_than_one_in_twenty_requests_was_sent_again(again: int, status: Status) -> None:
    retry = line("Routing request 8f0c-1 to http://10.0.0.1:8000 (attempt 2/3)")
    of = snapshot(kvaware("\n".join([*[routed()] * 20, *[retry] * again])), worker())
    assert statuses("KV503", of) == {"router-0": status}
