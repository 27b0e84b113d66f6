"""Which Prometheus to ask: the one that was named, or a Service of the cluster that looks like one.

A Service is asked through the API server's proxy. The queries themselves are in checks/metrics/prometheus.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from checks.discover.owners import key_of, labels_of
from checks.metrics.connection import ConnectionProblem, PrometheusServer, auth_of
from checks.model import Reason
from checks.numerals import loads
from checks.request import CollectRequest, RequestError
from checks.sources.deadline import Deadline
from checks.sources.kubernetes import Cluster
from checks.sources.tape import Answer

_NAMES = re.compile(
    r"(?:prometheus-operated|thanos-query(?:-frontend)?|prometheus|(?:.+-)?prometheus(?:-.+)?-server|prometheus-k8s)"
)
QUERY_S = 60.0
"""For one query, whatever the server does."""
_PORT_NAMES = ("http", "web", "http-web", "query", "http-query", "service")


class Server(Protocol):
    """What is asked; `checks.metrics.connection.PrometheusServer` is one."""

    @property
    def shown(self) -> str: ...

    def query(self, text: str, *, at: float | None = None) -> Answer: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Found:
    """A Service that looks like a Prometheus."""

    namespace: str
    name: str
    port: str

    @property
    def shown(self) -> str:
        return f"service {self.name}.{self.namespace}"


@dataclass(frozen=True, slots=True)
class ServiceProxy:
    """A Prometheus behind a Service; `cluster` is None in a replay."""

    found: Found
    cluster: Cluster | None

    @property
    def shown(self) -> str:
        return self.found.shown

    def query(self, text: str, *, at: float | None = None) -> Answer:
        """JSON of the result list of one instant query, as of `at` (epoch seconds; None: now)."""
        if self.cluster is None:
            return Answer(error=Reason.NO_DATA, message="no cluster")
        found, params = self.found, {"query": text} | ({} if at is None else {"time": f"{at:.3f}"})
        answer = self.cluster.service(found.namespace, found.name, found.port, "/api/v1/query", params)
        if not answer.ok:
            return answer
        try:
            result = loads(answer.text)["data"]["result"]
        except (ValueError, KeyError, TypeError):
            message = f"{self.shown} answered with something that is no query result"
            return replace(answer, text="", error=Reason.PARSE, message=message)
        return replace(answer, text=json.dumps(result, separators=(",", ":"), ensure_ascii=False))

    def close(self) -> None:
        """Nothing of its own is open."""


@dataclass(frozen=True, slots=True)
class Bounded:
    """A Prometheus that is not waited for beyond the end of the collection."""

    server: Server
    deadline: Deadline

    @property
    def shown(self) -> str:
        return self.server.shown

    def query(self, text: str, *, at: float | None = None) -> Answer:
        def unfinished(why: str) -> Answer:
            return Answer(0, "", Reason.TIMEOUT, f"{self.shown} did not finish its answer: {why}")

        if self.deadline.left() <= 0:
            return Answer(error=Reason.TIMEOUT, message=f"not asked: {self.deadline.why}")
        return self.deadline.bounded(lambda: self.server.query(text, at=at), unfinished, within_s=QUERY_S)

    def close(self) -> None:
        self.server.close()


def named(request: CollectRequest, *, replaying: bool) -> Server | None:
    """The server of --prometheus URL; None for `auto` and `none`. Raises RequestError."""
    if request.prometheus in ("auto", "none", ""):
        return None
    try:
        return PrometheusServer(request.prometheus, None if replaying else auth_of(request.prometheus_auth))
    except ConnectionProblem as error:
        raise RequestError(f"--prometheus: {error}") from None


def look_for(services: Iterable[Mapping[str, Any]]) -> Found | None:
    """The likeliest Prometheus among Services: labelled as one first, then by name; None if there is none."""
    rows = sorted(services, key=key_of)
    labelled = [one for one in rows if labels_of(one).get("app.kubernetes.io/name") == "prometheus"]
    by_name = [one for one in rows if _NAMES.fullmatch(key_of(one)[1])]
    for one in (*labelled, *by_name):
        if port := _port((one.get("spec") or {}).get("ports") or ()):
            return Found(*key_of(one), port)
    return None


def _port(ports: Iterable[Mapping[str, Any]]) -> str:
    """Number of the port that speaks HTTP: 9090, a usual name, or the only one."""
    rows = [(str(one.get("name") or ""), str(one.get("port") or "")) for one in ports]
    for wanted in (lambda name, number: number == "9090", lambda name, number: name in _PORT_NAMES):
        for name, number in rows:
            if number and wanted(name, number):
                return number
    return rows[0][1] if len(rows) == 1 else ""
