"""KV001-KV003, KV005, KV006: what may be read, whether routers and workers are there, state that dies with a router.

Pure functions of a snapshot; no clock but the snapshot's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from importlib.resources import files

from checks.catalogue.pods import state_of
from checks.controller import REGISTERS_BY_REPLY, reaping
from checks.evidence import at, env, pod, resource, resource_target, shown
from checks.hyperpod import OPERATOR_NAMESPACE, endpoints
from checks.lmcache import number, why_not_in_process
from checks.model import (
    CONTROLLER_STACKS,
    ERRORS,
    FLEET,
    Check,
    Evidence,
    Finding,
    Group,
    Reason,
    Stack,
    Status,
    failed,
    passed,
    skipped,
    warned,
)
from checks.sharing import kvaware
from checks.snapshot import Member, Snapshot


def api_access(snapshot: Snapshot) -> Iterator[Finding]:
    if not snapshot.cluster:
        yield skipped(Reason.NOT_APPLICABLE, "no cluster: routers and workers were named by URL or log file")
        return
    denied = [one for one in snapshot.access if not one.allowed]
    for one in denied:
        if one.required:
            what = f"{one.verb} {one.resource} in {one.namespace or 'all namespaces'}"
            why = f" (needed for {one.needed_for})" if one.needed_for else ""
            yield skipped(Reason.RBAC, f"may not {what}{why}", FLEET, hint=_role_hint(one.namespace))
    known = {one.resource.partition(".")[0] for one in denied}
    for unread in snapshot.unread:
        explained = unread.reason is Reason.RBAC and any(name in unread.what for name in known)
        if unread.reason in ERRORS and not explained and "Prometheus" not in unread.what:
            hint = _role_hint(snapshot.namespace) if unread.reason is Reason.RBAC else ""
            yield skipped(unread.reason, shown(f"{unread.what} could not be read: {unread.message}"), hint=hint)
    if any(one.required for one in denied):
        return
    if not snapshot.access:
        yield skipped(Reason.NO_DATA, "the API server did not say what may be read")
        return
    without = sorted({f"{one.verb} {one.resource}" for one in denied})
    optional = f"; optional and denied: {', '.join(without)}" if without else ""
    yield passed(f"all required permissions are there{optional}")


def _role_hint(namespace: str) -> str:
    where = namespace or "the namespace"
    return f"`kvctl validate --explain KV001` prints the Role; apply it in {where}, and in the router's namespace too"


def routers_found(snapshot: Snapshot) -> Iterator[Finding]:
    if snapshot.routers:
        ready = [router for router in snapshot.routers if router.ready]
        if ready:
            yield passed(f"{len(ready)} of {len(snapshot.routers)} routers are ready")
        else:
            shown_states = tuple(pod(router, state_of(router)) for router in snapshot.routers[:3])
            yield failed("routers were found but none is ready", FLEET, *shown_states)
        return
    if unread := _pods_unread(snapshot):
        yield unread
        return
    wanted = _why_routed(snapshot)
    if wanted is None:
        yield skipped(Reason.NOT_APPLICABLE, "no router was found and nothing asks for routing")
        return
    yield failed("routing is asked for but no router was found", FLEET, wanted)


def _why_routed(snapshot: Snapshot) -> Evidence | None:
    for endpoint in endpoints(snapshot):
        if endpoint.routed:
            return endpoint.shows("spec.intelligentRoutingSpec.enabled")
    for router in snapshot.resources.all("vllmrouters"):
        return resource(router, "metadata.name", kind="VLLMRouter")
    if snapshot.stack in (Stack.PRODUCTION_STACK, Stack.LLM_D, Stack.KVCTL):
        return Evidence("resource", "fleet", f"the stack is {snapshot.stack}, which routes")
    if snapshot.expectations.strategy:
        return Evidence("args", "kvctl", f"--expect-strategy {snapshot.expectations.strategy}")
    return None


def workers_found(snapshot: Snapshot) -> Iterator[Finding]:
    if not snapshot.workers:
        yield _pods_unread(snapshot) or failed("no worker was found")
        return
    for model, workers in snapshot.by_model():
        ready = [worker for worker in workers if worker.ready]
        named = f"model {shown(model)}" if model else "the model"
        counted = f"{len(ready)} of {len(workers)} workers of {named} are ready"
        states = tuple(pod(worker, state_of(worker)) for worker in workers if not worker.ready)[:3]
        if not ready:
            yield failed(counted, FLEET, *states)
        elif len(ready) == 1 and not snapshot.cluster:
            yield skipped(Reason.NO_DATA, "one worker was named; whether there are more is not known")
        elif len(ready) == 1:
            yield warned(f"{counted}: routing has nothing to choose from", FLEET, *states)
        else:
            yield passed(counted, FLEET, *states)


def _pods_unread(snapshot: Snapshot) -> Finding | None:
    for one in snapshot.access:
        if not one.allowed and one.resource == "pods":
            return skipped(Reason.RBAC, "pods could not be listed")
    for unread in snapshot.unread:
        if unread.what.split(" ", 1)[0] == "pods" and unread.reason in ERRORS:
            return skipped(unread.reason, shown(f"pods could not be listed: {unread.message}"))
    return None


def router_replicas(snapshot: Snapshot) -> Iterator[Finding]:
    strategy, grave = snapshot.strategy, kvaware(snapshot)
    keeps_state = grave or strategy == "prefixaware" or snapshot.stack in (Stack.DYNAMO, Stack.KVCTL)
    if not snapshot.routers:
        yield skipped(Reason.NO_DATA, "no router was found")
        return
    if not keeps_state or strategy in ("roundrobin", "random"):
        what = f"strategy {strategy}" if strategy else "an unknown strategy"
        yield skipped(Reason.NOT_APPLICABLE, f"{what} keeps no state that replicas would have to share")
        return
    by_owner: dict[str, list[Member]] = defaultdict(list)
    for router in snapshot.routers:
        by_owner[router.owner].append(router)
    for owner, group in by_owner.items():
        ready = [router for router in group if router.ready]
        target = group[0].target if len(group) == 1 else FLEET
        named = tuple(pod(router, "ready") for router in ready[:3])
        most = _autoscaled(snapshot, owner, group[0].namespace)
        if len(ready) > 1 and grave:
            message = f"{len(ready)} routers share the work, and workers register with only one of them"
            yield failed(message, FLEET, *named)
        elif len(ready) > 1:
            message = f"{len(ready)} routers share the work and each keeps its own picture of the caches"
            yield warned(message, FLEET, *named)
        elif most is not None:
            yield warned("more router replicas are wanted, and each would keep its own state", target, most)
        else:
            yield passed("one router keeps the state", target)


def _autoscaled(snapshot: Snapshot, owner: str, namespace: str) -> Evidence | None:
    """The autoscaler or Deployment that wants more than one replica of `owner` (Kind/name)."""
    kind, _, name = owner.partition("/")
    for one in snapshot.resources.all("horizontalpodautoscalers"):
        meant = at(one, "spec.scaleTargetRef.kind") == kind and at(one, "spec.scaleTargetRef.name") == name
        if meant and at(one, "metadata.namespace", "") == namespace and _above_one(at(one, "spec.maxReplicas")):
            return resource(one, "spec.maxReplicas", kind="HorizontalPodAutoscaler")
    for one in (*snapshot.resources.all("deployments"), *snapshot.resources.all("statefulsets")):
        found = resource_target(one)
        if found.name == name and found.namespace == namespace and _above_one(at(one, "spec.replicas")):
            return resource(one, "spec.replicas", kind=kind)
    return None


def _above_one(value: object) -> bool:
    return isinstance(value, int) and value > 1


def router_younger(snapshot: Snapshot) -> Iterator[Finding]:
    if snapshot.strategy != "kvaware":
        yield skipped(Reason.NOT_APPLICABLE, "only kvaware workers register with the router")
        return
    started = [router.container.started_at for router in snapshot.routers if router.container.started_at is not None]
    if not started:
        yield skipped(Reason.NO_DATA, "when the router started is not known")
        return
    router_start, counted = max(started), Counter[str]()
    registered = {
        match["ip"]
        for router in snapshot.routers
        if router.log is not None
        for match in router.log.all("lmcache-registered")
    }
    for worker in snapshot.workers:
        start = worker.container.started_at
        if why_not_in_process(snapshot, worker) or start is None:
            counted["unknown"] += 1
        elif start >= router_start - snapshot.thresholds.clock_tolerance_s or registered.intersection(worker.ips):
            counted["fine"] += 1
        else:
            yield _forgotten(snapshot, worker)
            counted["older"] += 1
    if counted["fine"]:
        yield passed("workers started after the router, or registered with it since")
    elif not counted["older"]:
        yield skipped(Reason.NO_DATA, "when workers started is not known, or none runs LMCache")


def _forgotten(snapshot: Snapshot, worker: Member) -> Finding:
    """A worker older than the router: it is known again only by its heartbeats."""
    config = snapshot.lmcache_config(worker)
    name = "LMCACHE_LMCACHE_WORKER_HEARTBEAT_TIME"
    beats = number(config.get("lmcache_worker_heartbeat_time")) or 0
    refused = worker.log is not None and worker.log.has("lmcache-no-heartbeat-url")
    deaf = any(reaping(snapshot, router).port_missing is not None for router in snapshot.routers)
    older = "the router restarted after this worker registered"
    if worker.env_unread(name):
        return skipped(Reason.NO_DATA, f"{older}; whether it sends heartbeats is not known", worker.target)
    version = snapshot.lmcache_version(worker)
    needs_port = version is not None and version >= REGISTERS_BY_REPLY
    if beats > 0 and not refused and not (deaf and needs_port):
        return passed(f"{older}, and its heartbeats make it register again", worker.target, env(worker, name))
    message = f"{older}, and no heartbeat of its reaches the router that would register it again"
    if needs_port:
        return failed(message, worker.target, env(worker, name))
    return warned(message, worker.target, env(worker, name))


_ROLE = files("checks").joinpath("data/role.yaml").read_text(encoding="utf-8")

CHECKS: tuple[Check, ...] = (
    Check(
        id="KV001",
        title="API access",
        group=Group.ACCESS,
        worst=Status.ERROR,
        reads="SelfSubjectAccessReview for every call that is needed, and what could not be read",
        rule="Error for each required permission that is denied and for each list that could not be read; the "
        "checks that need it then say error(rbac), never fail. Optional permissions are only named. The Role to "
        f"apply in the models' namespace and in the router's (on HyperPod {OPERATOR_NAMESPACE}):\n\n{_ROLE}",
        hint="`kvctl validate --explain KV001` prints the Role to apply",
        run=api_access,
        required=True,
    ),
    Check(
        id="KV002",
        title="Router found",
        group=Group.ACCESS,
        worst=Status.FAIL,
        reads="pods, and custom resources that ask for routing",
        rule="Passes with at least one ready router. Fails where routing is asked for (by a resource, by the kind "
        "of stack or by --expect-strategy) and none is there or none is ready. Skipped where nothing asks for "
        "routing.",
        hint="check the namespace: HyperPod's routers live in hyperpod-inference-system (--router-namespace), not "
        "beside the model",
        run=routers_found,
        required=True,
    ),
    Check(
        id="KV003",
        title="Workers found",
        group=Group.ACCESS,
        worst=Status.FAIL,
        reads="pods, grouped by the model they serve",
        rule="Fails with no ready worker of a model, warns with one (routing has nothing to choose from). Without a "
        "cluster one worker is not judged: there may be more than were named.",
        hint="scale the model to at least two replicas, or give --worker-selector",
        run=workers_found,
        required=True,
    ),
    Check(
        id="KV005",
        title="Router replicas and their state",
        group=Group.ACCESS,
        worst=Status.FAIL,
        reads="ready router pods by owner, replicas of Deployment and HorizontalPodAutoscaler",
        rule="kvaware and prefixaware keep their state in the router's process. Fails for kvaware with more than "
        "one ready router: a worker registers with whichever one the Service picked. Warns for prefixaware, and "
        "where an autoscaler or Deployment wants more than one replica.",
        hint="run one router replica, or shard by session before the routers (production-stack#9, LMCache#2698)",
        run=router_replicas,
        stacks=CONTROLLER_STACKS | {Stack.DYNAMO, Stack.KVCTL},
    ),
    Check(
        id="KV006",
        title="Router restarted after workers registered",
        group=Group.ACCESS,
        worst=Status.FAIL,
        reads="start times of containers, LMCACHE_LMCACHE_WORKER_HEARTBEAT_TIME, registrations in the router's log",
        rule="A new router knows no worker; only a heartbeat makes an older worker register again. Fails for a "
        "worker that is older than the router and sends none, or to a router that listens to none, on LMCache 0.3.12 "
        "or later; warns on older or "
        "unknown versions. Passes where the router's log shows that the worker registered since, and for a worker "
        "that started within a minute before the router (clocks differ, and an engine loads its model first).",
        hint="set LMCACHE_LMCACHE_WORKER_HEARTBEAT_TIME=10, else restart the workers after each restart of the router",
        run=router_younger,
        stacks=CONTROLLER_STACKS,
        caused_by=("KV207",),
    ),
)
