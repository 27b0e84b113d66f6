"""KV301-KV305: did LMCache start inside each engine, is it healthy, did it take the engine with it.

The line that names LMCache's version is printed even when its start failed, so a failure line always wins. Pure; costs
a look at the matches of each worker's log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from checks.compatibility import Version
from checks.lmcache import each_worker, engines, is_young, ranks, uses_server
from checks.logs.causes import cause_of, reason_of, summary_of
from checks.logs.tracebacks import last_traceback
from checks.logs.view import EVIDENCE_CHARACTERS, LogView, Match, Record
from checks.model import Check, Evidence, Finding, Group, Reason, Status, failed, passed, skipped, warned
from checks.snapshot import Member, Snapshot

_FAILED = ("lmcache-manager-failed", "lmcache-post-init-failed", "lmcache-engine-failed")
INIT_FAILURES = (*_FAILED, "lmcache-post-init-skipped", "lmcache-degraded-mode")
"""Lines by which LMCache says that it did not start."""
_DIED = ("vllm-engine-dead", "vllm-lmcache-assert")
_NEAR_RECORDS = 50
_MANAGER = Version.parse("0.3.14")
"""The first version that survives a failed start."""
_SURVIVES_LOAD = Version.parse("0.5.1")
"""The first version whose engine serves on without LMCache on every path."""


def initialised(snapshot: Snapshot) -> Iterator[Finding]:
    return each_worker(snapshot, _initialised)


def _initialised(snapshot: Snapshot, worker: Member) -> Iterator[Finding]:
    log, target = worker.log, worker.target
    pattern = snapshot.patterns["lmcache-initialized"]
    absence = worker.why_absence_proves_nothing(pattern, snapshot.lmcache_version(worker))
    if log is None:
        yield skipped(absence or Reason.NO_DATA, "the worker's log was not read", target)
        return
    if (failure := log.first(*INIT_FAILURES)) is not None:
        yield failed(
            "LMCache's start failed (KV302); the line `LMCache initialized for role` is printed all the same",
            target,
            log.evidence(failure),
        )
        return
    lines = log.all("lmcache-initialized")
    of_workers = sum("SCHEDULER" not in line["role"].upper() for line in lines)
    of_schedulers = len(lines) - of_workers
    expected = ranks(worker) * engines(worker)
    monitors = log.count("lmcache-health-monitor-started")
    best = log.last("lmcache-health-monitor-started", "aws-manager-initialized", "lmcache-initialized")
    shown = () if best is None else (log.evidence(best),)
    count = f"{max(of_workers, min(monitors, expected))} of {expected} ranks"
    if log.has("aws-manager-initialized"):
        yield passed("LMCache's manager started", target, *shown)
    elif monitors >= expected or (of_workers >= expected and (of_schedulers or monitors)):
        version = snapshot.lmcache_version(worker)
        yield passed(f"LMCache{f' {version}' if version else ''} started on {count}", target, *shown)
    elif absence is not None:
        yield skipped(absence, f"the lines seen show {count}; {_CANNOT_SHOW}", target, *shown)
    elif is_young(snapshot, worker):
        yield skipped(Reason.NO_DATA, f"the engine is still starting; {count} have LMCache so far", target, *shown)
    elif of_workers >= expected:
        yield warned("LMCache started on every rank, but the scheduler's line is missing", target, *shown)
    elif best is not None:
        yield failed(f"LMCache started on {count}; the others never said so", target, *shown)
    else:
        attempt = log.last("lmcache-creating-engine", "lmcache-registering-kv-caches", "lmcache-post-init")
        tried = "tried to start but never finished" if attempt is not None else "never started, though it is configured"
        yield failed(f"LMCache {tried}", target, *(() if attempt is None else (log.evidence(attempt),)))


_CANNOT_SHOW = "the rest of the log cannot show the others"


def failed_to_start(snapshot: Snapshot) -> Iterator[Finding]:
    return each_worker(snapshot, _failed_to_start)


def _failed_to_start(snapshot: Snapshot, worker: Member) -> Iterator[Finding]:
    log, target = worker.log, worker.target
    version = snapshot.lmcache_version(worker)
    if log is not None and log.has(*INIT_FAILURES):
        reason = _reason(log)
        message = f"LMCache failed to start: {_told(reason)}; every prompt is computed anew"
        yield failed(message, target, *_failure_evidence(log), hint=_hint(reason, version))
        return
    if worker.previous is not None and worker.previous.has(*INIT_FAILURES):
        reason = _reason(worker.previous)
        message = f"LMCache failed to start in the container's last instance: {_told(reason)}"
        yield warned(message, target, *_failure_evidence(worker.previous), hint=_hint(reason, version))
        return
    if log is not None and (started := log.last("lmcache-health-monitor-started")) is not None:
        yield passed("LMCache started and said nothing of a failure", target, log.evidence(started))
        return
    why = worker.why_absence_proves_nothing(snapshot.patterns["lmcache-manager-failed"], version)
    if why is None:
        yield passed("the log is complete and says nothing of a failed start", target)
    elif why is Reason.NOT_APPLICABLE:
        yield skipped(
            why, f"LMCache {version} does not survive a failed start, so it cannot tell of one (KV304)", target
        )
    else:
        yield skipped(why, "a failure would not have to stand in what was read of the log", target)


def _told(reason: str | None) -> str:
    return "the reason is not in what was read" if reason is None else summary_of(reason) or "it gave no reason"


def _reason(log: LogView) -> str | None:
    """The first reason that says something; '' where all records give none, None where no such record was read."""
    reasons = [reason_of(match.record.message) for match in log.all(*_FAILED)]
    return next((reason for reason in reasons if reason), "" if reasons else None)


def _failure_evidence(log: LogView) -> list[Evidence]:
    """The line of the first failure that tells the reason, and the record's first line."""
    shown: list[Evidence] = []
    for match in log.all(*_FAILED)[:1] or log.all(*INIT_FAILURES)[:1]:
        summary = summary_of(reason_of(match.record.message))
        if "\n" in match.record.message and summary:
            shown.append(Evidence("log", log.where, summary[:EVIDENCE_CHARACTERS], match.record.time))
        shown.append(log.evidence(match))
    return shown


