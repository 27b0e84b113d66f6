"""Which pods are routers, workers and cache servers, and which container of each speaks for it.

Order: a selector that the user gave > a custom resource that owns the pod > labels that stacks put > what a container
runs. Pure: judges the JSON of pods and custom resources.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from checks.discover.owners import Owners, key_of, labels_of, selects
from checks.discover.programs import Program, program
from checks.snapshot import Role

Pod = Mapping[str, Any]

CONTAINERS = {
    Role.ROUTER: ("router-container", "router", "epp", "frontend"),
    Role.WORKER: ("vllm", "main", "worker", "engine", "sglang"),
    Role.CACHE_SERVER: ("lmcache-server", "cache-server"),
}
"""Names that stacks give to the container that matters."""

GPUS = (
    "nvidia.com/gpu",
    "amd.com/gpu",
    "habana.ai/gaudi",
    "aws.amazon.com/neuron",
    "google.com/tpu",
    "gpu.intel.com/i915",
)
_LABELS: tuple[tuple[Role, str, frozenset[str]], ...] = (
    (Role.ROUTER, "app.kubernetes.io/component", frozenset({"router", "epp"})),
    (Role.ROUTER, "app.kubernetes.io/name", frozenset({"router"})),
    (Role.ROUTER, "nvidia.com/dynamo-component-type", frozenset({"frontend"})),
    (Role.WORKER, "app.kubernetes.io/component", frozenset({"serving-engine"})),
    (Role.WORKER, "nvidia.com/dynamo-component-type", frozenset({"worker", "decode", "prefill"})),
    (Role.WORKER, "llm-d.ai/inferenceServing", frozenset({"true"})),
    (Role.WORKER, "llm-d.ai/inference-serving", frozenset({"true"})),
    (Role.WORKER, "llm-d.ai/role", frozenset({"decode", "prefill", "both", "prefill-decode"})),
    (Role.CACHE_SERVER, "app.kubernetes.io/name", frozenset({"cache-server"})),
    (Role.CACHE_SERVER, "app.kubernetes.io/component", frozenset({"cache-server"})),
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A pod that matters, and why."""

    pod: Pod
    role: Role
    container: Mapping[str, Any]
    program: Program | None
    why: str
    """selector · resource · label · program · name"""


@dataclass(frozen=True, slots=True)
class Hints:
    """What else than the pod tells its role."""

    routers: frozenset[tuple[str, str]] = frozenset()
    """(namespace, name) of pods that --router-selector took."""
    workers: frozenset[tuple[str, str]] = frozenset()
    router_selector: bool = False
    worker_selector: bool = False
    router_container: str = ""
    worker_container: str = ""
    router_namespace: str = ""
    """Set where routers live apart from the workers; a pod there counts by its name when nothing else tells."""
    resources: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """Custom resources and Services by plural."""


def choose(pods: Iterable[Pod], hints: Hints, owners: Owners) -> list[Chosen]:
    """Members in the order of the pods; finished pods (Succeeded) are none."""
    claims = _claims(hints.resources)
    found: list[Chosen] = []
    for pod in pods:
        if (pod.get("status") or {}).get("phase") == "Succeeded" or not _containers(pod):
            continue
        told = _role(pod, hints, owners, claims)
        if told is None:
            continue
        role, why = told
        wanted = hints.router_container if role is Role.ROUTER else hints.worker_container
        container = container_of(pod, role, wanted if role is not Role.CACHE_SERVER else "")
        found.append(Chosen(pod, role, container, runs(container), why))
    return found


def container_of(pod: Pod, role: Role, wanted: str = "") -> Mapping[str, Any]:
    """The container to read: by the name asked for, a known name, what it runs, a GPU, the pod's default, the first.

    Init containers and sidecars are never merged in. A pod without containers gives {}.
    """
    containers = _containers(pod)
    default = ((pod.get("metadata") or {}).get("annotations") or {}).get("kubectl.kubernetes.io/default-container")
    for test in (
        lambda one: bool(wanted) and one.get("name") == wanted,
        lambda one: one.get("name") in CONTAINERS[role] and runs(one) in (None, *_of_role(role)),
        lambda one: runs(one) in _of_role(role),
        _has_gpu,
        lambda one: one.get("name") == default,
    ):
        if (found := next((one for one in containers if test(one)), None)) is not None:
            return found
    return containers[0] if containers else {}


