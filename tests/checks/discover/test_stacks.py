"""Whose system it is."""

from __future__ import annotations

from typing import Any

import pytest

from checks.discover import stacks
from checks.discover.owners import Owners
from checks.discover.roles import Hints, choose
from checks.model import Stack
from checks.snapshot import Member, Role
from tests.checks.build import log_view
from tests.checks.discover.pods import container, pod

ENGINE = pod("w", container("c", command=["vllm", "serve", "m"]))


def stack(*pods: dict[str, Any], **resources: list[dict[str, Any]]) -> Stack:
    return stacks.of_cluster(choose(pods, Hints(resources=resources), Owners()), resources)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--routing-logic", "kvaware"], Stack.PRODUCTION_STACK),
        (["kvctl", "serve"], Stack.KVCTL),
        (["python3", "-m", "dynamo.frontend"], Stack.DYNAMO),
        (["python3", "-m", "sglang_router.launch_router"], Stack.SGLANG),
        (["vllm", "serve", "m"], Stack.UNKNOWN),
    ],
)
def test_by_program(args: list[str], expected: Stack) -> None:
    assert stack(ENGINE, pod("r", container("c", command=args))) is expected


def test_hyperpods_resources_beat_the_routers_program() -> None:
    router = pod("r", container("c", args=["--routing-logic", "kvaware"]))
    endpoint = {"metadata": {"name": "x", "namespace": "prod"}}
    assert stack(ENGINE, router, inferenceendpointconfigs=[endpoint]) is Stack.HYPERPOD


def test_kvctl_before_others_workers_is_kvctl() -> None:
    router = pod("r", container("c", command=["kvctl", "serve"]))
    assert stack(router, pod("w", container("c", command=["python3", "-m", "sglang.launch_server"]))) is Stack.KVCTL


def test_an_inference_pool_is_llm_d() -> None:
    assert stack(ENGINE, inferencepools=[{"metadata": {"name": "p", "namespace": "prod"}}]) is Stack.LLM_D


def test_charts_labels_alone() -> None:
    labels = {"app.kubernetes.io/component": "serving-engine"}
    assert stack(pod("w", container("c", image="private:1"), labels=labels)) is Stack.PRODUCTION_STACK


def router(**more: Any) -> Member:
    return Member(Role.ROUTER, "r", kind="Process", **more)


def test_a_router_that_says_it_is_kvctl() -> None:
    assert stacks.of_processes([router(answers={"/version": {"version": "1", "router": "kvctl"}})], {}) is Stack.KVCTL


def test_a_router_that_lists_engines() -> None:
    assert stacks.of_processes([router(answers={"/engines": []})], {}) is Stack.PRODUCTION_STACK


def test_a_routers_log() -> None:
    log = log_view("[2026-08-01 10:00:01,120] INFO: Initializing kvaware routing logic (a.py:1:b)")
    assert stacks.of_processes([router(log=log)], {}) is Stack.PRODUCTION_STACK


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("sglang:cached_tokens_total", Stack.SGLANG),
        ("trtllm_kv_cache_hit_rate", Stack.TRTLLM),
        ("dynamo_component_router_kv_hit_rate", Stack.DYNAMO),
        ("inference_extension_prefix_indexer_size", Stack.LLM_D),
        ("kvctl_requests_total", Stack.KVCTL),
        ("vllm:num_requests_running", Stack.UNKNOWN),
    ],
)
def test_names_of_metrics(family: str, expected: Stack) -> None:
    assert stacks.of_processes([], {"w": frozenset({family})}) is expected