def _hint(reason: str | None, version: Version | None) -> str:
    cause = None if reason is None else cause_of(reason, version)
    hint = cause.hint if cause is not None else "read the traceback in the worker's log"
    if version is not None and version.exact and version < _SURVIVES_LOAD:
        hint += f"; with LMCache {version} such pods may crash under load (LMCache#2854)"
    return hint


def healthy(snapshot: Snapshot) -> Iterator[Finding]:
    served = [worker for worker in snapshot.workers if uses_server(worker)]
    for worker in served:
        yield _server_healthy(snapshot, worker)
    if len(served) < len(snapshot.workers) or not served:
        others = tuple(member for member in snapshot.members if member not in served)
        yield from each_worker(replace(snapshot, members=others), _healthy)


def _server_healthy(snapshot: Snapshot, worker: Member) -> Finding:
    """LMCache's server as its client in the engine sees it, by the last of its lines."""
    log, target = worker.log, worker.target
    last = None if log is None else log.last("lmcache-mp-unhealthy", "lmcache-mp-recovered")
    if log is None or last is None:
        version = snapshot.lmcache_version(worker)
        why = worker.why_absence_proves_nothing(snapshot.patterns["lmcache-mp-unhealthy"], version)
        if why is None:
            return passed("the log is complete and never calls LMCache's server unhealthy", target)
        return skipped(why, "the log cannot show the health of LMCache's server", target)
    if last.pattern == "lmcache-mp-unhealthy":
        message = "LMCache's server does not answer: every prompt is computed anew"
        return failed(message, target, log.evidence(last), hint=_SERVER_HINT)
    if _in_window(snapshot, last):
        message = "LMCache's server did not answer for a time and does again"
        return warned(message, target, log.evidence(last), hint=_SERVER_HINT)
    return passed("LMCache's server answers again", target, log.evidence(last))


_SERVER_HINT = "see whether LMCache's server runs, has memory, and is reached from the engine (KV941)"


