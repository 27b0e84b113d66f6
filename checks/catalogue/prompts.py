"""KV122, KV125, KV126: can kvaware match the prompts that come: kind of request, length, tokenizer. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from checks.evidence import args, env, shown
from checks.hyperpod import endpoints
from checks.lmcache import number
from checks.logs.view import LogView
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
from checks.serving import model_argument, served_names
from checks.sharing import NOT_KVAWARE, kvaware
from checks.snapshot import Member, Snapshot

DEFAULT_THRESHOLD_TOKENS = 2000
"""The production stack's `--kv-aware-threshold`."""

_COMPLETIONS = re.compile(r"^/?(v1/)?completions/?$")


def endpoint_type(snapshot: Snapshot) -> Iterator[Finding]:
    listed = endpoints(snapshot)
    if not listed:
        yield _by_traffic(snapshot)
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


def _by_traffic(snapshot: Snapshot) -> Finding:
    """No resource names the path: clients choose it, and what they chose stands in the logs."""
    if not kvaware(snapshot):
        return skipped(Reason.NOT_APPLICABLE, NOT_KVAWARE)
    if snapshot.stack is Stack.KVCTL:
        return skipped(Reason.NOT_APPLICABLE, "kvctl's router matches chats as well as completions")
    chats, completions, evidence = _requests_by_kind(snapshot)
    total, limits = chats + completions, snapshot.thresholds
    if total < limits.routed_requests_min:
        reason = Reason.NO_TRAFFIC if total else Reason.NO_DATA
        message = f"clients choose the path; {total} requests that tell it are too few (KV806 tries a chat)"
        return skipped(reason, message, FLEET, *evidence)
    told = f"{chats} of {total} requests are chats"
    if not completions:
        message = f"{told}: kvaware matches none of them, only completions carry a prompt"
        return failed(message, FLEET, *evidence, hint=_CHATS)
    if chats / total > limits.miss_share_warn:
        return warned(f"{told}, which kvaware never matches", FLEET, *evidence, hint=_CHATS)
    return passed(told, FLEET, *evidence)


_CHATS = "send completions (/v1/completions), or give the router a strategy that reads chats (prefixaware)"


def _requests_by_kind(snapshot: Snapshot) -> tuple[int, int, tuple[Evidence, ...]]:
    """Chats and completions: by the routers' access logs, else by the engines', else by LMCache's request ids."""
    for members in (snapshot.routers, snapshot.workers):
        lines = [(log, one) for log in _logs(members) for one in log.all("http-completion")]
        if lines:
            chats = sum("chat" in one["path"] for _log, one in lines)
            return chats, len(lines) - chats, (lines[-1][0].evidence(lines[-1][1]),)
    kinds: dict[str, tuple[str, Evidence]] = {}
    for log in _logs(snapshot.workers):
        for one in log.all("lmcache-request"):
            kind = one["rid"].partition("-")[0]
            if kind in ("chatcmpl", "cmpl") and "-kvctl-" not in one["rid"]:
                kinds[one["rid"]] = kind, log.evidence(one)
    chats = sum(kind == "chatcmpl" for kind, _line in kinds.values())
    return chats, len(kinds) - chats, tuple(line for _kind, line in list(kinds.values())[-1:])


def _logs(members: Iterable[Member]) -> list[LogView]:
    return [member.log for member in members if member.log is not None]


def match_threshold(snapshot: Snapshot) -> Iterator[Finding]:
    if snapshot.strategy != "kvaware":
        yield skipped(Reason.NOT_APPLICABLE, NOT_KVAWARE)
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
        yield skipped(Reason.NOT_APPLICABLE, NOT_KVAWARE)
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
        id="KV122",
        title="Endpoint type fits kvaware",
        group=Group.CONFIGURATION,
        worst=Status.FAIL,
        reads="spec.invocationEndpoint (default invocations); without such a resource access logs of router and "
        "engines, and LMCache's request ids",
        rule="kvaware tokenises the body's prompt, which only completions requests have. Fails for kvaware with "
        "any other path, the default included; passes for other strategies. Without a resource it looks at what "
        "clients send: fails where all of 20 or more requests are chats, warns where more than 80 % are.",
        hint="set invocationEndpoint: v1/completions (AWS's sample with v1/chat/completions is made for prefixaware) "
        "and send completions, or choose a strategy that reads chats",
        run=endpoint_type,
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
