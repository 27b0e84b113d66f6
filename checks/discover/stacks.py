"""Whose system this is, from what was found; the most telling sign wins. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from checks.discover.owners import labels_of
from checks.discover.programs import STACKS
from checks.discover.roles import Chosen
from checks.model import Stack
from checks.snapshot import Member

HYPERPOD_GROUP = "inference.sagemaker.aws.amazon.com"
HYPERPOD_NAMESPACE = "hyperpod-inference-system"
_BY_RESOURCE = (
    (Stack.HYPERPOD, ("inferenceendpointconfigs", "jumpstartmodels")),
    (Stack.PRODUCTION_STACK, ("vllmrouters", "vllmruntimes")),
    (Stack.LLM_D, ("inferencepools",)),
)
_HELM_COMPONENTS = frozenset({"serving-engine", "cache-server"})
_BY_METRIC = (
    (Stack.LLM_D, ("inference_extension_", "inference_pool_", "kvcache_index_")),
    (Stack.DYNAMO, ("dynamo_",)),
    (Stack.SGLANG, ("sglang:", "sglang_")),
    (Stack.TRTLLM, ("trtllm_", "nv_trt_llm_")),
)


def of_cluster(chosen: Sequence[Chosen], resources: Mapping[str, Sequence[Mapping[str, Any]]]) -> Stack:
    """Of pods and custom resources. kvctl as router beats all: it may stand before anybody's workers."""
    programs = {one.program for one in chosen}
    known = [stack for program, stack in STACKS.items() if program in programs]
    if Stack.KVCTL in known:
        return Stack.KVCTL
    for stack, plurals in _BY_RESOURCE:
        if any(resources.get(plural) for plural in plurals):
            return stack
    labels = [labels_of(one.pod) for one in chosen]
    if any("nvidia.com/dynamo-component-type" in one for one in labels):
        return Stack.DYNAMO
    if any(name.startswith("llm-d.ai/") for one in labels for name in one):
        return Stack.LLM_D
    if known:
        return known[0]
    helm = any(one.get("app.kubernetes.io/component") in _HELM_COMPONENTS for one in labels)
    return Stack.PRODUCTION_STACK if helm else Stack.UNKNOWN


def of_processes(members: Sequence[Member], families: Mapping[str, frozenset[str]]) -> Stack:
    """Of what processes answered and logged; `families`: names of metrics by member key."""
    for member in members:
        version = member.answers.get("/version")
        if "/workers" in member.answers or (isinstance(version, dict) and version.get("router") == "kvctl"):
            return Stack.KVCTL
    names = {name for found in families.values() for name in found}
    for stack, prefixes in _BY_METRIC:
        if any(name.startswith(prefixes) for name in names):
            return stack
    if any(name.startswith("kvctl_") for name in names):
        return Stack.KVCTL
    routers = [member for member in members if member.role.value == "router"]
    if any(router.log is not None and router.log.any_of_component("aws") for router in routers):
        return Stack.HYPERPOD
    engines = any("/engines" in router.answers for router in routers)
    logged = any(router.log is not None and router.log.any_of_component("router") for router in routers)
    return Stack.PRODUCTION_STACK if engines or logged else Stack.UNKNOWN
