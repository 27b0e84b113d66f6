"""KV122, KV125, KV126: what kvaware can match."""

from __future__ import annotations

from typing import Any

import pytest

from checks.metrics.view import Sample
from checks.model import Reason, Stack, Status
from checks.snapshot import Member, Resources, Snapshot
from tests.checks.build import only, router, said, sample, snapshot, worker

KVAWARE = ("--routing-logic", "kvaware")


def resource(*, strategy: str = "", enabled: bool = True, **more: Any) -> dict[str, Any]:
    routing = {"enabled": enabled, "routingStrategy": strategy or None}
    return {"metadata": {"name": "m", "namespace": "prod"}, "spec": {"intelligentRoutingSpec": routing, **more}}


def hyperpod(resources: tuple[dict[str, Any], ...]) -> Snapshot:
    return snapshot(stack=Stack.HYPERPOD, resources=Resources({"inferenceendpointconfigs": resources}))


# KV122


@pytest.mark.parametrize("path", ["v1/completions", "/v1/completions", "/completions", "completions"])
def test_kvaware_with_completions_passes(path: str) -> None:
    of = hyperpod(resources=(resource(strategy="kvaware", invocationEndpoint=path),))
    assert only("KV122", of).status is Status.PASS


@pytest.mark.parametrize("path", ["v1/chat/completions", "invocations", None, "v1/completionsx"])
def test_kvaware_with_another_path_or_the_default_fails(path: str | None) -> None:
    more: dict[str, Any] = {} if path is None else {"invocationEndpoint": path}
    assert only("KV122", hyperpod(resources=(resource(strategy="kvaware", **more),))).status is Status.FAIL


@pytest.mark.parametrize("strategy", ["prefixaware", "session", ""])
def test_other_strategies_take_any_path(strategy: str) -> None:
    of = hyperpod(resources=(resource(strategy=strategy, invocationEndpoint="v1/chat/completions"),))
    assert only("KV122", of).status is Status.PASS


def test_a_resource_without_routing_has_no_endpoint_type_to_judge() -> None:
    assert only("KV122", hyperpod(resources=(resource(enabled=False),))).reason is Reason.NOT_APPLICABLE


def access_log(chats: int, completions: int) -> str:
    lines = ["/v1/chat/completions"] * chats + ["/v1/completions"] * completions
    return "\n".join(f'INFO:     10.0.0.5:41234 - "POST {path} HTTP/1.1" 200 OK' for path in lines)


def reqids(kind: str, count: int) -> str:
    return "".join(
        said(f"Reqid: {kind}-{at}, Total tokens 713, LMCache hit tokens: 0, need to load: 0") for at in range(count)
    )


def seen(log: str = "", *workers: Member) -> Snapshot:
    return snapshot(router(args=KVAWARE, log=log), *workers)


def test_without_a_resource_and_without_requests_the_path_is_not_known() -> None:
    assert only("KV122", seen()).reason is Reason.NO_DATA


def test_without_a_resource_other_strategies_take_any_path() -> None:
    of = snapshot(router(args=("--routing-logic", "session"), log=access_log(50, 0)))
    assert only("KV122", of).reason is Reason.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("chats", "completions", "status"),
    [
        (20, 0, Status.FAIL),
        (17, 3, Status.WARN),  # 85 %
        (16, 4, Status.PASS),  # 80 %
        (0, 20, Status.PASS),
        (19, 0, Status.SKIP),
    ],
)
def test_what_clients_send_a_kvaware_router_is_judged(chats: int, completions: int, status: Status) -> None:
    assert only("KV122", seen(access_log(chats, completions))).status is status


def test_the_engines_access_log_tells_where_the_routers_does_not() -> None:
    assert only("KV122", seen("", worker(log=access_log(20, 0)))).status is Status.FAIL


def test_lmcaches_request_ids_tell_where_no_access_log_does() -> None:
    assert only("KV122", seen("", worker(log=reqids("chatcmpl", 20)))).status is Status.FAIL
    assert only("KV122", seen("", worker(log=reqids("cmpl", 20)))).status is Status.PASS


def test_the_probes_own_requests_tell_nothing_of_clients() -> None:
    assert only("KV122", seen("", worker(log=reqids("cmpl-kvctl-1", 20)))).reason is Reason.NO_DATA


# KV125


def prompts(tokens: float, count: float = 100) -> list[Sample]:
    """All prompts between half of `tokens` and `tokens`."""
    name = "request_prompt_tokens"
    return [
        sample(f"{name}_bucket", 0, increase=0, le=str(tokens / 2)),
        sample(f"{name}_bucket", count, increase=count, le=str(tokens)),
        sample(f"{name}_bucket", count, increase=count, le="+Inf"),
        sample(f"{name}_count", count, increase=count),
    ]


