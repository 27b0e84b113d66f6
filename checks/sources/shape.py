"""Kubernetes objects with nothing in them that has another type than the API gives it.

Discovery and checks read objects as the API documents them. What answers may be no real API server, a broken aggregated
one, or a recording that somebody edited: a field of another type is left out here, once, and told. Fields that are not
listed stay as they are; who reads those must look at their type. Pure; one pass over what is listed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Shape = Any
"""Leaf: `TEXT`, `NUMBER`, `EITHER`. `[shape]`: a list of such. `{name: shape}`: an object. `Of(shape)`: an object with
any names and such values."""


@dataclass(frozen=True, slots=True)
class Of:
    """An object whose names are free."""

    shape: Shape


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value that is none of these types is left out; whole numbers must fit 64 bits."""

    types: tuple[type, ...]

    def fits(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, self.types):
            return False
        return not isinstance(value, int) or -(1 << 63) <= value < 1 << 63


TEXT = Leaf((str,))
NUMBER = Leaf((int,))
EITHER = Leaf((str, int))

_METADATA: Shape = {
    "name": TEXT,
    "namespace": TEXT,
    "uid": TEXT,
    "labels": Of(TEXT),
    "annotations": Of(TEXT),
    "creationTimestamp": TEXT,
    "deletionTimestamp": TEXT,
    "generation": NUMBER,
    "ownerReferences": [{"kind": TEXT, "name": TEXT}],
}
_SELECTOR: Shape = {
    "matchLabels": Of(TEXT),
    "matchExpressions": [{"key": TEXT, "operator": TEXT, "values": [TEXT]}],
}
_NAMED: Shape = {"name": TEXT}
_KEYED: Shape = {"name": TEXT, "key": TEXT}
_CONTAINER: Shape = {
    "name": TEXT,
    "image": TEXT,
    "command": [TEXT],
    "args": [TEXT],
    "env": [
        {
            "name": TEXT,
            "value": TEXT,
            "valueFrom": {
                "fieldRef": {"fieldPath": TEXT},
                "configMapKeyRef": _KEYED,
                "secretKeyRef": _KEYED,
                "resourceFieldRef": {"resource": TEXT},
            },
        }
    ],
    "envFrom": [{"prefix": TEXT, "configMapRef": _NAMED, "secretRef": _NAMED}],
    "ports": [{"name": TEXT, "containerPort": NUMBER}],
    "resources": {"limits": Of(EITHER), "requests": Of(EITHER)},
    "volumeMounts": [{"name": TEXT, "mountPath": TEXT}],
}
_STATE: Shape = {
    "running": {"startedAt": TEXT},
    "waiting": {"reason": TEXT},
    "terminated": {"reason": TEXT, "exitCode": NUMBER, "startedAt": TEXT, "finishedAt": TEXT},
}
_POD: Shape = {
    "metadata": _METADATA,
    "spec": {
        "nodeName": TEXT,
        "containers": [_CONTAINER],
        "initContainers": [_CONTAINER],
        "volumes": [{"name": TEXT, "configMap": _NAMED}],
    },
    "status": {
        "phase": TEXT,
        "podIP": TEXT,
        "podIPs": [{"ip": TEXT}],
        "conditions": [{"type": TEXT, "status": TEXT, "reason": TEXT, "message": TEXT}],
        "containerStatuses": [{"name": TEXT, "restartCount": NUMBER, "state": _STATE, "lastState": _STATE}],
    },
}
_SERVICE_PORT: Shape = {"name": TEXT, "port": NUMBER, "targetPort": EITHER, "protocol": TEXT}
_SERVICE: Shape = {
    "metadata": _METADATA,
    "spec": {"type": TEXT, "clusterIP": TEXT, "externalName": TEXT, "selector": Of(TEXT), "ports": [_SERVICE_PORT]},
}
_WORKLOAD: Shape = {
    "metadata": _METADATA,
    "spec": {
        "replicas": NUMBER,
        "selector": _SELECTOR,
        "template": {
            "metadata": {"labels": Of(TEXT), "annotations": Of(TEXT)},
            "spec": {"containers": [_CONTAINER]},
        },
    },
}
_POLICY: Shape = {
    "metadata": _METADATA,
    "spec": {
        "podSelector": _SELECTOR,
        "policyTypes": [TEXT],
        "ingress": [
            {
                "ports": [{"protocol": TEXT, "port": EITHER, "endPort": NUMBER}],
                "from": [
                    {
                        "ipBlock": {"cidr": TEXT, "except": [TEXT]},
                        "podSelector": _SELECTOR,
                        "namespaceSelector": _SELECTOR,
                    }
                ],
            }
        ],
    },
}
_ENDPOINT: Shape = {
    "metadata": _METADATA,
    "spec": {"intelligentRoutingSpec": {}, "worker": {"modelInvocationPort": {}}},
    "status": {"deploymentStatus": {"name": TEXT}, "observedGeneration": NUMBER},
}
_REFERENCE: Shape = {"name": TEXT, "namespace": TEXT}
_SHAPES: Mapping[str, Shape] = {
    "pods": _POD,
    "services": _SERVICE,
    "deployments": _WORKLOAD,
    "statefulsets": _WORKLOAD,
    "replicasets": {"metadata": _METADATA},
    "horizontalpodautoscalers": {
        "metadata": _METADATA,
        "spec": {"scaleTargetRef": {"kind": TEXT, "name": TEXT}, "maxReplicas": NUMBER},
    },
    "networkpolicies": _POLICY,
    "endpointslices": {"metadata": _METADATA, "endpoints": [{"addresses": [TEXT]}]},
    "configmaps": {"metadata": _METADATA, "data": Of(TEXT)},
    "events": {"type": TEXT, "reason": TEXT, "message": TEXT, "involvedObject": _REFERENCE},
    "inferenceendpointconfigs": _ENDPOINT,
    "jumpstartmodels": _ENDPOINT,
    "inferencepools": {
        "metadata": _METADATA,
        "spec": {"endpointPickerRef": _REFERENCE, "extensionRef": _REFERENCE},
    },
}
_ANY: Shape = {"metadata": _METADATA, "spec": {}, "status": {}}


