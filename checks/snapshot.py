"""What was read of a system, as pure data: members, resources, logs, metrics, answers. Checks judge it, nothing else.

A `Member` is a router, a worker or a cache server: a pod of a cluster, or a process known by URL and log file. Built by
checks/collect.py from live sources, a recording, or files; tests build it by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from checks.compatibility import Compatibility, Version
from checks.logs.patterns import Pattern, Patterns
from checks.logs.view import LogView
from checks.metrics.view import Metrics
from checks.model import Reason, Stack, Target
from checks.numerals import loads
from checks.probe_evidence import ProbeEvidence
from checks.thresholds import Thresholds


class Role(StrEnum):
    ROUTER = "router"
    WORKER = "worker"
    CACHE_SERVER = "cache-server"


@dataclass(frozen=True, slots=True)
class LastExit:
    """How the container's previous instance ended; times are epoch seconds."""

    reason: str
    exit_code: int
    at: float


@dataclass(frozen=True, slots=True)
class Container:
    """The container that was read, with effective values.

    `args` is command and args with `$(VAR)` expanded from literal env. A value of `env` that comes from a Secret or an
    unread ConfigMap is `<from:secret/name>` / `<from:configmap/name>`; use `Member.env`, which hides those.
    """

    name: str = ""
    image: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    unread_env: tuple[str, ...] = ()
    """`secret/x`, `configmap/x` that set further names as a whole (envFrom) and were not read."""
    ports: Mapping[str, int] = field(default_factory=dict)
    """Named container ports; unnamed ones under their number."""
    started_at: float | None = None
    restarts: int = 0
    ready: bool = True
    state: str = "running"
    """running · waiting:REASON · terminated:REASON"""
    last_exit: LastExit | None = None
    memory_limit: int | None = None
    """Bytes."""
    volume_mounts: Mapping[str, str] = field(default_factory=dict)
    """Mount path -> kind of volume (emptyDir, hostPath, persistentVolumeClaim, …)."""


@dataclass(frozen=True, slots=True)
class Member:
    """One router, worker or cache server."""

    role: Role
    name: str
    namespace: str = ""
    kind: str = "Pod"
    uid: str = ""
    container: Container = Container()
    ips: tuple[str, ...] = ()
    host_network: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""
    """Kind/name of the topmost known owner (Deployment/x, StatefulSet/x); empty if none."""
    node: str = ""
    phase: str = "Running"
    why: str = ""
    """Reason and message of the pod's status: why it was evicted, rejected or is lost; mostly empty."""
    ready: bool = True
    created_at: float | None = None
    model: str = ""
    """Served model name, from labels, args or /v1/models."""
    url: str = ""
    """Base URL of its HTTP port, as the fleet reaches it (http://IP:PORT)."""
    log: LogView | None = None
    """None: not read; `log_missing` says why."""
    log_missing: Reason | None = None
    previous: LogView | None = None
    """Log of the container's last instance, read when it restarted."""
    answers: Mapping[str, Any] = field(default_factory=dict)
    """Decoded JSON of GETs that succeeded, by path: /version, /engines, /v1/models, /workers, …"""

    @property
    def target(self) -> Target:
        return Target(self.kind, self.namespace, self.name, self.container.name)

    @property
    def key(self) -> str:
        """Name of this member in `Metrics` and in evidence; unique in a snapshot."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    def arg(self, *names: str) -> str | None:
        """Value of `--name VALUE` or `--name=VALUE`, the last one given; dashes and underscores are alike.

        None where it is absent; "" where it stands without a value.
        """
        wanted = {_option(name) for name in names}
        found: str | None = None
        args = self.container.args
        for at, word in enumerate(args):
            name, equals, value = word.partition("=")
            if not name.startswith("--") or _option(name) not in wanted:
                continue
            following = args[at + 1] if at + 1 < len(args) else ""
            found = value if equals else ("" if following.startswith("--") else following)
        return found

    def has_arg(self, *names: str) -> bool:
        return self.arg(*names) is not None

    def env(self, name: str) -> str | None:
        """A literal value, or one from a ConfigMap that was read; None where it is unset or could not be read."""
        value = self.container.env.get(name)
        return None if value is None or value.startswith("<from:") else value

    def env_unread(self, name: str) -> bool:
        """It is, or may be, set from a Secret or a ConfigMap that was not read: nothing can be said of its value."""
        value = self.container.env.get(name)
        return bool(self.container.unread_env) if value is None else value.startswith("<from:")

    @property
    def log_level(self) -> str:
        """LMCache's and the router's level, upper case; INFO is both programs' default."""
        if self.role is Role.ROUTER and (level := self.arg("--log-level")):
            return level.upper()
        return (self.env("LMCACHE_LOG_LEVEL") or "INFO").upper()

    @property
    def router_log_level(self) -> str:
        """Level of a router's own lines (`--log-level`), upper case."""
        return (self.arg("--log-level") or "INFO").upper()

    def why_absence_proves_nothing(self, pattern: Pattern, version: Version | None) -> Reason | None:
        """Rule R0 for one start-up line: why not having seen it says nothing, or None where its absence is a fact.

        `version` is that of the program that prints the pattern (LMCache for `component: lmcache`); None if unknown.
        """
        if self.log is None:
            return self.log_missing or Reason.NO_DATA
        if not self.log.head_complete:
            return Reason.LOG_TRUNCATED
        if pattern.hidden_at(self._level_of(pattern.component)):
            return Reason.LOG_LEVEL_HIDES
        if pattern.always:
            return None
        if version is None:
            return Reason.VERSION_UNKNOWN
        if not version.exact and (pattern.last is not None or not pattern.printed_by(version)):
            return Reason.VERSION_UNKNOWN
        return None if pattern.printed_by(version) else Reason.NOT_APPLICABLE

    def _level_of(self, component: str) -> str:
        """Level at which a component of this member logs; INFO is every component's default."""
        if component in ("lmcache", "hyperpod"):
            return self.env("LMCACHE_LOG_LEVEL") or "INFO"
        if component == "vllm":
            return self.env("VLLM_LOGGING_LEVEL") or "INFO"
        return self.router_log_level


