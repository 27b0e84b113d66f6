"""KV207-KV210: do registrations last: heartbeats against the router's timeout, the router's index, who is left out.

Only where LMCache's controller routes. Pure; costs a look at the matches of each worker's and router's log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from checks.controller import (
    REGISTERS_BY_REPLY,
    Reaping,
    heartbeat,
    reaping,
    why_not_used,
)
from checks.lmcache import each_worker, number, recent, times, why_quiet
from checks.logs.view import Match
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

_RECEIVE_TIMEOUT_S = 30.0
"""A worker waits this long for the answer to a heartbeat."""
_BEATS_FAILED = ("lmcache-heartbeat-timeout", "lmcache-heartbeat-error")


def heartbeat_times(snapshot: Snapshot) -> Iterator[Finding]:
    if why := why_not_used(snapshot):
        yield skipped(Reason.NOT_APPLICABLE, why)
        return
    if not snapshot.routers:
        yield skipped(Reason.NO_DATA, "no router was found")
        return
    rules = [(router, reaping(snapshot, router)) for router in snapshot.routers]
    strict = next(((router, rule) for router, rule in rules if rule.on), None)
    if strict is not None:
        yield from each_worker(snapshot, lambda of, worker: _times(of, *strict, worker))
        return
    for router, rule in rules:
        if rule.on is None:
            what = "whether the router drops silent workers is not known"
            yield skipped(Reason.VERSION_UNKNOWN, what, router.target, *rule.evidence)
        else:
            yield passed("the router drops no workers, whether it hears them or not", router.target, *rule.evidence)


def _times(snapshot: Snapshot, router: Member, rule: Reaping, worker: Member) -> Iterator[Finding]:
    target, beat = worker.target, heartbeat(snapshot, worker)
    shown = (beat.evidence, *rule.evidence)
    log = worker.log
    refused = None if log is None else log.last("lmcache-heartbeat-url", "lmcache-no-heartbeat-url")
    if not beat.known:
        yield skipped(Reason.NO_DATA, "whether the worker sends heartbeats could not be read", target, *shown)
    elif beat.period is None:
        yield failed(
            f"no heartbeat is sent, so the router drops the worker {rule.timeout:g} s after it registered",
            target,
            *shown,
        )
    elif log is not None and refused is not None and refused.pattern == "lmcache-no-heartbeat-url":
        yield failed(
            "the router named no address for heartbeats, so none is sent", target, log.evidence(refused), *shown
        )
    elif router.log is not None and rule.port_missing is not None and _needs_port(snapshot, router, worker):
        line = router.log.evidence(rule.port_missing)
        yield failed("the router listens to no heartbeats", target, line, *shown, hint=_PORT)
    elif beat.period >= rule.timeout:
        yield failed(
            f"a heartbeat every {beat.period:g} s is not within the timeout of {rule.timeout:g} s", target, *shown
        )
    else:
        longest = beat.delay + beat.period + rule.interval
        sum_text = f"{beat.delay:g} + {beat.period:g} + {rule.interval:g} = {longest:g} s (delay, period, interval)"
        if longest >= rule.timeout:
            yield warned(f"{sum_text} is not below the timeout of {rule.timeout:g} s", target, *shown)
        elif beat.period >= rule.timeout / 2:
            yield warned(
                f"one lost heartbeat of {beat.period:g} s reaches the timeout of {rule.timeout:g} s", target, *shown
            )
        else:
            yield passed(f"{sum_text} is below the timeout of {rule.timeout:g} s", target, *shown)


_PORT = "give the router --lmcache-controller-heartbeat-port 9002 and let workers reach it"


def _needs_port(snapshot: Snapshot, router: Member, worker: Member) -> bool:
    """Heartbeats have a port of their own from 0.3.12 on; before they came with everything else."""
    for version in (snapshot.lmcache_version(router), snapshot.lmcache_version(worker)):
        if version is not None and version >= REGISTERS_BY_REPLY:
            return True
    return False


def heartbeats_lost(snapshot: Snapshot) -> Iterator[Finding]:
    if why := why_not_used(snapshot):
        yield skipped(Reason.NOT_APPLICABLE, why)
        return
    books = Registrations.of(snapshot)
    yield from each_worker(snapshot, lambda of, worker: _lost(of, worker, books))


def _lost(snapshot: Snapshot, worker: Member, books: Registrations) -> Iterator[Finding]:
    target, log = worker.target, worker.log
    lines = [] if log is None else recent(snapshot, log, *_BEATS_FAILED, "lmcache-heartbeat-answered")
    bad = [line for line in lines if line.pattern in _BEATS_FAILED]
    if log is not None and bad:
        row = _in_a_row(snapshot, worker, lines)
        dropped = next((one for one in books.about(snapshot, worker) if one.reaped and not one.alive), None)
        if row and dropped is not None:
            message = f"heartbeats found no answer {times(row)}, and the router dropped {dropped.name}"
            yield failed(message, target, log.evidence(bad[-1]), dropped.evidence)
        elif row >= snapshot.thresholds.heartbeat_failures_fail:
            yield failed(f"the last {row} heartbeats found no answer", target, log.evidence(bad[-1]))
        else:
            yield warned(f"heartbeats found no answer {times(len(bad))}", target, log.evidence(bad[-1]))
        return
    why = why_quiet(worker, snapshot.patterns["lmcache-heartbeat-timeout"], snapshot)
    if log is None or why is not None:
        yield skipped(why or Reason.NO_DATA, "the log cannot show lost heartbeats", target)
        return
    beat = heartbeat(snapshot, worker)
    if beat.period is not None:
        yield passed("no heartbeat was lost", target, beat.evidence)
    elif beat.known:
        yield skipped(Reason.DISABLED, "no heartbeats are sent (KV207)", target, beat.evidence)
    else:
        yield skipped(Reason.NO_DATA, "whether the worker sends heartbeats could not be read", target, beat.evidence)


def _in_a_row(snapshot: Snapshot, worker: Member, lines: Sequence[Match]) -> int:
    """Failures since the last answer, or since a gap that leaves room for an answered heartbeat."""
    gap = (heartbeat(snapshot, worker).period or 0.0) + _RECEIVE_TIMEOUT_S + snapshot.thresholds.clock_tolerance_s
    count, later = 0, None
    for line in reversed(lines):
        at = line.record.at
        if line.pattern not in _BEATS_FAILED or (at is not None and later is not None and later - at > gap):
            break
        count, later = count + 1, at
    return count


def index_filled(snapshot: Snapshot) -> Iterator[Finding]:
    if why := why_not_used(snapshot):
        yield skipped(Reason.NOT_APPLICABLE, why)
        return
    metrics = snapshot.metrics
    keys, registered = metrics.now("controller_keys"), metrics.now("controller_registered_workers")
    gaps, missing = metrics.increase("controller_seq_discontinuity"), metrics.now("controller_full_sync_missing")
    stored, messages = metrics.now("lmcache_stored_tokens"), metrics.now("controller_pull_messages")
    shown = [reading.evidence() for reading in (keys, registered, stored, messages, gaps, missing) if reading]
    if not keys:
        yield skipped(keys.missing or Reason.NO_DATA, "the router exports no size of its index", hint=_NO_GAUGE)
    elif keys.or_zero() > 0 and gaps.or_zero() > 0:
        yield warned(f"the router missed messages of workers {times(int(gaps.or_zero()))}", FLEET, *shown)
    elif keys.or_zero() > 0 and missing.or_zero() > 0:
        yield warned(f"{missing.or_zero():.0f} batches are missing from workers' full reports", FLEET, *shown)
    elif keys.or_zero() > 0:
        yield passed(f"the router knows {keys.or_zero():.0f} chunks", FLEET, *shown)
    elif registered and registered.or_zero() == 0:
        yield skipped(Reason.NO_DATA, "no worker is registered, so the index is empty (KV201)", FLEET, *shown)
    elif (proof := _stored_before(snapshot)) is not None:
        none = ", and no message of theirs has arrived" if messages and messages.or_zero() == 0 else ""
        yield failed(f"workers stored tokens, but the router's index is empty{none}", FLEET, proof, *shown)
    elif stored.or_zero() > 0:
        yield skipped(Reason.NO_DATA, "workers stored for less than a minute; the index is still empty", FLEET, *shown)
    else:
        yield skipped(Reason.NO_TRAFFIC, "no worker is known to have stored anything yet", FLEET, *shown)


_NO_GAUGE = "routers export it from LMCache 0.3.10 on, under /metrics; let it be scraped"


def _stored_before(snapshot: Snapshot) -> Evidence | None:
    """Evidence that something was stored longer ago than the index may take."""
    limit = snapshot.thresholds.index_empty_s
    for worker in snapshot.workers:
        if worker.log is None:
            continue
        for match in worker.log.all("lmcache-stored"):
            old = match.record.at is not None and match.record.at <= snapshot.now - limit
            if old and (number(match["tokens"]) or 0) > 0:
                return worker.log.evidence(match)
    for one in snapshot.metrics.find("lmcache_stored_tokens"):
        if one.increase is not None and one.value > max(0.0, one.increase):
            shown = (
                f"{one.spelled or one.name} = {one.value:.0f}, {one.increase:.0f} of them in {snapshot.metrics.window}"
            )
            return Evidence("metric", one.member, shown)
    return None


def discovered_and_registered(snapshot: Snapshot) -> Iterator[Finding]:
    if why := why_not_used(snapshot):
        yield skipped(Reason.NOT_APPLICABLE, why)
        return
    seen, books = _discovered(snapshot), Registrations.of(snapshot)
    if not seen:
        yield _by_number(snapshot)
        return
    yield from each_worker(snapshot, lambda of, worker: _left_out(of, worker, seen, books))


def _by_number(snapshot: Snapshot) -> Finding:
    """`/engines` names engines by ids of its own: only their number can be compared."""
    told = [(one, engines) for one in snapshot.routers if isinstance(engines := one.answers.get("/engines"), list)]
    if not told:
        return skipped(Reason.NO_DATA, "the router does not tell which engines it found")
    router, engines = told[0]
    ready = len(snapshot.ready_workers)
    message = f"the router found {len(engines)} engines, and {ready} workers are ready"
    judge = warned if len(engines) != ready else passed
    return judge(message, router.target, Evidence("http", router.key, f"/engines lists {len(engines)}"))


def _left_out(
    snapshot: Snapshot, worker: Member, seen: Mapping[str, Evidence], books: Registrations
) -> Iterator[Finding]:
    if not worker.ips:
        yield skipped(Reason.NO_DATA, "the worker's address is not known beyond this machine", worker.target)
        return
    registered = books.about(snapshot, worker)
    live = [one for one in registered if one.alive]
    found = next((seen[ip] for ip in worker.ips if ip in seen), None)
    shown = [*([found] if found else []), *(one.evidence for one in live[-1:])]
    if found and live:
        yield passed("the router found the engine, and it is registered", worker.target, *shown)
    elif live:
        yield warned("it is registered, but the router does not find the engine", worker.target, *shown)
    elif not found:
        yield skipped(Reason.NO_DATA, "neither found nor registered, as far as was read", worker.target)
    elif registered or books.unknown is None:
        yield warned("the router found the engine, but it is not registered", worker.target, *shown)
    else:
        yield skipped(books.unknown, "whether it is registered could not be read", worker.target, *shown)


def _discovered(snapshot: Snapshot) -> dict[str, Evidence]:
    """Addresses of the engines that routers route to, by their gauge and their log."""
    found: dict[str, Evidence] = {}
    for log in (router.log for router in snapshot.routers if router.log is not None):
        for match in log.all("router-discovered"):
            found[_host(match["ip"])] = log.evidence(match)
    for one in snapshot.metrics.find("router_healthy_pods"):
        if one.value > 0 and (host := _host(one.labels.get("server", ""))):
            found[host] = Evidence("metric", one.member, f"{one.spelled}{{server={host}}} = {one.value:g}"[:240])
    return found


def _host(url: str) -> str:
    """`10.0.0.1` of `http://10.0.0.1:8000`, `10.0.0.1:8000` or itself."""
    rest = url.partition("://")[2] or url
    return rest.partition("/")[0].rpartition(":")[0] or rest.partition("/")[0]


CHECKS: tuple[Check, ...] = (
    Check(
        id="KV207",
        title="Heartbeats are quicker than the router's timeout",
        group=Group.REGISTRATION,
        worst=Status.FAIL,
        reads="worker environment and logs, router arguments and logs",
        rule=(
            "From LMCache 0.3.10 on the router drops a worker that it has not heard for the timeout (30 s), and by "
            "default no heartbeat is sent. Fails without heartbeats, without a port for them (0.3.12 and later), or "
            "when the period reaches the timeout; warns when delay + period + the router's interval does, or the "
            "period reaches half of it."
        ),
        hint="set LMCACHE_LMCACHE_WORKER_HEARTBEAT_TIME=10 on workers and --lmcache-worker-timeout 30 on the router",
        run=heartbeat_times,
        stacks=CONTROLLER_STACKS,
        caused_by=("KV152",),
    ),
    Check(
        id="KV208",
        title="No heartbeat is lost",
        group=Group.REGISTRATION,
        worst=Status.FAIL,
        reads="worker logs",
        rule=(
            "Warns on a heartbeat without an answer in the window. Fails on three or more in a row, up to the last, or "
            "on fewer where the router has dropped the worker."
        ),
        hint="see whether the router's address changed, or a NetworkPolicy keeps workers from its "
        "heartbeat port (9002)",
        run=heartbeats_lost,
        stacks=CONTROLLER_STACKS,
        caused_by=("KV152", "KV161"),
    ),
    Check(
        id="KV209",
        title="Router's index fills",
        group=Group.REGISTRATION,
        worst=Status.FAIL,
        reads="router gauges lmcache:cache_controller_*, lmcache:num_stored_tokens, worker logs",
        rule=(
            "Fails when workers are registered and stored tokens more than a minute ago, and the index is empty. Warns "
            "when the router missed messages, or a full report lacks batches."
        ),
        hint="see KV110, then KV204 and KV401: workers tell the router of their CPU buffer and disk only",
        run=index_filled,
        stacks=CONTROLLER_STACKS,
        caused_by=("KV152", "KV110", "KV204"),
    ),
    Check(
        id="KV210",
        title="Engines that are found are registered, and the reverse",
        group=Group.REGISTRATION,
        worst=Status.WARN,
        reads="router logs, gauge vllm:healthy_pods_total, else the number of engines in /engines",
        rule="Warns for each worker that the router routes to but that is not registered, or the reverse; where only "
        "/engines tells, if it lists another number of engines than there are ready workers.",
        hint="compare the router's --k8s-label-selector and namespace with the workers' labels",
        run=discovered_and_registered,
        stacks=CONTROLLER_STACKS,
        caused_by=("KV152", "KV202", "KV203", "KV302"),
    ),
)