@dataclass(slots=True)
class Odd:
    """What was left out."""

    count: int = 0
    first: str = ""
    """Its path: `spec.containers[0].env`."""

    def add(self, path: Sequence[str]) -> None:
        self.count += 1
        self.first = self.first or "".join(path).lstrip(".")[:120] or "the object"

    @property
    def text(self) -> str:
        """One line; '' where nothing was."""
        if not self.count:
            return ""
        named = self.first if self.count == 1 else f"{self.count} fields, the first {self.first},"
        return f"{named} not of the type that Kubernetes gives it"


@dataclass(slots=True)
class Fitting:
    """Objects of one kind (plural) as they may be read."""

    plural: str
    odd: Odd = field(default_factory=Odd)

    def each(self, items: Any) -> list[dict[str, Any]]:
        """Of the `items` of a list; what is no object is left out."""
        listed = _listed(items, [_SHAPES.get(self.plural, _ANY)], (".items",), self.odd)
        return listed if isinstance(listed, list) else []

    def one(self, value: Any) -> dict[str, Any] | None:
        """A single object; None where it is none."""
        if not isinstance(value, dict):
            self.odd.add(())
            return None
        return _object(value, _SHAPES.get(self.plural, _ANY), (), self.odd)


_LEFT_OUT = object()


def _fitted(value: Any, shape: Shape, path: tuple[str, ...], odd: Odd) -> Any:
    if isinstance(shape, Leaf):
        if shape.fits(value):
            return value
        odd.add(path)
        return _LEFT_OUT
    if isinstance(shape, list):
        return _listed(value, shape, path, odd)
    if not isinstance(value, dict):
        odd.add(path)
        return _LEFT_OUT
    if isinstance(shape, Of):
        return _object(value, dict.fromkeys(value, shape.shape), path, odd)
    return _object(value, shape, path, odd)


def _listed(value: Any, shape: list[Shape], path: tuple[str, ...], odd: Odd) -> Any:
    if value is None:
        return []
    if not isinstance(value, list):
        odd.add(path)
        return _LEFT_OUT
    fitted = [_fitted(item, shape[0], (*path, f"[{at}]"), odd) for at, item in enumerate(value)]
    return [item for item in fitted if item is not _LEFT_OUT]


def _object(value: dict[str, Any], shape: Mapping[str, Shape], path: tuple[str, ...], odd: Odd) -> dict[str, Any]:
    """Null is as good as absent."""
    found: dict[str, Any] = {}
    for name, item in value.items():
        if item is None and name in shape:
            continue
        fitted = _fitted(item, shape[name], (*path, f".{name}"), odd) if name in shape else item
        if fitted is not _LEFT_OUT:
            found[name] = fitted
    return found
