"""Services and NetworkPolicies as questions: which Service is meant, which port leads where, who is let in. Pure.

Only what the objects themselves say; a CNI that ignores policies, or a mesh, is not seen.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from checks.evidence import at
from checks.snapshot import Member, Snapshot

_HOST_PORT = re.compile(r"^(?:[a-z][\w+.-]*://)?(?:[^@/]*@)?(\[[^\]]+\]|[^\s:/\[\]]+):(\d{1,5})(?:/.*)?$", re.I)


@dataclass(frozen=True, slots=True)
class Place:
    """A host and a port out of a URL or `host:port`."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def place(text: str) -> Place | None:
    """Host and port; None where the text has not both, or the port is no port."""
    match = _HOST_PORT.match(text.strip())
    if match is None or not 0 < int(match.group(2)) < 65536:
        return None
    return Place(match.group(1).strip("[]"), int(match.group(2)))


def url_parts(text: str) -> SplitResult:
    """The parts of a URL that a stranger wrote; all empty where it is none."""
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return urlsplit("")
    return parts


def address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The host as an IP address; None for names."""
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def service_name(host: str, namespace: str) -> tuple[str, str] | None:
    """(namespace, name) of the Service a cluster DNS name means, seen from `namespace`; None for other names."""
    if address(host) is not None:
        return None
    parts = host.rstrip(".").split(".")
    if len(parts) == 1:
        return namespace, parts[0]
    if len(parts) == 2 or (len(parts) >= 3 and parts[2] == "svc"):
        return parts[1], parts[0]
    return None


def service(snapshot: Snapshot, namespace: str, name: str) -> Mapping[str, Any] | None:
    return next(
        (
            one
            for one in snapshot.resources.all("services")
            if at(one, "metadata.name") == name and at(one, "metadata.namespace", "") == namespace
        ),
        None,
    )


def services_known(snapshot: Snapshot, namespace: str) -> bool:
    """Services of that namespace were listed, so that the absence of one is a fact."""
    return any(at(one, "metadata.namespace", "") == namespace for one in snapshot.resources.all("services"))


def internal(snapshot: Snapshot, host: str, namespace: str) -> bool:
    """The host is inside: a private address, or a Service that does not lead out of the cluster."""
    if host == "localhost":
        return True
    if (ip := address(host)) is not None:
        return ip.is_private or ip.is_loopback
    meant = service_name(host, namespace)
    if meant is None:
        return False
    found = service(snapshot, *meant)
    if found is None:
        return True
    if at(found, "spec.type") == "ExternalName":
        outside = str(at(found, "spec.externalName") or "")
        return ".svc" in outside and outside != host
    return all((ip := address(one)) is None or ip.is_private for one in _endpoint_addresses(snapshot, *meant))


def ports_of(found: Mapping[str, Any]) -> dict[int, int | str]:
    """Service port -> target port (a number, or the name of a container port)."""
    listed = at(found, "spec.ports") or ()
    return {
        port["port"]: port.get("targetPort") or port["port"]
        for port in listed
        if isinstance(port, Mapping) and isinstance(port.get("port"), int)
    }


def headless(found: Mapping[str, Any]) -> bool:
    """Its name gives the pods' own addresses: any port of theirs is reached."""
    return bool(at(found, "spec.clusterIP") == "None")


@dataclass(frozen=True, slots=True)
class Closed:
    """A port that policies keep closed, and their names."""

    port: int
    policies: tuple[str, ...]


def closed_ports(
    snapshot: Snapshot, receiver: Member, sender: Member | None, ports: Iterable[int]
) -> tuple[Closed, ...]:
    """TCP ports of `receiver` that no policy opens for `sender`, where policies select the receiver for ingress.

    A policy's peer counts as the sender unless its selectors or address blocks say that it is not.
    """
    policies = [
        one
        for one in snapshot.resources.all("networkpolicies")
        if at(one, "metadata.namespace", "") == receiver.namespace
        and _selects(at(one, "spec.podSelector") or {}, receiver.labels)
        and "Ingress" in (at(one, "spec.policyTypes") or ("Ingress",))
    ]
    if not policies:
        return ()
    names = tuple(str(at(one, "metadata.name", "")) for one in policies)
    rules = [rule for one in policies for rule in at(one, "spec.ingress") or () if isinstance(rule, Mapping)]
    return tuple(
        Closed(port, names)
        for port in ports
        if not any(_opens(rule, port, receiver) and _admits(rule, receiver, sender) for rule in rules)
    )


def _opens(rule: Mapping[str, Any], port: int, receiver: Member) -> bool:
    listed = rule.get("ports")
    if not listed:
        return True
    for one in listed:
        if (one.get("protocol") or "TCP") != "TCP":
            continue
        first = one.get("port")
        if first is None:
            return True
        if isinstance(first, str):
            first = receiver.container.ports.get(first, 0)
        if first <= port <= (one.get("endPort") or first):
            return True
    return False


def _admits(rule: Mapping[str, Any], receiver: Member, sender: Member | None) -> bool:
    peers = rule.get("from")
    return not peers or sender is None or any(_is_peer(peer, receiver, sender) for peer in peers)


def _is_peer(peer: Mapping[str, Any], receiver: Member, sender: Member) -> bool:
    block = peer.get("ipBlock")
    if isinstance(block, Mapping):
        return any(_in_block(ip, block) for ip in sender.ips)
    if "podSelector" in peer and not _selects(peer["podSelector"] or {}, sender.labels):
        return False
    if "namespaceSelector" not in peer:
        return sender.namespace == receiver.namespace
    wanted = at(peer, "namespaceSelector.matchLabels") or {}
    name = wanted.get("kubernetes.io/metadata.name")
    return name is None or name == sender.namespace


def _in_block(ip: str, block: Mapping[str, Any]) -> bool:
    found = address(ip)
    try:
        inside = found in ipaddress.ip_network(str(block.get("cidr")), strict=False)
        return inside and not any(
            found in ipaddress.ip_network(str(one), strict=False) for one in block.get("except") or ()
        )
    except ValueError:
        return True


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    for one in selector.get("matchExpressions") or ():
        value, values = labels.get(one.get("key", "")), one.get("values") or ()
        holds = {
            "In": value in values,
            "NotIn": value not in values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }.get(one.get("operator", ""), True)
        if not holds:
            return False
    return True


def _endpoint_addresses(snapshot: Snapshot, namespace: str, name: str) -> list[str]:
    return [
        str(ip)
        for one in snapshot.resources.all("endpointslices")
        if at(one, "metadata.namespace", "") == namespace
        and (at(one, "metadata.labels") or {}).get("kubernetes.io/service-name") == name
        for endpoint in one.get("endpoints") or ()
        for ip in (endpoint or {}).get("addresses") or ()
    ]
