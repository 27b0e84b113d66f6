"""LMCache's controller inside a router: is it in use, who should and does register with it, heartbeats. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from checks.compatibility import Version
from checks.lmcache import engines, is_young, number, registering_ranks, why_not_in_process
from checks.logs.view import LogView, Match
from checks.model import Evidence, Stack
from checks.serving import config_unread
from checks.snapshot import Member, Snapshot

DEFAULT_TIMEOUT_S = 30.0
"""`--lmcache-worker-timeout` of the production stack's router."""
DEFAULT_INTERVAL_S = 5.0
"""`--lmcache-health-check-interval` of the same."""
DEFAULT_DELAY_S = 10.0
"""LMCache's lmcache_worker_heartbeat_delay_time."""
REAPS = Version.parse("0.3.10")
"""The first version whose controller drops workers that it does not hear."""
REGISTERS_BY_REPLY = Version.parse("0.3.12")
"""The first version whose registration is answered, and whose heartbeats have a port of their own."""

_SIGNS = ("router-kvaware-init", "lmcache-pull-handler", "lmcache-registered", "aws-worker-registered", "router-kv-hit")


def why_not_used(snapshot: Snapshot) -> str:
    """Why no controller takes part in routing; '' where one does."""
    if snapshot.strategy:
        if snapshot.strategy == "kvaware":
            return ""
        return f"the strategy is {snapshot.strategy}; only kvaware asks LMCache's controller"
    if any(router.log is not None and router.log.has(*_SIGNS) for router in snapshot.routers):
        return ""
    if snapshot.metrics.has(("controller_registered_workers",)):
        return ""
    if any(snapshot.lmcache_config(worker).get("enable_controller") is True for worker in snapshot.workers):
        return ""
    return "nothing says that LMCache's controller routes requests here"


@dataclass(frozen=True, slots=True)
class Expected:
    """How many registrations there should be. Young workers may still be missing; data-parallel engines share ids."""

    least: int
    most: int
    workers: int


def expected(snapshot: Snapshot) -> Expected:
    """Over all ready workers that run LMCache in their process: one for each rank that registers."""
    least = most = workers = 0
    for worker in snapshot.ready_workers:
        if why_not_in_process(snapshot, worker):
            continue
        count = registering_ranks(snapshot, worker)
        workers += 1
        most += count * engines(worker)
        least += 0 if is_young(snapshot, worker) else count
    return Expected(least, most, workers)


def instance_ids(snapshot: Snapshot, worker: Member) -> dict[str, Evidence]:
    """Ids under which a worker registers, with where each was read: its own lines, else its environment."""
    found: dict[str, Evidence] = {}
    if worker.log is not None:
        for match in worker.log.all("lmcache-registering", "lmcache-worker-starting", "lmcache-heartbeat-start"):
            found.setdefault(match["inst"], worker.log.evidence(match))
    if not found and (told := worker.env("LMCACHE_LMCACHE_INSTANCE_ID")):
        found[told] = Evidence("env", worker.key, f"LMCACHE_LMCACHE_INSTANCE_ID={told}"[:240])
    return found


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a worker sends. Seconds; `period` None: none at all."""

    period: float | None
    delay: float
    known: bool
    evidence: Evidence


def heartbeat(snapshot: Snapshot, worker: Member) -> Heartbeat:
    """By the worker's own line, else by its configuration; `known` is False where neither could be read."""
    if worker.log is not None and (line := worker.log.last("lmcache-heartbeat-start")) is not None:
        period = number(line["period"])
        return Heartbeat(_above_zero(period), number(line["delay"]) or 0.0, True, worker.log.evidence(line))
    config = snapshot.lmcache_config(worker)
    period, delay = (number(config.get(f"lmcache_worker_heartbeat_{name}time")) for name in ("", "delay_"))
    unread = config_unread(worker, config, "lmcache_worker_heartbeat_time")
    said = f"lmcache_worker_heartbeat_time = {'not set' if period is None else f'{period:g}'}"
    evidence = Evidence("env", worker.key, said)
    return Heartbeat(_above_zero(period), DEFAULT_DELAY_S if delay is None else delay, not unread, evidence)


def _above_zero(seconds: float | None) -> float | None:
    return seconds if seconds is not None and seconds > 0 else None


@dataclass(frozen=True, slots=True)
class Reaping:
    """How a router drops workers that it does not hear. Seconds."""

    on: bool | None
    """None: its version is not known."""
    timeout: float
    interval: float
    port_missing: Match | None
    """Its line that says it listens to no heartbeats."""
    evidence: tuple[Evidence, ...]


def reaping(snapshot: Snapshot, router: Member) -> Reaping:
    """By its arguments and its own lines; defaults are those of the production stack's router."""
    log = router.log
    started = None if log is None else log.last("lmcache-health-check-thread")
    timeout = number(router.arg("--lmcache-worker-timeout"))
    interval = number(router.arg("--lmcache-health-check-interval"))
    if interval is None and started is not None:
        interval = number(started["interval"])
    timeout = DEFAULT_TIMEOUT_S if timeout is None else timeout
    interval = DEFAULT_INTERVAL_S if interval is None else interval
    shown = [Evidence("args", router.key, f"lmcache-worker-timeout {timeout:g}, health-check-interval {interval:g}")]
    if log is not None and started is not None:
        shown.append(log.evidence(started))
    version = snapshot.lmcache_version(router)
    on: bool | None = None
    if interval <= 0:
        on = False
    elif started is not None or (version is not None and version >= REAPS):
        on = True
    elif version is not None and version.exact:
        on = False
    return Reaping(on, timeout, interval, _port_missing(log), tuple(shown))


def _port_missing(log: LogView | None) -> Match | None:
    if log is None:
        return None
    own = log.last("lmcache-heartbeat-handler", "lmcache-heartbeat-socket-none")
    if own is not None:
        return own if own.pattern == "lmcache-heartbeat-socket-none" else None
    ports = log.last("router-kvaware-ports")
    return ports if ports is not None and ports["heartbeat"] == "None" else None


def registered_by_api(router: Member) -> int | None:
    """Workers that the controller's own API lists; None where it was not asked or answers otherwise."""
    answer: Any = router.answers.get("/controller/workers")
    if isinstance(answer, dict):
        answer = answer.get("workers", answer.get("total_count"))
    if isinstance(answer, list):
        return len(answer)
    return answer if isinstance(answer, int) and not isinstance(answer, bool) else None


def lines_are_promised(snapshot: Snapshot, router: Member) -> bool:
    """The router runs upstream's controller, whose lines are known; AWS's builds promise none of them."""
    if snapshot.stack is Stack.PRODUCTION_STACK:
        return True
    return router.log is not None and router.log.has("lmcache-pull-handler")
