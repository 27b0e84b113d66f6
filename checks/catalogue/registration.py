"""KV201-KV206: are the workers registered with LMCache's controller in the router, and under which names.

Only where that controller routes. The last event of a worker counts, never that it registered once: a router drops
workers that it does not hear. Pure; costs a look at the matches of each worker's and router's log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from checks.controller import expected, instance_ids, lines_are_promised, registered_by_api, why_not_used
from checks.lmcache import each_worker, is_young, ranks, times
from checks.logs.ledger import Registration
from checks.logs.view import LogView
from checks.model import (
    CONTROLLER_STACKS,
    FLEET,
    Check,
    Evidence,
    Finding,
    Group,
    Reason,
    Status,
    failed,
    passed,
    skipped,
    warned,
)
from checks.registrations import Registrations
from checks.snapshot import Member, Snapshot

_ACKNOWLEDGED = ("lmcache-heartbeat-url", "lmcache-no-heartbeat-url")


def registered_count(snapshot: Snapshot) -> Iterator[Finding]:
    if why := why_not_used(snapshot):
        yield skipped(Reason.NOT_APPLICABLE, why)
        return
    wanted = expected(snapshot)
    if not wanted.workers:
        yield skipped(Reason.NOT_APPLICABLE, "no ready worker runs LMCache in its process")
        return
    gauge = snapshot.metrics.now("controller_registered_workers")
    told = [(router, registered_by_api(router)) for router in snapshot.routers]
    by_api = [count for _, count in told if count is not None]
    if gauge:
        yield _count(snapshot, int(gauge.or_zero()), gauge.evidence())
    elif by_api:
        yield _count(snapshot, sum(by_api), Evidence("http", "router", f"/controller/workers lists {sum(by_api)}"))
    else:
        yield _count_of_ledger(snapshot)


def _count(snapshot: Snapshot, count: int, *evidence: Evidence) -> Finding:
    wanted = expected(snapshot)
    should = f"{wanted.least}" if wanted.least == wanted.most else f"{wanted.least} to {wanted.most}"
    message = f"{count} of {should} worker processes are registered"
    if count == wanted.least == 0:
        return skipped(Reason.NO_DATA, "no worker is registered yet; all of them are still starting", FLEET, *evidence)
    if wanted.least <= count <= wanted.most:
        return passed(message, FLEET, *evidence)
    if count > wanted.most:
        return warned(f"{message}: some are left from workers that are gone", FLEET, *evidence)
    return warned(message, FLEET, *evidence) if count else failed("no worker is registered", FLEET, *evidence)


def _count_of_ledger(snapshot: Snapshot) -> Finding:
    """The routers' logs, where no number was told: AWS's line names workers, upstream's names each rank."""
    books, wanted = Registrations.of(snapshot), expected(snapshot)
    live, unknown = books.alive, books.unknown
    if not books.entries and unknown is not None:
        return skipped(unknown, "neither metrics nor the router's log tell who is registered")
    shown = [one.evidence for one in live[-2:]]
    if live and all(one.worker_id is None for one in live):
        instances = len({one.instance for one in live})
        message = f"{instances} of {wanted.workers} workers are registered"
        return (passed if instances >= wanted.workers else warned)(message, FLEET, *shown)
    if len(live) < wanted.least and unknown is not None:
        message = f"{len(live)} of {wanted.least} registrations are in the part of the router's log that was read"
        return skipped(unknown, message, FLEET, *shown)
    return _count(snapshot, len(live), *shown)


def last_event(snapshot: Snapshot) -> Iterator[Finding]:
    if why := why_not_used(snapshot):
        yield skipped(Reason.NOT_APPLICABLE, why)
        return
    books = Registrations.of(snapshot)
    yield from each_worker(snapshot, lambda of, worker: _last_event(of, worker, books))