def _healthy(snapshot: Snapshot, worker: Member) -> Iterator[Finding]:
    log, target = worker.log, worker.target
    gauge = snapshot.metrics.now("lmcache_is_healthy", worker.key, how="min")
    measured = [gauge.evidence()] if gauge else []
    last = None if log is None else log.last("lmcache-unhealthy", "lmcache-recovered", "lmcache-skipping")
    shown = [log.evidence(last), *measured] if log is not None and last is not None else measured
    if gauge and gauge.or_zero() <= 0:
        yield failed("LMCache calls itself unhealthy: it neither stores nor loads", target, *shown)
    elif last is not None and last.pattern != "lmcache-recovered":
        if gauge:
            yield warned("the log ends with an unhealthy LMCache, the gauge says that it is healthy", target, *shown)
        else:
            yield failed("LMCache became unhealthy and did not recover", target, *shown)
    elif last is not None and _in_window(snapshot, last):
        yield warned("LMCache was unhealthy for a time and recovered", target, *shown)
    elif last is not None or gauge:
        yield passed("LMCache calls itself healthy", target, *shown)
    elif log is not None and log.has(*INIT_FAILURES):
        yield skipped(Reason.NOT_APPLICABLE, "LMCache did not start (KV302), so nothing watches it", target)
    else:
        version = snapshot.lmcache_version(worker)
        why = worker.why_absence_proves_nothing(snapshot.patterns["lmcache-unhealthy"], version)
        if why is None:
            yield passed("the log is complete and never calls LMCache unhealthy", target)
        else:
            yield skipped(why, "neither the gauge nor the log can show LMCache's health", target)


def _in_window(snapshot: Snapshot, match: Match) -> bool:
    return match.record.at is None or match.record.at >= snapshot.now - snapshot.window_s


def old_start(snapshot: Snapshot) -> Iterator[Finding]:
    return each_worker(snapshot, _old_start)


def _old_start(snapshot: Snapshot, worker: Member) -> Iterator[Finding]:
    target, version = worker.target, snapshot.lmcache_version(worker)
    if version is not None and version >= _MANAGER:
        yield skipped(Reason.NOT_APPLICABLE, f"LMCache {version} says itself when its start failed (KV302)", target)
        return
    if version is None or not version.exact:
        yield skipped(Reason.VERSION_UNKNOWN, "LMCache's version is not known", target)
        return
    for log in (worker.log, worker.previous):
        found = None if log is None else last_traceback(log)
        if log is not None and found is not None and "/lmcache/" in found[1].replace("\\", "/"):
            reason = summary_of(found[1])
            cause = cause_of(found[1], version)
            yield failed(
                f"LMCache {version} ended the engine: {reason}",
                target,
                _quoted(log, found[0], reason),
                hint=cause.hint if cause is not None else "",
            )
            return
    if worker.log is None or (worker.container.restarts > 0 and worker.previous is None):
        yield skipped(worker.log_missing or Reason.NO_DATA, "the log of the instance that ended was not read", target)
    elif not worker.log.head_complete:
        yield skipped(Reason.LOG_TRUNCATED, "the start of the log is gone", target)
    else:
        yield passed(f"no traceback of LMCache {version}", target)


def engine_died(snapshot: Snapshot) -> Iterator[Finding]:
    return each_worker(snapshot, _engine_died)


def _engine_died(snapshot: Snapshot, worker: Member) -> Iterator[Finding]:
    target = worker.target
    logs = [log for log in (worker.previous, worker.log) if log is not None]
    for log in logs:
        if (record := _death(log)) is not None:
            text = record.message.split("\n", 1)[0]
            yield failed("the engine died because LMCache had not started", target, _quoted(log, record, text))
            return
    for log in logs:
        if log.has(*INIT_FAILURES) and (dead := log.last("vllm-engine-dead")) is not None:
            yield warned("the engine died some time after LMCache failed to start", target, log.evidence(dead))
            return
    if worker.container.restarts > 0 and worker.previous is None:
        yield skipped(Reason.NO_DATA, "the log of the instance that ended was not read", target)
    elif not logs:
        yield skipped(worker.log_missing or Reason.NO_DATA, "the worker's log was not read", target)
    elif worker.container.restarts == 0 and not any(log.has(*_DIED) for log in logs):
        yield passed("the engine runs since its start", target)
    else:
        yield passed("the engine's end shows nothing of LMCache", target)


