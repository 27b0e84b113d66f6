"""KV140 to KV144."""

from __future__ import annotations

import json
from typing import Any

import pytest

from checks.model import Reason, Stack, Status
from checks.snapshot import Member, Resources, Snapshot
from tests.checks.build import only, router, sample, snapshot, statuses, worker

LMCACHE = '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
CONNECTOR = ("vllm", "serve", "m/m", "--kv-transfer-config", LMCACHE)


def vllm_line(text: str) -> str:
    return f"(APIServer pid=1) INFO 08-01 10:00:05 [model.py:733] {text}"


def fleet(*workers: Member, strategy: str = "kvaware", **more: Any) -> Snapshot:
    return snapshot(router(args=("--routing-logic", strategy)), *workers, **more)


# KV140


def hyperpod(member: Member, *, strategy: str = "prefixaware", **more: Any) -> Snapshot:
    return fleet(member, strategy=strategy, stack=Stack.HYPERPOD, **more)


@pytest.mark.parametrize(
    "image",
    [
        "lmcache/vllm-openai:v0.4.7",
        "public.ecr.aws/deep-learning-containers/vllm:0.11.1-gpu-py312-cu129-ubuntu22.04-ec2-v1.0",
    ],
)
def test_a_vllm_image_passes(image: str) -> None:
    assert only("KV140", hyperpod(worker(image=image))).status is Status.PASS


@pytest.mark.parametrize(
    "image",
    [
        "acct.dkr.ecr.us-east-1.amazonaws.com/sglang-glm5:v0.5.2",
        "nvcr.io/nvidia/tritonserver:25.01",
        "ghcr.io/huggingface/text-generation-inference:3.0",
    ],
)
def test_an_image_of_another_engine_fails(image: str) -> None:
    assert only("KV140", hyperpod(worker(image=image))).status is Status.FAIL


def test_another_engine_in_the_arguments_fails() -> None:
    member = worker(args=("python", "-m", "sglang.launch_server"), image="mine:1")
    assert only("KV140", hyperpod(member)).status is Status.FAIL


def test_the_engines_own_words_beat_its_image() -> None:
    assert only("KV140", hyperpod(worker(image="mine/sglang-or-not:1", version_line="0.4.3"))).status is Status.PASS


def test_a_rolling_batch_of_vllm_passes() -> None:
    assert only("KV140", hyperpod(worker(image="djl:1", env={"OPTION_ROLLING_BATCH": "vllm"}))).status is Status.PASS


def test_metrics_of_vllm_pass() -> None:
    samples = [sample("cache_config_info", 1, block_size="16")]
    assert only("KV140", hyperpod(worker(image="mine:1"), samples=samples)).status is Status.PASS


def test_an_unknown_engine_is_not_judged() -> None:
    assert only("KV140", hyperpod(worker(image="mine:1"))).reason is Reason.NO_DATA


def test_without_routing_the_engine_is_free() -> None:
    of = snapshot(worker(image="sglang:1"), stack=Stack.HYPERPOD)
    assert only("KV140", of).reason is Reason.NOT_APPLICABLE


def test_routing_that_only_the_resource_asks_for_counts() -> None:
    routed = {"metadata": {"name": "m", "namespace": "prod"}, "spec": {"intelligentRoutingSpec": {"enabled": True}}}
    resources = Resources({"inferenceendpointconfigs": (routed,)})
    of = snapshot(worker(image="sglang:1"), stack=Stack.HYPERPOD, resources=resources)
    assert only("KV140", of).status is Status.FAIL


# KV141


@pytest.mark.parametrize(
    "args",
    [
        CONNECTOR,
        ("--kv-transfer-config.kv_connector", "LMCacheConnectorV1"),
        ("--kv-offloading-backend", "lmcache", "--kv-offloading-size", "20"),
        (
            "--kv-transfer-config",
            json.dumps(
                {
                    "kv_connector": "MultiConnector",
                    "kv_connector_extra_config": {
                        "connectors": [{"kv_connector": "NixlConnector"}, {"kv_connector": "LMCacheConnectorV1"}]
                    },
                }
            ),
        ),
    ],
    ids=["json", "dotted", "offloading", "multi"],
)
def test_lmcaches_connector_passes_however_it_is_given(args: tuple[str, ...]) -> None:
    assert only("KV141", fleet(worker(args=args))).status is Status.PASS


