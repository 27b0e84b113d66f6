"""The questions of the preflight, and the Role that would answer them with yes."""

from __future__ import annotations

import yaml

from checks.sources.access import ALWAYS, CUSTOM, PROXY, questions, role


def allowed(namespace: str = "prod") -> set[tuple[str, str, str]]:
    """(verb, group, resource) that the Role grants."""
    document = next(iter(yaml.safe_load_all(role(namespace))))
    return {
        (verb, group, resource)
        for rule in document["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_the_role_allows_everything_that_is_asked_for() -> None:
    assert {(one.verb, one.group, one.resource) for one in (*ALWAYS, PROXY, *CUSTOM)} <= allowed()


def test_the_role_allows_no_secret_and_no_change() -> None:
    verbs = {verb for verb, _, resource in allowed() if resource != "pods/proxy"}
    assert verbs == {"get", "list"}
    assert "secrets" not in {resource for _, _, resource in allowed()}


def test_the_role_is_for_the_namespace() -> None:
    documents = list(yaml.safe_load_all(role("blue")))
    assert [one["metadata"]["namespace"] for one in documents] == ["blue", "blue"]
    assert "{namespace}" not in role("blue")


def test_custom_resources_are_asked_for_only_where_they_exist() -> None:
    assert {one.group for one in questions((), proxy=False)} & {one.group for one in CUSTOM} == set()
    assert "vllmrouters" in {one.resource for one in questions(["production-stack.vllm.ai"], proxy=False)}


def test_pods_and_logs_are_required() -> None:
    assert {one.shown for one in questions((), proxy=True) if one.required} == {"pods", "pods/log", "pods/proxy"}
