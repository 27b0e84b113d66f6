"""Reads a system into a `Snapshot`: a cluster, processes known by URL and log file, or a recording of either.

Order: permissions, what there is, configuration, metrics, logs, small answers, metrics again. Judges nothing. Costs a
few lists, two pages a member (none where a Prometheus answers), the logs of routers and of a sample of workers, and the
time between the two readings of the metrics. Ends with what is there when the time is over or on Ctrl-C.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from checks.discover import processes, stacks
from checks.discover.members import member_of
from checks.discover.owners import Owners
from checks.discover.programs import Program
from checks.discover.roles import Chosen, Hints, choose
from checks.discover.urls import ADMIN_PORT, admin_port, invocation_ports, ports, url
from checks.logs.patterns import Patterns
from checks.metrics.view import Metrics
from checks.model import Reason
from checks.request import CollectRequest, LogFile, LogPart, RequestError, Scrape
from checks.snapshot import Member, Resources, Role, Snapshot
from checks.sources import prometheus
from checks.sources.connection import Interrupted, SourceError, connect
from checks.sources.deadline import SIGNALS, Deadline
from checks.sources.http import Pages, base_url, is_base_url, without_user
from checks.sources.inventory import Inventory, Lister
from checks.sources.kubernetes import Cluster
from checks.sources.logs import LogReader, Logs
from checks.sources.pace import Pace
from checks.sources.pages import Reader, admin_token, decoded
from checks.sources.phases import Measurement, Reading
from checks.sources.run import Progress, Run
from checks.sources.scrapes import Place
from checks.sources.tape import Answer, Tape

__all__ = ["CollectRequest", "LogFile", "LogPart", "RequestError", "Scrape", "SourceError", "collect"]

CALLS_PER_S = 150.0
BURST = 300
"""Of requests to the API server; its answer to too many is 429, which is honoured."""


def silent(stage: str, done: int, total: int) -> None:
    """No progress."""


def collect(request: CollectRequest, tape: Tape, progress: Progress = silent) -> Snapshot:
    """What the request asks for, as it stands.

    `progress(stage, done, total)` is called in this thread. Ctrl-C and SIGTERM end it early, within a second. Raises
    SourceError where nothing can be reached (Interrupted where that is the user's doing), RequestError for values that
    cannot work; what is missing of the rest stands in `Snapshot.unread`.
    """
    deadline = Deadline(float("inf") if tape.replaying else request.timeout_s)
    run = Run(request, tape, progress, deadline)
    with deadline.signalled():
        try:
            return _of_cluster(run) if request.cluster else _of_processes(run)
        except SourceError:
            if deadline.why in SIGNALS.values():
                raise Interrupted(deadline.why) from None
            raise


def _of_cluster(run: Run) -> Snapshot:
    with _connected(run) as (cluster, http):
        context, namespace = _context(run, cluster)
        lister = Lister(cluster, run)
        found = lister.take(namespace)
        owners = Owners(found.resources.get("replicasets", ()))
        chosen = choose(found.pods, _hints(run.request, found), owners)
        configmaps = lister.configmaps(found, ((one.pod, one.role is Role.ROUTER) for one in chosen))
        members = [member_of(one, configmaps, owners) for one in chosen]
        lister.events(found, ((one.namespace, one.name) for one in members if not one.ready or one.container.restarts))
        found.pods.clear()
        told = invocation_ports(found.resources)
        places = [_place(one, member, told) for one, member in zip(chosen, members, strict=True)]
        inits = {member.key: _init_containers(one) for one, member in zip(chosen, members, strict=True)}
        logs = LogReader(cluster, run.tape, run.request, Patterns.load())
        members, metrics, sampled = _read(
            run,
            Reader(run.tape, cluster, http),
            places,
            _server(run, cluster, found),
            lambda member: logs.of_pod(member, () if member.ready else inits[member.key]),
        )
        now, cut_short = run.tape.ended(time.time() if cluster is None else cluster.now(), run.deadline.why)
        return Snapshot(
            stack=run.request.stack or stacks.of_cluster(chosen, found.resources),
            members=tuple(members),
            now=now,
            namespace=namespace,
            router_namespace=found.router_namespace,
            context=context,
            access=found.access,
            resources=Resources(found.resources, found.groups),
            metrics=metrics,
            unread=tuple(run.unread),
            expectations=run.request.expectations,
            window_s=run.request.window_s,
            sampled=sampled,
            cut_short=cut_short,
        )


def _of_processes(run: Run) -> Snapshot:
    request = run.request
    with Pages(concurrency=request.concurrency, deadline=run.deadline) as http:
        reader = Reader(run.tape, None, None if run.tape.replaying else http, admin_token(request))
        bases = list(dict.fromkeys(_url("--router", one) for one in request.routers))
        given = list(dict.fromkeys(_url("--worker", one) for one in request.workers))
        if both := next((one for one in given if one in bases), None):
            raise RequestError(f"--worker {without_user(both)} is also given as --router: it is one of them")
        routers = processes.distinct(processes.process(Role.ROUTER, base) for base in bases)
        if not routers and request.admin:
            routers = [processes.process(Role.ROUTER, _url("--admin", request.admin))]
        admins = {router.key: base for router in routers if (base := _admin(run, reader, router))}
        told = [row for router in routers if router.key in admins for row in _told(reader, router, admins[router.key])]
        members = processes.distinct([*routers, *processes.workers(given, told)])
        paired = processes.with_files(members, request.log_files)
        places = [Place(member, admin=admins.get(member.key, "")) for member in paired.members]
        logs = LogReader(None, run.tape, request, Patterns.load(), run.deadline)
        members, metrics, sampled = _read(
            run,
            reader,
            places,
            _server(run, None, None),
            lambda member: logs.of_file(paired.files[member.key]) if member.key in paired.files else None,
        )
    members = [_reached(member, metrics) for member in members]
    if members and not any(member.ready for member in members):
        failure = run.unread[0] if run.unread else None
        message = failure.message if failure is not None else f"{members[0].url} did not answer"
        raise SourceError(Reason.UNREACHABLE if failure is None else failure.reason, f"nothing answered: {message}")
    families = {key: page.families for key, page in metrics.pages.items()}
    now, cut_short = run.tape.ended(time.time(), run.deadline.why)
    return Snapshot(
        stack=request.stack or stacks.of_processes(members, families),
        members=tuple(members),
        now=now,
        cluster=False,
        metrics=metrics,
        unread=tuple(run.unread),
        expectations=request.expectations,
        window_s=request.window_s,
        sampled=sampled,
        cut_short=cut_short,
    )


def _read(
    run: Run,
    reader: Reader,
    places: Sequence[Place],
    server: prometheus.Server | None,
    read_log: Callable[[Member], Logs | None],
) -> tuple[list[Member], Metrics, str]:
    """Metrics, logs, answers, metrics again; the members with what was read, and how the logs were sampled."""
    members = [place.member for place in places]
    measurement = Measurement(run, reader, places, partial(_asked, run, server, places))
    reading = Reading(run, reader, places)
    members = reading.logs(measurement.begin(), read_log)
    members = reading.answers(members, measurement.ports)
    metrics = measurement.end()
    if server is not None:
        server.close()
    return members, metrics, reading.sampled


# -- clusters ----------------------------------------------------------------------------------------------------


@contextmanager
def _connected(run: Run) -> Iterator[tuple[Cluster | None, Pages | None]]:
    """The API server, and a way straight to pods where this runs among them; neither in a replay."""
    if run.tape.replaying:
        yield None, None
        return
    request, threads = run.request, run.request.concurrency
    connection = connect(
        context=request.context, kubeconfig=request.kubeconfig, in_cluster=request.in_cluster, connections=threads
    )
    cluster = Cluster(connection, Pace(concurrency=threads, per_second=CALLS_PER_S, burst=BURST), run.deadline)
    try:
        if connection.in_cluster:
            with Pages(concurrency=threads, deadline=run.deadline) as http:
                yield cluster, http
        else:
            yield cluster, None
    finally:
        cluster.close()


def _context(run: Run, cluster: Cluster | None) -> tuple[str, str]:
    """Name of the context, and the namespace to look at ('' for all)."""

    def tell() -> Answer:
        if cluster is None:
            return Answer(error=Reason.NO_DATA, message="no cluster")
        told = {"context": cluster.connection.context, "namespace": cluster.connection.namespace}
        return Answer(200, json.dumps(told))

    told = decoded(run.tape.ask("kubernetes", "context", tell))
    told = told if isinstance(told, dict) else {}
    if run.request.all_namespaces:
        return str(told.get("context") or ""), ""
    return str(told.get("context") or ""), run.request.namespace or str(told.get("namespace") or "") or "default"


def _hints(request: CollectRequest, found: Inventory) -> Hints:
    apart = found.router_namespace if len(found.namespaces) > 1 else ""
    return Hints(
        routers=found.selected_routers,
        workers=found.selected_workers,
        router_selector=bool(request.router_selector),
        worker_selector=bool(request.worker_selector),
        router_container=request.router_container,
        worker_container=request.worker_container,
        router_namespace=apart,
        resources=found.resources,
    )


def _place(chosen: Chosen, member: Member, told: Mapping[tuple[str, str], int]) -> Place:
    """Where the member's pages are; kvctl's metrics are on its admin port."""
    known = ports(member, chosen.program, told.get((member.namespace, member.owner)))
    if known:
        member = replace(member, url=url(member, known[0]))
    if chosen.program is Program.KVCTL:
        return Place(member, (admin_port(member),), admin_port=admin_port(member), data_ports=known)
    return Place(member, known)


def _init_containers(chosen: Chosen) -> tuple[str, ...]:
    return tuple(str(one.get("name")) for one in (chosen.pod.get("spec") or {}).get("initContainers") or ())


# -- processes ---------------------------------------------------------------------------------------------------


def _url(option: str, text: str) -> str:
    try:
        return base_url(text)
    except ValueError as error:
        raise RequestError(f"{option} {error}") from None


def _admin(run: Run, reader: Reader, router: Member) -> str:
    """Base URL of the router's admin port where it is kvctl: as told, else the usual port of the same host."""
    if run.request.admin:
        return _url("--admin", run.request.admin)
    version = decoded(reader.get(router, 0, "/version"))
    if not isinstance(version, dict) or version.get("router") != "kvctl":
        return ""
    scheme, _, rest = router.url.partition("://")
    host = rest.rpartition(":")[0] if rest.rpartition(":")[2].isdecimal() else rest
    return f"{scheme}://{host}:{ADMIN_PORT}"


def _told(reader: Reader, router: Member, admin: str) -> tuple[tuple[str, str], ...]:
    place = Place(router, admin=admin)
    told = processes.told_workers(decoded(reader.base(admin, place.admin_key, "/workers")))
    return tuple((name, url) for name, url in told if is_base_url(url))


def _reached(member: Member, metrics: Metrics) -> Member:
    """Ready where it answered anything, or is known by its log alone."""
    page: Any = metrics.pages.get(member.key)
    answered = bool(member.answers) or (page is not None and page.status > 0)
    return processes.reached(member, answered or not member.url or member.log is not None)


# -- Prometheus --------------------------------------------------------------------------------------------------


def _server(run: Run, cluster: Cluster | None, found: Inventory | None) -> prometheus.Server | None:
    """The Prometheus to ask; None where there is none."""
    named = prometheus.named(run.request, replaying=run.tape.replaying)
    if named is not None or run.request.prometheus == "none" or found is None:
        return named
    service = prometheus.look_for(found.resources.get("services", ()))
    if service is None:
        everywhere = Lister(cluster, run).services_everywhere()
        service = prometheus.look_for(everywhere)
    return None if service is None else prometheus.ServiceProxy(service, cluster)


def _asked(run: Run, server: prometheus.Server | None, places: Sequence[Place]) -> Metrics | None:
    if server is None:
        return None
    from checks.metrics.prometheus import from_prometheus

    run.progress("prometheus", 0, 1)
    budget = min(60.0, run.deadline.left())
    metrics, unread = from_prometheus(
        run.tape,
        prometheus.Bounded(server, run.deadline),
        [place.member for place in places],
        window_s=run.request.window_s,
        addresses=_admin_addresses(places),
        budget_s=budget,
    )
    run.unread += unread
    return metrics


def _admin_addresses(places: Sequence[Place]) -> dict[str, str]:
    """HOST:PORT of kvctl's admin ports, where its metrics are, to the member's key."""
    found = {urlsplit(place.admin).netloc: place.member.key for place in places if place.admin}
    pods = [place for place in places if place.admin_port]
    return found | {urlsplit(url(one.member, one.admin_port)).netloc: one.member.key for one in pods}