def _last_event(snapshot: Snapshot, worker: Member, books: Registrations) -> Iterator[Finding]:
    target, known = worker.target, books.about(snapshot, worker)
    live = [one for one in known if one.alive]
    lost = [one for one in known if not one.alive and not _replaced(one, live)]
    limit, span = snapshot.thresholds.flapping_pairs, snapshot.thresholds.flapping_window_s
    if lost and worker.ready:
        last = lost[-1]
        yield failed(f"the router dropped {last.name} and it did not come back", target, last.evidence)
    elif lost:
        yield skipped(Reason.NO_DATA, "the router dropped it, and the pod is not ready", target, lost[-1].evidence)
    elif flapping := [one for one in live if one.most_losses(span) >= limit]:
        one = flapping[-1]
        message = f"the router dropped {one.name} {times(one.most_losses(span))} within {span / 60:g} min"
        yield warned(message, target, one.evidence)
    elif live:
        names = ", ".join(one.name for one in live[:4])
        yield passed(f"the router's last word is that {names} registered", target, live[-1].evidence)
    elif (answer := _acknowledged(snapshot, worker)) is not None:
        yield passed("the worker's own log shows that the router took its registration", target, answer)
    elif is_young(snapshot, worker):
        yield skipped(Reason.NO_DATA, "the worker is still starting", target)
    elif books.unknown is None:
        yield failed("the router's log is complete, and this worker never registered", target)
    else:
        yield skipped(books.unknown, "the router's log cannot show whether it registered", target)


def _replaced(lost: Registration, live: list[Registration]) -> bool:
    """Another instance of the same rank at the same address lives: the worker restarted under a new id."""
    return any(one.worker_id == lost.worker_id and one.ip == lost.ip for one in live)


def _acknowledged(snapshot: Snapshot, worker: Member) -> Evidence | None:
    """The worker's line that its registration was answered, if no router started since."""
    line = None if worker.log is None else worker.log.last(*_ACKNOWLEDGED)
    starts = [router.container.started_at for router in snapshot.routers]
    mine = worker.container.started_at
    older = mine is not None and all(start is not None and start <= mine for start in starts)
    return worker.log.evidence(line) if worker.log is not None and line is not None and older else None


def worker_side(snapshot: Snapshot) -> Iterator[Finding]:
    if why := why_not_used(snapshot):
        yield skipped(Reason.NOT_APPLICABLE, why)
        return
    yield from each_worker(snapshot, _worker_side)


def _worker_side(snapshot: Snapshot, worker: Member) -> Iterator[Finding]:
    log, target = worker.log, worker.target
    if log is None:
        yield skipped(worker.log_missing or Reason.NO_DATA, "the worker's log was not read", target)
        return
    broken = log.last("lmcache-register-failed", "lmcache-worker-error")
    if broken is not None:
        reason = broken["reason"].strip() or "no reason given"
        yield failed(f"the worker could not register: {reason}", target, log.evidence(broken))
        return
    yield _attempt(snapshot, worker, log)


def _attempt(snapshot: Snapshot, worker: Member, log: LogView) -> Finding:
    target, version = worker.target, snapshot.lmcache_version(worker)
    attempts, answers = log.all("lmcache-registering"), log.all(*_ACKNOWLEDGED)
    if answers and len(answers) >= len({(one["inst"], one["wid"]) for one in attempts}):
        return passed("the router answered the registration", target, log.evidence(answers[-1]))
    if attempts:
        shown = log.evidence(attempts[-1])
        why = worker.why_absence_proves_nothing(snapshot.patterns["lmcache-heartbeat-url"], version)
        if why is Reason.NOT_APPLICABLE:
            return skipped(why, f"LMCache {version} gets no answer to a registration", target, shown)
        if why is not None:
            return skipped(why, "the log cannot show whether the router answered", target, shown)
        since = attempts[-1].record.at or worker.container.started_at
        if since is not None and snapshot.now - since < snapshot.thresholds.register_ack_s:
            return skipped(Reason.NO_DATA, "the worker registers just now", target, shown)
        return warned(f"{len(attempts) - len(answers)} registrations got no answer", target, shown)
    if snapshot.lmcache_config(worker).get("enable_controller") is False:
        return failed("the worker does not register: enable_controller is off", target)
    why = worker.why_absence_proves_nothing(snapshot.patterns["lmcache-registering"], version)
    if why is None and not any(lines_are_promised(snapshot, router) for router in snapshot.routers):
        why = Reason.NO_DATA
    if why is None and is_young(snapshot, worker):
        why = Reason.NO_DATA
    if why is None:
        return failed("the worker never tried to register", target, hint="set LMCACHE_ENABLE_CONTROLLER=True (KV163)")
    return skipped(why, "the log cannot show whether the worker tried to register", target)