def _death(log: LogView) -> Record | None:
    """The record of an engine that died of a missing LMCache: asserted so, or soon after a failed start."""
    if (asserted := log.last("vllm-lmcache-assert")) is not None:
        return asserted.record
    failures = {id(match.record) for match in log.all(*INIT_FAILURES)}
    deaths = {id(match.record) for match in log.all("vllm-engine-dead")}
    since: int | None = None
    for at, record in enumerate(log.records):
        if id(record) in failures:
            since = at
        elif since is None or at - since > _NEAR_RECORDS:
            continue
        elif id(record) in deaths or record.message.rstrip().endswith("AssertionError"):
            return record
    return None


def _quoted(log: LogView, record: Record, text: str) -> Evidence:
    return Evidence("log", log.where, text[:EVIDENCE_CHARACTERS], record.time)


CHECKS: tuple[Check, ...] = (
    Check(
        id="KV301",
        title="LMCache started",
        group=Group.LMCACHE,
        worst=Status.FAIL,
        reads="worker logs from their start",
        rule=(
            "Passes when every rank and the scheduler say that LMCache started (health monitor started, AWS's manager "
            "line, or the line with both versions), and KV302 found no failure: the line with the versions is printed "
            "even when the start failed. Fails when ranks are missing in a complete log. Skips where the log's start "
            "is gone or its level hides INFO lines."
        ),
        hint="see KV302 for the reason, KV141 for the connector",
        run=initialised,
        caused_by=("KV302", "KV153", "KV141"),
        required=True,
    ),
    Check(
        id="KV302",
        title="No failure at LMCache's start",
        group=Group.LMCACHE,
        worst=Status.FAIL,
        reads="worker logs, also of the instance before a restart",
        rule=(
            "Fails on `Failed to initialize LMCacheManager components`, `Failed during post_init`, `marked as init "
            "failed`, a skipped post_init or `System will operate in degraded mode`, on one line (0.3.14 to 0.4.2) or "
            "many (0.4.3 and later). Warns when only the container's last instance failed."
        ),
        hint="read the traceback in the worker's log",
        run=failed_to_start,
        caused_by=("KV153", "KV312"),
        required=True,
    ),
    Check(
        id="KV303",
        title="LMCache is healthy at run time",
        group=Group.LMCACHE,
        worst=Status.FAIL,
        reads="worker logs; gauge lmcache:lmcache_is_healthy",
        rule=(
            "Fails when the gauge is 0, or the last word of the health monitor (0.3.13 and later), or of the client of "
            "LMCache's server (0.4.2 and later), is unhealthy. Warns "
            "when it recovered within the window. The gauge has no sample where vLLM runs several processes: that "
            "means nothing."
        ),
        hint="look at the second tier first (KV311)",
        run=healthy,
        caused_by=("KV302", "KV311", "KV312"),
    ),
    Check(
        id="KV304",
        title="Old LMCache did not end the engine",
        group=Group.LMCACHE,
        worst=Status.FAIL,
        reads="the last traceback of worker logs, also of the instance before a restart",
        rule=(
            "Before 0.3.14 LMCache had no degraded mode: an error at its start ends the engine. Fails when the last "
            "traceback has a frame of LMCache."
        ),
        hint="read the traceback; upgrade LMCache",
        run=old_start,
        caused_by=("KV153",),
    ),
    Check(
        id="KV305",
        title="No engine died of a missing LMCache",
        group=Group.LMCACHE,
        worst=Status.FAIL,
        reads="worker logs, also of the instance before a restart",
        rule=(
            f"Fails on `assert self.lmcache_engine is not None`, or when the engine died within {_NEAR_RECORDS} "
            "records of LMCache's failed start; warns when it died later."
        ),
        hint="mend LMCache's start (KV302) or upgrade LMCache to 0.5.1 or later (LMCache#2854, vllm#44249)",
        run=engine_died,
    ),
)
