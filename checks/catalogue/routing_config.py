"""KV120, KV121, KV123, KV124: the routing strategy, and the addresses by which kvaware knows workers.

Pure functions of a snapshot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from checks.evidence import args, at, lmcache_setting, pod, resource, shown
from checks.hyperpod import STRATEGIES, Endpoint, endpoints
from checks.model import (
    CONTROLLER_STACKS,
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
from checks.network import address
from checks.serving import switched_on
from checks.sharing import NOT_KVAWARE
from checks.snapshot import Member, Snapshot, configured_mode, strategy_name


def routing_enabled(snapshot: Snapshot) -> Iterator[Finding]:
    effective, wanted = snapshot.strategy, strategy_name(snapshot.expectations.strategy)
    evidence = [endpoint.shows("spec.intelligentRoutingSpec.enabled") for endpoint in endpoints(snapshot)[:3]]
    own = snapshot.stack is Stack.KVCTL
    flags = ("--router-mode",) if own else ("--routing-logic", "--router-mode")
    evidence += [args(router, *flags) for router in snapshot.routers[:3]]
    hint = ""
    if own:
        hint = f"restart `kvctl serve` with --router-mode {shown(wanted)}"
    elif not endpoints(snapshot):
        hint = f"start the router with --routing-logic {shown(wanted)}"
    if wanted and not effective:
        yield failed(f"{shown(wanted)} is expected, but routing is not enabled anywhere", FLEET, *evidence, hint=hint)
    elif wanted and wanted != effective:
        message = f"{shown(wanted)} is expected, the strategy is {shown(effective)}"
        yield failed(message, FLEET, *evidence, hint=hint)
    elif effective:
        yield passed(f"the strategy is {shown(effective)}", FLEET, *evidence)
    else:
        message = "routing is not enabled, or its strategy cannot be seen; say what should be with --expect-strategy"
        yield skipped(Reason.DISABLED, message, FLEET, *evidence)


def strategy_effective(snapshot: Snapshot) -> Iterator[Finding]:
    routed = [endpoint for endpoint in endpoints(snapshot) if endpoint.routed]
    for endpoint in endpoints(snapshot):
        if endpoint.unprocessed:
            generations = (endpoint.shows("metadata.generation"), endpoint.shows("status.observedGeneration"))
            message = "the operator has not processed the resource's latest edit"
            hint = "read the operator's log; what runs is still the older specification"
            yield warned(message, endpoint.target, *generations, hint=hint)
        if endpoint.routed and endpoint.strategy not in STRATEGIES:
            evidence = endpoint.shows("spec.intelligentRoutingSpec.routingStrategy")
            yield failed("the resource asks for a strategy that does not exist", endpoint.target, evidence)
    if not snapshot.routers:
        yield skipped(Reason.NO_DATA, "no router was found")
    for router in snapshot.routers:
        yield _agreement(router, _asked_of(router, routed), _operated(snapshot, router))
    yield from _unasked_controller(snapshot)


def _operated(snapshot: Snapshot, router: Member) -> Evidence | None:
    """The strategy that the production stack's operator was told for this router, which carries its name as `app`."""
    for one in snapshot.resources.all("vllmrouters"):
        mine = (
            at(one, "metadata.name") == router.labels.get("app") and at(one, "metadata.namespace") == router.namespace
        )
        if mine and at(one, "spec.routingLogic"):
            return resource(one, "spec.routingLogic", kind="VLLMRouter")
    return None


def _unasked_controller(snapshot: Snapshot) -> Iterator[Finding]:
    """Workers that register with a controller which the strategy never asks."""
    strategy = snapshot.strategy
    if strategy in ("", "kvaware") or not snapshot.routers or snapshot.stack not in CONTROLLER_STACKS:
        return
    named = "enable_controller"
    workers = [one for one in snapshot.workers if switched_on(snapshot.lmcache_config(one), named, False)]
    if workers:
        message = f"{len(workers)} workers register with LMCache's controller, which {shown(strategy)} never asks"
        hint = "is kvaware what was meant? then give the router --routing-logic kvaware (production-stack#632)"
        yield warned(message, FLEET, lmcache_setting(workers[0], named, snapshot.lmcache_config(workers[0])), hint=hint)


