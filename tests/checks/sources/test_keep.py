"""What of an answer may be kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from checks.sources.keep import kept, without_secrets


def env(name: str, value: str) -> dict[str, Any]:
    return {"env": [{"name": name, "value": value}]}


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "VLLM_API_KEY", "REDIS_PASSWORD", "CLIENT_SECRET", "AWS_SECRET_ACCESS_KEY"]
)
def test_values_of_secret_names_go(name: str) -> None:
    assert without_secrets(env(name, "abc123def")) == env(name, "***")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LMCACHE_CHUNK_SIZE", "256"),
        ("PYTHONHASHSEED", "0"),
        ("MAX_BATCHED_TOKENS", "8192"),
        ("TOKENIZER_MODE", "auto"),
    ],
)
def test_other_values_stay(name: str, value: str) -> None:
    assert without_secrets(env(name, value)) == env(name, value)


def test_an_empty_secret_stays_empty() -> None:
    assert without_secrets(env("HF_TOKEN", "")) == env("HF_TOKEN", "")


def test_a_reference_to_a_secret_stays() -> None:
    entry = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}
    assert without_secrets([entry]) == [entry]


@pytest.mark.parametrize(
    ("args", "left"),
    [
        (["--api-key", "abcd1234", "--port", "8000"], ["--api-key", "***", "--port", "8000"]),
        (["--api-key=abcd1234"], ["--api-key=***"]),
        (["--session-key", "x-user-id"], ["--session-key", "x-user-id"]),
        (["--max-num-batched-tokens", "8192"], ["--max-num-batched-tokens", "8192"]),
    ],
)
def test_keys_in_arguments_go(args: list[str], left: list[str]) -> None:
    assert without_secrets({"args": args}) == {"args": left}


def test_passwords_in_urls_go() -> None:
    assert "hunter2" not in json.dumps(without_secrets(env("LMCACHE_REMOTE_URL", "redis://me:hunter2@redis:6379")))


def test_fields_that_repeat_the_applied_object_are_dropped() -> None:
    metadata = {
        "name": "x",
        "managedFields": [1],
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
    }
    assert without_secrets({"metadata": metadata}) == {"metadata": {"name": "x", "annotations": {}}}


def test_control_characters_go() -> None:
    assert without_secrets({"message": "a\x1b[31mb"}) == {"message": "ab"}


def test_prompts_go() -> None:
    assert without_secrets({"messages": [{"role": "user", "content": "hello"}]}) == {"messages": "***"}


def test_json_stays_json() -> None:
    text = json.dumps({"header": "Authorization: Bearer abcdefgh", "after": 1})
    assert json.loads(kept("kubernetes", text))["after"] == 1


def test_keeping_twice_changes_nothing() -> None:
    text = json.dumps([env("A", 'x "quoted" \\ é'), {"args": ["--api-key", "k1k2k3k4"]}])
    once = kept("kubernetes", text)
    assert kept("kubernetes", once) == once


def test_a_metrics_page_stays_as_it_is() -> None:
    page = '# TYPE vllm:prompt_tokens_total counter\nvllm:prompt_tokens_total{model_name="m"} 5\n'
    assert kept("page", page) == page


def test_what_looks_like_json_and_is_not_is_treated_as_text() -> None:
    assert kept("page", "{not json \x1b[31m") == "{not json "


@pytest.mark.parametrize(
    "name",
    [
        "DB_PWD",
        "MY_PASS",
        "PASS_FILE_TEXT",
        "AUTH",
        "NPM_AUTH",
        "AUTHORIZATION",
        "BEARER",
        "CREDENTIALS",
        "SESSION_COOKIE",
        "SLACK_WEBHOOK",
        "GITHUB_PAT",
        "SIGNING_SALT",
    ],
)
def test_variables_whose_names_tell_a_secret_lose_their_value(name: str) -> None:
    assert without_secrets([{"name": name, "value": "planted"}]) == [{"name": name, "value": "***"}]


@pytest.mark.parametrize(
    "name", ["PATH", "AUTHOR", "COMPASS_ON", "VLLM_PATTERN", "LMCACHE_CHUNK_SIZE", "PYTHONHASHSEED"]
)
def test_variables_of_other_names_keep_it(name: str) -> None:
    assert without_secrets([{"name": name, "value": "kept"}]) == [{"name": name, "value": "kept"}]


@pytest.mark.parametrize("name", ["token", "vault.token", "clientSecret", "privateKey", "last_prompt", "system-prompt"])
def test_fields_whose_names_tell_a_secret_lose_their_value(name: str) -> None:
    assert without_secrets({name: "planted"}) == {name: "***"}


@pytest.mark.parametrize("words", [["--token", "planted"], ["-u", "me:planted"], ["--hf-token", "planted"]])
def test_the_word_after_an_option_that_tells_a_secret_goes(words: list[str]) -> None:
    assert without_secrets([*words, "next"]) == [words[0], "***", "next"]


def test_a_private_key_goes_and_its_kind_stays() -> None:
    text = "-----BEGIN RSA PRIVATE KEY-----\nMIIplanted\nplanted\n-----END RSA PRIVATE KEY-----\nafter"
    assert kept("log", text) == "-----BEGIN RSA PRIVATE KEY-----***\nafter"
    assert without_secrets({"tls": text}) == {"tls": kept("log", text)}
