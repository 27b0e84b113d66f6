"""KV120 to KV126."""

from __future__ import annotations

from typing import Any

import pytest

from checks.metrics.view import Sample
from checks.model import Reason, Stack, Status
from checks.snapshot import Expectations, Member, Resources, Snapshot
from tests.checks.build import findings, only, router, sample, snapshot, statuses, worker

KVAWARE = ("--routing-logic", "kvaware")


def resource(name: str = "m", *, strategy: str = "", enabled: bool = True, **more: Any) -> dict[str, Any]:
    routing: dict[str, Any] = {"enabled": enabled} | ({"routingStrategy": strategy} if strategy else {})
    metadata = {"name": name, "namespace": "prod", "generation": more.pop("generation", 1)}
    status = {"observedGeneration": more.pop("observed", 1)}
    spec = {"intelligentRoutingSpec": routing, **more}
    return {"kind": "InferenceEndpointConfig", "metadata": metadata, "spec": spec, "status": status}


def hyperpod(*members: Member, resources: tuple[dict[str, Any], ...] = (), **more: Any) -> Snapshot:
    listed = Resources({"inferenceendpointconfigs": resources})
    return snapshot(*members, stack=Stack.HYPERPOD, resources=listed, **more)


def logic(name: str) -> str:
    return f"[2026-08-01 10:00:01,120] INFO: Initializing {name} routing logic (routing_logic.py:1:vllm_router.routers)"


# KV120


def test_the_expected_strategy_passes() -> None:
    of = snapshot(router(args=KVAWARE), expectations=Expectations("kv-aware"))
    assert only("KV120", of).status is Status.PASS


def test_another_strategy_than_the_expected_one_fails() -> None:
    of = snapshot(router(args=("--routing-logic", "session")), expectations=Expectations("kvaware"))
    assert only("KV120", of).status is Status.FAIL


def test_an_expected_strategy_without_any_routing_fails() -> None:
    of = hyperpod(worker(), resources=(resource(enabled=False),), expectations=Expectations("prefixaware"))
    assert only("KV120", of).status is Status.FAIL


def test_without_an_expectation_the_strategy_is_named() -> None:
    found = only("KV120", hyperpod(resources=(resource(),)))
    assert (found.status, found.message) == (Status.PASS, "the strategy is prefixaware")


def test_routing_that_is_off_without_an_expectation_is_disabled() -> None:
    assert only("KV120", hyperpod(resources=(resource(enabled=False),))).reason is Reason.DISABLED


# KV121


def test_arguments_and_log_that_agree_pass() -> None:
    assert only("KV121", snapshot(router(args=KVAWARE, log=logic("kvaware")))).status is Status.PASS


@pytest.mark.parametrize(
    ("argument", "printed"),
    [("prefixaware", "prefix-aware"), ("session", "session-based"), ("roundrobin", "round-robin")],
)
def test_spellings_of_one_strategy_agree(argument: str, printed: str) -> None:
    assert only("KV121", snapshot(router(args=("--routing-logic", argument), log=logic(printed)))).status is Status.PASS


def test_a_router_that_runs_another_strategy_than_its_arguments_fails() -> None:
    assert only("KV121", snapshot(router(args=KVAWARE, log=logic("session-based")))).status is Status.FAIL


def test_a_dynamic_configuration_may_explain_it() -> None:
    args = (*KVAWARE, "--dynamic-config-yaml", "/c.yaml")
    assert only("KV121", snapshot(router(args=args, log=logic("session-based")))).status is Status.WARN


def test_a_router_that_runs_another_strategy_than_the_resource_fails() -> None:
    of = hyperpod(router(args=("--routing-logic", "session")), resources=(resource(strategy="kvaware"),))
    assert statuses("KV121", of)["router-0"] is Status.FAIL


def test_the_resources_default_is_prefixaware() -> None:
    of = hyperpod(router(args=("--routing-logic", "prefixaware")), resources=(resource(),))
    assert only("KV121", of).status is Status.PASS


def test_a_router_is_compared_with_the_resource_that_its_name_holds() -> None:
    resources = (resource("llama", strategy="kvaware"), resource("qwen", strategy="session"))
    routers = (
        router("llama-router-0", args=("--routing-logic", "session")),
        router("qwen-router-0", args=("--routing-logic", "session")),
    )
    assert statuses("KV121", hyperpod(*routers, resources=resources)) == {
        "llama-router-0": Status.FAIL,
        "qwen-router-0": Status.PASS,
    }


def test_a_resource_with_an_unknown_strategy_fails() -> None:
    of = hyperpod(router(args=KVAWARE), resources=(resource(strategy="fastest"),))
    assert statuses("KV121", of)["m"] is Status.FAIL


def test_an_edit_that_the_operator_has_not_processed_warns() -> None:
    of = hyperpod(router(args=KVAWARE), resources=(resource(strategy="kvaware", generation=4, observed=3),))
    assert statuses("KV121", of) == {"m": Status.WARN, "router-0": Status.PASS}


def test_a_processed_edit_passes() -> None:
    of = hyperpod(router(args=KVAWARE), resources=(resource(strategy="kvaware", generation=4, observed=4),))
    assert statuses("KV121", of) == {"router-0": Status.PASS}