def _asked_of(router: Member, routed: list[Endpoint]) -> list[Endpoint]:
    """Resources that the router may serve: those its name holds the name of, else all."""
    named = [endpoint for endpoint in routed if endpoint.name and endpoint.name in router.name]
    return named or routed


def _agreement(router: Member, asked: list[Endpoint], operated: Evidence | None) -> Finding:
    argument = strategy_name(router.arg("--routing-logic", "--router-mode") or "")
    printed = router.log.last("router-logic-init") if router.log is not None else None
    logged = strategy_name(printed["logic"]) if printed is not None else ""
    evidence: list[Evidence] = [args(router, "--routing-logic", "--router-mode")] if argument else []
    if printed is not None and router.log is not None:
        evidence.append(router.log.evidence(printed))
    evidence += [endpoint.shows("spec.intelligentRoutingSpec.routingStrategy") for endpoint in asked[:3]]
    answered = strategy_name(configured_mode(router))
    if answered:
        evidence.append(Evidence("http", router.key, shown(f"/config: dispatch.mode = {configured_mode(router)}")))
    effective = answered or logged or argument
    if not effective:
        return skipped(Reason.NO_DATA, "neither arguments, log nor /config tell the router's strategy", router.target)
    if argument and effective != argument:
        message = f"the arguments say {shown(argument)}, the router runs {shown(effective)}"
        if router.has_arg("--dynamic-config-json", "--dynamic-config-yaml"):
            return warned(f"{message}; a dynamic configuration may have changed it", router.target, *evidence)
        return failed(message, router.target, *evidence)
    if asked and effective not in {endpoint.strategy for endpoint in asked}:
        wanted = " or ".join(sorted({endpoint.strategy for endpoint in asked}))
        message = f"the resource asks for {shown(wanted)}, the router runs {shown(effective)}"
        return failed(message, router.target, *evidence)
    if operated is not None and effective != strategy_name(operated.text.rpartition("= ")[2]):
        message = f"the VLLMRouter asks for another strategy than {shown(effective)}, which the router runs"
        return failed(message, router.target, operated, *evidence)
    return passed(f"{shown(effective)}, wherever it is told", router.target, *evidence)


def resolvable_workers(snapshot: Snapshot) -> Iterator[Finding]:
    if snapshot.strategy != "kvaware":
        yield skipped(Reason.NOT_APPLICABLE, NOT_KVAWARE)
        return
    if not snapshot.routers:
        yield skipped(Reason.NO_DATA, "no router was found")
    for router in snapshot.routers:
        yield _resolvable(router)


def _resolvable(router: Member) -> Finding:
    if not router.container.args:
        return skipped(Reason.NO_DATA, "the router's arguments are not known", router.target)
    if strategy_name(router.arg("--k8s-service-discovery-type") or "") == "servicename":
        message = "workers are found by Service name, but registered under their IP: a match ends in a KeyError"
        return failed(message, router.target, args(router, "--k8s-service-discovery-type"))
    if (router.arg("--service-discovery") or "").lower() == "static":
        evidence = args(router, "--static-backends")
        for url in (router.arg("--static-backends") or "").split(","):
            host = url.strip().partition("://")[2].partition("/")[0]
            host = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
            ip = address(host)
            if ip is None or ip.version != 4:
                message = "static backends are not IPv4 addresses, workers register under theirs: nothing ever matches"
                return failed(message, router.target, evidence)
        return passed("static backends are IPv4 addresses, as workers register", router.target, evidence)
    return passed("workers are found by pod IP, as they register", router.target, args(router, "--service-discovery"))


