"""KV951-KV953, KV957: the fleet as kvctl's own router knows it. Answers have the admin port's shape."""

from __future__ import annotations

from typing import Any

import pytest

from checks.metrics.view import Sample
from checks.model import Reason, Stack, Status
from checks.snapshot import Member, Snapshot
from tests.checks.build import findings, only, router, sample, snapshot, statuses, worker


def row(name: str = "gpu-0", **more: Any) -> dict[str, Any]:
    """One entry of /workers."""
    source = {"dp_rank": 0, "connected": True, "blocks": 316, "malformed": 0, "frames_lost": 0, "lost": None}
    return {
        "id": name,
        "url": "http://10.0.0.1:8000",
        "health": "up",
        "health_why": "ok",
        "draining": False,
        "models": ["m"],
        "block_size": 16,
        "block_size_from": "the engine's metrics",
        "kv_events": "live",
        "kv_endpoint": "tcp://10.0.0.1:5557",
        "kv_sources": [source | more.pop("source", {})],
        "cached_blocks": 316,
        "warnings": {},
        "tokenizer": {"m": {"source": "engine", "distrusted": None, "self_check": None}},
    } | more


def own(*rows: Any, mode: str = "kv", samples: list[Sample] | None = None, **more: Any) -> Snapshot:
    """A router with these workers, and the pod of the first."""
    answers = {"/workers": {"workers": list(rows)}, "/config": {"dispatch": {"mode": mode}}}
    answers |= more.pop("answers", {})
    members = more.pop("members", (engine(),))
    return snapshot(router(answers=answers), *members, stack=Stack.KVCTL, samples=samples or [], **more)


def engine(name: str = "w-0", ip: str = "10.0.0.1") -> Member:
    return worker(name, ip=ip, url=f"http://{ip}:8000")


@pytest.mark.parametrize("check", ["KV951", "KV952", "KV953", "KV957"])
def test_without_the_admin_port_there_is_no_data(check: str) -> None:
    of = snapshot(router(), engine(), stack=Stack.KVCTL)
    assert only(check, of).reason is Reason.NO_DATA


@pytest.mark.parametrize("check", ["KV951", "KV952", "KV953", "KV957"])
def test_other_routers_are_not_judged(check: str) -> None:
    assert statuses(check, snapshot(router(), worker())) == {"fleet": Status.SKIP}


@pytest.mark.parametrize("check", ["KV952", "KV953", "KV957"])
def test_a_mode_that_does_not_look_at_caches_is_not_judged_by_them(check: str) -> None:
    of = own(row(), mode="round-robin", answers={"/index": {"workers": []}})
    assert only(check, of).reason is Reason.NOT_APPLICABLE


@pytest.mark.parametrize("check", ["KV952", "KV957"])
def test_a_router_without_workers_has_no_data(check: str) -> None:
    assert only(check, own()).reason is Reason.NO_DATA


@pytest.mark.parametrize("answer", [[], "x", {"workers": "x"}, {"workers": [1, None]}])
def test_odd_answers_read_as_no_workers(answer: Any) -> None:
    of = own(answers={"/workers": answer})
    assert only("KV952", of).reason is Reason.NO_DATA


# -- KV951 -----------------------------------------------------------------------------------------------------------


def test_kv951_passes_where_every_worker_is_up() -> None:
    found = only("KV951", own(row()))
    assert (found.status, found.target.name, found.message) == (Status.PASS, "w-0", "worker gpu-0 is up")


def test_kv951_fails_a_worker_that_is_down_and_says_why() -> None:
    found = only("KV951", own(row(health="down", health_why="connection refused")))
    assert (found.status, found.message) == (Status.FAIL, "worker gpu-0 is down: connection refused")


@pytest.mark.parametrize("more", [{"health": "starting"}, {"draining": True}])
def test_kv951_warns_of_a_worker_that_takes_no_request_yet_or_any_more(more: dict[str, Any]) -> None:
    assert statuses("KV951", own(row(**more))) == {"w-0": Status.WARN}