def _option(name: str) -> str:
    return name.lstrip("-").replace("_", "-")


@dataclass(frozen=True, slots=True)
class Access:
    """Answer to one permission question."""

    verb: str
    resource: str
    """`pods`, `pods/log`, `deployments.apps`, …"""
    namespace: str
    allowed: bool
    required: bool = True
    needed_for: str = ""


@dataclass(frozen=True, slots=True)
class Unread:
    """Something the collection wanted and could not have."""

    what: str
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Resources:
    """Kubernetes objects as their JSON, by plural; empty without a cluster. Custom resources stand here too."""

    by_plural: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    """pods are not here; services, deployments, replicasets, statefulsets, horizontalpodautoscalers, networkpolicies,
    endpointslices, inferenceendpointconfigs, jumpstartmodels, vllmrouters, vllmruntimes, inferencepools, events,
    configmaps (only those that a container refers to)."""
    api_groups: frozenset[str] = frozenset()

    def all(self, plural: str) -> tuple[Mapping[str, Any], ...]:
        return self.by_plural.get(plural, ())


@dataclass(frozen=True, slots=True)
class Expectations:
    """What the user said of the system."""

    strategy: str = ""
    """`--expect-strategy`."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything a check may read."""

    stack: Stack
    members: tuple[Member, ...]
    now: float
    """Epoch seconds by the cluster's clock, at the end of the collection."""
    namespace: str = ""
    router_namespace: str = ""
    context: str = ""
    cluster: bool = True
    """Members came from a Kubernetes API; False with --router/--worker/--log."""
    access: tuple[Access, ...] = ()
    resources: Resources = Resources()
    metrics: Metrics = field(default_factory=Metrics)
    unread: tuple[Unread, ...] = ()
    probe: ProbeEvidence | None = None
    expectations: Expectations = Expectations()
    window_s: float = 900.0
    sampled: str = ""
    cut_short: str = ""
    thresholds: Thresholds = field(default_factory=Thresholds.load)
    compatibility: Compatibility = field(default_factory=Compatibility.load)
    patterns: Patterns = field(default_factory=Patterns.load)

    def with_probe(self, probe: ProbeEvidence) -> Snapshot:
        return replace(self, probe=probe)

    def of(self, role: Role) -> tuple[Member, ...]:
        return tuple(member for member in self.members if member.role is role)

    @property
    def routers(self) -> tuple[Member, ...]:
        return self.of(Role.ROUTER)

    @property
    def workers(self) -> tuple[Member, ...]:
        return self.of(Role.WORKER)

    @property
    def ready_workers(self) -> tuple[Member, ...]:
        return tuple(worker for worker in self.workers if worker.ready)

    def member(self, key: str) -> Member | None:
        return next((member for member in self.members if member.key == key), None)

    def worker_at(self, ip: str) -> Member | None:
        return next((worker for worker in self.workers if ip in worker.ips), None)

    def by_model(self) -> Iterator[tuple[str, tuple[Member, ...]]]:
        """Workers grouped by served model; those whose model is unknown stand together under ''."""
        for model in sorted({worker.model for worker in self.workers}):
            yield model, tuple(worker for worker in self.workers if worker.model == model)

    @property
    def stacks(self) -> frozenset[Stack]:
        """Stacks whose checks apply: `stack`, and where LMCache's controller logs beside kvctl's router also `unknown`,
        which stands for a controller of nobody in particular."""
        beside = self.stack is Stack.KVCTL and any(
            router.log is not None and router.log.has(*_CONTROLLER_STARTS) for router in self.routers
        )
        return frozenset({self.stack, Stack.UNKNOWN}) if beside else frozenset({self.stack})

    @property
    def strategy(self) -> str:
        """Effective routing strategy in lower case without separators (kvaware, prefixaware, session, roundrobin, kv…).

        What the router runs beats what a resource asks for; '' where nothing says.
        """
        for router in self.routers:
            if value := router.arg("--routing-logic", "--router-mode"):
                return strategy_name(value)
        for router in self.routers:
            if mode := configured_mode(router):
                return strategy_name(mode)
        for router in self.routers:
            if router.log is not None and (told := router.log.last("router-logic-init")) is not None:
                return strategy_name(told["logic"])
        for custom in (*self.resources.all("inferenceendpointconfigs"), *self.resources.all("jumpstartmodels")):
            routing = (custom.get("spec") or {}).get("intelligentRoutingSpec") or {}
            if routing.get("enabled"):
                return strategy_name(str(routing.get("routingStrategy") or "prefixaware"))
        return ""

    def lmcache_active(self, member: Member) -> bool:
        """The member is meant to run LMCache in its process: its arguments, environment or log name it."""
        transfer = member.arg("--kv-transfer-config") or ""
        meant = any(name.startswith("LMCACHE_") and name not in _SAYS_NOTHING for name in member.container.env)
        if "LMCache" in transfer or meant or "lmcache" in (member.arg("--kv-offloading-backend") or "").lower():
            return True
        return member.log is not None and member.log.any_of_component("lmcache")

    def lmcache_version(self, member: Member) -> Version | None:
        return self.compatibility.lmcache_of(member.log, member.container.image)

    def vllm_version(self, member: Member) -> Version | None:
        answer = member.answers.get("/version")
        told = answer.get("version") if isinstance(answer, dict) else None
        if not isinstance(told, str) or told.endswith(_SIMULATED):
            told = None
        return self.compatibility.vllm_of(member.log, member.container.image, told)

    def lmcache_config(self, member: Member) -> dict[str, Any]:
        """The configuration that LMCache printed, overlaid with the environment's LMCACHE_*; keys in lower case."""
        config: dict[str, Any] = dict(member.log.lmcache_config() if member.log is not None else {})
        for name, value in member.container.env.items():
            if name.startswith("LMCACHE_") and not value.startswith("<from:"):
                config[name.removeprefix("LMCACHE_").lower()] = _literal(value)
        return config


_SIMULATED = "+sim"
"""Ends kvctl's own version, which its simulated engines answer."""
_CONTROLLER_STARTS = ("lmcache-pull-handler", "lmcache-health-check-thread", "router-kvaware-ports")
"""Lines of LMCache's controller when it starts; kvctl's own router never prints them."""

_SAYS_NOTHING = frozenset({"LMCACHE_LOG_LEVEL", "LMCACHE_TRACK_USAGE"})
"""Variables that the production stack's chart and images set whether or not LMCache is used."""


def configured_mode(router: Member) -> str:
    """The mode that kvctl's router answers on /config; '' where it does not."""
    config = router.answers.get("/config")
    dispatch = config.get("dispatch") if isinstance(config, dict) else None
    return str(dispatch.get("mode") or "") if isinstance(dispatch, dict) else ""


def strategy_name(text: str) -> str:
    """One spelling of a routing strategy: `kv-aware`, `KVAWARE` are kvaware, `session-based` is session."""
    return re.sub(r"[\s_-]", "", text.lower()).removesuffix("based")


def _literal(value: str) -> Any:
    """An environment value as JSON or a Python-style boolean where it is one, else the text."""
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    try:
        return loads(value)
    except ValueError:
        return value
