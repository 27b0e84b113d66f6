"""KV120 to KV126: the routing strategy, and what kvaware needs to work: endpoint type, addresses, threshold, tokenizer.

Pure functions of a snapshot.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from checks.evidence import args, env, pod, shown
from checks.hyperpod import STRATEGIES, Endpoint, endpoints
from checks.lmcache import number
from checks.metrics.histogram import buckets_of, quantile
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
from checks.serving import model_argument, served_names
from checks.snapshot import Member, Snapshot, configured_mode, strategy_name

DEFAULT_THRESHOLD_TOKENS = 2000
"""The production stack's `--kv-aware-threshold`."""

_COMPLETIONS = re.compile(r"^/?(v1/)?completions/?$")
_NOT_KVAWARE = "the strategy is not kvaware"


def routing_enabled(snapshot: Snapshot) -> Iterator[Finding]:
    effective, wanted = snapshot.strategy, strategy_name(snapshot.expectations.strategy)
    evidence = [endpoint.shows("spec.intelligentRoutingSpec.enabled") for endpoint in endpoints(snapshot)[:3]]
    evidence += [args(router, "--routing-logic", "--router-mode") for router in snapshot.routers[:3]]
    if wanted and not effective:
        yield failed(f"{shown(wanted)} is expected, but routing is not enabled anywhere", FLEET, *evidence)
    elif wanted and wanted != effective:
        yield failed(f"{shown(wanted)} is expected, the strategy is {shown(effective)}", FLEET, *evidence)
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
        yield _agreement(router, _asked_of(router, routed))


def _asked_of(router: Member, routed: list[Endpoint]) -> list[Endpoint]:
    """Resources that the router may serve: those its name holds the name of, else all."""
    named = [endpoint for endpoint in routed if endpoint.name and endpoint.name in router.name]
    return named or routed


def _agreement(router: Member, asked: list[Endpoint]) -> Finding:
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
    return passed(f"{shown(effective)}, wherever it is told", router.target, *evidence)


def endpoint_type(snapshot: Snapshot) -> Iterator[Finding]:
    listed = endpoints(snapshot)
    if not listed:
        message = "clients choose the path; completions requests are needed for kvaware (KV806 tries chat)"
        yield skipped(Reason.NOT_APPLICABLE, message)
    for endpoint in listed:
        evidence = endpoint.shows("spec.invocationEndpoint")
        if not endpoint.routed:
            yield skipped(Reason.NOT_APPLICABLE, "routing is not enabled", endpoint.target)
        elif endpoint.strategy != "kvaware" or _COMPLETIONS.match(endpoint.invocation_path):
            yield passed(f"{shown(endpoint.invocation_path)} fits {endpoint.strategy}", endpoint.target, evidence)
        else:
            message = (
                f"kvaware cannot match requests to {shown(endpoint.invocation_path)}: only completions carry a prompt"
            )
            yield failed(message, endpoint.target, evidence)


def resolvable_workers(snapshot: Snapshot) -> Iterator[Finding]:
    if snapshot.strategy != "kvaware":
        yield skipped(Reason.NOT_APPLICABLE, _NOT_KVAWARE)
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
        yield skipped(Reason.NOT_APPLICABLE, _NOT_KVAWARE)
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


def match_threshold(snapshot: Snapshot) -> Iterator[Finding]:
    if snapshot.strategy != "kvaware":
        yield skipped(Reason.NOT_APPLICABLE, _NOT_KVAWARE)
        return
    router = next(iter(snapshot.routers), None)
    told = number(router.arg("--kv-aware-threshold")) if router is not None else None
    threshold = DEFAULT_THRESHOLD_TOKENS if told is None else told
    evidence = (args(router, "--kv-aware-threshold"),) if router is not None else ()
    count = snapshot.metrics.grown(("request_prompt_tokens_count",))[0]
    median = quantile(buckets_of(snapshot.metrics, "request_prompt_tokens", lifetime=count.lifetime), 0.5)
    if not count:
        yield skipped(count.missing or Reason.NO_DATA, "prompt lengths are not known", FLEET, *evidence)
        return
    if median is None or count.or_zero() < snapshot.thresholds.traffic_requests_min:
        message = "too few requests to say how long prompts are"
        yield skipped(Reason.NO_TRAFFIC, message, FLEET, count.evidence(), *evidence)
        return
    length = Evidence("metric", "fleet", f"median of request_prompt_tokens is about {median:.0f} tokens")
    if median <= threshold:
        yield passed("most prompts are shorter than the threshold: any match counts", FLEET, length, *evidence)
        return
    hits, queries = snapshot.metrics.grown(("prefix_cache_hits", "prefix_cache_queries"))
    if not hits or not queries.or_zero():
        message = "prompts are longer than the threshold; how much of them repeats is not known"
        yield skipped(Reason.NO_DATA, message, FLEET, length, *evidence)
        return
    share = hits.or_zero() / queries.or_zero()
    numbers = (length, hits.evidence(), queries.evidence(), *evidence)
    if median * (1 - share) > threshold:
        message = (
            f"prompts end in about {median * (1 - share):.0f} tokens that do not repeat, more than the threshold of "
        )
        yield warned(f"{message}{threshold:g}: matches are thrown away", FLEET, *numbers)
    else:
        yield passed("what does not repeat of a prompt is below the threshold", FLEET, *numbers)


