"""On which ports a member answers HTTP, most likely first, and what its URL is. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from checks.discover.programs import Program
from checks.snapshot import Container, Member, Role

PORT_NAMES = ("container-port", "http", "http1", "api", "router-cport", "metrics", "service-port")
USUAL = (8000, 8080)
ADMIN_PORT = 9090
"""kvctl's admin port, unless --admin-port says otherwise."""
TRIES = 3
_BY_PROGRAM: dict[Program | None, tuple[int, ...]] = {
    Program.ENDPOINT_PICKER: (9090,),
    Program.SGLANG: (30000,),
    Program.TRTLLM: (8000, 8002),
}


def invocation_ports(resources: Mapping[str, Iterable[Mapping[str, Any]]]) -> dict[tuple[str, str], int]:
    """Ports that HyperPod's resources name, by (namespace, owner of the pods)."""
    found: dict[tuple[str, str], int] = {}
    for plural in ("inferenceendpointconfigs", "jumpstartmodels"):
        for one in resources.get(plural, ()):
            metadata, spec, status = (one.get(part) or {} for part in ("metadata", "spec", "status"))
            port = ((spec.get("worker") or {}).get("modelInvocationPort") or {}).get("containerPort")
            name = (status.get("deploymentStatus") or {}).get("name") or metadata.get("name")
            if isinstance(port, int) and name:
                found[str(metadata.get("namespace") or ""), f"Deployment/{name}"] = port
    return found


def ports(member: Member, program: Program | None, told: int | None = None) -> tuple[int, ...]:
    """At most three ports to try: what a resource tells, named container ports, `--port`, then the usual ones."""
    container = member.container
    named = [container.ports[name] for name in PORT_NAMES if name in container.ports]
    option = member.arg("--metrics-port") if program is Program.ENDPOINT_PICKER else None
    asked = [int(text) for text in (option, member.arg("--port")) if text and text.isdecimal()]
    certain = [*([told] if told else []), *(asked if option else []), *named, *asked]
    if member.role is Role.CACHE_SERVER:
        return _unique(certain)
    return _unique([*certain, *([] if certain else (*_BY_PROGRAM.get(program, ()), *USUAL))])


def admin_port(member: Member) -> int:
    text = member.arg("--admin-port") or ""
    return int(text) if text.isdecimal() else ADMIN_PORT


def https(container: Container) -> bool:
    """The engine was given a TLS key."""
    return any(word.partition("=")[0] in ("--ssl-keyfile", "--ssl-certfile") for word in container.args)


def url(member: Member, port: int) -> str:
    """`http://IP:PORT` of its first address; '' without one."""
    if not member.ips:
        return ""
    ip = member.ips[0]
    host = f"[{ip}]" if ":" in ip else ip
    return f"{'https' if https(member.container) else 'http'}://{host}:{port}"


def _unique(found: Iterable[int]) -> tuple[int, ...]:
    return tuple(port for port in dict.fromkeys(found) if 0 < port < 65536)[:TRIES]