def understood(snapshot: Snapshot) -> Iterator[Finding]:
    if why := why_not_used(snapshot):
        yield skipped(Reason.NOT_APPLICABLE, why)
        return
    if not snapshot.routers:
        yield skipped(Reason.NO_DATA, "no router was found")
    for router in snapshot.routers:
        log, target = router.log, router.target
        bad = None if log is None else log.last("lmcache-unknown-message", "lmcache-controller-error")
        if log is not None and bad is not None:
            count = log.count("lmcache-unknown-message", "lmcache-controller-error")
            yield failed(f"the controller did not understand its workers ({count} lines)", target, log.evidence(bad))
            continue
        pattern = snapshot.patterns["lmcache-unknown-message"]
        why_not = router.why_absence_proves_nothing(pattern, snapshot.lmcache_version(router))
        if why_not is None and log is not None and log.any_of_component("lmcache"):
            yield passed("the controller understood all messages", target)
        else:
            yield skipped(why_not or Reason.NO_DATA, "the log shows nothing of the controller", target)


def addresses_known(snapshot: Snapshot) -> Iterator[Finding]:
    if why := why_not_used(snapshot):
        yield skipped(Reason.NOT_APPLICABLE, why)
        return
    if not snapshot.routers:
        yield skipped(Reason.NO_DATA, "no router was found")
    for router in snapshot.routers:
        yield from _addresses(snapshot, router)


def _addresses(snapshot: Snapshot, router: Member) -> Iterator[Finding]:
    log = router.log
    if log is None:
        yield skipped(router.log_missing or Reason.NO_DATA, "the router's log was not read", router.target)
        return
    last = {match["ip"]: match for match in log.all("lmcache-no-instance-for-ip", "lmcache-registered")}
    unknown = {match["ip"] for match in log.all("lmcache-no-instance-for-ip")}
    cured = {ip for ip in unknown if last[ip].pattern == "lmcache-registered"}
    for ip in sorted(unknown - cured):
        worker, shown = snapshot.worker_at(ip), log.evidence(last[ip])
        if worker is not None and worker.ready:
            yield failed(f"the controller knows no instance at {ip}, a ready worker", worker.target, shown)
        else:
            yield warned(f"the router asks for {ip}, where no ready worker is", router.target, shown)
    if unknown - cured:
        return
    if cured:
        yield passed(f"{len(cured)} addresses were unknown for a time and registered since", router.target)
    elif log.has("router-kv-hit", "router-route", "router-lookup-message"):
        yield passed("every address that was looked up is registered", router.target)
    else:
        why_not = router.why_absence_proves_nothing(snapshot.patterns["router-route"], None)
        yield skipped(why_not or Reason.NO_TRAFFIC, "the router's log shows no request", router.target)


def ids_unique(snapshot: Snapshot) -> Iterator[Finding]:
    if why := why_not_used(snapshot):
        yield skipped(Reason.NOT_APPLICABLE, why)
        return
    books = Registrations.of(snapshot)
    owners: dict[str, list[str]] = {}
    for worker in snapshot.workers:
        for name in _names(snapshot, worker, books):
            owners.setdefault(name, []).append(worker.key)
    yield from each_worker(snapshot, lambda of, worker: _ids(worker, _names(of, worker, books), owners))


def _names(snapshot: Snapshot, worker: Member, books: Registrations) -> dict[str, Evidence]:
    """Ids of a worker by its own account, else by the router's: the newest that lives of each rank."""
    if own := instance_ids(snapshot, worker):
        return own
    newest = {one.worker_id: one for one in books.about(snapshot, worker) if one.alive}
    return {one.instance: one.evidence for one in newest.values()}


