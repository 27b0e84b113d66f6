"""How long and how many: the rules of the plan, with numbers worked out by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from checks.probe.options import Budget
from checks.probe.plan import NoPlan, Plan, make, model_of
from checks.snapshot import Snapshot
from tests.checks.build import router, sample, snapshot, worker

CHUNKED = {"LMCACHE_CHUNK_SIZE": "256"}


def workers(count: int, *, length: int | None = 8192, block: int = 16, **how: Any) -> Snapshot:
    card: dict[str, Any] = {"id": "m"} | ({"max_model_len": length} if length else {})
    members = [
        worker(f"w-{number}", ip=f"10.0.0.{number + 1}", answers={"/v1/models": {"data": [card]}}, model="m", **how)
        for number in range(count)
    ]
    samples = [sample("cache_config_info", 1, f"prod/w-{number}", block_size=str(block)) for number in range(count)]
    return snapshot(router(), *members, samples=samples)


def plan(of: Snapshot, requests: int = 24, tokens: int = 50_000) -> Plan:
    return make(of, "m", Budget(requests, tokens), charged=150)


@pytest.mark.parametrize(("count", "expected"), [(1, 3), (2, 7), (3, 5), (4, 4), (5, 3), (10, 3), (40, 3)])
def test_so_many_repeats_that_chance_keeps_them_together_once_in_a_hundred_runs(count: int, expected: int) -> None:
    assert plan(workers(count)).repeats == expected


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"block": 16}, 112),
        ({"block": 64}, 224),
        ({"block": 16, "env": CHUNKED}, 896),
        ({"block": 784}, 2744),
    ],
    ids=["the trie's 32 tokens", "blocks of 64", "chunks of 256", "a hybrid model's blocks"],
)
def test_a_prompt_fills_three_and_a_half_pieces(how: dict[str, Any], expected: int) -> None:
    assert plan(workers(4, **how)).tokens == expected


def test_a_prompt_leaves_room_in_the_context() -> None:
    assert plan(workers(4, env=CHUNKED, length=700)).tokens == 636


def test_a_context_that_holds_no_two_pieces_is_no_plan() -> None:
    with pytest.raises(NoPlan, match=r"512 tokens.*the model takes 570.*KV143"):
        plan(workers(4, env=CHUNKED, length=570))


def test_large_blocks_make_shorter_prompts_before_fewer_repeats() -> None:
    found = plan(workers(4, block=1200))
    assert (found.tokens, found.repeats) == (4200, 4)


def test_very_large_blocks_make_fewer_repeats_too() -> None:
    """Two blocks of 2,096 and a little: 4,224 tokens, of which 11 prompts fit into 49,850."""
    found = plan(workers(2, block=2096))
    assert (found.tokens, found.repeats) == (4224, 5)


def test_blocks_beyond_the_budget_are_no_plan() -> None:
    with pytest.raises(NoPlan, match="50000 tokens"):
        plan(workers(2, block=8000, length=None))


def test_few_requests_make_few_repeats() -> None:
    assert plan(workers(2), requests=6).repeats == 2
    assert plan(workers(2), requests=10).repeats == 4


def test_a_warm_repeat_reuses_blocks_even_beside_lmcache() -> None:
    assert plan(workers(2, env=CHUNKED)).unit == 16


def test_without_the_engines_own_cache_it_reuses_chunks() -> None:
    assert plan(workers(2, env=CHUNKED, args=("--no-enable-prefix-caching",))).unit == 256


@pytest.mark.parametrize(("threshold", "expected"), [("2000", 896), ("128", 896), ("100", 818), ("0", 768)])
def test_for_kvaware_the_rest_beyond_whole_chunks_is_within_the_threshold(threshold: str, expected: int) -> None:
    of = workers(4, env=CHUNKED)
    args = ("--routing-logic", "kvaware", "--kv-aware-threshold", threshold)
    assert (
        plan(snapshot(router(args=args), *of.workers, samples=of.metrics.find("cache_config_info"))).tokens == expected
    )


def test_where_no_worker_is_known_two_are_assumed() -> None:
    found = make(snapshot(router()), "", Budget(24, 50_000), charged=150)
    assert (found.workers, found.repeats) == ((), 7)


def test_the_model_of_most_workers_is_asked_for() -> None:
    def named(name: str, model: str) -> Any:
        return worker(name, ip=f"10.0.1.{name[-1]}", args=("--served-model-name", model))

    assert model_of(snapshot(named("w-1", "a"), named("w-2", "b"), named("w-3", "b"))) == "b"


def test_a_router_names_the_model_where_no_worker_does() -> None:
    listed = {"/v1/models": {"data": [{"id": json.loads('"m-7"')}]}}
    assert model_of(snapshot(router(answers=listed))) == "m-7"
