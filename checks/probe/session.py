"""A probe of a collected system: connections to it, the probe itself, and what is to be read again afterwards.

Through the API server where the system is a cluster, straight to pods where this runs in one, else by URL. Costs the
probe, then a page of each member (up to 64) and the logs of the members that took part.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import httpx

from checks.discover.processes import with_files
from checks.logs.patterns import Patterns
from checks.probe.ask import begin
from checks.probe.options import ProbeOptions
from checks.probe.post import ClusterPost, DirectPost, Post, Target
from checks.probe.run import Progress, probe
from checks.probe.watch import Readings, Watch
from checks.probe_evidence import ProbeEvidence
from checks.request import CollectRequest
from checks.snapshot import Member, Role, Snapshot
from checks.sources.connection import connect
from checks.sources.deadline import INTERRUPTED, Deadline
from checks.sources.http import Pages
from checks.sources.kubernetes import Cluster
from checks.sources.logs import LogReader
from checks.sources.pace import Pace
from checks.sources.pages import Reader, admin_token
from checks.sources.tape import Tape

TIME_S = 600.0
"""Of a whole probe; --probe-heartbeat included."""
AGAIN_MEMBERS = 64
"""With more members their pages are not read again."""
CALLS_PER_S = 50.0
BURST = 100


def silent(stage: str, done: int, total: int) -> None:
    """No progress."""


def probed(
    snapshot: Snapshot,
    request: CollectRequest,
    tape: Tape,
    options: ProbeOptions | None,
    progress: Progress = silent,
) -> Snapshot:
    """The snapshot with what a probe showed, and with logs and metrics read again after it.

    Without `options` the same snapshot, unless the tape replays a run that had a probe. Raises SourceError where the
    cluster cannot be connected to.
    """
    begun = begin(tape, options)
    if begun is None:
        missing = ProbeEvidence(refused="the recording holds no probe: record one with --record and --probe")
        return snapshot if options is None else snapshot.with_probe(missing)
    if snapshot.cut_short:
        return snapshot.with_probe(ProbeEvidence(refused=f"nothing was sent: {snapshot.cut_short}"))
    run_id, options = begun
    deadline = Deadline(1e9 if tape.replaying else TIME_S)
    with _sources(request, tape, deadline) as sources:
        watch = Watch(snapshot, request, sources.reader, deadline)
        members = snapshot.members if len(snapshot.members) <= AGAIN_MEMBERS else ()
        before = watch.pages(members)
        evidence = probe(snapshot, options, sources.post, watch, run_id=run_id, progress=progress, reach=sources.reach)
        after = snapshot.with_probe(evidence)
        if evidence.steps and deadline.left() > 0:
            progress("reading again", 0, 0)
            try:
                after = _read_again(after, watch, sources, before, members)
            except KeyboardInterrupt:
                deadline.stop(INTERRUPTED)
        now, cut_short = tape.ended(sources.now(), snapshot.cut_short or deadline.why)
    return replace(after, now=now, cut_short=cut_short)


@dataclass(frozen=True, slots=True)
class _Sources:
    """Ways to the system."""

    reader: Reader
    post: Post
    logs: LogReader
    cluster: Cluster | None
    straight: bool
    """Pods are reached by their address."""

    def reach(self, member: Member) -> Target | None:
        if not member.url:
            return None
        return Target(base=member.url) if self.straight and member.kind == "Pod" else Target(member)

    def now(self) -> float:
        return time.time() if self.cluster is None else self.cluster.now()


@contextmanager
def _sources(request: CollectRequest, tape: Tape, deadline: Deadline) -> Iterator[_Sources]:
    limits = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(limits=limits) as client, Pages(concurrency=request.concurrency) as http:
        direct = DirectPost(client)
        if tape.replaying or not request.cluster:
            pages = None if tape.replaying else http
            logs = LogReader(None, tape, request, Patterns.load())
            yield _Sources(Reader(tape, None, pages, admin_token(request)), direct, logs, None, straight=False)
            return
        connection = connect(
            context=request.context,
            kubeconfig=request.kubeconfig,
            in_cluster=request.in_cluster,
            connections=request.concurrency,
        )
        pace = Pace(concurrency=request.concurrency, per_second=CALLS_PER_S, burst=BURST)
        cluster = Cluster(connection, pace, deadline)
        try:
            reader = Reader(tape, cluster, http if connection.in_cluster else None)
            post = ClusterPost(cluster, direct)
            logs = LogReader(cluster, tape, request, Patterns.load())
            yield _Sources(reader, post, logs, cluster, straight=connection.in_cluster)
        finally:
            cluster.close()


def _read_again(
    snapshot: Snapshot, watch: Watch, sources: _Sources, before: Readings, members: tuple[Member, ...]
) -> Snapshot:
    """Answers of the routers, logs of them and of the workers that took part, metrics where they came from pages."""
    evidence = snapshot.probe
    assert evidence is not None
    involved = {step.served_by for step in evidence.steps} | {router.key for router in snapshot.routers}
    processes = [member for member in snapshot.members if member.kind == "Process" and member.url]
    files = with_files(processes, watch.request.log_files).files

    def read(member: Member) -> Member:
        if member.role is Role.ROUTER:
            member = replace(member, answers=watch.answers(member))
        if member.key not in involved or member.log is None:
            return member
        if member.key in files:
            logs = sources.logs.of_file(files[member.key])
        elif member.kind == "Pod":
            logs = sources.logs.of_pod(member)
        else:
            return member
        return member if logs.log is None else replace(member, log=logs.log)

    metrics = snapshot.metrics
    if metrics.source == "scrape" and members:
        fresh = watch.between(before, watch.pages(members))
        if fresh.samples:
            metrics = replace(fresh, targets=metrics.targets)
    return replace(snapshot, members=tuple(map(read, snapshot.members)), metrics=metrics)