def _ids(worker: Member, names: Mapping[str, Evidence], owners: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    target = worker.target
    shared = next((name for name in names if len(owners[name]) > 1), None)
    if not names:
        yield skipped(Reason.NO_DATA, "the worker's instance id is not known", target)
    elif shared is not None:
        other = next(key for key in owners[shared] if key != worker.key)
        yield failed(f"the instance id {shared} is also that of {other}", target, names[shared])
    elif len(names) > 1:
        many = f"{len(names)} ids in {ranks(worker)} ranks"
        yield warned(f"the worker's processes use different instance ids ({many})", target, *list(names.values())[:3])
    else:
        yield passed(f"the instance id {next(iter(names))} is its own", target, *names.values())


CHECKS: tuple[Check, ...] = (
    Check(
        id="KV201",
        title="All workers are registered",
        group=Group.REGISTRATION,
        worst=Status.FAIL,
        reads="gauge lmcache:cache_controller_registered_workers_count, the controller's API, the router's log",
        rule=(
            "Expects one registration for each rank (tensor times pipeline parallel size; one for MLA models) of each "
            "ready worker. Passes when all are there, warns when some are, fails when none is. Skips where neither the "
            "gauge nor a complete router log can tell."
        ),
        hint="see KV202 to KV208 for the reason",
        run=registered_count,
        stacks=CONTROLLER_STACKS,
        caused_by=("KV152", "KV302", "KV203", "KV206", "KV207", "KV208", "KV202"),
        required=True,
    ),
    Check(
        id="KV202",
        title="No worker was dropped",
        group=Group.REGISTRATION,
        worst=Status.FAIL,
        reads="router logs; the registration's answer in worker logs",
        rule=(
            "The last event of each worker counts: registered passes, deregistered or dropped fails for a ready "
            "worker, two losses within ten minutes warn. A worker of which nothing was read is unknown, never "
            "unregistered, unless the router's log is complete."
        ),
        hint="restart the dropped worker, or give it heartbeats (KV207): it stays unknown until then",
        run=last_event,
        stacks=CONTROLLER_STACKS,
        caused_by=("KV152", "KV302", "KV203", "KV207", "KV208"),
    ),
    Check(
        id="KV203",
        title="Workers' registrations are answered",
        group=Group.REGISTRATION,
        worst=Status.FAIL,
        reads="worker logs",
        rule=(
            "Fails when the registration failed or the worker's controller thread died (no event is sent any more "
            "until a restart), or when a complete log shows no attempt. Warns when an attempt has no answer after a "
            "minute; versions before 0.3.12 get none."
        ),
        hint="see whether the router was up when the worker started, and whether reply URL, port (KV160) "
        "and versions (KV152) fit",
        run=worker_side,
        stacks=CONTROLLER_STACKS,
        caused_by=("KV152", "KV302", "KV160", "KV162", "KV163"),
    ),
    Check(
        id="KV204",
        title="Controller understands its workers",
        group=Group.REGISTRATION,
        worst=Status.FAIL,
        reads="router logs",
        rule="Fails on `Unknown … message type` and `Controller Manager error`: their versions do not fit.",
        hint="give the router the workers' LMCache (KV152)",
        run=understood,
        stacks=CONTROLLER_STACKS,
        caused_by=("KV152",),
    ),
    Check(
        id="KV205",
        title="Every engine's address is known to the controller",
        group=Group.REGISTRATION,
        worst=Status.FAIL,
        reads="router logs",
        rule=(
            "Fails when `Instance not registered for IP` names a ready worker that did not register afterwards; warns "
            "for other addresses."
        ),
        hint="route by pod IP (KV123), one engine for each address (KV124), ids that are unique (KV206)",
        run=addresses_known,
        stacks=CONTROLLER_STACKS,
        caused_by=("KV152", "KV123", "KV124", "KV202", "KV203"),
    ),
    Check(
        id="KV206",
        title="Instance ids are unique",
        group=Group.REGISTRATION,
        worst=Status.FAIL,
        reads="worker environment and logs, router logs",
        rule="Fails when two workers use one instance id; warns when the processes of one worker use different ones.",
        hint="set LMCACHE_LMCACHE_INSTANCE_ID from metadata.name in each pod",
        run=ids_unique,
        stacks=CONTROLLER_STACKS,
    ),
)
