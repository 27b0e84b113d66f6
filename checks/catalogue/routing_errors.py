"""KV503, KV504: what goes wrong inside the production stack's router, by its log. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from checks.catalogue.routing import STACKS, no_log, not_kvaware
from checks.lmcache import times
from checks.logs.view import LogView, Match
from checks.model import Check, Finding, Group, Reason, Status, failed, passed, skipped, warned
from checks.network import url_parts
from checks.sharing import kvaware
from checks.snapshot import Member, Snapshot

_UNREACHED = ("router-scrape-failed", "router-models-failed")
_UNREACHED_MIN = 3
"""Fewer are an engine that was just restarting."""
_UNREACHED_HINT = "compare the engine's port, and look for a NetworkPolicy between router and engine (KV161)"
_RETRY_HINT = "read the log of the engine that failed them, and see whether it restarts (KV004)"

# -- KV503 -----------------------------------------------------------------------------------------------------------


def router_errors(snapshot: Snapshot) -> Iterator[Finding]:
    if (missing := no_log(snapshot)) is not None:
        yield missing
        return
    for router in snapshot.routers:
        if router.log is None or not router.log.records:
            yield skipped(router.log_missing or Reason.NO_DATA, "its log was not read", router.target)
            continue
        yield _router_errors(router, router.log)
        yield from _unreached(snapshot, router, router.log)
        yield from _retries(snapshot, router, router.log)


def _router_errors(router: Member, log: LogView) -> Finding:
    keys = log.all("router-key-error")
    instances = {match["inst"] for match in log.all("lmcache-registered", "router-kv-hit", "aws-worker-registered")}
    named = [match for match in keys if _is_instance(match["key"], instances)]
    if named:
        message = f"{len(named)} requests failed: instance {named[-1]['key']} is mapped to no endpoint"
        return failed(message, router.target, log.evidence(named[-1]))
    indexes = log.all("router-index-error")
    if other := [*keys, *indexes]:
        message = f"{len(other)} KeyError or IndexError in the log"
        return warned(message, router.target, log.evidence(other[-1]))
    return passed("no KeyError and no IndexError in what was read of its log", router.target)


def _unreached(snapshot: Snapshot, router: Member, log: LogView) -> Iterator[Finding]:
    """Ready workers that the router could not ask, again and again in the window."""
    since = snapshot.now - snapshot.window_s
    by_place = {urlsplit(worker.url).netloc: worker for worker in snapshot.workers if worker.url}
    found: dict[str, list[Match]] = {}
    for match in log.since(since, *_UNREACHED):
        parts = url_parts(match["url"])
        worker = by_place.get(parts.netloc) or snapshot.worker_at(parts.hostname or "")
        if worker is not None and worker.ready:
            found.setdefault(worker.key, []).append(match)
    for key, matches in found.items():
        if len(matches) >= _UNREACHED_MIN and (worker := snapshot.member(key)) is not None:
            message = f"router {router.name} could not reach this engine {times(len(matches))}, though it is ready"
            yield warned(message, worker.target, log.evidence(matches[-1]), hint=_UNREACHED_HINT)


def _retries(snapshot: Snapshot, router: Member, log: LogView) -> Iterator[Finding]:
    """Requests that had to be sent again, where they are more than a few."""
    since = snapshot.now - snapshot.window_s
    again, sent = log.since(since, "router-retry"), len(log.since(since, "router-route"))
    enough = sent >= snapshot.thresholds.routed_requests_min
    if enough and len(again) > snapshot.thresholds.failed_legs_share_warn * sent:
        message = f"{len(again)} of {sent} requests were sent again after an engine failed them"
        yield warned(message, router.target, log.evidence(again[-1]), hint=_RETRY_HINT)


def _is_instance(key: str, known: set[str]) -> bool:
    return key in known or key.startswith(("lmcache", "vllm-instance"))


# -- KV504 -----------------------------------------------------------------------------------------------------------


def instance_map(snapshot: Snapshot) -> Iterator[Finding]:
    if not kvaware(snapshot):
        yield not_kvaware(snapshot)
        return
    if (missing := no_log(snapshot)) is not None:
        yield missing
        return
    for router in snapshot.routers:
        log = router.log
        match = None if log is None else log.last("router-instance-map")
        if log is None or match is None:
            message = "the mapping of instances is printed only when an unknown instance is matched"
            yield skipped(Reason.NO_DATA, message, router.target)
            continue
        mapping = _dictionary(match["map"])
        if mapping is None:
            yield skipped(Reason.PARSE, "the printed mapping of instances cannot be read", router.target)
            continue
        evidence, workers = log.evidence(match), len(snapshot.ready_workers)
        if any(key in (None, "None") or value in (None, "None") for key, value in mapping.items()):
            yield failed("an endpoint is mapped to no instance (None)", router.target, evidence)
        elif len(mapping) < workers:
            yield warned(f"{len(mapping)} of {workers} workers are mapped to an instance", router.target, evidence)
        else:
            yield passed(f"{len(mapping)} instances are mapped to endpoints", router.target, evidence)


def _dictionary(text: str) -> Mapping[object, object] | None:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


CHECKS: tuple[Check, ...] = (
    Check(
        id="KV503",
        title="The router raises no exception and reaches its engines",
        group=Group.ROUTING,
        worst=Status.FAIL,
        reads="KeyError, IndexError, failed scrapes and model queries, and retries in the router's log",
        rule="Fails at one KeyError that names an LMCache instance: each such request was answered with 500. Warns "
        "at any other KeyError or IndexError, at three or more failures within the window to reach a ready engine, "
        "and where more than 5 % of 20 or more requests had to be sent again.",
        hint="see KV205 and KV206: a matched instance has no endpoint",
        run=router_errors,
        stacks=STACKS,
        caused_by=("KV123", "KV124", "KV205", "KV206"),
    ),
    Check(
        id="KV504",
        title="Every worker is mapped to an instance",
        group=Group.ROUTING,
        worst=Status.FAIL,
        reads="the router's line `Instance id to ip mapping: {…}`",
        rule="Fails where None stands in it, warns where it has fewer entries than there are ready workers. Skips "
        "where it was not printed.",
        hint="see KV205: the controller must know each worker's address",
        run=instance_map,
        stacks=STACKS,
        caused_by=("KV123", "KV124", "KV201", "KV202", "KV205"),
    ),
)