def runs(container: Mapping[str, Any]) -> Program | None:
    """What a container runs."""
    words = [str(word) for word in (*(container.get("command") or ()), *(container.get("args") or ()))]
    names = [str(entry.get("name") or "") for entry in container.get("env") or ()]
    return program(words, str(container.get("image") or ""), names)


@dataclass(frozen=True, slots=True)
class _Claim:
    """A custom resource's word on pods of its namespace."""

    role: Role
    namespace: str
    selector: Any = None
    owner: str = ""

    def takes(self, pod: Pod, owner: str) -> bool:
        if key_of(pod)[0] != self.namespace:
            return False
        return selects(self.selector, labels_of(pod)) or (bool(self.owner) and owner == self.owner)


def _role(pod: Pod, hints: Hints, owners: Owners, claims: Sequence[_Claim]) -> tuple[Role, str] | None:
    key = key_of(pod)
    if key in hints.routers:
        return Role.ROUTER, "selector"
    if key in hints.workers:
        return Role.WORKER, "selector"
    told = _untold(pod, hints, owners, claims)
    if told is None:
        return None
    asked = {Role.ROUTER: hints.router_selector, Role.WORKER: hints.worker_selector}
    return None if asked.get(told[0]) else told


def _untold(pod: Pod, hints: Hints, owners: Owners, claims: Sequence[_Claim]) -> tuple[Role, str] | None:
    """Without selectors."""
    owner = owners.of(pod)
    for claim in claims:
        if claim.takes(pod, owner):
            return claim.role, "resource"
    labels = labels_of(pod)
    for role, label, values in _LABELS:
        if labels.get(label, "").lower() in values:
            return role, "label"
    programs = [found for one in _containers(pod) if (found := runs(one)) is not None]
    for role in (Role.ROUTER, Role.WORKER, Role.CACHE_SERVER):
        if any(one.role is role for one in programs):
            return role, "program"
    namespace, name = key_of(pod)
    apart = hints.router_namespace and namespace == hints.router_namespace
    if apart and "router" in name and "-controller-manager-" not in name:
        return Role.ROUTER, "name"
    return None


def _claims(resources: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[_Claim]:
    claims: list[_Claim] = []
    for plural in ("inferenceendpointconfigs", "jumpstartmodels"):
        for one in resources.get(plural, ()):
            status = one.get("status") or {}
            deployment = (status.get("deploymentStatus") or {}).get("name")
            owner = f"Deployment/{deployment}" if deployment else ""
            claims.append(_Claim(Role.WORKER, key_of(one)[0], status.get("selector"), owner))
    for plural, role in (("vllmrouters", Role.ROUTER), ("vllmruntimes", Role.WORKER)):
        for one in resources.get(plural, ()):
            namespace, name = key_of(one)
            claims.append(_Claim(role, namespace, {"app": name}))
    claims += _pool_claims(resources)
    return claims


def _pool_claims(resources: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[_Claim]:
    """InferencePools: their pods are workers, the pods behind their endpoint picker's Service route."""
    services = {key_of(one): (one.get("spec") or {}).get("selector") for one in resources.get("services", ())}
    for pool in resources.get("inferencepools", ()):
        namespace, spec = key_of(pool)[0], pool.get("spec") or {}
        picker = spec.get("endpointPickerRef") or spec.get("extensionRef") or {}
        if selector := services.get((str(picker.get("namespace") or namespace), str(picker.get("name") or ""))):
            yield _Claim(Role.ROUTER, str(picker.get("namespace") or namespace), selector)
        yield _Claim(Role.WORKER, namespace, spec.get("selector"))


def _of_role(role: Role) -> tuple[Program, ...]:
    return tuple(one for one in Program if one.role is role)


def _containers(pod: Pod) -> Sequence[Mapping[str, Any]]:
    return (pod.get("spec") or {}).get("containers") or ()


def _has_gpu(container: Mapping[str, Any]) -> bool:
    resources = container.get("resources") or {}
    asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return any(str(asked.get(name, "0")) not in ("", "0") for name in GPUS)
