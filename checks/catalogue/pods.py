"""KV004: are the pods well: do their containers start and stay. Pure; costs a look at each pod's state and events."""

from __future__ import annotations

from collections.abc import Iterator

from checks.evidence import at, pod, shown
from checks.lmcache import is_young, number, ranks, why_not_in_process
from checks.model import Check, Evidence, Finding, Group, Reason, Status, failed, passed, skipped, warned
from checks.snapshot import Member, Role, Snapshot

_BAD_WAITS = frozenset(
    {
        "CrashLoopBackOff",
        "ImagePullBackOff",
        "ErrImagePull",
        "InvalidImageName",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    }
)
_GIB = 1 << 30


def pod_health(snapshot: Snapshot) -> Iterator[Finding]:
    pods = [member for member in snapshot.members if member.kind == "Pod"]
    if not pods:
        yield skipped(Reason.NOT_APPLICABLE, "no pods: how processes started and ended is not known")
    for member in pods:
        yield _health(snapshot, member)


def _health(snapshot: Snapshot, member: Member) -> Finding:
    limits, container, exit_ = snapshot.thresholds, member.container, member.container.last_exit
    evidence = (pod(member, state_of(member)), *_events(snapshot, member), *_last_words(member))
    waiting = container.state.partition(":")[2] if container.state.startswith("waiting:") else ""
    recent = exit_ is not None and snapshot.now - exit_.at <= limits.recent_crash_s
    if recent and exit_ is not None and exit_.reason == "OOMKilled":
        hint = _memory_hint(snapshot, member)
        return failed("it ran out of memory within the last hour", member.target, *evidence, hint=hint)
    if waiting in _BAD_WAITS:
        return failed(f"its container does not start: {waiting}", member.target, *evidence)
    if member.phase == "Failed":
        return failed(f"the pod has failed: {member.why or 'no reason given'}", member.target, *evidence)
    if recent and exit_ is not None and exit_.exit_code != 0:
        if (lack := _out_of_memory(member)) is not None:
            message = "it ran out of memory within the last hour, by its own words"
            return failed(message, member.target, lack, *evidence, hint=_memory_hint(snapshot, member))
        return warned("its container ended with an error within the last hour", member.target, *evidence)
    often = container.restarts >= limits.restarts_warn
    if often and exit_ is not None and snapshot.now - exit_.at <= limits.restarts_window_s:
        return warned("it restarts again and again", member.target, *evidence)
    if not member.ready:
        return warned("it is not ready", member.target, *evidence)
    if is_young(snapshot, member):
        young = f"it started less than {limits.young_pod_s:g} s ago"
        return warned(f"{young}: registration and metrics may not be there yet", member.target)
    return passed("ready, and no crash within the last hour", member.target)


def state_of(member: Member) -> str:
    """Phase, container, restarts and last end of a pod, in words."""
    container, exit_ = member.container, member.container.last_exit
    words = [f"phase {member.phase}", f"container {container.state}", f"{container.restarts} restarts"]
    if exit_ is not None:
        words.append(f"last ended by {exit_.reason or 'unknown'} with code {exit_.exit_code}")
    return ", ".join(words)


def _events(snapshot: Snapshot, member: Member) -> tuple[Evidence, ...]:
    found = [
        one
        for one in snapshot.resources.all("events")
        if at(one, "involvedObject.name") == member.name
        and at(one, "involvedObject.namespace", member.namespace) == member.namespace
        and one.get("type") == "Warning"
    ]
    return tuple(pod(member, f"event {one.get('reason', '')}: {one.get('message', '')}") for one in found[-2:])


def _out_of_memory(member: Member) -> Evidence | None:
    """The line of the container's previous instance that says so: the GPU's memory too, of which no limit tells."""
    line = None if member.previous is None else member.previous.last("out-of-memory")
    return None if member.previous is None or line is None else member.previous.evidence(line)


def _last_words(member: Member) -> tuple[Evidence, ...]:
    """The last record of the container's previous instance."""
    if member.previous is None or not member.previous.records:
        return ()
    record = member.previous.records[-1]
    last_line = record.message.rsplit("\n", 1)[-1]
    return (Evidence("log", member.previous.where, shown(last_line), record.time),)


def _memory_hint(snapshot: Snapshot, member: Member) -> str:
    if member.role is not Role.WORKER or why_not_in_process(snapshot, member):
        return ""
    size = number(snapshot.lmcache_config(member).get("max_local_cpu_size")) or 5.0
    total, limit = size * ranks(member), member.container.memory_limit
    having = f" of a limit of {limit / _GIB:.0f} GiB" if limit else ""
    return f"LMCache's CPU buffers alone take {total:g} GB{having}: lower LMCACHE_MAX_LOCAL_CPU_SIZE or raise the limit"


CHECKS: tuple[Check, ...] = (
    Check(
        id="KV004",
        title="Pods are well",
        group=Group.ACCESS,
        worst=Status.FAIL,
        reads="pod phase, readiness, restarts, how the last instance ended, events, the previous log's last line",
        rule="Fails for a container that does not start (CrashLoopBackOff and the like), a failed pod (evicted, for "
        "example), or an end for want of memory within the last hour (an OOM kill, or by the previous log). Warns for "
        "another crash within the hour, three restarts within a day, a pod that is not ready, and one younger than "
        "120 s: LMCache's heartbeat and first counters come after 10 s.",
        hint="read `kubectl logs --previous` and `kubectl describe pod`; LMCache's CPU buffer counts into the "
        "pod's memory limit, its disk cache into ephemeral storage",
        run=pod_health,
    ),
)
