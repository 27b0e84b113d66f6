"""The active probe: a few requests of its own that show where a router sends one prompt again and again.

Sends at most 24 requests and 50,000 prompt tokens, one at a time, one output token each, with prompts that are random
in their first line. Does not start where requests wait or a KV cache is nearly full, and leaves nothing behind: no
request runs on, no cache is reset. Ctrl-C keeps what was seen so far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from checks.discover.urls import url
from checks.model import Stack
from checks.probe.ask import Asker
from checks.probe.course import LOAD_WORKERS, Course, Stop
from checks.probe.evidence import gathered
from checks.probe.load import Load
from checks.probe.options import Budget, ProbeOptions
from checks.probe.plan import NoPlan, make, model_of
from checks.probe.post import Post, Target
from checks.probe.prompts import SAMPLE_CHARACTERS
from checks.probe.watch import Watch, data_port
from checks.probe_evidence import ProbeEvidence
from checks.snapshot import Member, Snapshot
from checks.sources.deadline import INTERRUPTED

Progress = Callable[[str, int, int], None]


class Refused(Exception):
    """No request is sent; the message says why and what the user can do."""


def probe(
    snapshot: Snapshot,
    options: ProbeOptions,
    ask: Post,
    watch: Watch,
    *,
    run_id: str,
    progress: Progress = lambda stage, done, total: None,
    reach: Callable[[Member], Target | None] = lambda member: Target(member),
) -> ProbeEvidence:
    """Sends the requests and tells what they showed. `refused` of the evidence says why none was sent.

    Args:
        snapshot: what was read before.
        options: what the user allows.
        ask: sends one request.
        watch: fresh readings of the members.
        run_id: part of every request id; prompts are made from it.
        progress: hears of each request.
        reach: how one worker is reached without the router; None if it cannot be.
    """
    try:
        target = _target(snapshot, options, watch, reach)
        load = _guarded(snapshot, options, watch)
        budget = Budget(options.requests, options.tokens)
        model = model_of(snapshot)
        plan = make(snapshot, model, budget, charged=SAMPLE_CHARACTERS // 2)
    except (Refused, NoPlan) as error:
        return ProbeEvidence(refused=str(error))
    except KeyboardInterrupt:
        watch.deadline.stop(INTERRUPTED)
        return ProbeEvidence(refused=f"nothing was sent: {INTERRUPTED}")
    replaying = watch.reader.tape.replaying
    course = Course(
        snapshot=snapshot,
        options=options,
        asker=Asker(run_id, watch.reader.tape, ask, options, budget, model, snapshot.stack, progress),
        watch=watch,
        plan=plan,
        target=target,
        endpoint=options.target,
        load=load,
        sleep=(lambda seconds: None) if replaying else watch.deadline.sleep,
        direct=reach,
    )
    if not load.known:
        course.notes.append("no engine tells its load; the probe was sent without looking at it")
    ended = ""
    try:
        course.run()
    except Stop as stop:
        ended = str(stop)
    except KeyboardInterrupt:
        watch.deadline.stop(INTERRUPTED)
        ended = INTERRUPTED
    return replace(gathered(course), cut_short=ended)


def _target(
    snapshot: Snapshot, options: ProbeOptions, watch: Watch, reach: Callable[[Member], Target | None]
) -> Target:
    """Where requests are sent. Raises Refused."""
    if base := options.target.base:
        return Target(base=base)
    if snapshot.stack is Stack.LLM_D:
        raise Refused("an endpoint picker takes no requests itself: give the gateway's URL with --probe-endpoint")
    if not snapshot.cluster and not watch.request.routers:
        raise Refused("no router to send to: name one with --router or --probe-endpoint")
    routers = [router for router in snapshot.routers if router.url and router.ready]
    if not routers:
        raise Refused("no router answers: nothing can be sent through one; --probe-endpoint names another way in")
    router = min(routers, key=lambda one: one.key)
    if router.kind == "Pod":
        router = replace(router, url=url(router, data_port(snapshot, router)))
    way = reach(router)
    if way is None:
        raise Refused(f"the address of {router.key} is not known; --probe-endpoint names another way in")
    return way


def _guarded(snapshot: Snapshot, options: ProbeOptions, watch: Watch) -> Load:
    """The load before the probe. Raises Refused where there is too much of it."""
    workers = snapshot.ready_workers
    metrics = snapshot.metrics
    if len(workers) <= LOAD_WORKERS:
        pages = watch.pages(workers)
        fresh = watch.between(pages, pages)
        metrics = fresh if fresh.samples else metrics
    load = Load.of(metrics, workers)
    if load.problem and not (options.yes or options.force):
        raise Refused(
            f"nothing was sent: {load.problem}; --yes sends all the same, --probe-force without looking again"
        )
    return load
