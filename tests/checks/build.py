"""Builds snapshots for tests of checks: members with literal logs, samples, and the states that a check gives.

Logs go through the pipeline that real logs go through. Times are fixed: containers started at `STARTED`, the snapshot
was taken at `NOW`, half an hour later.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime
from textwrap import dedent
from typing import Any

import checks.catalogue
from checks.logs.patterns import Patterns
from checks.logs.read import read_log
from checks.logs.view import LogView
from checks.metrics.view import Metrics, Sample
from checks.model import Check, Finding, Reason, Stack, Status
from checks.snapshot import Container, Member, Role, Snapshot

STARTED = datetime(2026, 8, 1, 10, 0, tzinfo=UTC).timestamp()
NOW = datetime(2026, 8, 1, 10, 30, tzinfo=UTC).timestamp()
NAMESPACE = "prod"

_OF_CONTAINER = frozenset(field.name for field in fields(Container))
_OF_MEMBER = frozenset(field.name for field in fields(Member))
_WORST_FIRST = (Status.FAIL, Status.ERROR, Status.WARN, Status.PASS, Status.SKIP)


def worker(
    name: str = "w-0",
    *,
    log: str | None = "",
    args: Iterable[str] = (),
    env: Mapping[str, str] | None = None,
    image: str = "",
    ip: str = "10.0.0.1",
    head_complete: bool = True,
    version_line: str | None = None,
    previous: str | None = None,
    **more: Any,
) -> Member:
    """A ready worker pod `name` in `prod`, container `vllm`.

    `log` is container text (dedented; with or without kubelet timestamps); None: the log was not read. `version_line`
    is an LMCache version, or `LMCACHE/VLLM`: the line that names them is put before the log. `more` holds further
    fields of Member or of its Container, by name; `ready` is of both.
    """
    if version_line is not None:
        lmcache, _, vllm = version_line.partition("/")
        log = version_text(lmcache, vllm or "0.19.1") + "\n" + dedent(log or "")
    return _member(Role.WORKER, name, "vllm", log, args, env, image, ip, head_complete, previous, more)


def router(
    name: str = "router-0",
    *,
    log: str | None = "",
    args: Iterable[str] = (),
    env: Mapping[str, str] | None = None,
    image: str = "",
    ip: str = "10.0.0.9",
    head_complete: bool = True,
    previous: str | None = None,
    **more: Any,
) -> Member:
    """A ready router pod in `prod`, container `router-container`; parameters as `worker`."""
    return _member(Role.ROUTER, name, "router-container", log, args, env, image, ip, head_complete, previous, more)


def snapshot(
    *members: Member,
    stack: Stack = Stack.PRODUCTION_STACK,
    samples: Iterable[Sample] = (),
    source: str = "prometheus",
    window: str = "15m",
    **more: Any,
) -> Snapshot:
    """What was read, at `NOW`. Without samples the metrics say `no_data`; `more` holds further fields of Snapshot."""
    grouped: dict[str, tuple[Sample, ...]] = {}
    for one in samples:
        grouped[one.name] = (*grouped.get(one.name, ()), one)
    if "metrics" not in more:
        more["metrics"] = Metrics(grouped, window=window, source=source) if grouped else Metrics(missing=Reason.NO_DATA)
    return Snapshot(stack=stack, members=members, **{"now": NOW, "namespace": NAMESPACE, **more})


def sample(name: str, value: float, member: str = "prod/w-0", increase: float | None = None, **labels: str) -> Sample:
    """One series of a member, by its key."""
    return Sample(name, member, labels, value, increase, spelled=name)


def findings(check_id: str, of: Snapshot) -> list[Finding]:
    """What the check says, as it says it; empty where the check is not for the snapshot's stack."""
    check = find_check(check_id)
    if check.stacks is not None and not of.stacks & check.stacks:
        return []
    found = list(check.run(of))
    assert found, f"{check_id} said nothing"
    return found


