"""On which ports a member answers HTTP, most likely first, and what its URL is. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from checks.discover.programs import Program
from checks.numerals import whole
from checks.snapshot import Container, Member, Role

PORT_NAMES = ("container-port", "http", "http1", "api", "router-cport", "metrics", "service-port")
CACHE_PORT_NAMES = ("metrics", "http")
"""Other ports of a cache server do not speak HTTP and are left alone."""
USUAL = (8000, 8080)
LMCACHE_MP_PORT = 9090
"""Metrics of LMCache's multi-process server, unless an option says otherwise."""
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
    names = CACHE_PORT_NAMES if member.role is Role.CACHE_SERVER else PORT_NAMES
    named = [container.ports[name] for name in names if name in container.ports]
    if member.role is Role.CACHE_SERVER:
        option = _number(member.arg("--prometheus-port", "--http-port"))
        several = any("multiprocess" in word or word == "server" for word in container.args)
        return _unique([*option, *named, *([LMCACHE_MP_PORT] if several else [])])
    metrics = _number(member.arg("--metrics-port")) if program is Program.ENDPOINT_PICKER else []
    certain = [*([told] if told else []), *metrics, *named, *_number(member.arg("--port"))]
    return _unique(certain or (*_BY_PROGRAM.get(program, ()), *USUAL))


def admin_port(member: Member) -> int:
    return next(iter(_number(member.arg("--admin-port"))), ADMIN_PORT)


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


def _number(text: str | None) -> list[int]:
    number = whole(text)
    return [] if number is None else [number]


def _unique(found: Iterable[int]) -> tuple[int, ...]:
    return tuple(port for port in dict.fromkeys(found) if 0 < port < 65536)[:TRIES]