def test_kv951_fails_a_router_without_workers_and_the_workers_it_does_not_know() -> None:
    assert statuses("KV951", own()) == {"fleet": Status.FAIL, "w-0": Status.FAIL}


def test_kv951_knows_a_worker_by_another_name_of_this_machine() -> None:
    of = own(row(url="http://localhost:8000"), members=(engine(ip="127.0.0.1"),))
    assert statuses("KV951", of) == {"w-0": Status.PASS}


def test_kv951_names_a_worker_that_was_not_read_by_the_routers_id() -> None:
    of = own(row(), row("gpu-1", url="http://10.0.0.2:8000", health="down"))
    assert statuses("KV951", of) == {"w-0": Status.PASS, "gpu-1": Status.FAIL}


# -- KV952 -----------------------------------------------------------------------------------------------------------


def test_kv952_passes_where_events_arrive() -> None:
    found = only("KV952", own(row()))
    assert (found.status, found.message) == (Status.PASS, "KV events of worker gpu-0 arrive (316 blocks so far)")


def test_kv952_fails_a_worker_that_publishes_none() -> None:
    found = only("KV952", own(row(kv_events="none", kv_sources=[])))
    assert found.status is Status.FAIL
    assert found.message.endswith("what it has cached is guessed (approximate mode)")


def test_kv952_fails_lost_events_and_says_why() -> None:
    found = only("KV952", own(row(kv_events="lost", source={"lost": "frames 4 to 9 are missing"})))
    assert (found.status, found.message) == (
        Status.FAIL,
        "KV events of worker gpu-0 were lost: frames 4 to 9 are missing",
    )


@pytest.mark.parametrize(
    "more", [{"kv_events": "pending"}, {"source": {"malformed": 2}}, {"source": {"frames_lost": 1}}]
)
def test_kv952_warns_where_events_are_not_there_yet_or_not_whole(more: dict[str, Any]) -> None:
    assert statuses("KV952", own(row(**more))) == {"w-0": Status.WARN}


def test_kv952_skips_a_worker_that_is_down() -> None:
    assert only("KV952", own(row(health="down", kv_events="none"))).reason is Reason.NO_DATA


# -- KV953 -----------------------------------------------------------------------------------------------------------


def index(blocks: dict[str, int], *samples: Sample, evicted: int = 0, rows: tuple[Any, ...] = ()) -> Snapshot:
    answer = {
        "bytes": 54568,
        "counters": {"stored": 474, "evicted": evicted},
        "workers": [{"worker": name, "dp_rank": 0, "blocks": count} for name, count in blocks.items()],
    }
    return own(*(rows or (row(),)), samples=list(samples), answers={"/index": answer})


def prompt(tokens: float) -> Sample:
    return sample("kvctl_prompt_tokens", tokens, "prod/router-0")


def answered(name: str, count: float) -> Sample:
    return sample("kvctl_legs", count, "prod/router-0", worker=name, outcome="ok")


def test_kv953_passes_where_blocks_are_known() -> None:
    found = only("KV953", index({"gpu-0": 316}, prompt(9000)))
    assert (found.status, found.message) == (Status.PASS, "the index holds 316 blocks of 1 workers")


def test_kv953_fails_an_empty_index_after_twenty_blocks_of_prompts() -> None:
    found = only("KV953", index({"gpu-0": 0}, prompt(320)))
    assert (found.status, found.message) == (Status.FAIL, "the index is empty after 320 prompt tokens")


def test_kv953_expects_no_block_of_engines_that_cache_no_prefixes() -> None:
    off = sample("cache_config_info", 1, enable_prefix_caching="False")
    assert only("KV953", index({"gpu-0": 0}, prompt(320), off)).reason is Reason.DISABLED


def test_kv953_skips_an_empty_index_before() -> None:
    assert only("KV953", index({"gpu-0": 0}, prompt(319))).reason is Reason.NO_TRAFFIC


