"""What a run of the diagnostics is asked to read, as one value; a recording keeps it: a replay needs no flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import PurePath
from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta

from checks.model import Stack
from checks.snapshot import Expectations, Role

LONGEST_S = 30 * 86400.0


class Scrape(StrEnum):
    """Whether members' own /metrics pages are read."""

    AUTO = "auto"
    """Where Prometheus does not answer."""
    ALWAYS = "always"
    NEVER = "never"


class LogPart(StrEnum):
    """Which parts of a container's log are read."""

    HEAD = "head"
    TAIL = "tail"
    PREVIOUS = "previous"


class RequestError(ValueError):
    """A value of the request cannot be used; the message names it and says what would do."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """`ROLE=FILE`: a log without a cluster. ROLE is `router`, `worker` or `worker:NAME`."""

    role: Role
    name: str
    """`router`, `worker` or NAME."""
    path: str

    @classmethod
    def parse(cls, text: str) -> Self:
        role, equals, path = text.partition("=")
        kind, colon, name = role.partition(":")
        if not equals or not path or kind not in ("router", "worker") or (colon and not name):
            raise RequestError(f"--log {text!r}: write ROLE=FILE, where ROLE is router, worker or worker:NAME")
        return cls(Role(kind), name or kind, path)


@dataclass(frozen=True, slots=True)
class CollectRequest:
    """Everything of the command line that decides what is read. Durations in seconds, sizes in bytes."""

    namespace: str = ""
    """'': the context's own."""
    all_namespaces: bool = False
    context: str = ""
    kubeconfig: str = ""
    in_cluster: bool = False
    stack: Stack | None = None
    """None: found out."""
    router_namespace: str = ""
    router_selector: str = ""
    worker_selector: str = ""
    router_container: str = ""
    worker_container: str = ""
    prometheus: str = "auto"
    """A URL, `auto` (a Service of the cluster) or `none`."""
    prometheus_auth: str = "none"
    """`sigv4:REGION`, `bearer:FILE` or `none`."""
    window_s: Annotated[float, Meta(ge=1, le=LONGEST_S)] = 900.0
    scrape: Scrape = Scrape.AUTO
    scrape_interval_s: Annotated[float, Meta(ge=0, le=LONGEST_S)] = 15.0
    """Between the two scrapes; at least 12, LMCache writes its counters every 10 s."""
    logs: tuple[LogPart, ...] = (LogPart.HEAD, LogPart.TAIL, LogPart.PREVIOUS)
    since_s: Annotated[float, Meta(ge=1, le=LONGEST_S)] = 3600.0
    log_limit_bytes: Annotated[int, Meta(ge=1, le=1 << 32)] = 4 << 20
    """Of each part of each log."""
    max_log_pods: Annotated[int, Meta(ge=1)] = 50
    """Ready workers whose logs are read."""
    concurrency: Annotated[int, Meta(ge=1, le=64)] = 8
    routers: tuple[str, ...] = ()
    """Base URLs; with these, `workers` or `log_files` there is no cluster."""
    workers: tuple[str, ...] = ()
    admin: str = ""
    """Base URL of kvctl's admin port, where the router is kvctl."""
    log_files: tuple[LogFile, ...] = ()
    expectations: Expectations = field(default_factory=Expectations)
    timeout_s: Annotated[float, Meta(ge=0, le=LONGEST_S)] = 300.0

    @property
    def cluster(self) -> bool:
        """The system is looked for in Kubernetes."""
        return not (self.routers or self.workers or self.log_files or self.admin)

    def options(self) -> dict[str, Any]:
        """As JSON for a recording; without the paths of this machine."""
        files = tuple(replace(one, path=PurePath(one.path).name) for one in self.log_files)
        auth = "bearer" if self.prometheus_auth.startswith("bearer:") else self.prometheus_auth
        plain = replace(self, kubeconfig="", log_files=files, prometheus_auth=auth)
        data: dict[str, Any] = msgspec.to_builtins(plain)
        return data

    @classmethod
    def of_options(cls, options: Mapping[str, Any]) -> Self:
        """The request of a recording; what it does not say has its usual value. Raises RequestError."""
        try:
            return msgspec.convert(dict(options), cls)
        except msgspec.ValidationError as error:
            raise RequestError(f"manifest.json, options: {error}") from None