def worker_addresses(snapshot: Snapshot) -> Iterator[Finding]:
    if snapshot.strategy != "kvaware":
        yield skipped(Reason.NOT_APPLICABLE, NOT_KVAWARE)
        return
    known = [worker for worker in snapshot.workers if worker.ips]
    if not known:
        yield skipped(Reason.NO_DATA, "no worker's address is known")
        return
    owners: dict[str, list[Member]] = defaultdict(list)
    for worker in known:
        for one in worker.ips:
            owners[one].append(worker)
    for worker in known:
        evidence = pod(worker, f"IPs {', '.join(worker.ips)}" + (", hostNetwork" if worker.host_network else ""))
        shared = any(len(owners[one]) > 1 for one in worker.ips)
        failure = worker.log.last("lmcache-local-ip-failed") if worker.log is not None else None
        if not any((ip := address(one)) is not None and ip.version == 4 for one in worker.ips):
            message = "it has no IPv4 address, the only kind that LMCache registers"
            yield failed(message, worker.target, evidence)
        elif shared:
            message = "several engines share one IP: the router cannot tell them apart"
            yield failed(message, worker.target, evidence)
        elif failure is not None and worker.log is not None:
            message = "LMCache could not find the pod's address and registers as 127.0.0.1"
            yield warned(message, worker.target, evidence, worker.log.evidence(failure))
        else:
            yield passed("one engine on one IPv4 address", worker.target, evidence)
    yield from _strange_registrations(snapshot, owners)


def _strange_registrations(snapshot: Snapshot, owners: dict[str, list[Member]]) -> Iterator[Finding]:
    """Instances whose last registration gave an address that no pod has."""
    for router in snapshot.routers:
        if router.log is None:
            continue
        last = {}
        for match in router.log.all("lmcache-registered", "lmcache-deregistered", "lmcache-reaped"):
            last[match["inst"], match["wid"]] = match
        for match in last.values():
            if match.pattern == "lmcache-registered" and match["ip"] not in owners:
                message = "a worker registered under an address that no worker pod has"
                yield warned(message, router.target, router.log.evidence(match))


CHECKS: tuple[Check, ...] = (
    Check(
        id="KV120",
        title="Routing is enabled",
        group=Group.CONFIGURATION,
        worst=Status.FAIL,
        reads="spec.intelligentRoutingSpec.enabled (default false), the router's --routing-logic or --router-mode, "
        "--expect-strategy",
        rule="Fails where --expect-strategy is given and the effective strategy differs or there is none. Without "
        "it: passes and names the strategy, or is skipped where none can be seen.",
        hint="HyperPod: delete the resource and create it again with enabled: true, as it accepts "
        "intelligentRoutingSpec only on a new one; elsewhere start the router with the strategy",
        run=routing_enabled,
    ),
    Check(
        id="KV121",
        title="The strategy is the effective one",
        group=Group.CONFIGURATION,
        worst=Status.FAIL,
        reads="routingStrategy (default prefixaware) or a VLLMRouter's routingLogic, the router's arguments, its line "
        "`Initializing … routing "
        "logic`, status.observedGeneration",
        rule="Fails where resource, arguments and log do not agree, or the resource names an unknown strategy. "
        "Warns where a dynamic configuration may explain it, where the operator has not processed the latest "
        "edit (observedGeneration below generation), and where workers register with LMCache's controller although "
        "the strategy never asks it.",
        hint="correct --routing-logic (production-stack#632 shipped session for kvaware for months) and restart "
        "the router",
        run=strategy_effective,
    ),
    Check(
        id="KV123",
        title="The router knows workers by IP",
        group=Group.CONFIGURATION,
        worst=Status.FAIL,
        reads="--k8s-service-discovery-type, --service-discovery, --static-backends",
        rule="Workers register an IPv4 address, and the router asks for its backends' hosts. Fails for kvaware "
        "where backends are found by Service name, or are static DNS names or IPv6 addresses.",
        hint="use --k8s-service-discovery-type pod-ip",
        run=resolvable_workers,
        stacks=CONTROLLER_STACKS,
    ),
    Check(
        id="KV124",
        title="One IPv4 address a worker",
        group=Group.CONFIGURATION,
        worst=Status.FAIL,
        reads="pod IPs and hostNetwork, LMCache's address line, addresses in the router's registrations",
        rule="LMCache registers the IPv4 address of its default route. Fails for workers without one and for "
        "engines that share one; warns where LMCache could not find it, or an address was registered that no "
        "worker has.",
        hint="run one cache-owning engine on each IPv4 address (production-stack#1061, #1062)",
        run=worker_addresses,
        stacks=CONTROLLER_STACKS,
    ),
)
