"""How an engine was started, read from arguments, environment, log and answers."""

from __future__ import annotations

import pytest

from checks.serving import (
    block_tokens,
    chunk_tokens,
    max_model_len,
    model_argument,
    numbers,
    printed_argument,
    served_names,
    switched_on,
    transfer,
)
from tests.checks.build import sample, snapshot, worker


@pytest.mark.parametrize(
    ("args", "model"),
    [
        (("vllm", "serve", "Qwen/Qwen3-8B", "--port", "8000"), "Qwen/Qwen3-8B"),
        (("--model", "Qwen/Qwen3-8B"), "Qwen/Qwen3-8B"),
        (("/opt/ml/model", "--max-model-len", "8192"), "/opt/ml/model"),
        (("vllm", "serve", "--port", "8000"), ""),
        (("/usr/bin/python",), ""),
        ((), ""),
    ],
)
def test_the_model_that_is_loaded(args: tuple[str, ...], model: str) -> None:
    assert model_argument(worker(args=args)) == model


def test_all_served_names_are_read() -> None:
    args = ("vllm", "serve", "m/m", "--served-model-name", "a", "b", "--port", "8000")
    assert served_names(worker(args=args)) == ("a", "b")


def test_a_served_name_with_an_equals_sign_is_read() -> None:
    assert served_names(worker(args=("vllm", "serve", "m/m", "--served-model-name=a"))) == ("a",)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("8192", 8192), ("16k", 16_000), ("16K", 16_384), ("1.5k", 1500), ("auto", None), ("1.2.3", None)],
)
def test_lengths_are_read_as_vllm_takes_them(text: str, tokens: int | None) -> None:
    assert max_model_len(worker(args=("--max-model-len", text))) == tokens


def test_the_block_size_of_the_metric_beats_the_argument() -> None:
    member = worker(args=("--block-size", "16"))
    assert block_tokens(snapshot(member, samples=[sample("cache_config_info", 1, block_size="32")]), member) == 32
    assert block_tokens(snapshot(member), member) == 16
    assert block_tokens(snapshot(), worker()) is None


@pytest.mark.parametrize(("told", "tokens"), [(None, 256), (128, 128), ("x", 256), (0, 256)])
def test_the_chunk_size_is_256_where_nothing_usable_is_set(told: object, tokens: int) -> None:
    assert chunk_tokens({"chunk_size": told}) == tokens


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (8001, ("8001",)),
        ("8001, 8002", ("8001", "8002")),
        ([8001, 8002], ("8001", "8002")),
        ("[8001]", ("8001",)),
        (None, ()),
        ("None", ()),
        ("", ()),
    ],
)
def test_lists_of_numbers_are_read_as_lmcache_takes_them(value: object, found: tuple[str, ...]) -> None:
    assert numbers(value) == found


@pytest.mark.parametrize(
    ("value", "on"), [(True, True), ("true", True), (1, True), (False, False), (0, False), ("no", False), (None, True)]
)
def test_switches_are_read_as_lmcache_takes_them(value: object, on: bool) -> None:
    assert switched_on({"local_cpu": value}, "local_cpu", default=True) is on


@pytest.mark.parametrize(("text", "problem"), [("{", "not JSON"), ("[1]", "not a JSON object")])
def test_a_transfer_configuration_that_cannot_be_read_says_why(text: str, problem: str) -> None:
    found = transfer(worker(args=("--kv-transfer-config", text)))
    assert found is not None
    assert problem in found.problem


def test_connectors_inside_a_multi_connector_of_odd_shape_do_not_matter() -> None:
    config = '{"kv_connector":"MultiConnector","kv_connector_extra_config":{"connectors":[1,{"kv_connector":"X"}]}}'
    found = transfer(worker(args=("--kv-transfer-config", config)))
    assert found is not None
    assert found.connectors == ("MultiConnector", "X")


def test_offloading_without_a_size_uses_no_connector() -> None:
    assert transfer(worker(args=("--kv-offloading-backend", "lmcache"))) is None


def test_a_printed_argument_is_found_by_its_name() -> None:
    line = "(APIServer pid=1) INFO 08-01 10:00:05 [u.py:286] non-default args: {'model': 'm', 'max_model_len': 8192}"
    assert printed_argument(worker(log=line), "max_model_len") == "8192"
    assert printed_argument(worker(log=line), "model_len") is None
