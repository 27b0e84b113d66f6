"""What a cluster holds: permissions, pods, the objects around them, custom resources. One list a kind and namespace.

Keys on the tape: `apis`, `NAMESPACE/access`, `NAMESPACE/PLURAL` (without `NAMESPACE/` for all namespaces), with
`?SELECTOR` where a selector was given, `NAMESPACE/configmaps/NAME`, `NAMESPACE/events/POD`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from urllib.parse import quote

from checks.discover.environment import referenced_configmaps
from checks.discover.owners import key_of
from checks.discover.stacks import HYPERPOD_GROUP, HYPERPOD_NAMESPACE
from checks.model import Reason
from checks.numerals import loads
from checks.request import Scrape
from checks.snapshot import Access
from checks.sources import access, pages
from checks.sources.connection import SourceError
from checks.sources.keep import without_secrets
from checks.sources.kubernetes import Cluster
from checks.sources.run import Run
from checks.sources.shape import Fitting
from checks.sources.tape import Answer

Object = Mapping[str, Any]

BUILT_IN = (
    ("services", ""),
    ("deployments", "apps"),
    ("replicasets", "apps"),
    ("statefulsets", "apps"),
    ("horizontalpodautoscalers", "autoscaling"),
    ("networkpolicies", "networking.k8s.io"),
    ("endpointslices", "discovery.k8s.io"),
)
CUSTOM = tuple((one.resource, one.group) for one in access.CUSTOM)
_VERSIONS = {"autoscaling": "v2"}
"""Versions to ask for where discovery did not tell; v1 for all others."""
CONFIGMAPS = 64
EVENT_PODS = 20
_SYSTEM_CONFIGMAPS = frozenset({"kube-root-ca.crt", "openshift-service-ca.crt"})


@dataclass(slots=True)
class Inventory:
    """What was listed. `pods` are without secrets, as everything here."""

    namespaces: tuple[str, ...]
    """'' stands for all."""
    router_namespace: str
    groups: frozenset[str] = frozenset()
    access: tuple[Access, ...] = ()
    pods: list[Object] = field(default_factory=list)
    selected_routers: frozenset[tuple[str, str]] = frozenset()
    selected_workers: frozenset[tuple[str, str]] = frozenset()
    resources: dict[str, tuple[Object, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class Lister:
    """Lists through the tape. `cluster` is None in a replay."""

    cluster: Cluster | None
    run: Run

    def take(self, namespace: str) -> Inventory:
        """Permissions, pods and objects of the namespace ('' for all) and of the routers'.

        Raises SourceError where the API cannot be reached, or knows the caller not at all.
        """
        groups = self._groups()
        routers = self.run.request.router_namespace
        if not routers and namespace and HYPERPOD_GROUP in groups:
            routers = HYPERPOD_NAMESPACE
        apart = routers and namespace and routers != namespace
        namespaces = (namespace, routers) if apart else (namespace,)
        found = Inventory(namespaces, routers or namespace, frozenset(groups))
        found.access = tuple(self._access(found, groups))
        self._pods(found)
        self._resources(found, groups)
        return found

    def configmaps(
        self, found: Inventory, pods: Iterable[tuple[Object, bool]]
    ) -> dict[tuple[str, str], dict[str, str]]:
        """Data of the ConfigMaps that the pods refer to, only the keys they use; (pod, whether mounted ones count)."""
        wanted: dict[tuple[str, str], set[str] | None] = {}
        for pod, mounted in pods:
            namespace = key_of(pod)[0]
            for name, keys in referenced_configmaps(pod, mounted=mounted):
                if not name or name in _SYSTEM_CONFIGMAPS:
                    continue
                known = wanted.get((namespace, name), set())
                wanted[namespace, name] = None if known is None or keys is None else known | keys
        if len(wanted) > CONFIGMAPS:
            text = f"{len(wanted) - CONFIGMAPS} of {len(wanted)} ConfigMaps"
            self.run.note(text, Reason.NO_DATA, "more ConfigMaps than are read")
        chosen = list(wanted)[:CONFIGMAPS]
        answers = self.run.each([partial(self._configmap, *one, wanted[one]) for one in chosen], "configuration")
        objects = []
        data: dict[tuple[str, str], dict[str, str]] = {}
        for one, answer in zip(chosen, answers, strict=True):
            what = f"ConfigMap {'/'.join(one)}"
            fitting = Fitting("configmaps")
            decoded = self._decoded(what, answer)
            configmap = None if decoded is None else fitting.one(decoded)
            self._note_odd(what, fitting)
            if configmap is not None:
                objects.append(configmap)
                data[one] = dict(configmap.get("data") or {})
        if objects:
            found.resources["configmaps"] = tuple(objects)
        return data

    def events(self, found: Inventory, pods: Iterable[tuple[str, str]]) -> None:
        """Events of some pods, at most EVENT_PODS of them; (namespace, name)."""
        pods_read = list(pods)[:EVENT_PODS]
        answers = self.run.each([partial(self._events, *pod) for pod in pods_read], "configuration")
        events: list[Object] = []
        for pod, answer in zip(pods_read, answers, strict=True):
            events += self._items("events", f"events of pod {'/'.join(pod)}", answer)
        if events:
            found.resources["events"] = tuple(events)

    def services_everywhere(self) -> list[Object]:
        """Services of all namespaces, where that may be listed; nothing is noted where it may not."""
        answer = self._ask("services", lambda cluster: cluster.objects("/api/v1/services"))
        decoded = pages.decoded(answer)
        return [*Fitting("services").each(decoded.get("items") if isinstance(decoded, dict) else None)]

    # -- parts ---------------------------------------------------------------------------------------------------

    def _groups(self) -> dict[str, str]:
        """API groups and the version to ask each for."""
        answer = self._ask("apis", lambda cluster: cluster.get("/apis"))
        lost = answer.error in (Reason.UNREACHABLE, Reason.TIMEOUT) or answer.status == 401
        if lost and answer.error is not None:
            message = answer.message
            if answer.status == 401:
                message = f"the API server does not accept the credentials (401): {message}"
            raise SourceError(answer.error, message)
        try:
            listed = loads(answer.text).get("groups") or () if answer.ok else ()
            return {str(one["name"]): str((one.get("preferredVersion") or {}).get("version") or "v1") for one in listed}
        except (ValueError, AttributeError, KeyError, TypeError):
            raise SourceError(Reason.PARSE, "what answers at the API server's address is not Kubernetes") from None

    def _access(self, found: Inventory, groups: Mapping[str, str]) -> Iterator[Access]:
        asked = access.questions(groups, proxy=self.run.request.scrape is not Scrape.NEVER)
        for namespace in found.namespaces:
            each = partial(self.run.each, stage="access")
            key = f"{namespace}/access" if namespace else "access"
            answer = self._ask(key, partial(access.ask, namespace=namespace, asked=asked, each=each))
            if answer.error not in (None, Reason.NO_DATA):
                self.run.note(f"permissions in {namespace or 'all namespaces'}", answer.error, answer.message)
            yield from access.decoded(answer)

    def _pods(self, found: Inventory) -> None:
        request = self.run.request
        selectors = (request.router_selector, request.worker_selector)
        by_key: dict[tuple[str, str], Object] = {}
        if not all(selectors):
            for namespace in found.namespaces:
                by_key |= {key_of(pod): pod for pod in self._list(found, namespace, "pods", "", "v1")}
        picked: list[frozenset[tuple[str, str]]] = []
        for selector, namespace in zip(selectors, (found.router_namespace, found.namespaces[0]), strict=True):
            pods = self._list(found, namespace, "pods", "", "v1", labels=selector) if selector else []
            by_key |= {key_of(pod): pod for pod in pods}
            picked.append(frozenset(key_of(pod) for pod in pods))
        found.pods = list(by_key.values())
        found.selected_routers, found.selected_workers = picked

    def _resources(self, found: Inventory, groups: Mapping[str, str]) -> None:
        wanted = [
            (namespace, plural, group)
            for namespace in found.namespaces
            for plural, group in (*BUILT_IN, *CUSTOM)
            if (plural, group) in BUILT_IN or group in groups or self.run.tape.replaying
        ]
        asked = set()
        calls = []
        for namespace, plural, group in wanted:
            key = (namespace, plural)
            calls.append(partial(self._objects, namespace, plural, group, groups, again=key in asked))
            asked.add(key)
        for (namespace, plural, _), answer in zip(wanted, self.run.each(calls, "resources"), strict=True):
            where = f"{plural} in {namespace or 'all namespaces'}"
            objects = self._items(plural, where, answer)
            if objects:
                found.resources[plural] = (*found.resources.get(plural, ()), *objects)

    def _objects(self, namespace: str, plural: str, group: str, groups: Mapping[str, str], *, again: bool) -> Answer:
        version = _VERSIONS.get(group, groups.get(group, "v1"))
        key = f"{namespace}/{plural}" if namespace else plural
        path = _path(namespace, plural, group, version)
        return self._ask(f"{key}.{group}" if again else key, lambda cluster: cluster.objects(path))

    def _list(
        self, found: Inventory, namespace: str, plural: str, group: str, version: str, *, labels: str = ""
    ) -> list[Object]:
        key = (f"{namespace}/{plural}" if namespace else plural) + (f"?{labels}" if labels else "")
        path = _path(namespace, plural, group, version)
        answer = self._ask(key, lambda cluster: cluster.objects(path, labels=labels))
        where = f"{plural} in {namespace or 'all namespaces'}"
        if answer.error is Reason.NO_DATA and plural == "pods":
            self.run.note(where, Reason.NO_DATA, answer.message)
        return self._items(plural, where, answer)

    def _configmap(self, namespace: str, name: str, keys: set[str] | None) -> Answer:
        path = f"/api/v1/namespaces/{quote(namespace)}/configmaps/{quote(name)}"
        return self._ask(
            f"{namespace}/configmaps/{name}", lambda cluster: _only(cluster.get(path), namespace, name, keys)
        )

    def _events(self, namespace: str, pod: str) -> Answer:
        path = _path(namespace, "events", "", "v1")
        fields = f"involvedObject.name={pod}"
        return self._ask(
            f"{namespace}/events/{pod}", lambda cluster: cluster.objects(path, fields=fields, any_version=False)
        )

    def _items(self, plural: str, what: str, answer: Answer) -> list[Object]:
        decoded = self._decoded(what, answer)
        if decoded is None:
            return []
        if not isinstance(decoded, dict) or not isinstance(decoded.get("items"), list | None):
            self.run.note(what, Reason.PARSE, "the answer is no list of objects")
            return []
        fitting = Fitting(plural)
        objects: list[Object] = [*fitting.each(decoded.get("items"))]
        self._note_odd(what, fitting)
        return objects

    def _note_odd(self, what: str, fitting: Fitting) -> None:
        if fitting.odd.count:
            self.run.note(f"a part of {what}", Reason.PARSE, fitting.odd.text)

    def _decoded(self, what: str, answer: Answer) -> Any:
        """Decoded JSON without secrets; what went wrong is noted, except that a thing is not there."""
        if not answer.ok:
            if answer.error not in (None, Reason.NO_DATA, Reason.GONE):
                self.run.note(what, answer.error, answer.message)
            return None
        try:
            return without_secrets(loads(answer.text))
        except ValueError:
            self.run.note(what, Reason.PARSE, f"{what}: not JSON")
            return None

    def _ask(self, key: str, fetch: Callable[[Cluster], Answer]) -> Answer:
        cluster = self.cluster
        if cluster is None:
            return self.run.tape.ask("kubernetes", key, lambda: Answer(error=Reason.NO_DATA, message="no cluster"))
        return self.run.tape.ask("kubernetes", key, lambda: fetch(cluster))


def _path(namespace: str, plural: str, group: str, version: str) -> str:
    root = f"/apis/{group}/{version}" if group else "/api/v1"
    return f"{root}/namespaces/{quote(namespace)}/{plural}" if namespace else f"{root}/{plural}"


def _only(answer: Answer, namespace: str, name: str, keys: set[str] | None) -> Answer:
    """The ConfigMap with nothing but its name and the keys that are referred to."""
    if not answer.ok:
        return answer
    try:
        data = loads(answer.text).get("data") or {}
        kept = {key: value for key, value in data.items() if keys is None or key in keys}
    except (ValueError, AttributeError):
        return replace(answer, text="", error=Reason.PARSE, message=f"ConfigMap {namespace}/{name} is not JSON")
    return replace(answer, text=json.dumps({"metadata": {"namespace": namespace, "name": name}, "data": kept}))
