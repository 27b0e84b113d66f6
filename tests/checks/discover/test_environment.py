"""Effective environment and arguments."""

from __future__ import annotations

from typing import Any

import pytest

from checks.discover.environment import arguments, environment, expanded, referenced_configmaps
from tests.checks.discover.pods import container, pod

MAPS = {("prod", "conf"): {"LMCACHE_CHUNK_SIZE": "256", "OTHER": "x"}}


def values(*entries: dict[str, Any], maps: Any = MAPS, **more: Any) -> dict[str, str]:
    one = container(env=list(entries), **more)
    found = environment(
        one, pod("w-0", one, metadata={"uid": "u-1", "labels": {"app": "a"}}, status={"podIP": "10.0.0.7"}), maps
    )
    return dict(found.values)


def test_literal_values() -> None:
    assert values({"name": "A", "value": "1"}, {"name": "B"}) == {"A": "1", "B": ""}


def test_earlier_variables_are_put_into_later_ones() -> None:
    assert (
        values({"name": "A", "value": "1"}, {"name": "B", "value": "$(A)-$(C)"}, {"name": "C", "value": "3"})["B"]
        == "1-$(C)"
    )


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metadata.name", "w-0"),
        ("metadata.namespace", "prod"),
        ("metadata.uid", "u-1"),
        ("metadata.labels['app']", "a"),
        ("status.podIP", "10.0.0.7"),
    ],
)
def test_fields_of_the_pod_are_known(path: str, expected: str) -> None:
    assert values({"name": "A", "valueFrom": {"fieldRef": {"fieldPath": path}}}) == {"A": expected}


def test_a_field_that_is_not_set_leaves_the_name_out() -> None:
    assert values({"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['none']"}}}) == {}


def test_a_secret_is_named_and_not_read() -> None:
    entry = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}
    assert values(entry) == {"HF_TOKEN": "<from:secret/hf>"}


def test_a_key_of_a_configmap_that_was_read() -> None:
    entry = {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "conf", "key": "OTHER"}}}
    assert values(entry) == {"A": "x"}


def test_a_key_of_a_configmap_that_was_not_read() -> None:
    entry = {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "conf", "key": "OTHER"}}}
    assert values(entry, maps={}) == {"A": "<from:configmap/conf>"}


def test_a_missing_key_of_a_configmap_leaves_the_name_out() -> None:
    entry = {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "conf", "key": "none", "optional": True}}}
    assert values(entry) == {}


def test_a_whole_configmap_with_prefix_and_env_wins() -> None:
    found = values({"name": "P_OTHER", "value": "mine"}, envFrom=[{"prefix": "P_", "configMapRef": {"name": "conf"}}])
    assert found == {"P_LMCACHE_CHUNK_SIZE": "256", "P_OTHER": "mine"}


def test_whole_sources_that_were_not_read_are_named() -> None:
    one = container(envFrom=[{"secretRef": {"name": "s"}}, {"configMapRef": {"name": "other"}}])
    assert environment(one, pod("w-0", one), MAPS).unread_sources == ("secret/s", "configmap/other")


def test_arguments_are_expanded_from_known_variables_only() -> None:
    one = container(command=["vllm", "serve"], args=["--port", "$(PORT)", "--api-key", "$(KEY)", "$$(PORT)"])
    found = arguments(one, {"PORT": "8000", "KEY": "<from:secret/k>"})
    assert found == ("vllm", "serve", "--port", "8000", "--api-key", "$(KEY)", "$(PORT)")


def test_a_shell_script_is_split_into_words() -> None:
    script = "exec vllm serve $MODEL \\\n  --port ${PORT} --kv-transfer-config '{\"a\": 1}' # start"
    one = container(command=["/bin/bash", "-lc"], args=[script])
    assert arguments(one, {"MODEL": "m", "PORT": "8000"}) == (
        *("/bin/bash", "-lc", "exec", "vllm", "serve", "m", "--port", "8000"),
        *("--kv-transfer-config", '{"a": 1}'),
    )


def test_a_script_with_an_open_quote_is_split_at_blanks() -> None:
    assert arguments(container(command=["sh", "-c", "vllm serve 'm"]), {})[2:] == ("vllm", "serve", "'m")


def test_expansion_does_not_grow_without_end() -> None:
    assert len(expanded("$(A)" * 1000, {"A": "x" * 10_000})) == 64 << 10


def test_configmaps_that_a_pod_refers_to() -> None:
    one = container(
        envFrom=[{"configMapRef": {"name": "whole"}}],
        env=[{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "one", "key": "k"}}}],
    )
    found = pod("w-0", one, spec={"volumes": [{"name": "v", "configMap": {"name": "file"}}]})
    assert dict(referenced_configmaps(found, mounted=False)) == {"whole": None, "one": frozenset({"k"})}
    assert dict(referenced_configmaps(found, mounted=True))["file"] is None
    assert "file" in dict(referenced_configmaps(found, mounted=True))
