"""KV160 to KV163: can workers reach the router's LMCache controller: Services, policies, ports, environment.

Pure functions of a snapshot; kvaware with LMCache in the engine's process only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from checks.compatibility import Version
from checks.evidence import args, env, lmcache_setting, resource, shown
from checks.lmcache import each_worker, registering_ranks
from checks.model import (
    CONTROLLER_STACKS,
    ERRORS,
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
from checks.network import Place, closed_ports, headless, place, ports_of, service, service_name, services_known
from checks.numerals import whole
from checks.serving import config_unread, numbers, switched_on
from checks.sharing import NOT_KVAWARE, kvaware
from checks.snapshot import Member, Snapshot

_REPLY_NEEDED = Version.parse("0.3.12")
"""From here on a worker registers by a request on the reply port."""

_SOCKETS = {
    "pull": ("--lmcache-controller-port", 9000),
    "reply": ("--lmcache-controller-reply-port", 9001),
    "heartbeat": ("--lmcache-controller-heartbeat-port", 9002),
}
"""The controller's ports: the router's argument, and the port that charts and documents use."""

_Judge = Callable[[Snapshot, Member], Iterable[Finding]]


def _each(snapshot: Snapshot, judge: _Judge) -> Iterator[Finding]:
    if snapshot.strategy != "kvaware":
        yield skipped(Reason.NOT_APPLICABLE, NOT_KVAWARE)
    else:
        yield from each_worker(snapshot, judge)


def service_ports(snapshot: Snapshot) -> Iterator[Finding]:
    if not snapshot.cluster:
        yield skipped(Reason.NOT_APPLICABLE, "no cluster: there are no Services")
        return
    yield from _each(snapshot, _reaches_controller)


def _reaches_controller(snapshot: Snapshot, worker: Member) -> Iterator[Finding]:
    config = snapshot.lmcache_config(worker)
    told = False
    for socket in ("pull", "reply"):
        name = f"controller_{socket}_url"
        url = config.get(name) or (config.get("controller_url") if socket == "pull" else None)
        if url:
            told = True
            yield _reaches(
                snapshot,
                worker,
                socket,
                str(url),
                lmcache_setting(worker, name if config.get(name) else "controller_url", config),
            )
    if not told:
        unread = any(config_unread(worker, config, f"controller_{one}_url") for one in ("pull", "reply"))
        why = "the controller's URLs stand where they were not read" if unread else "no controller URL is set (KV163)"
        yield skipped(Reason.NO_DATA if unread else Reason.NOT_APPLICABLE, why, worker.target)


def _reaches(snapshot: Snapshot, worker: Member, socket: str, url: str, evidence: Evidence) -> Finding:
    target, found = worker.target, place(url)
    if found is None:
        return failed(f"the {socket} URL is not host:port", target, evidence)
    meant = service_name(found.host, worker.namespace)
    if meant is None:
        return _reaches_address(snapshot, worker, socket, found, evidence)
    namespace, name = meant
    known = service(snapshot, namespace, name)
    if known is None:
        if (unread := _services_unread(snapshot)) is not None:
            return skipped(unread, "Services could not be listed", target, evidence)
        if not services_known(snapshot, namespace):
            message = f"Services of namespace {shown(namespace)} were not listed"
            return skipped(Reason.NO_DATA, message, target, evidence)
        return failed(f"the {socket} URL names a Service that does not exist", target, evidence)
    seen = (evidence, resource(known, "spec.ports", kind="Service"))
    if headless(known):
        return _listens(snapshot, worker, socket, found.port, seen)
    ports = ports_of(known)
    if found.port not in ports:
        version = snapshot.lmcache_version(worker)
        message = f"the router's Service has no port {found.port}, which workers need as {socket} port"
        if socket == "reply" and (version is None or version < _REPLY_NEEDED):
            return warned(f"{message} from LMCache {_REPLY_NEEDED} on", target, *seen)
        return failed(message, target, *seen)
    leads_to = ports[found.port]
    if isinstance(leads_to, str):
        numbered = [port for router in snapshot.routers if (port := router.container.ports.get(leads_to))]
        if not numbered:
            return passed(f"the Service has the {socket} port", target, *seen)
        leads_to = numbered[0]
    return _listens(snapshot, worker, socket, leads_to, seen)


def _reaches_address(snapshot: Snapshot, worker: Member, socket: str, found: Place, evidence: Evidence) -> Finding:
    if any(found.host in router.ips for router in snapshot.routers):
        return _listens(snapshot, worker, socket, found.port, (evidence,))
    message = f"the {socket} URL is neither a Service of this cluster nor a router's address: not judged"
    return skipped(Reason.NO_DATA, message, worker.target, evidence)


def _listens(snapshot: Snapshot, worker: Member, socket: str, port: int, seen: tuple[Evidence, ...]) -> Finding:
    """The port at the pod is the one that a router listens on, where that is known."""
    version = snapshot.lmcache_version(worker)
    known = {one for router in snapshot.routers if (one := _controller_port(router, socket)) is not None}
    silent = [router for router in snapshot.routers if _opens_no_reply(router)] if socket == "reply" else []
    if silent and not known and version is not None and version >= _REPLY_NEEDED:
        printed = tuple(
            router.log.evidence(match)
            for router in silent[:1]
            if router.log is not None and (match := router.log.last("router-kvaware-ports")) is not None
        )
        message = "the router opens no reply port, which LMCache needs to register"
        return failed(message, worker.target, *seen, *printed)
    if known and port not in known:
        option = _SOCKETS[socket][0]
        wanted = ", ".join(str(one) for one in sorted(known))
        told = tuple(args(router, option) for router in snapshot.routers[:1])
        message = f"port {port} is reached as {socket} port, the router listens on {wanted}"
        return failed(message, worker.target, *seen, *told)
    return passed(f"the {socket} port leads to the router", worker.target, *seen)


def _controller_port(router: Member, socket: str) -> int | None:
    """What controller or router printed, else its argument; the pull port has a default, the others have none."""
    if router.log is not None:
        handler, printed = router.log.last(f"lmcache-{socket}-handler"), router.log.last("router-kvaware-ports")
        for port in (handler["port"] if handler else "", printed[socket] if printed else ""):
            if port.isdecimal():
                return int(port)
    option, usual = _SOCKETS[socket]
    told = whole(router.arg(option))
    if told is not None:
        return told
    return usual if socket == "pull" and router.container.args else None


def _opens_no_reply(router: Member) -> bool:
    """It said which ports the controller has, and a reply port is not among them."""
    printed = router.log.last("router-kvaware-ports") if router.log is not None else None
    return printed is not None and not printed["reply"].isdecimal()


def _services_unread(snapshot: Snapshot) -> Reason | None:
    return next((one.reason for one in snapshot.unread if "services" in one.what and one.reason in ERRORS), None)


def network_policies(snapshot: Snapshot) -> Iterator[Finding]:
    if not snapshot.cluster:
        yield skipped(Reason.NOT_APPLICABLE, "no cluster: there are no NetworkPolicies")
        return
    for one in snapshot.unread:
        if "networkpolicies" in one.what and one.reason in ERRORS:
            yield skipped(one.reason, "NetworkPolicies could not be listed")
            return
    if not snapshot.routers or not snapshot.workers:
        yield skipped(Reason.NO_DATA, "routers or workers were not found")
        return
    closed = False
    for finding in _closed(snapshot):
        closed = True
        yield finding
    if not closed:
        count = len(snapshot.resources.all("networkpolicies"))
        message = f"none of {count} policies closes a port that is needed" if count else "there are no policies"
        yield passed(message, FLEET)


def _closed(snapshot: Snapshot) -> Iterator[Finding]:
    asks_controller = kvaware(snapshot)
    if asks_controller:
        sender = snapshot.workers[0]
        for router in snapshot.routers:
            wanted = {_controller_port(router, socket) or usual for socket, (_, usual) in _SOCKETS.items()}
            yield from _report_closed(snapshot, router, sender, wanted, "workers")
    router = snapshot.routers[0]
    for worker in snapshot.workers:
        needed = {_serving_port(worker)}
        if asks_controller:
            ports = numbers(snapshot.lmcache_config(worker).get("lmcache_worker_ports"))
            needed |= {port for one in ports if (port := whole(one)) is not None}
        yield from _report_closed(snapshot, worker, router, needed, "the router")


def _report_closed(
    snapshot: Snapshot, receiver: Member, sender: Member, ports: set[int], from_whom: str
) -> Iterator[Finding]:
    found = closed_ports(snapshot, receiver, sender, sorted(ports))
    if found:
        shown_ports = ", ".join(str(one.port) for one in found)
        named = Evidence("resource", receiver.namespace, shown(f"NetworkPolicy {', '.join(found[0].policies)}"))
        yield warned(f"policies let {from_whom} not reach port {shown_ports}", receiver.target, named)


def _serving_port(worker: Member) -> int:
    found = place(worker.url) if worker.url else None
    return found.port if found is not None else (whole(worker.arg("--port")) or 8000)


def worker_ports(snapshot: Snapshot) -> Iterator[Finding]:
    yield from _each(snapshot, _enough_ports)


def _enough_ports(snapshot: Snapshot, worker: Member) -> Iterator[Finding]:
    config, needed = snapshot.lmcache_config(worker), registering_ranks(snapshot, worker)
    evidence = lmcache_setting(worker, "lmcache_worker_ports", config)
    if worker.log is not None and (match := worker.log.last("lmcache-worker-ports-short")) is not None:
        message = f"LMCache wants at least {match['count']} worker ports"
        yield failed(message, worker.target, evidence, worker.log.evidence(match))
        return
    given = numbers(config.get("lmcache_worker_ports"))
    if not given:
        unread = config_unread(worker, config, "lmcache_worker_ports")
        why = "worker ports stand where they were not read" if unread else "no worker ports are set (KV163)"
        yield skipped(Reason.NO_DATA if unread else Reason.NOT_APPLICABLE, why, worker.target, evidence)
    elif len(given) < needed:
        message = f"{len(given)} worker ports for {needed} ranks that register"
        yield failed(message, worker.target, evidence, args(worker, "--tensor-parallel-size"))
    elif not all(0 < (whole(one) or 0) < 65536 for one in given):
        yield failed("worker ports are not all port numbers", worker.target, evidence)
    else:
        yield passed("each rank that registers has its port", worker.target, evidence)


def controller_environment(snapshot: Snapshot) -> Iterator[Finding]:
    yield from _each(snapshot, _complete)


def _complete(snapshot: Snapshot, worker: Member) -> Iterator[Finding]:
    config, version = snapshot.lmcache_config(worker), snapshot.lmcache_version(worker)
    evidence = [env(worker, "LMCACHE_ENABLE_CONTROLLER")]
    if config_unread(worker, config, "enable_controller"):
        yield skipped(Reason.NO_DATA, "LMCache's configuration stands where it was not read", worker.target, *evidence)
        return
    if not switched_on(config, "enable_controller", False):
        message = "kvaware, but the worker's LMCache is not told to register (enable_controller)"
        yield failed(message, worker.target, *evidence)
        return
    missing = [name for name in _needed(snapshot, version) if not _is_set(worker, config, name)]
    evidence += [env(worker, f"LMCACHE_{name.upper()}") for name in missing]
    told = ", ".join(f"LMCACHE_{name.upper()}" for name in missing)
    if not missing:
        yield passed("all that LMCache's controller client needs is set", worker.target, *evidence)
    elif missing == ["controller_reply_url"] and (version is None or version < _REPLY_NEEDED):
        message = f"{told} is not set; LMCache needs it from {_REPLY_NEEDED} on"
        yield warned(message, worker.target, *evidence)
    else:
        yield failed(f"LMCache cannot register without {told}", worker.target, *evidence)


def _needed(snapshot: Snapshot, version: Version | None) -> list[str]:
    without_default = version is not None and snapshot.compatibility.default_instance_id(version) == "none"
    instance = ["lmcache_instance_id"] if without_default else []
    return [*instance, "controller_pull_url", "controller_reply_url", "lmcache_worker_ports"]


def _is_set(worker: Member, config: Mapping[str, Any], name: str) -> bool:
    """Set, or set from where it was not read. The pull URL had another name in LMCache's first versions."""
    if config_unread(worker, config, name) or config.get(name) not in (None, "", []):
        return True
    return name == "controller_pull_url" and bool(config.get("controller_url"))


