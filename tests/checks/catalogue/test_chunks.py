"""KV404, KV407, KV408: chunks and blocks of one size."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checks.metrics.view import Sample
from checks.model import Reason, Stack, Status
from checks.snapshot import Member, Resources
from tests.checks.build import findings, only, router, sample, snapshot, statuses, worker

KVAWARE = ("--routing-logic", "kvaware")
LMC = ("--kv-transfer-config", '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}')
SHARED = {"LMCACHE_REMOTE_URL": "redis://redis.prod.svc:6379"}


def lmcache(name: str = "w-0", **more: object) -> Member:
    return worker(name, args=LMC, **more)  # type: ignore[arg-type]


def info(member: str, **labels: str) -> Sample:
    return sample("cache_config_info", 1.0, member, **labels)


# -- KV404 -----------------------------------------------------------------------------------------------------------


def test_kv404_passes_with_the_default() -> None:
    found = only("KV404", snapshot(router(args=KVAWARE), lmcache()))
    assert (found.status, found.message) == (Status.PASS, "chunks of 256 tokens")


def test_kv404_fails_another_size_under_kvaware() -> None:
    found = only("KV404", snapshot(router(args=KVAWARE), lmcache(env={"LMCACHE_CHUNK_SIZE": "512"})))
    assert found.status is Status.FAIL
    assert found.message == "chunks of 512 tokens; the router's controller always looks for 256"
    assert found.evidence[0].text == "LMCACHE_CHUNK_SIZE=512"


def test_kv404_reads_the_printed_configuration() -> None:
    log = "[2026-08-01 10:00:01,300] LMCache INFO: LMCache Configuration: {'chunk_size': 128} (config.py:1:lmcache)"
    assert statuses("KV404", snapshot(router(args=KVAWARE), lmcache(log=log))) == {"w-0": Status.FAIL}


def test_kv404_reads_lmcaches_own_answer() -> None:
    of = snapshot(router(args=KVAWARE), lmcache(answers={"/conf": {"chunk_size": 64}}))
    assert statuses("KV404", of) == {"w-0": Status.FAIL}


def test_kv404_warns_where_workers_of_a_shared_tier_differ() -> None:
    of = snapshot(
        lmcache("w-0", env=SHARED),
        lmcache("w-1", env=SHARED | {"LMCACHE_CHUNK_SIZE": "512"}),
        lmcache("w-2", env={"LMCACHE_CHUNK_SIZE": "512"}),
    )
    assert statuses("KV404", of) == {"w-0": Status.WARN, "w-1": Status.WARN, "w-2": Status.PASS}


def test_kv404_warns_where_a_chunk_is_no_multiple_of_a_block() -> None:
    of = snapshot(lmcache(), samples=[info("prod/w-0", block_size="784")])
    found = only("KV404", of)
    assert found.status is Status.WARN
    assert found.message == "chunks of 256 tokens are no multiple of the engine's blocks of 784"


def test_kv404_skips_where_a_file_may_set_it() -> None:
    assert only("KV404", snapshot(lmcache(env={"LMCACHE_CONFIG_FILE": "/etc/x.yaml"}))).reason is Reason.NO_DATA


def test_kv404_skips_processes_that_tell_nothing() -> None:
    assert only("KV404", replace(snapshot(lmcache()), cluster=False)).reason is Reason.NO_DATA


def test_kv404_is_not_asked_without_lmcache() -> None:
    assert only("KV404", snapshot(worker())).reason is Reason.NOT_APPLICABLE


# -- KV407 -----------------------------------------------------------------------------------------------------------


def prompts(short: float, long: float) -> list[Sample]:
    """`short` prompts of at most 200 tokens and `long` ones of 200 to 1,000."""
    every = short + long
    rows = [("200.0", short), ("1000.0", every), ("+Inf", every)]
    return [
        *(sample("request_prompt_tokens_bucket", count, increase=count, le=bound) for bound, count in rows),
        sample("request_prompt_tokens_count", every, increase=every),
    ]


def test_kv407_passes_where_short_prompts_are_stored_too() -> None:
    found = only("KV407", snapshot(lmcache(version_line="0.3.10"), samples=prompts(100, 0)))
    assert (found.status, found.message) == (Status.PASS, "prompts shorter than a chunk are stored too")


def test_kv407_warns_where_half_of_the_prompts_are_shorter_than_a_chunk() -> None:
    found = only("KV407", snapshot(lmcache(version_line="0.4.3"), samples=prompts(100, 0)))
    assert found.status is Status.WARN
    assert found.message == (
        "prompts shorter than 256 tokens are never stored, and half of 100 prompts have at most 100"
    )


def test_kv407_passes_where_most_prompts_are_long() -> None:
    # 10 of 90 short: the median is the 35th of 80 in the bucket 200..1000, at 200 + 800 * 35 / 80 = 550
    found = only("KV407", snapshot(lmcache(version_line="0.4.3"), samples=prompts(10, 80)))
    assert found.status is Status.PASS
    assert found.message.endswith("half of 90 prompts have at most 550")


def test_kv407_passes_with_too_few_prompts_to_judge() -> None:
    assert statuses("KV407", snapshot(lmcache(version_line="0.4.3"), samples=prompts(49, 0))) == {"w-0": Status.PASS}


def test_kv407_believes_the_setting_over_the_version() -> None:
    env = {"LMCACHE_SAVE_UNFULL_CHUNK": "true"}
    found = only("KV407", snapshot(lmcache(version_line="0.4.3", env=env), samples=prompts(100, 0)))
    assert found.message == "prompts shorter than a chunk are stored too"


def test_kv407_skips_an_unknown_version() -> None:
    assert only("KV407", snapshot(lmcache())).reason is Reason.VERSION_UNKNOWN


def test_kv407_is_not_asked_without_lmcache() -> None:
    assert only("KV407", snapshot(worker())).reason is Reason.NOT_APPLICABLE


# -- KV408 -----------------------------------------------------------------------------------------------------------

ALIKE = {"block_size": "16", "prefix_caching_hash_algo": "sha256", "cache_dtype": "auto"}


def test_kv408_passes_where_workers_are_alike() -> None:
    of = snapshot(worker("w-0"), worker("w-1"), samples=[info("prod/w-0", **ALIKE), info("prod/w-1", **ALIKE)])
    assert statuses("KV408", of) == {"fleet": Status.PASS}


@pytest.mark.parametrize(
    ("label", "value"), [("block_size", "32"), ("prefix_caching_hash_algo", "builtin"), ("cache_dtype", "fp8")]
)
def test_kv408_warns_of_any_difference_and_names_it(label: str, value: str) -> None:
    samples = [info("prod/w-0", **ALIKE), info("prod/w-1", **(ALIKE | {label: value}))]
    found = only("KV408", snapshot(worker("w-0"), worker("w-1"), samples=samples))
    assert found.status is Status.WARN
    assert f"differ in {label} (" in found.message


def test_kv408_compares_only_workers_of_one_model() -> None:
    of = snapshot(
        worker("w-0", model="a"),
        worker("w-1", model="b"),
        samples=[info("prod/w-0", **ALIKE), info("prod/w-1", **(ALIKE | {"block_size": "32"}))],
    )
    assert {one.reason for one in findings("KV408", of)} == {Reason.NOT_APPLICABLE}


def test_kv408_skips_without_the_metric() -> None:
    assert only("KV408", snapshot(worker("w-0"), worker("w-1"))).reason is Reason.NO_DATA


def test_kv408_skips_without_workers() -> None:
    assert only("KV408", snapshot(router())).reason is Reason.NO_DATA


def test_kv408_fails_where_the_endpoint_picker_looks_for_other_blocks() -> None:
    text = "kind: EndpointPickerConfig\nplugins:\n- parameters: {tokenProcessorConfig: {blockSize: 64}}\n"
    config = {"metadata": {"name": "epp"}, "data": {"default.yaml": text}}
    of = snapshot(
        router("epp"),
        worker("w-0", args=("--block-size", "16")),
        worker("w-1", args=("--block-size", "64")),
        stack=Stack.LLM_D,
        samples=[info("prod/w-0", **ALIKE), info("prod/w-1", **(ALIKE | {"block_size": "64"}))],
        resources=Resources({"configmaps": (config,)}),
    )
    assert statuses("KV408", of) == {"fleet": Status.WARN, "w-0": Status.FAIL}
