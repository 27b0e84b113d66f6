"""Who served, whether a cache decided, and what came from a cache: from literal lines and pages."""

from __future__ import annotations

import pytest

from checks.metrics.scrape import PageText, from_pages
from checks.metrics.view import Metrics
from checks.probe.attribution import Looked, by_cache, cached_by_metric, loaded_by_metric, looked, moved, named, routes
from checks.snapshot import Member
from tests.checks.build import log_view, snapshot, worker

WORKERS = (
    worker("w-0", ip="10.0.0.1", url="http://10.0.0.1:8000"),
    worker("w-1", ip="10.0.0.2", url="http://10.0.0.2:8000"),
    worker("w-2", ip="10.0.0.3", url="http://10.0.0.3:8000"),
    worker("w-3", ip="10.0.0.3", url="http://10.0.0.3:8001"),
)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("w-1", "prod/w-1"),
        ("prod/w-1", "prod/w-1"),
        ("http://10.0.0.2:8000", "prod/w-1"),
        ("http://10.0.0.2:8000/", "prod/w-1"),
        ("http://10.0.0.2:8000@3", "prod/w-1"),
        ("10.0.0.2:8000", "prod/w-1"),
        ("10.0.0.2", "prod/w-1"),
        ("10.0.0.3:8001", "prod/w-3"),
        ("10.0.0.3", ""),
        ("10.0.0.9:8000", ""),
        ("w-10", ""),
        ("http://[bad", ""),
        ("a:b:c", ""),
        ("", ""),
    ],
)
def test_a_worker_is_known_by_name_url_or_address(told: str, expected: str) -> None:
    assert named(WORKERS, told) == expected


MAP = "INFO: Instance id to ip mapping: {'a': 'http://10.0.0.1:8000', 'b': 'http://10.0.0.2:8000'} (x.py:1:r)"


def line(second: float, text: str) -> str:
    whole, part = divmod(second, 1)
    return f"2026-08-01T10:01:{int(whole):02d}.{int(part * 1000):03d}Z [2026-08-01 10:01:00,001] {text}"


def route(second: float, request_id: str, host: str) -> str:
    return line(
        second, f"INFO: Routing request {request_id} with session id None to http://{host}:8000 at 1.0 (x.py:1:r)"
    )


def hit(second: float, instance: str) -> str:
    return line(second, f"INFO: Routing request to {instance} found by kvaware router (x.py:1:r)")


def read(*lines: str, wanted: tuple[str, ...] = ("k-1",)) -> dict[str, tuple[str, bool]]:
    found = routes(log_view("\n".join((line(0, MAP), *lines))), wanted)
    return {key: (one.url, one.by_cache) for key, one in found.items()}


def test_a_route_with_a_hit_just_before_it_was_decided_by_a_cache() -> None:
    assert read(hit(1.0, "a"), route(1.01, "k-1", "10.0.0.1")) == {"k-1": ("http://10.0.0.1:8000", True)}


def test_a_route_without_a_hit_was_not() -> None:
    assert read(route(1.01, "k-1", "10.0.0.1")) == {"k-1": ("http://10.0.0.1:8000", False)}


def test_a_hit_more_than_a_second_ago_belongs_to_something_else() -> None:
    assert read(hit(1.0, "a"), route(2.5, "k-1", "10.0.0.1"))["k-1"][1] is False


def test_a_hit_of_another_instance_belongs_to_something_else() -> None:
    assert read(hit(1.0, "b"), route(1.01, "k-1", "10.0.0.1"))["k-1"][1] is False


def test_a_hit_is_used_once() -> None:
    lines = (hit(1.0, "a"), route(1.01, "other", "10.0.0.1"), route(1.02, "k-1", "10.0.0.1"))
    assert read(*lines)["k-1"][1] is False


def test_requests_that_cross_each_other_are_told_apart_by_instance() -> None:
    lines = (hit(1.0, "a"), hit(1.01, "b"), route(1.02, "other", "10.0.0.2"), route(1.03, "k-1", "10.0.0.1"))
    assert read(*lines, wanted=("k-1", "other")) == {
        "k-1": ("http://10.0.0.1:8000", True),
        "other": ("http://10.0.0.2:8000", True),
    }


def test_an_instance_that_nobody_mapped_fits_any_url() -> None:
    assert read(hit(1.0, "unheard-of"), route(1.01, "k-1", "10.0.0.1"))["k-1"][1] is True


def test_a_registration_maps_an_instance_too() -> None:
    told = line(0.5, "LMCache INFO: Registered instance-worker ('c', 0) with URL 10.0.0.2:8001 (x.py:1:r)")
    assert read(told, hit(1.0, "c"), route(1.01, "k-1", "10.0.0.1"))["k-1"][1] is False


