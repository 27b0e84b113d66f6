"""Hosts, ports and Services as configurations name them; policies are tested with KV161."""

from __future__ import annotations

from typing import Any

import pytest

from checks.network import Place, internal, place, ports_of, service_name
from checks.snapshot import Resources
from tests.checks.build import snapshot


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("r-svc:9000", Place("r-svc", 9000)),
        ("tcp://r-svc.prod.svc:9000", Place("r-svc.prod.svc", 9000)),
        ("redis://me:pw@h:6379/0", Place("h", 6379)),
        ("http://[fd00::1]:8000/v1", Place("fd00::1", 8000)),
        ("r-svc", None),
        ("r-svc:0", None),
        ("r-svc:70000", None),
        ("r-svc:http", None),
        ("", None),
    ],
)
def test_host_and_port(text: str, found: Place | None) -> None:
    assert place(text) == found


@pytest.mark.parametrize(
    ("host", "meant"),
    [
        ("r-svc", ("prod", "r-svc")),
        ("r-svc.web", ("web", "r-svc")),
        ("r-svc.web.svc", ("web", "r-svc")),
        ("r-svc.web.svc.cluster.local.", ("web", "r-svc")),
        ("cache.example.com", None),
        ("10.0.0.1", None),
    ],
)
def test_the_service_that_a_name_means(host: str, meant: tuple[str, str] | None) -> None:
    assert service_name(host, "prod") == meant


def test_an_external_name_that_stays_inside_is_inside() -> None:
    def named(outside: str) -> Any:
        spec = {"type": "ExternalName", "externalName": outside}
        made = {"metadata": {"name": "redis", "namespace": "prod"}, "spec": spec}
        return snapshot(resources=Resources({"services": (made,)}))

    assert internal(named("redis.other.svc.cluster.local"), "redis", "prod")
    assert not internal(named("cache.example.com"), "redis", "prod")


def test_ports_of_a_service_lead_to_their_target() -> None:
    ports = [{"port": 80, "targetPort": 8000}, {"port": 9000}, {"port": 9001, "targetPort": "reply"}, "odd"]
    assert ports_of({"spec": {"ports": ports}}) == {80: 8000, 9000: 9000, 9001: "reply"}