def test_the_connector_that_vllm_prints_passes() -> None:
    line = vllm_line("Creating v1 connector with name: LMCacheConnectorV1 and engine_id: 1")
    assert only("KV141", fleet(worker(log=line))).status is Status.PASS


def test_lmcache_variables_without_a_connector_fail() -> None:
    member = worker(args=("vllm", "serve", "m"), env={"LMCACHE_CHUNK_SIZE": "256"})
    assert only("KV141", fleet(member, strategy="session")).status is Status.FAIL


def test_another_connector_with_lmcache_variables_fails() -> None:
    args = ("--kv-transfer-config", '{"kv_connector":"NixlConnector"}')
    member = worker(args=args, env={"LMCACHE_CHUNK_SIZE": "256"})
    assert only("KV141", fleet(member, strategy="session")).status is Status.FAIL


def test_a_log_level_alone_does_not_mean_lmcache() -> None:
    member = worker(args=("vllm", "serve", "m"), env={"LMCACHE_LOG_LEVEL": "DEBUG"})
    assert only("KV141", fleet(member, strategy="session")).reason is Reason.NOT_APPLICABLE


def test_kvaware_with_lmcache_in_its_own_process_fails() -> None:
    args = ("--kv-transfer-config", '{"kv_connector":"LMCacheMPConnector","kv_role":"kv_both"}')
    assert only("KV141", fleet(worker(args=args))).status is Status.FAIL
    assert only("KV141", fleet(worker(args=args), strategy="session")).status is Status.PASS


def test_kvaware_without_lmcache_fails() -> None:
    assert only("KV141", fleet(worker(args=("vllm", "serve", "m")))).status is Status.FAIL


def test_a_configuration_that_is_not_json_fails() -> None:
    assert only("KV141", fleet(worker(args=("--kv-transfer-config", "{kv_connector")))).status is Status.FAIL


@pytest.mark.parametrize("role", ["kv_producer", "kv_consumer"])
def test_workers_that_all_have_one_side_warn(role: str) -> None:
    args = ("--kv-transfer-config", json.dumps({"kv_connector": "LMCacheConnectorV1", "kv_role": role}))
    of = fleet(worker(args=args), worker("w-1", args=args))
    assert statuses("KV141", of) == {"w-0": Status.WARN, "w-1": Status.WARN}


def test_producers_and_consumers_together_pass() -> None:
    def side(role: str) -> tuple[str, ...]:
        return ("--kv-transfer-config", json.dumps({"kv_connector": "LMCacheConnectorV1", "kv_role": role}))

    of = fleet(worker(args=side("kv_producer")), worker("w-1", args=side("kv_consumer")))
    assert statuses("KV141", of) == {"w-0": Status.PASS, "w-1": Status.PASS}


def test_another_connector_without_lmcache_is_not_judged() -> None:
    args = ("--kv-transfer-config", '{"kv_connector":"NixlConnector"}')
    assert only("KV141", fleet(worker(args=args), strategy="session")).reason is Reason.NOT_APPLICABLE


def test_arguments_that_vllm_printed_without_a_connector_are_known() -> None:
    line = vllm_line("non-default args: {'model': 'm'}")
    assert only("KV141", snapshot(worker(log=line))).reason is Reason.NOT_APPLICABLE
    assert only("KV142", snapshot(worker(log=line))).status is Status.PASS


def test_unknown_arguments_are_not_judged() -> None:
    assert only("KV141", fleet(worker())).reason is Reason.NO_DATA


def test_a_log_of_lmcache_without_known_arguments_is_not_judged() -> None:
    assert only("KV141", snapshot(worker(args=("python", "run.py"), version_line="0.4.3"))).reason is Reason.NO_DATA


# KV142


def caching(value: str) -> list[Any]:
    return [sample("cache_config_info", 1, enable_prefix_caching=value)]


def test_the_engines_own_metric_counts_first() -> None:
    off = worker(args=("vllm", "serve", "m", "--no-enable-prefix-caching"))
    assert only("KV142", fleet(off, samples=caching("True"))).status is Status.PASS
    assert only("KV142", fleet(worker(args=CONNECTOR), samples=caching("False"))).status is Status.WARN


@pytest.mark.parametrize("strategy", ["prefixaware", "kv"])
def test_strategies_that_route_to_the_engines_cache_fail_without_it(strategy: str) -> None:
    off = worker(args=("vllm", "serve", "m", "--no-enable-prefix-caching"))
    assert only("KV142", fleet(off, strategy=strategy)).status is Status.FAIL