REQID = "[2026-08-01 10:02:00,000] LMCache INFO: Reqid: cmpl-kvctl-1-repeat-01-0, Total tokens 713, {}(x.py:1:l)"


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("Inference Engine computed tokens: 704, LMCache hit tokens: 512, need to load: 0 ", Looked(713, 704, 512)),
        ("LMCache hit tokens: 512, need to load: -192 ", Looked(713, None, 512)),
        ("LMCache hit tokens: None ", None),
    ],
    ids=["from 0.3.14 on", "up to 0.3.13", "a lookup that is pending"],
)
def test_lmcaches_line_about_a_request_is_read(rest: str, expected: Looked | None) -> None:
    assert looked(log_view(REQID.format(rest)), "kvctl-1-repeat-01") == expected


def test_a_line_about_another_request_is_not_taken() -> None:
    text = REQID.format("Inference Engine computed tokens: 704, LMCache hit tokens: 512, need to load: 0 ")
    assert looked(log_view(text), "kvctl-1-repeat-02") is None


@pytest.mark.parametrize(("found", "expected"), [(Looked(713, 704, 512), 704), (Looked(713, 0, 512), 512)])
def test_what_either_cache_had_counts_once(found: Looked, expected: int) -> None:
    assert found.cached == expected


def grown(**counts: tuple[str, float, float]) -> Metrics:
    """name__worker=(metric, before, after)."""
    pages: list[dict[str, str]] = [{}, {}]
    for key, (metric, *values) in counts.items():
        member = f"prod/w-{key[-1]}"
        for page, value in zip(pages, values, strict=True):
            page[member] = page.get(member, "") + f"{metric} {value}\n"
    first, second = ({key: PageText(text, at) for key, text in page.items()} for at, page in enumerate(pages))
    return from_pages(first, second)


DONE = 'vllm:request_success_total{finished_reason="length"}'


def pair() -> tuple[Member, ...]:
    return WORKERS[:2]


def test_the_worker_that_finished_one_request_served_it() -> None:
    assert moved(grown(a0=(DONE, 4, 4), a1=(DONE, 7, 8)), pair()) == "prod/w-1"


@pytest.mark.parametrize("first", [5, 6], ids=["another one finished one too", "another one finished two"])
def test_with_other_traffic_it_is_not_known(first: float) -> None:
    assert moved(grown(a0=(DONE, 4, first), a1=(DONE, 7, 8)), pair()) == ""


def test_a_worker_that_finished_two_is_not_sure() -> None:
    assert moved(grown(a0=(DONE, 4, 4), a1=(DONE, 7, 9)), pair()) == ""


def test_other_engines_are_known_by_the_prompt_tokens_they_took() -> None:
    name = "sglang:prompt_tokens_total"
    assert moved(grown(a0=(name, 100, 100), a1=(name, 100, 990)), pair()) == "prod/w-1"


def test_cached_tokens_by_counters_are_the_engines_and_the_connectors() -> None:
    found = grown(a0=("vllm:prefix_cache_hits_total", 100, 132), b0=("vllm:external_prefix_cache_hits_total", 0, 256))
    assert cached_by_metric(snapshot(*pair()), found, WORKERS[0]) == 288


def test_counters_that_stood_still_say_0() -> None:
    assert cached_by_metric(snapshot(*pair()), grown(a0=("vllm:prefix_cache_hits_total", 5, 5)), WORKERS[0]) == 0


def test_counters_that_are_not_there_say_nothing() -> None:
    assert cached_by_metric(snapshot(*pair()), grown(a0=(DONE, 1, 2)), WORKERS[0]) is None


def test_blocks_of_old_vllm_are_turned_into_tokens() -> None:
    old = worker(
        "w-0", image="vllm/vllm-openai:v0.8.5", args=("--block-size", "32"), answers={"/version": {"version": "0.8.5"}}
    )
    found = grown(a0=("vllm:gpu_prefix_cache_hits_total", 0, 4))
    assert cached_by_metric(snapshot(old), found, old) == 128


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"a0": ("vllm:external_prefix_cache_hits_total", 0, 256)}, 256.0),
        ({"a0": ("lmcache:num_hit_tokens_total", 10, 522)}, 512.0),
        ({"a0": (DONE, 0, 1)}, None),
    ],
)
def test_tokens_that_a_connector_brought(counts: dict[str, tuple[str, float, float]], expected: float | None) -> None:
    assert loaded_by_metric(grown(**counts), WORKERS[0]) == expected


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        ({"predicted_cached_tokens": 128, "reason": "lowest_cost"}, True),
        ({"predicted_cached_tokens": 128, "reason": "kv_hit"}, True),
        ({"predicted_cached_tokens": 0, "reason": "tie"}, False),
        ({"predicted_cached_tokens": 128, "reason": "random"}, False),
        ({"predicted_cached_tokens": 128, "reason": "round_robin"}, False),
        ({"predicted_cached_tokens": None, "reason": "lowest_cost"}, False),
        ({}, False),
    ],
)
def test_a_decision_of_kvctl_by_its_reason(decision: dict[str, object], expected: bool) -> None:
    assert by_cache(decision) is expected
