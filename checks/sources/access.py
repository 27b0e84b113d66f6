"""What the caller may read, asked beforehand, and the Role that would allow it.

SelfSubjectAccessReview is open to every authenticated user and leaves nothing behind. One request a question.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from typing import Any

import msgspec

from checks.numerals import loads
from checks.snapshot import Access
from checks.sources.kubernetes import Cluster
from checks.sources.tape import Answer

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclass(frozen=True, slots=True)
class Question:
    """May the caller do `verb` on `resource` (plural, or plural/subresource) of `group`?"""

    verb: str
    group: str
    resource: str
    needed_for: str
    required: bool = False

    @property
    def shown(self) -> str:
        """`pods/log`, `deployments.apps`."""
        return f"{self.resource}.{self.group}" if self.group else self.resource


ALWAYS = (
    Question("list", "", "pods", "finding routers and workers", required=True),
    Question("get", "", "pods/log", "registration, LMCache's state, routing decisions", required=True),
    Question("list", "", "services", "controller ports"),
    Question("get", "", "configmaps", "environment from ConfigMaps"),
    Question("list", "", "events", "why a pod is not healthy"),
    Question("list", "apps", "deployments", "owners of pods"),
    Question("list", "apps", "replicasets", "owners of pods"),
    Question("list", "apps", "statefulsets", "owners of pods"),
    Question("list", "autoscaling", "horizontalpodautoscalers", "router replicas"),
    Question("list", "networking.k8s.io", "networkpolicies", "reachability of the controller"),
    Question("list", "discovery.k8s.io", "endpointslices", "what Services point to"),
)
PROXY = Question("get", "", "pods/proxy", "metrics and answers of pods", required=True)
CUSTOM = (
    Question("list", "inference.sagemaker.aws.amazon.com", "inferenceendpointconfigs", "HyperPod's configuration"),
    Question("list", "inference.sagemaker.aws.amazon.com", "jumpstartmodels", "HyperPod's configuration"),
    Question("list", "production-stack.vllm.ai", "vllmrouters", "the operator's configuration"),
    Question("list", "production-stack.vllm.ai", "vllmruntimes", "the operator's configuration"),
    Question("list", "inference.networking.k8s.io", "inferencepools", "workers and endpoint picker"),
    Question("list", "inference.networking.x-k8s.io", "inferencepools", "workers and endpoint picker"),
)


def questions(groups: Iterable[str], *, proxy: bool) -> tuple[Question, ...]:
    """What to ask of a namespace in a cluster with these API groups; `proxy`: pods' own pages are wanted."""
    present = frozenset(groups)
    custom = tuple(question for question in CUSTOM if question.group in present)
    return (*ALWAYS, *((PROXY,) if proxy else ()), *custom)


def ask(
    cluster: Cluster,
    namespace: str,
    asked: Iterable[Question],
    each: Callable[[Sequence[Callable[[], Answer]]], Sequence[Answer]],
) -> Answer:
    """JSON list of `Access` fields; a question that was not answered is left out. `each` runs calls, maybe at once.

    Where no question at all was answered, the first one's failure.
    """
    wanted = tuple(asked)
    answers = each([partial(_review, cluster, namespace, one) for one in wanted])
    rows: list[dict[str, Any]] = []
    for question, answer in zip(wanted, answers, strict=True):
        allowed = None if not answer.ok else _allowed(answer.text)
        if allowed is not None:
            row = {"verb": question.verb, "resource": question.shown, "namespace": namespace, "allowed": allowed}
            rows.append(row | {"required": question.required, "needed_for": question.needed_for})
    failures = [answer for answer in answers if not answer.ok]
    return failures[0] if failures and not rows else Answer(200, json.dumps(rows), at=time.time())


def decoded(answer: Answer) -> tuple[Access, ...]:
    """Of what `ask` answered; empty where it failed or cannot be read."""
    try:
        return msgspec.json.decode(answer.text, type=tuple[Access, ...]) if answer.ok else ()
    except msgspec.DecodeError:
        return ()


@cache
def role_text() -> str:
    """Role and RoleBinding as YAML, `{namespace}` for the namespace."""
    return files("checks").joinpath("data/role.yaml").read_text(encoding="utf-8")


def role(namespace: str) -> str:
    """The Role to apply in a namespace."""
    return role_text().replace("{namespace}", namespace)


def _review(cluster: Cluster, namespace: str, question: Question) -> Answer:
    resource, _, subresource = question.resource.partition("/")
    attributes = {"verb": question.verb, "group": question.group, "resource": resource, "namespace": namespace}
    if subresource:
        attributes["subresource"] = subresource
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    return cluster.post(REVIEWS, body)


def _allowed(text: str) -> bool | None:
    try:
        return bool(loads(text)["status"]["allowed"])
    except (ValueError, KeyError, TypeError):
        return None
