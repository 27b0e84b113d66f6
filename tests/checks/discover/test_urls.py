"""Ports to try, and URLs."""

from __future__ import annotations

from checks.discover.programs import Program
from checks.discover.urls import admin_port, invocation_ports, ports, url
from checks.snapshot import Container, Member, Role


def member(*args: str, role: Role = Role.WORKER, ips: tuple[str, ...] = ("10.0.0.1",), **named: int) -> Member:
    names = {name.replace("_", "-"): port for name, port in named.items()}
    return Member(role, "w", container=Container(args=args, ports=names), ips=ips)


def test_the_port_of_a_resource_comes_first_then_named_ports_then_the_option() -> None:
    assert ports(member("--port", "8002", container_port=8001), None, 8003) == (8003, 8001, 8002)


def test_the_usual_ports_are_tried_only_when_nothing_tells() -> None:
    assert ports(member(), None) == (8000, 8080)
    assert ports(member("--port=9000"), None) == (9000,)


def test_an_endpoint_pickers_metrics_port() -> None:
    assert ports(member("--metrics-port", "9091", role=Role.ROUTER), Program.ENDPOINT_PICKER) == (9091,)
    assert ports(member(role=Role.ROUTER), Program.ENDPOINT_PICKER)[0] == 9090


def test_ports_of_a_cache_server_that_speak_no_http_are_left_alone() -> None:
    assert ports(member("lmcache_server", "0.0.0.0", "8080", role=Role.CACHE_SERVER, service_port=8080), None) == ()


def test_a_cache_servers_metrics_port_is_read() -> None:
    assert ports(member(role=Role.CACHE_SERVER, metrics=9095), None) == (9095,)


def test_a_port_that_is_none_is_left_out() -> None:
    assert ports(member("--port", "99999"), None) == ()


def test_invocation_port_of_a_hyperpod_resource() -> None:
    endpoint = {
        "metadata": {"name": "llama", "namespace": "prod"},
        "spec": {"worker": {"modelInvocationPort": {"containerPort": 8008}}},
        "status": {"deploymentStatus": {"name": "dep"}},
    }
    assert invocation_ports({"inferenceendpointconfigs": [endpoint]}) == {("prod", "Deployment/dep"): 8008}


def test_addresses() -> None:
    assert url(member(), 8000) == "http://10.0.0.1:8000"
    assert url(member(ips=("fd00::1",)), 8000) == "http://[fd00::1]:8000"
    assert url(member("--ssl-keyfile", "k"), 8000) == "https://10.0.0.1:8000"
    assert url(member(ips=()), 8000) == ""


def test_kvctls_admin_port() -> None:
    assert admin_port(member()) == 9090
    assert admin_port(member("--admin-port", "9191")) == 9191