def test_kvaware_without_prefix_caching_warns() -> None:
    off = worker(args=("vllm", "serve", "m", "--no_enable_prefix_caching"))
    assert only("KV142", fleet(off)).status is Status.WARN


def test_prefix_caching_is_on_by_default_in_v1_only() -> None:
    assert only("KV142", fleet(worker(args=CONNECTOR))).status is Status.PASS
    assert only("KV142", fleet(worker(args=CONNECTOR, env={"VLLM_USE_V1": "0"}))).status is Status.WARN


def test_the_arguments_that_vllm_printed_count() -> None:
    line = vllm_line("non-default args: {'model': 'm', 'enable_prefix_caching': False}")
    assert only("KV142", fleet(worker(log=line))).status is Status.WARN


def test_prefix_caching_of_an_unknown_engine_is_not_judged() -> None:
    assert only("KV142", fleet(worker())).reason is Reason.NO_DATA


# KV143


@pytest.mark.parametrize(
    ("longest", "status"), [("512", Status.PASS), ("511", Status.WARN), ("16k", Status.PASS), ("8K", Status.PASS)]
)
def test_two_chunks_must_fit(longest: str, status: Status) -> None:
    assert only("KV143", fleet(worker(args=(*CONNECTOR, "--max-model-len", longest)))).status is status


def test_a_large_block_counts_more_than_the_chunk() -> None:
    samples = [sample("cache_config_info", 1, block_size="2096")]
    of = fleet(worker(args=(*CONNECTOR, "--max-model-len", "4096")), samples=samples)
    assert only("KV143", of).status is Status.WARN


def test_without_lmcache_the_block_alone_counts() -> None:
    args = ("vllm", "serve", "m", "--max-model-len", "32", "--block-size", "16")
    assert only("KV143", fleet(worker(args=args))).status is Status.PASS


def test_the_length_that_the_engine_answers_counts() -> None:
    answers = {"/v1/models": {"data": [{"id": "m", "max_model_len": 300}]}}
    assert only("KV143", fleet(worker(args=CONNECTOR, answers=answers))).status is Status.WARN


def test_the_length_that_vllm_prints_counts() -> None:
    assert only("KV143", fleet(worker(args=CONNECTOR, log=vllm_line("Using max model len 8192")))).status is Status.PASS


def test_an_unknown_length_is_not_judged() -> None:
    assert only("KV143", fleet(worker(args=CONNECTOR))).reason is Reason.NO_DATA


def test_an_unknown_block_without_lmcache_is_not_judged() -> None:
    assert only("KV143", fleet(worker(args=("vllm", "serve", "m", "--max-model-len", "8")))).reason is Reason.NO_DATA


# KV144

HMA_OFF = vllm_line("Turning off hybrid kv cache manager because `--kv-transfer-config` is set.")


@pytest.mark.parametrize(
    "arch", ["JambaForCausalLM", "Qwen3NextForCausalLM", "NemotronHForCausalLM", "Mamba2ForCausalLM"]
)
def test_a_hybrid_architecture_warns(arch: str) -> None:
    assert only("KV144", fleet(worker(log=vllm_line(f"Resolved architecture: {arch}")))).status is Status.WARN


@pytest.mark.parametrize("arch", ["LlamaForCausalLM", "Qwen3ForCausalLM", "DeepseekV3ForCausalLM"])
def test_other_architectures_pass_even_with_the_manager_off(arch: str) -> None:
    log = vllm_line(f"Resolved architecture: {arch}") + "\n" + HMA_OFF
    assert only("KV144", fleet(worker(log=log))).status is Status.PASS


def test_a_hybrid_model_is_known_by_its_name_too() -> None:
    assert only("KV144", fleet(worker(args=("vllm", "serve", "ai21labs/AI21-Jamba-1.5-Mini")))).status is Status.WARN


def test_the_manager_alone_says_nothing() -> None:
    assert only("KV144", fleet(worker(log=HMA_OFF))).reason is Reason.NO_DATA


def test_a_log_that_may_not_be_read_is_an_error() -> None:
    assert only("KV144", fleet(worker(log=None, log_missing=Reason.RBAC))).reason is Reason.RBAC


@pytest.mark.parametrize("check", ["KV141", "KV142", "KV143", "KV144"])
def test_without_workers_nothing_is_judged(check: str) -> None:
    assert only(check, fleet()).reason is Reason.NO_DATA