def hits(share: float) -> list[Sample]:
    return [
        sample("prefix_cache_queries", 1e6, increase=1e6),
        sample("prefix_cache_hits", share * 1e6, increase=share * 1e6),
    ]


def threshold(samples: list[Sample], *args: str) -> Snapshot:
    return snapshot(router(args=(*KVAWARE, *args)), worker(), samples=samples)


def test_prompts_shorter_than_the_threshold_pass() -> None:
    assert only("KV125", threshold(prompts(2000))).status is Status.PASS


def test_long_prompts_that_mostly_repeat_pass() -> None:
    # The median is 6000 tokens, of which a fifth does not repeat.
    assert only("KV125", threshold([*prompts(8000), *hits(0.8)])).status is Status.PASS


def test_long_prompts_with_long_tails_warn() -> None:
    # Half of 6000 tokens does not repeat.
    assert only("KV125", threshold([*prompts(8000), *hits(0.5)])).status is Status.WARN


def test_a_higher_threshold_passes() -> None:
    of = threshold([*prompts(8000), *hits(0.5)], "--kv-aware-threshold", "4000")
    assert only("KV125", of).status is Status.PASS


def test_long_prompts_of_unknown_share_are_not_judged() -> None:
    assert only("KV125", threshold(prompts(8000))).reason is Reason.NO_DATA


def test_few_requests_say_nothing_of_prompt_lengths() -> None:
    assert only("KV125", threshold(prompts(8000, count=49))).reason is Reason.NO_TRAFFIC


def test_without_metrics_prompt_lengths_are_not_known() -> None:
    assert only("KV125", threshold([])).reason is Reason.NO_DATA


# KV126


def tokenizer(*workers: Member, **env: str) -> Snapshot:
    return snapshot(router(args=KVAWARE, env=env), *workers)


def serving(model: str, *more: str, name: str = "w-0") -> Member:
    return worker(name, args=("vllm", "serve", model, *more))


def test_a_repository_name_passes() -> None:
    assert only("KV126", tokenizer(serving("Qwen/Qwen3-8B"))).status is Status.PASS


def test_kvctls_own_tokenizer_is_not_judged_by_repository_names() -> None:
    log = "LMCache INFO: Start health check thread, interval: 5 (a.py:1:b)"
    beside = snapshot(router(args=KVAWARE, log=log), serving("m"), stack=Stack.KVCTL)
    assert only("KV126", beside).reason is Reason.NOT_APPLICABLE


def test_a_path_served_under_its_repository_name_passes() -> None:
    of = tokenizer(serving("/models/q", "--served-model-name", "Qwen/Qwen3-8B"))
    assert only("KV126", of).status is Status.PASS


@pytest.mark.parametrize(
    "member",
    [
        serving("Qwen/Qwen3-8B", "--served-model-name", "qwen"),
        serving("Qwen/Qwen3-8B", "--served-model-name", "team/qwen"),
        serving("/opt/ml/model"),
        serving("meta-llama/Llama-3.1-8B-Instruct"),
    ],
    ids=["alias", "alias-like-a-repository", "path", "gated"],
)
def test_a_name_that_no_tokenizer_can_be_loaded_by_warns(member: Member) -> None:
    assert only("KV126", tokenizer(member)).status is Status.WARN


@pytest.mark.parametrize("token", ["hf_abcdefghijkl", "<from:secret/hf>"])
def test_a_gated_model_with_a_token_passes(token: str) -> None:
    found = only("KV126", tokenizer(serving("meta-llama/Llama-3.1-8B-Instruct"), HF_TOKEN=token))
    assert found.status is Status.PASS


def test_an_alias_where_engines_ask_for_a_key_fails() -> None:
    alias = serving("Qwen/Qwen3-8B", "--served-model-name", "qwen")
    found = only("KV126", tokenizer(alias, VLLM_API_KEY="sk-abcdefghijkl"))
    assert found.status is Status.FAIL
    assert not [one for one in found.evidence if "abcdefghijkl" in one.text]


def test_a_key_alone_passes() -> None:
    assert only("KV126", tokenizer(serving("Qwen/Qwen3-8B"), VLLM_API_KEY="k")).status is Status.PASS


def test_several_models_behind_one_router_warn() -> None:
    of = tokenizer(serving("Qwen/Qwen3-8B"), serving("Qwen/Qwen3-4B", name="w-1"))
    assert only("KV126", of).status is Status.WARN


def test_what_the_engine_answers_counts_and_adapters_do_not() -> None:
    cards = [{"id": "Qwen/Qwen3-8B"}, {"id": "adapter", "parent": "Qwen/Qwen3-8B"}]
    of = tokenizer(worker(answers={"/v1/models": {"data": cards}}))
    assert only("KV126", of).status is Status.PASS


def test_an_unknown_model_is_not_judged() -> None:
    assert only("KV126", tokenizer(worker())).reason is Reason.NO_DATA