def test_what_kvctls_router_answers_is_compared_with_its_arguments() -> None:
    answers = {"/config": {"dispatch": {"mode": "round_robin"}}}
    same = router(args=("--router-mode", "round-robin"), answers=answers)
    other = router(args=("--router-mode", "kv"), answers=answers)
    assert only("KV121", snapshot(router(answers=answers), stack=Stack.KVCTL)).status is Status.PASS
    assert only("KV121", snapshot(same, stack=Stack.KVCTL)).status is Status.PASS
    assert only("KV121", snapshot(other, stack=Stack.KVCTL)).status is Status.FAIL


def test_a_router_that_tells_no_strategy_is_not_judged() -> None:
    assert only("KV121", snapshot(router())).reason is Reason.NO_DATA


def test_without_a_router_the_strategy_is_not_judged() -> None:
    assert only("KV121", snapshot(worker())).reason is Reason.NO_DATA


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


def test_without_a_resource_clients_choose_the_path() -> None:
    assert only("KV122", snapshot(router(args=KVAWARE))).reason is Reason.NOT_APPLICABLE


# KV123


@pytest.mark.parametrize(
    "args",
    [
        ("--service-discovery", "k8s"),
        ("--service-discovery", "k8s", "--k8s-service-discovery-type", "pod-ip"),
        ("--service-discovery", "static", "--static-backends", "http://10.0.0.1:8000,http://10.0.0.2:8000"),
    ],
)
def test_workers_found_by_ip_pass(args: tuple[str, ...]) -> None:
    assert only("KV123", snapshot(router(args=(*KVAWARE, *args)))).status is Status.PASS


@pytest.mark.parametrize(
    "args",
    [
        ("--service-discovery", "k8s", "--k8s-service-discovery-type", "service-name"),
        ("--service-discovery=static", "--static-backends=http://10.0.0.1:8000,http://w-1.prod.svc:8000"),
        ("--service-discovery", "static", "--static-backends", "http://[fd00::1]:8000"),
    ],
)
def test_workers_found_by_name_or_ipv6_fail(args: tuple[str, ...]) -> None:
    assert only("KV123", snapshot(router(args=(*KVAWARE, *args)))).status is Status.FAIL


def test_a_router_whose_arguments_are_not_known_is_not_judged() -> None:
    of = hyperpod(router(), resources=(resource(strategy="kvaware"),))
    assert only("KV123", of).reason is Reason.NO_DATA


NEED_KVAWARE = ("KV123", "KV124", "KV125", "KV126")


@pytest.mark.parametrize("check", NEED_KVAWARE)
def test_other_strategies_do_not_need_it(check: str) -> None:
    of = snapshot(router(args=("--routing-logic", "session")), worker())
    assert only(check, of).reason is Reason.NOT_APPLICABLE


@pytest.mark.parametrize("check", [*NEED_KVAWARE, "KV122"])
def test_kvctls_own_router_has_no_lmcache_controller(check: str) -> None:
    assert findings(check, snapshot(router(args=("--router-mode", "kvaware")), stack=Stack.KVCTL)) == []


# KV124


def addresses(*members: Member, log: str = "") -> Snapshot:
    return snapshot(router(args=KVAWARE, log=log), *members)


def registered(ip: str) -> str:
    return (
        f"[2026-08-01 10:00:40,000] LMCache INFO: Registered instance-worker ('i', 0) with URL {ip}:8001 "
        "(registration_controller.py:1:lmcache.v1)"
    )


def test_one_ipv4_address_a_worker_passes() -> None:
    of = addresses(worker(), worker("w-1", ip="10.0.0.2"), log=registered("10.0.0.1"))
    assert statuses("KV124", of) == {"w-0": Status.PASS, "w-1": Status.PASS}


def test_a_worker_with_ipv6_only_fails() -> None:
    assert only("KV124", addresses(worker(ip="fd00::1"))).status is Status.FAIL


def test_dual_stack_passes() -> None:
    assert only("KV124", addresses(worker(ips=("fd00::1", "10.0.0.1")))).status is Status.PASS


def test_engines_that_share_an_address_fail() -> None:
    of = addresses(worker(host_network=True), worker("w-1", host_network=True))
    assert statuses("KV124", of) == {"w-0": Status.FAIL, "w-1": Status.FAIL}


def test_a_worker_that_lmcache_found_no_address_for_warns() -> None:
    line = "[2026-08-01 10:00:01,499] LMCache WARNING: Failed to get local IP address. (rpc_utils.py:108:lmcache.v1)"
    assert only("KV124", addresses(worker(log=line))).status is Status.WARN


def test_a_registration_under_an_address_of_no_pod_warns() -> None:
    assert statuses("KV124", addresses(worker(), log=registered("127.0.0.1"))) == {
        "w-0": Status.PASS,
        "router-0": Status.WARN,
    }


def test_a_registration_of_a_worker_that_left_passes() -> None:
    left = (
        registered("10.0.0.77")
        + "\n"
        + (
            "[2026-08-01 10:20:00,000] LMCache INFO: Deregistered instance-worker ('i', 0) "
            "(registration_controller.py:1:lmcache)"
        )
    )
    assert statuses("KV124", addresses(worker(), log=left)) == {"w-0": Status.PASS}


def test_workers_without_a_known_address_are_not_judged() -> None:
    assert only("KV124", addresses(worker(ip=""))).reason is Reason.NO_DATA


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


@pytest.mark.parametrize("check", ["KV123", "KV125", "KV126"])
def test_without_a_router_it_is_not_judged(check: str) -> None:
    of = hyperpod(worker(), resources=(resource(strategy="kvaware"),))
    assert only(check, of).reason is Reason.NO_DATA
