"""KV310-KV312: does LMCache's second tier answer: a remote store, or HyperPod's tiered storage.

Pure. Counts of log lines are those of the window; a line without a time counts as inside. Costs a look at the matches
of each worker's log and a few samples of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from checks.lmcache import each_worker, last_line, recent, remote_url, scheme, times, why_quiet
from checks.logs.view import Match
from checks.model import Check, Evidence, Finding, Group, Reason, Stack, Status, failed, passed, skipped, warned
from checks.serving import chunk_tokens
from checks.snapshot import Member, Snapshot

_REMOTE_FAILURES = (
    "lmcache-remote-failed",
    "lmcache-remote-none",
    "lmcache-remote-reconnect-failed",
    "lmcache-remote-not-retried",
    "lmcache-get-blocking-error",
    "lmcache-put-failed",
    "lmcache-ping-failed",
    "lmcache-health-check-failed",
)
_USED = ("lmcache-request", "lmcache-stored", "lmcache-retrieved")
_HYPERPOD_GONE = ("hyperpod-shm-missing", "hyperpod-shm-failed")
_HYPERPOD_UP = ("hyperpod-shm-opened", "hyperpod-connector")
_NO_TIER = "no second tier is configured"


def connected_line(snapshot: Snapshot) -> Iterator[Finding]:
    return each_worker(snapshot, _connected_line)


def _connected_line(snapshot: Snapshot, worker: Member) -> Iterator[Finding]:
    target, log = worker.target, worker.log
    line = None if log is None else log.last("lmcache-remote-connected")
    if log is None or line is None:
        yield skipped(Reason.NOT_APPLICABLE, "the line was not seen; nothing rests on it", target)
        return
    shown = log.evidence(line)
    failures, proof = _remote_failures(snapshot, worker), _remote_proof(snapshot, worker)
    if failures:
        yield warned(
            f"the log says `Connected to remote storage`, yet {times(len(failures))} the second tier failed (KV311)",
            target,
            shown,
            log.evidence(failures[-1]),
        )
    elif proof:
        yield passed("the line proves nothing by itself, but the second tier is really used", target, shown, *proof)
    else:
        yield skipped(
            Reason.NO_DATA,
            "the line is printed whether or not the connection stands; nothing else shows it",
            target,
            shown,
        )


def second_tier(snapshot: Snapshot) -> Iterator[Finding]:
    return each_worker(snapshot, _second_tier)


def _second_tier(snapshot: Snapshot, worker: Member) -> Iterator[Finding]:
    target, limit = worker.target, snapshot.thresholds.l2_failures_fail
    if remote_url(snapshot, worker) is None:
        yield skipped(Reason.NOT_APPLICABLE, _NO_TIER, target)
        return
    code = snapshot.metrics.now("lmcache_remote_ping_error_code", worker.key, how="min")
    errors = snapshot.metrics.increase("lmcache_remote_ping_errors", worker.key)
    lines, proof = _remote_failures(snapshot, worker), _remote_proof(snapshot, worker)
    shown = last_line(worker, lines) + [reading.evidence() for reading in (code, errors) if reading]
    failures = max(len(lines), int(errors.or_zero()))
    what = f": {_said(lines[-1])}" if lines else ""
    if code and code.or_zero() != 0:
        yield failed(f"the second tier does not answer ({_ping(code.or_zero())}){what}", target, *shown)
    elif failures >= limit and code:
        yield warned(f"the second tier failed {times(failures)} but answers now{what}", target, *shown)
    elif failures >= limit:
        yield failed(f"the second tier failed {times(failures)}{what}", target, *shown)
    elif failures:
        yield warned(f"the second tier failed {times(failures)}{what}", target, *shown)
    elif (idle := _never_written(snapshot, worker)) is not None:
        yield idle
    elif proof:
        yield passed("the second tier answers", target, *proof)
    else:
        yield _untroubled(snapshot, worker)


def _never_written(snapshot: Snapshot, worker: Member) -> Finding | None:
    """Tokens were stored in all, and not a byte of them went to the second tier, since LMCache started."""
    stored = snapshot.metrics.now("lmcache_stored_tokens", worker.key)
    written, read = (snapshot.metrics.now(f"lmcache_remote_{way}_bytes", worker.key) for way in ("write", "read"))
    enough = snapshot.thresholds.store_chunks_sure * chunk_tokens(snapshot.lmcache_config(worker))
    if not written or written.or_zero() > 0 or read.or_zero() > 0 or stored.or_zero() < enough:
        return None
    message = f"LMCache stored {stored.or_zero():.0f} tokens, and nothing was ever written to the second tier"
    hint = "look for the line of the connector at LMCache's start, and compare remote_url with where you look"
    return warned(message, worker.target, stored.evidence(), written.evidence(), hint=hint)


def _untroubled(snapshot: Snapshot, worker: Member) -> Finding:
    """No failure and no measurement: requests that asked the second tier without a complaint show that it answers."""
    why = why_quiet(worker, snapshot.patterns["lmcache-remote-failed"], snapshot)
    if why is not None or worker.log is None:
        return skipped(why or Reason.NO_DATA, "neither metrics nor the log can show the second tier", worker.target)
    used = recent(snapshot, worker.log, *_USED)
    if not used:
        return skipped(
            Reason.NO_TRAFFIC, "nothing was looked up or stored, so nothing shows the second tier", worker.target
        )
    last = worker.log.evidence(used[-1])
    return passed(
        f"{len(used)} look-ups, loads and stores without a complaint about the second tier", worker.target, last
    )


def tiered_storage(snapshot: Snapshot) -> Iterator[Finding]:
    return each_worker(snapshot, _tiered_storage)


def _tiered_storage(snapshot: Snapshot, worker: Member) -> Iterator[Finding]:
    log, target = worker.log, worker.target
    url = remote_url(snapshot, worker)
    seen = log is not None and log.has(*_HYPERPOD_GONE, *_HYPERPOD_UP, "hyperpod-http-failed")
    if not seen and (url is None or (url and scheme(url) != "sagemaker-hyperpod")):
        yield skipped(Reason.NOT_APPLICABLE, "HyperPod's tiered storage is not configured", target)
        return
    if log is None:
        yield skipped(worker.log_missing or Reason.NO_DATA, "the worker's log was not read", target)
        return
    limit = snapshot.thresholds.l2_failures_fail
    state = log.last(*_HYPERPOD_GONE, *_HYPERPOD_UP)
    calls = recent(snapshot, log, "hyperpod-http-failed")
    if state is not None and state.pattern in _HYPERPOD_GONE:
        segment = f" (segment {state['segment']})" if state["segment"] else ""
        yield failed(f"the tiered-storage daemon's shared memory cannot be used{segment}", target, log.evidence(state))
    elif len(calls) >= limit:
        yield failed(f"calls of the tiered-storage daemon failed {times(len(calls))}", target, log.evidence(calls[-1]))
    elif calls:
        yield warned(f"calls of the tiered-storage daemon failed {times(len(calls))}", target, log.evidence(calls[-1]))
    elif state is not None:
        yield passed("the tiered-storage daemon is there", target, log.evidence(state))
    else:
        version = snapshot.lmcache_version(worker)
        why = worker.why_absence_proves_nothing(snapshot.patterns["hyperpod-connector"], version)
        yield skipped(why or Reason.NO_DATA, "the log says nothing of the tiered-storage daemon", target)


def _remote_failures(snapshot: Snapshot, worker: Member) -> list[Match]:
    """Complaints about the second tier in the window, one for each record."""
    if worker.log is None:
        return []
    found = [
        match
        for match in recent(snapshot, worker.log, *_REMOTE_FAILURES)
        if match.pattern != "lmcache-health-check-failed" or "RemoteBackend" in match["check"]
    ]
    return list({id(match.record): match for match in found}.values())


def _remote_proof(snapshot: Snapshot, worker: Member) -> list[Evidence]:
    """Measurements that only a second tier that answers can give."""
    metrics, key = snapshot.metrics, worker.key
    names = ("lmcache_remote_read_bytes", "lmcache_remote_write_bytes", "lmcache_remote_ping_successes")
    readings = [metrics.grown((name,), key)[0] for name in names]
    return [reading.evidence() for reading in readings if reading.or_zero() > 0]


def _said(match: Match) -> str:
    """The reason of a failure, else what failed, short."""
    return (match.fields.get("reason") or match.record.message).split("\n", 1)[0].strip()[:120]


def _ping(code: float) -> str:
    return {-1.0: "the ping timed out", -2.0: "the ping failed"}.get(code, f"ping code {code:.0f}")


CHECKS: tuple[Check, ...] = (
    Check(
        id="KV310",
        title="`Connected to remote storage` is not taken for proof",
        group=Group.LMCACHE,
        worst=Status.WARN,
        reads="worker logs; LMCache's remote bytes and pings",
        rule=(
            "LMCache prints the line after a failed connection too, and Redis clients connect at the first use. Passes "
            "only where bytes moved or pings succeeded as well; warns where the line stands beside failures; skips "
            "where it stands alone."
        ),
        hint="see KV311 for the failures; send requests and look again where nothing was moved",
        run=connected_line,
        caused_by=("KV311",),
    ),
    Check(
        id="KV311",
        title="Second tier answers",
        group=Group.LMCACHE,
        worst=Status.FAIL,
        reads="worker logs; lmcache:remote_ping_* and remote bytes",
        rule=(
            "Fails when the last ping failed, or on three or more failures in the window; warns on one or two, when "
            "it answers again, or when 20 chunks were stored and nothing was ever written there "
            "(LMCache#445). Passes when bytes moved, pings succeeded, or look-ups went without a complaint."
        ),
        hint="check LMCACHE_REMOTE_URL, DNS, password, TLS (LMCache#929) and the cache server's memory",
        run=second_tier,
        caused_by=("KV113", "KV114"),
    ),
    Check(
        id="KV312",
        title="HyperPod's tiered-storage daemon is there",
        group=Group.LMCACHE,
        worst=Status.FAIL,
        reads="worker logs",
        rule=(
            "Fails when the last word is that its shared memory is missing, or on three or more failed calls in the "
            "window; warns on fewer. Passes when the shared memory was opened or the connector started, and nothing "
            "came after."
        ),
        hint=(
            "enable Tiered Storage on the cluster (nodes have /dev/shm/ai_toolkit_cache then), or mend the L2 backend "
            "where the resource asks for redis (sagemaker-hyperpod-cli#431)"
        ),
        run=tiered_storage,
        stacks=frozenset({Stack.HYPERPOD, Stack.UNKNOWN}),
        caused_by=("KV114",),
    ),
)