def router_tokenizer(snapshot: Snapshot) -> Iterator[Finding]:
    if snapshot.strategy != "kvaware":
        yield skipped(Reason.NOT_APPLICABLE, _NOT_KVAWARE)
        return
    if snapshot.stack is Stack.KVCTL:
        yield skipped(Reason.NOT_APPLICABLE, "kvctl's router tells itself how it tokenizes (KV957)")
        return
    if not snapshot.routers:
        yield skipped(Reason.NO_DATA, "no router was found")
        return
    bases: dict[str, Member] = {}
    for worker in snapshot.workers:
        for name in served_names(worker)[:1]:
            bases.setdefault(name, worker)
    if not bases:
        yield skipped(Reason.NO_DATA, "which model workers serve is not known")
        return
    for router in snapshot.routers:
        yield _tokenizer(snapshot, router, bases)


def _tokenizer(snapshot: Snapshot, router: Member, bases: dict[str, Member]) -> Finding:
    token = next((name for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") if name in router.container.env), None)
    gated = snapshot.compatibility.gated_models
    for name, worker in bases.items():
        evidence = (
            args(worker, "--served-model-name"),
            Evidence("args", worker.key, shown(f"serves {name}, loads {model_argument(worker) or 'unknown'}")),
            env(router, token or "HF_TOKEN"),
        )
        why = _not_loadable(name, model_argument(worker), gated, token is not None)
        if not why:
            continue
        if "VLLM_API_KEY" in router.container.env or worker.has_arg("--api-key"):
            message = (
                f"{why}, and engines ask for a key that the router does not send to /tokenize: requests end in 500"
            )
            return failed(message, router.target, *evidence, env(router, "VLLM_API_KEY"))
        return warned(f"{why}: each request is sent to an engine's /tokenize first", router.target, *evidence)
    if len(bases) > 1:
        named = Evidence("args", "fleet", shown(f"models {', '.join(sorted(bases))}"))
        return warned("several models behind one router that keeps a single tokenizer", router.target, named)
    return passed("the served name is a repository that a tokenizer can be loaded from", router.target)


def _not_loadable(name: str, loads: str, gated: tuple[str, ...], token: bool) -> str:
    """Why the router cannot load a tokenizer by the served name; '' where it seems to be able to."""
    if name.startswith(("/", ".")) or name.count("/") > 1:
        return "the served name is a path that the router does not have"
    if "/" not in name or (loads and name != loads and not loads.startswith("/")):
        return "the served name is an alias, not a model repository"
    if name.startswith(gated) and not token:
        return "the model is gated and the router has no HF_TOKEN"
    return ""


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
        hint="HyperPod accepts intelligentRoutingSpec only on a new deployment: delete and create it again with "
        "enabled: true",
        run=routing_enabled,
    ),
    Check(
        id="KV121",
        title="The strategy is the effective one",
        group=Group.CONFIGURATION,
        worst=Status.FAIL,
        reads="routingStrategy (default prefixaware), the router's arguments, its line `Initializing … routing "
        "logic`, status.observedGeneration",
        rule="Fails where resource, arguments and log do not agree, or the resource names an unknown strategy. "
        "Warns where a dynamic configuration may explain it, and where the operator has not processed the latest "
        "edit (observedGeneration below generation).",
        hint="correct --routing-logic (production-stack#632 shipped session for kvaware for months) and restart "
        "the router",
        run=strategy_effective,
    ),
    Check(
        id="KV122",
        title="Endpoint type fits kvaware",
        group=Group.CONFIGURATION,
        worst=Status.FAIL,
        reads="spec.invocationEndpoint (default invocations)",
        rule="kvaware tokenises the body's prompt, which only completions requests have. Fails for kvaware with "
        "any other path, the default included; passes for other strategies.",
        hint="set invocationEndpoint: v1/completions; AWS's sample with v1/chat/completions is made for prefixaware",
        run=endpoint_type,
        stacks=CONTROLLER_STACKS,
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
    Check(
        id="KV125",
        title="kv-aware threshold fits the prompts",
        group=Group.CONFIGURATION,
        worst=Status.WARN,
        reads="--kv-aware-threshold (default 2000), histogram of prompt tokens, engine prefix hits",
        rule="The router uses a match only if it covers the prompt but for the threshold. Warns where the median "
        "prompt, less the share that engines find cached, is longer than it.",
        hint="raise --kv-aware-threshold above the tokens of a prompt that never repeat",
        run=match_threshold,
        stacks=CONTROLLER_STACKS,
    ),
    Check(
        id="KV126",
        title="The router can load the tokenizer",
        group=Group.CONFIGURATION,
        worst=Status.FAIL,
        reads="names that workers serve and load, HF_TOKEN and VLLM_API_KEY of the router",
        rule="kvaware loads a tokenizer by the served name and else asks an engine for each request. Warns for an "
        "alias, a path, a gated repository without HF_TOKEN, and several models behind one router (it keeps one "
        "tokenizer, production-stack#1052). Fails where an API key makes asking the engine impossible too.",
        hint="serve the model under its repository name and give the router HF_TOKEN",
        run=router_tokenizer,
        stacks=CONTROLLER_STACKS,
    ),
)