def statuses(check_id: str, of: Snapshot) -> dict[str, Status]:
    """Worst state by target name (`fleet` for the whole); a check that is not for the stack: {"fleet": SKIP}."""
    worst: dict[str, Status] = {}
    for finding in findings(check_id, of):
        name = finding.target.name or "fleet"
        known = worst.get(name, finding.status)
        worst[name] = min(known, finding.status, key=_WORST_FIRST.index)
    return worst or {"fleet": Status.SKIP}


def only(check_id: str, of: Snapshot) -> Finding:
    """The finding of a check that is expected to give exactly one."""
    found = findings(check_id, of)
    assert len(found) == 1, [f"{one.status} {one.target}: {one.message}" for one in found]
    return found[0]


def find_check(check_id: str) -> Check:
    """The check of that id in any module of checks.catalogue, whether or not the registry lists it."""
    broken: list[str] = []
    for module in pkgutil.iter_modules(checks.catalogue.__path__):
        try:
            loaded = importlib.import_module(f"checks.catalogue.{module.name}")
        except ImportError as error:
            broken.append(f"{module.name}: {error}")
            continue
        for check in vars(loaded).get("CHECKS", ()):
            if isinstance(check, Check) and check.id == check_id:
                return check
    raise LookupError(f"no module of checks.catalogue has {check_id}" + "".join(f"; {one}" for one in broken))


def version_text(lmcache: str, vllm: str = "0.19.1", role: str = "WORKER") -> str:
    """The line by which LMCache tells both versions, as a container prints it."""
    return (
        f"[2026-08-01 10:00:30,120] LMCache INFO: LMCache initialized for role KVConnectorRole.{role} with version "
        f"{lmcache}, vllm version {vllm}, lmcache cache_engine metadata: None "
        "(vllm_v1_adapter.py:485:lmcache.integration.vllm.vllm_v1_adapter)"
    )


def said(message: str, level: str = "INFO", *, at: float | None = None, source: str = "engine.py:1:lmcache.v1") -> str:
    """A line of LMCache as a container prints it; with the kubelet's timestamp where `at` (epoch seconds) is given."""
    stamp = "" if at is None else f"{kubelet_time(at)} "
    return f"{stamp}[2026-08-01 10:00:30,120] LMCache {level}: {message} ({source})\n"


def stamped(text: str, *, start: float = STARTED, step: float = 1.0) -> str:
    """The text with a kubelet timestamp before each line, `step` seconds apart, beginning at `start`."""
    lines = dedent(text).strip("\n").split("\n")
    return "\n".join(f"{kubelet_time(start + at * step)} {line}" for at, line in enumerate(lines))


def kubelet_time(at: float) -> str:
    """Epoch seconds as the kubelet writes them."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")


def log_view(text: str, *, where: str = "prod/w-0/vllm", head_complete: bool = True) -> LogView:
    """A log through the real pipeline; whether its head is complete is as told."""
    plain = dedent(text).strip("\n")
    read = read_log(plain, where=where, started_at=STARTED, patterns=Patterns.load())
    return replace(read, head_complete=head_complete)


def _member(
    role: Role,
    name: str,
    container_name: str,
    log: str | None,
    args: Iterable[str],
    env: Mapping[str, str] | None,
    image: str,
    ip: str,
    head_complete: bool,
    previous: str | None,
    more: Mapping[str, Any],
) -> Member:
    inner: dict[str, Any] = {"name": container_name, "started_at": STARTED}
    inner.update({key: value for key, value in more.items() if key in _OF_CONTAINER})
    outer: dict[str, Any] = {"namespace": NAMESPACE, "ips": (ip,) if ip else ()}
    outer.update({key: value for key, value in more.items() if key in _OF_MEMBER})
    assert not (unknown := set(more) - _OF_CONTAINER - _OF_MEMBER), f"neither Member nor Container has {unknown}"
    where = f"{outer['namespace']}/{name}/{inner['name']}" if outer["namespace"] else name
    container = Container(image=image, args=tuple(args), env=dict(env or {}), **inner)
    return Member(
        role=role,
        name=name,
        container=container,
        log=None if log is None else log_view(log, where=where, head_complete=head_complete),
        previous=None if previous is None else log_view(previous, where=f"{where} (previous)"),
        **outer,
    )
