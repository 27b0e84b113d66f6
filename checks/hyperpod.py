"""HyperPod's custom resources with the defaults that their CRD fills in, and which workers belong to one. Pure.

Kinds: InferenceEndpointConfig and JumpStartModel, `inference.sagemaker.aws.amazon.com/v1`. A spec part that is absent
gets no defaults: the operator then leaves that feature alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from checks.compatibility import Version
from checks.evidence import at, resource, resource_target, shown
from checks.model import Evidence, Target
from checks.snapshot import Member, Snapshot, strategy_name

KINDS = {"inferenceendpointconfigs": "InferenceEndpointConfig", "jumpstartmodels": "JumpStartModel"}
L2_BACKENDS = frozenset({"redis", "tieredstorage"})
STRATEGIES = frozenset({"prefixaware", "kvaware", "session", "roundrobin"})
OPERATOR_NAMESPACE = "hyperpod-inference-system"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One resource. Absent parts are None where the part itself is absent."""

    object: Mapping[str, Any]
    kind: str

    @property
    def name(self) -> str:
        return str(at(self.object, "metadata.name", ""))

    @property
    def namespace(self) -> str:
        return str(at(self.object, "metadata.namespace", ""))

    @property
    def target(self) -> Target:
        return resource_target(self.object, kind=self.kind)

    @property
    def caches(self) -> bool:
        """It has a kvCacheSpec."""
        return isinstance(at(self.object, "spec.kvCacheSpec"), Mapping)

    @property
    def level1(self) -> bool | None:
        """Default true."""
        return _flag(self.object, "spec.kvCacheSpec.enableL1Cache", True) if self.caches else None

    @property
    def level2(self) -> bool | None:
        """Default false."""
        return _flag(self.object, "spec.kvCacheSpec.enableL2Cache", False) if self.caches else None

    @property
    def level2_spec(self) -> bool:
        return isinstance(at(self.object, "spec.kvCacheSpec.l2CacheSpec"), Mapping)

    @property
    def level2_backend(self) -> str:
        """As written; '' where it is not."""
        return str(at(self.object, "spec.kvCacheSpec.l2CacheSpec.l2CacheBackend") or "")

    @property
    def level2_url(self) -> str:
        return str(at(self.object, "spec.kvCacheSpec.l2CacheSpec.l2CacheLocalUrl") or "")

    @property
    def cache_config_file(self) -> str:
        """A file of LMCache's own; it overrides every other field of the part."""
        return str(at(self.object, "spec.kvCacheSpec.cacheConfigFile") or "")

    @property
    def routed(self) -> bool:
        """Default false."""
        return _flag(self.object, "spec.intelligentRoutingSpec.enabled", False)

    @property
    def strategy(self) -> str:
        """Plain spelling; default prefixaware; '' where routing is not enabled."""
        if not self.routed:
            return ""
        return strategy_name(str(at(self.object, "spec.intelligentRoutingSpec.routingStrategy") or "prefixaware"))

    @property
    def invocation_path(self) -> str:
        """Default `invocations`."""
        return str(at(self.object, "spec.invocationEndpoint") or "invocations")

    @property
    def metrics_enabled(self) -> bool:
        """Default true."""
        return _flag(self.object, "spec.metrics.enabled", True)

    @property
    def metrics_port(self) -> int:
        """Default 8080."""
        told = at(self.object, "spec.metrics.modelMetrics.port")
        return told if isinstance(told, int) else 8080

    @property
    def metrics_path(self) -> str:
        return str(at(self.object, "spec.metrics.modelMetrics.path") or "/metrics")

    @property
    def invocation_port(self) -> int | None:
        told = at(self.object, "spec.worker.modelInvocationPort.containerPort")
        return told if isinstance(told, int) else None

    @property
    def unprocessed(self) -> bool:
        """The operator has not processed the latest edit."""
        generation = at(self.object, "metadata.generation")
        observed = at(self.object, "status.observedGeneration")
        return isinstance(generation, int) and isinstance(observed, int) and observed < generation

    def shows(self, path: str) -> Evidence:
        return resource(self.object, path, kind=self.kind)

    def owns(self, worker: Member) -> bool:
        """The worker's owner or `app` label names this resource."""
        if worker.namespace != self.namespace:
            return False
        names = {self.name, str(at(self.object, "status.deploymentStatus.name") or "")} - {""}
        return worker.owner.rpartition("/")[2] in names or worker.labels.get("app") in names


def endpoints(snapshot: Snapshot) -> tuple[Endpoint, ...]:
    """All resources of both kinds, in the order they were listed."""
    return tuple(Endpoint(one, kind) for plural, kind in KINDS.items() for one in snapshot.resources.all(plural))


def endpoint_of(snapshot: Snapshot, worker: Member) -> Endpoint | None:
    """The resource a worker belongs to; the only resource of all has every worker of its namespace."""
    listed = endpoints(snapshot)
    if len(listed) == 1:
        return listed[0] if worker.namespace == listed[0].namespace else None
    return next((one for one in listed if one.owns(worker)), None)


def workers_of(snapshot: Snapshot, endpoint: Endpoint) -> tuple[Member, ...]:
    """Workers that belong to one resource, as `endpoint_of` says."""
    only = len(endpoints(snapshot)) == 1
    return tuple(
        worker
        for worker in snapshot.workers
        if (worker.namespace == endpoint.namespace if only else endpoint.owns(worker))
    )


@dataclass(frozen=True, slots=True)
class Operator:
    """Version of the inference operator and of the EKS add-on that brought it; None where nothing tells."""

    version: Version | None = None
    addon: Version | None = None
    evidence: tuple[Evidence, ...] = ()


def operator(snapshot: Snapshot) -> Operator:
    """From the operator's own Deployment: image tag, version label, `-eksbuild` version in a label or annotation.

    Image tags often have only major and minor; the finer of tag and label counts.
    """
    for one in snapshot.resources.all("deployments"):
        name = str(at(one, "metadata.name", ""))
        if "inference-operator" in name and "controller-manager" in name:
            return _operator(one)
    return Operator()


def _operator(deployment: Mapping[str, Any]) -> Operator:
    where = str(resource_target(deployment, kind="Deployment"))
    told: list[Version] = []
    evidence: list[Evidence] = []
    for container in at(deployment, "spec.template.spec.containers") or ():
        image = str(container.get("image") or "") if isinstance(container, Mapping) else ""
        name, _, tag = image.partition("@")[0].rpartition(":")
        if name.endswith("hyperpod-inference-operator") and (version := Version.find(tag)) is not None:
            told.append(version)
            evidence.append(Evidence("resource", where, shown(f"image {image}")))
    texts = {
        f"{part}.{key}": str(value)
        for part in ("labels", "annotations")
        for path in (f"metadata.{part}", f"spec.template.metadata.{part}")
        for key, value in (at(deployment, path) or {}).items()
    }
    label = texts.get("labels.app.kubernetes.io/version", "")
    if "eksbuild" not in label and (version := Version.find(label)) is not None:
        told.append(version)
        evidence.append(Evidence("resource", where, shown(f"app.kubernetes.io/version = {label}")))
    addon = next((item for item in texts.items() if "-eksbuild." in item[1]), None)
    if addon is not None:
        evidence.append(Evidence("resource", where, shown(f"{addon[0]} = {addon[1]}")))
    fine = next((version for version in told if not version.coarse), told[0] if told else None)
    return Operator(fine, Version.find(addon[1]) if addon is not None else None, tuple(evidence))


def _flag(obj: Mapping[str, Any], path: str, default: bool) -> bool:
    told = at(obj, path)
    return told if isinstance(told, bool) else default