def test_kv953_counts_prompt_tokens_of_decisions_where_there_is_no_metric() -> None:
    of = index({"gpu-0": 0})
    answers = dict(of.routers[0].answers) | {"/decisions": {"decisions": [{"prompt_tokens": 160}] * 2}}
    of = own(row(), answers=answers)
    assert only("KV953", of).status is Status.FAIL


def test_kv953_warns_where_the_index_is_at_its_limit() -> None:
    found = findings("KV953", index({"gpu-0": 316}, prompt(9000), evicted=12))
    assert [one.status for one in found] == [Status.WARN, Status.PASS]
    assert "--index-limit-mib" in found[0].hint


def test_kv953_warns_of_a_serving_worker_of_which_no_block_is_known() -> None:
    rows = (row(), row("gpu-1", url="http://10.0.0.2:8000"))
    of = index({"gpu-0": 316, "gpu-1": 0}, prompt(9000), answered("gpu-1", 20), rows=rows)
    assert statuses("KV953", of) == {"gpu-1": Status.WARN, "router-0": Status.PASS}


@pytest.mark.parametrize(("count", "events"), [(19, "live"), (20, "none")])
def test_kv953_expects_no_block_of_a_worker_that_served_little_or_tells_nothing(count: float, events: str) -> None:
    rows = (row(), row("gpu-1", url="http://10.0.0.2:8000", kv_events=events))
    of = index({"gpu-0": 316, "gpu-1": 0}, prompt(9000), answered("gpu-1", count), rows=rows)
    assert statuses("KV953", of) == {"router-0": Status.PASS}


# -- KV957 -----------------------------------------------------------------------------------------------------------


def block(size: str) -> Sample:
    return sample("cache_config_info", 1, block_size=size)


def test_kv957_passes_where_router_and_engine_agree() -> None:
    found = only("KV957", own(row(), samples=[block("16")]))
    assert (found.status, found.message) == (Status.PASS, "worker gpu-0: blocks of 16 tokens")


def test_kv957_fails_where_the_engine_has_other_blocks() -> None:
    found = only("KV957", own(row(), samples=[block("64")]))
    assert (found.status, found.message) == (
        Status.FAIL,
        "worker gpu-0 has blocks of 64 tokens, and the router takes them to be 16",
    )


@pytest.mark.parametrize(
    "more",
    [
        {"block_size": None},
        {"models": []},
        {"warnings": {"block_size": "block size 16 differs from 64"}},
        {"tokenizer": {"m": {"source": "engine", "distrusted": "ids differ", "self_check": None}}},
    ],
)
def test_kv957_warns_of_what_is_not_known_or_distrusted(more: dict[str, Any]) -> None:
    assert statuses("KV957", own(row(**more))) == {"w-0": Status.WARN}


def decided(what: str, count: float) -> list[Sample]:
    return [
        sample("kvctl_decisions", 100, "prod/router-0", increase=100.0, mode="kv", reason="lowest_cost"),
        sample("kvctl_degraded_decisions", count, "prod/router-0", increase=count, what=what),
    ]


def test_kv957_warns_where_most_decisions_did_without_the_prompts_blocks() -> None:
    of = own(row(), samples=decided("no_tokens", 51))
    found = [one.message for one in findings("KV957", of) if one.status is Status.WARN]
    assert found == ["51% of 100 decisions (15m): no_tokens"]


@pytest.mark.parametrize(("what", "count"), [("no_tokens", 50), ("no_kv_events", 100)])
def test_kv957_lets_fewer_and_other_degraded_decisions_be(what: str, count: float) -> None:
    assert statuses("KV957", own(row(), samples=decided(what, count))) == {"w-0": Status.PASS}


def test_kv957_skips_workers_that_are_not_up() -> None:
    assert only("KV957", own(row(health="down"))).reason is Reason.NO_DATA
