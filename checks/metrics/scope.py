"""Which series of a Prometheus belong to which member: its namespace and pod labels, found from what the series carry.

Pure. Every pair of a namespace label and a pod label is tried on the series found, and the one that puts the most
members wins; ties go to the order below. So `exported_namespace` wins where `namespace` is that of Prometheus itself or
of a collector. Without a pod label `instance` (HOST:PORT) is mapped through addresses; without that, only the whole
fleet is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from checks.snapshot import Member

NAMESPACE_LABELS = ("namespace", "kubernetes_namespace", "k8s_namespace_name", "exported_namespace")
POD_LABELS = ("pod", "pod_name", "kubernetes_pod_name", "k8s_pod_name", "exported_pod")
INSTANCE = "instance"
PLACE_LABELS = (*NAMESPACE_LABELS, *POD_LABELS, INSTANCE)
INSTANCES_NAMED = 200
"""Up to so many instances a query names them; beyond, it asks for all."""

_SPECIAL = re.compile(r"([^A-Za-z0-9_-])")
_ESCAPED = r"\\\1"

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Scope:
    """How to ask for the members' series, and whose a series is."""

    place: tuple[str, ...] = ()
    """Labels that tell members apart; empty: none does."""
    matchers: str = ""
    """PromQL matchers, without braces; '' for all series."""
    members: Mapping[tuple[str, ...], str] = field(default_factory=dict)
    """Member key by the values of `place`."""
    nothing: str = ""
    """Why no series can be ours, in a sentence."""

    @property
    def by_member(self) -> bool:
        return bool(self.place)

    def member_of(self, labels: Labels) -> str | None:
        """Key of the member that a series belongs to; None for strangers, '' where members cannot be told apart."""
        if not self.place:
            return ""
        values = tuple(labels.get(label, "") for label in self.place)
        return self.members.get(values)

    def selector(self, *matchers: str) -> str:
        """`{a="b",…}` of the scope and more matchers."""
        inside = ",".join(one for one in (self.matchers, *matchers) if one)
        return f"{{{inside}}}" if inside else ""


def find_scope(rows: Iterable[Labels], members: Iterable[Member], addresses: Mapping[str, str] | None = None) -> Scope:
    """The scope for series with these labels (PLACE_LABELS of each). `addresses`: further HOST:PORT -> member key."""
    rows, members = list(rows), list(members)
    namespaces = sorted({member.namespace for member in members if member.namespace})
    by_pod = _by_pod(rows, members, namespaces)
    if by_pod is not None:
        return by_pod
    by_instance = _by_instance(rows, members, addresses or {})
    if by_instance is not None:
        return by_instance
    known = {label: {row[label] for row in rows if row.get(label)} for label in NAMESPACE_LABELS}
    for label, values in known.items():
        if values & set(namespaces):
            return Scope(matchers=matcher(label, namespaces))
    others = sorted(set().union(*known.values()))
    if namespaces and others:
        shown = ", ".join(others[:5]) + (", …" if len(others) > 5 else "")
        return Scope(nothing=f"it has such series of namespaces {shown}, none of {', '.join(namespaces)}")
    return Scope()


def matcher(label: str, values: Iterable[str]) -> str:
    """`label="a"`, or `label=~"a|b"` for several; values are taken literally."""
    values = list(values)
    if len(values) == 1:
        return f"{label}={_quoted(values[0])}"
    return f"{label}=~{_quoted('|'.join(_SPECIAL.sub(_ESCAPED, value) for value in values))}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _by_pod(rows: list[Labels], members: list[Member], namespaces: list[str]) -> Scope | None:
    """A pod's name alone counts only on series without any namespace: other namespaces have pods of that name."""
    best: tuple[int, Scope] | None = None
    for pod_label in POD_LABELS:
        for label in NAMESPACE_LABELS:
            named: dict[tuple[str, ...], str] = {(one.namespace, one.name): one.key for one in members}
            if (found := _fitting(rows, (label, pod_label), named)) and (best is None or found > best[0]):
                best = found, Scope((label, pod_label), matcher(label, namespaces) if namespaces else "", named)
    nowhere = [row for row in rows if not any(row.get(label) for label in NAMESPACE_LABELS)]
    for pod_label in POD_LABELS:
        alone: dict[tuple[str, ...], str] = {(one.name,): one.key for one in members}
        if best is None and (found := _fitting(nowhere, (pod_label,), alone)):
            best = found, Scope((pod_label,), ",".join(matcher(label, [""]) for label in NAMESPACE_LABELS), alone)
    return None if best is None else best[1]


def _fitting(rows: list[Labels], place: tuple[str, ...], members: Mapping[tuple[str, ...], str]) -> int:
    """How many of the members some row is of."""
    return len({members.get(tuple(row.get(label, "") for label in place)) for row in rows} - {None})


def _by_instance(rows: list[Labels], members: list[Member], addresses: Mapping[str, str]) -> Scope | None:
    exact = {_host_port(address): key for address, key in addresses.items()}
    exact |= {_host_port(urlsplit(member.url).netloc): member.key for member in members if member.url}
    at_ip: dict[str, set[str]] = {}
    for member in members:
        for ip in member.ips:
            at_ip.setdefault(ip, set()).add(member.key)
    found: dict[tuple[str, ...], str] = {}
    for row in rows:
        instance = row.get(INSTANCE, "")
        host = _host_port(instance)[0]
        alone = at_ip.get(host, set())
        if key := exact.get(_host_port(instance)) or (next(iter(alone)) if len(alone) == 1 else None):
            found[(instance,)] = key
    if not found:
        return None
    instances = sorted(instance for (instance,) in found)
    return Scope((INSTANCE,), matcher(INSTANCE, instances) if len(instances) <= INSTANCES_NAMED else "", found)


def _host_port(address: str) -> tuple[str, str]:
    """Host without brackets, and port; `localhost` is 127.0.0.1."""
    host, colon, port = address.rpartition("@")[2].rpartition(":")
    if not colon or port.endswith("]"):
        host, port = address, ""
    host = host.strip("[]").lower()
    return ("127.0.0.1" if host == "localhost" else host), port
