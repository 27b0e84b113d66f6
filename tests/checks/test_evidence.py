"""Evidence of configuration: what is shown, and what never is."""

from __future__ import annotations

import pytest

from checks.evidence import args, at, env, image, lmcache_setting, resource, resource_target, shown
from tests.checks.build import worker


def test_a_variable_is_shown_with_its_value() -> None:
    assert env(worker(env={"LMCACHE_CHUNK_SIZE": "256"}), "LMCACHE_CHUNK_SIZE").text == "LMCACHE_CHUNK_SIZE=256"


def test_a_variable_that_is_not_set_says_so() -> None:
    assert env(worker(), "PYTHONHASHSEED").text == "PYTHONHASHSEED is not set"


def test_the_value_of_a_secret_variable_is_never_shown() -> None:
    for name in ("HF_TOKEN", "VLLM_API_KEY", "AWS_SECRET_ACCESS_KEY", "REDIS_PASSWORD"):
        assert env(worker(env={name: "hunter2-hunter2"}), name).text == f"{name}=<set>"


def test_where_a_variable_comes_from_is_shown() -> None:
    assert env(worker(env={"HF_TOKEN": "<from:secret/hf>"}), "HF_TOKEN").text == "HF_TOKEN=<from:secret/hf>"


def test_numbers_of_tokens_are_no_secrets() -> None:
    assert args(worker(args=["--max-num-batched-tokens", "8192"]), "--max-num-batched-tokens").text == (
        "--max-num-batched-tokens 8192"
    )


def test_the_value_of_a_secret_argument_is_never_shown() -> None:
    assert args(worker(args=["--api-key", "hunter2"]), "--api-key").text == "--api-key <set>"


def test_the_first_argument_that_is_given_is_shown() -> None:
    member = worker(args=["--router-mode=kv"])
    assert args(member, "--routing-logic", "--router-mode").text == "--router-mode kv"
    assert args(worker(), "--routing-logic", "--router-mode").text == "--routing-logic is not given"


def test_a_password_in_a_url_is_never_shown() -> None:
    assert "hunter2" not in env(worker(env={"LMCACHE_REMOTE_URL": "lm://me:hunter2@h:1"}), "LMCACHE_REMOTE_URL").text


def test_text_is_one_line_of_at_most_240_characters_without_escapes() -> None:
    text = shown("a\x1b[31mb\nc" + "d" * 1000)
    assert "\x1b" not in text
    assert "\n" not in text
    assert len(text) == 240


def test_a_field_of_an_object_is_shown_with_its_path_and_owner() -> None:
    obj = {"metadata": {"name": "m", "namespace": "prod"}, "spec": {"metrics": {"enabled": True}}}
    found = resource(obj, "spec.metrics.enabled", kind="InferenceEndpointConfig")
    assert found.text == "spec.metrics.enabled = true"
    assert found.where == "InferenceEndpointConfig m.prod"


def test_a_field_that_is_not_there_says_so() -> None:
    assert resource({"spec": None}, "spec.metrics.enabled").text == "spec.metrics.enabled is not set"


def test_an_objects_own_kind_beats_the_one_given() -> None:
    assert resource_target({"kind": "JumpStartModel", "metadata": {"name": "j"}}, kind="X").kind == "JumpStartModel"


def test_a_path_through_something_that_is_no_mapping_gives_the_default() -> None:
    assert at({"spec": [1, 2]}, "spec.metrics", "none") == "none"


def test_an_unknown_image_says_so() -> None:
    assert image(worker()).text == "image unknown"


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({"LMCACHE_CHUNK_SIZE": "512"}, "LMCACHE_CHUNK_SIZE=512"),
        ({}, "LMCache Configuration: chunk_size = 256"),
    ],
)
def test_a_setting_of_lmcache_by_its_variable_before_what_was_printed(env: dict[str, str], text: str) -> None:
    assert lmcache_setting(worker(env=env), "chunk_size", {"chunk_size": 256}).text == text


def test_a_setting_that_stands_nowhere_is_not_set() -> None:
    assert lmcache_setting(worker(), "chunk_size", {}).text == "LMCACHE_CHUNK_SIZE is not set"