CHECKS: tuple[Check, ...] = (
    Check(
        id="KV160",
        title="The Service has the controller's ports",
        group=Group.CONFIGURATION,
        worst=Status.FAIL,
        reads="LMCACHE_CONTROLLER_PULL_URL and _REPLY_URL of workers, ports of the Service they name, the router's "
        "--lmcache-controller-*-port and its own line",
        rule="Each port in the workers' URLs must be a port of that Service and lead to where the router listens. "
        "Fails for the pull port, and for the reply port from LMCache 0.3.12 on; warns for the reply port on older "
        "or unknown versions. Heartbeats go to the router pod itself (KV161).",
        hint="add the port to the Service: routerSpec.extraPorts 9001 in the chart (production-stack#1029)",
        run=service_ports,
        stacks=CONTROLLER_STACKS,
    ),
    Check(
        id="KV161",
        title="Network policies leave the ports open",
        group=Group.CONFIGURATION,
        worst=Status.WARN,
        reads="NetworkPolicies that select routers or workers, the controller's ports, worker ports, the serving port",
        rule="Warns where policies select a pod for ingress and none of their rules opens a needed port to the "
        "other side: 9000, 9001 and 9002 (or as configured) from workers to the router for kvaware, the serving "
        "port and LMCache's worker ports from the router.",
        hint="add an ingress rule for these ports between router and workers",
        run=network_policies,
    ),
    Check(
        id="KV162",
        title="One worker port for each rank",
        group=Group.CONFIGURATION,
        worst=Status.FAIL,
        reads="LMCACHE_LMCACHE_WORKER_PORTS, lmcache_worker_ids, tensor and pipeline parallel size",
        rule="Fails with fewer ports than ranks that register (tensor times pipeline parallel size; one for models "
        "with latent attention), and where LMCache itself says so. LMCache otherwise stops with a bare "
        "AssertionError.",
        hint="list one port for each rank: LMCACHE_LMCACHE_WORKER_PORTS=8001,8002,…",
        run=worker_ports,
        stacks=CONTROLLER_STACKS,
    ),
    Check(
        id="KV163",
        title="The worker is told of the controller",
        group=Group.CONFIGURATION,
        worst=Status.FAIL,
        reads="LMCACHE_ENABLE_CONTROLLER, _CONTROLLER_PULL_URL, _CONTROLLER_REPLY_URL, _LMCACHE_WORKER_PORTS, "
        "_LMCACHE_INSTANCE_ID",
        rule="For kvaware enable_controller must be on and pull URL, reply URL and worker ports be set; the "
        "instance id too on LMCache 0.3.12 to 0.4.2, which have no default for it. Fails where one is missing; a "
        "missing reply URL alone warns before 0.3.12 or on an unknown version.",
        hint="set what is named (LMCache#2907); the production stack's operator sets none of it, its chart does",
        run=controller_environment,
        stacks=CONTROLLER_STACKS,
    ),
)
