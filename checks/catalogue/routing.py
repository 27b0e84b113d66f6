"""KV501, KV502, KV505-KV507: where the router sends requests, and whether a cache was the reason.

Pure; reads logs and metrics. Only kvaware names its cache hits in the log. A low share alone may mean that prompts are
unique: it is a failure only where something else shows that they repeat.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from checks.compatibility import Version
from checks.evidence import args, image
from checks.model import FLEET, Check, Evidence, Finding, Group, Reason, Stack, Status, failed, passed, skipped, warned
from checks.network import url_parts
from checks.numerals import whole
from checks.sharing import kvaware
from checks.skew import judge_skew
from checks.snapshot import Member, Snapshot
from checks.traffic import percent, prefixes_repeat, routed

STACKS = frozenset({Stack.HYPERPOD, Stack.PRODUCTION_STACK, Stack.UNKNOWN})
NEEDS = (
    *("KV152", "KV110", "KV122", "KV123", "KV124", "KV141", "KV160", "KV163", "KV302"),
    *("KV201", "KV202", "KV203", "KV205", "KV209", "KV401", "KV402", "KV403", "KV404", "KV405"),
)
"""Checks whose failure leaves the controller without workers or keys, so that nothing is found."""
SEEDS_TRIE = Version.parse("0.1.12")
"""The first release whose prefixaware seeds its trie although a minimal match length is set."""


def not_kvaware(snapshot: Snapshot) -> Finding:
    """Skip for a strategy that does not log its cache hits."""
    if not snapshot.strategy:
        return skipped(Reason.NO_DATA, "nothing tells the routing strategy")
    return skipped(Reason.NOT_APPLICABLE, f"only kvaware logs its cache hits; the strategy is {snapshot.strategy}")


def no_log(snapshot: Snapshot) -> Finding | None:
    """Skip where no router's log could be read; None where one was."""
    if any(router.log is not None and router.log.records for router in snapshot.routers):
        return None
    if not snapshot.routers:
        return skipped(Reason.NO_DATA, "no router was found")
    missing = next((router.log_missing for router in snapshot.routers if router.log_missing), Reason.NO_DATA)
    return skipped(missing, "the router's log was not read")


# -- KV501 -----------------------------------------------------------------------------------------------------------


def kv_routed(snapshot: Snapshot) -> Iterator[Finding]:
    missing = no_log(snapshot)
    found = routed(snapshot)
    limits = snapshot.thresholds
    if not kvaware(snapshot) and not found.by_cache:
        yield not_kvaware(snapshot)
    elif missing is not None:
        yield missing
    elif found.total < limits.routed_requests_min:
        message = f"{found.total} routed requests are too few (needs {limits.routed_requests_min})"
        yield skipped(Reason.NO_TRAFFIC, message, FLEET, *found.evidence)
    elif found.by_cache == 0:
        yield _none_routed(snapshot, found.total, found.span, found.evidence)
    else:
        told = f"{found.by_cache} of {found.total} requests ({percent(found.share)}, {found.span}) were routed by cache"
        judge = passed if found.share >= limits.kv_routed_share else warned
        yield judge(told, FLEET, *found.evidence)


def _none_routed(snapshot: Snapshot, total: int, span: str, evidence: tuple[Evidence, ...]) -> Finding:
    told = f"none of {total} requests ({span}) was routed by cache"
    level = next((one.router_log_level for one in snapshot.routers if _hides_info(one)), None)
    if level is not None:
        return skipped(Reason.LOG_LEVEL_HIDES, f"at log level {level} the router does not name its hits")
    if snapshot.probe is not None and any(step.kv_routed for step in snapshot.probe.steps):
        return passed(f"{told} before the probe, whose repeats were", FLEET, *evidence)
    if total < snapshot.thresholds.routed_requests_sure:
        needed = snapshot.thresholds.routed_requests_sure
        return skipped(Reason.NO_TRAFFIC, f"{told}: too few to judge (needs {needed})", FLEET, *evidence)
    repeats = prefixes_repeat(snapshot)
    if repeats is None:
        message = f"{told}, and nothing shows that prompts repeat: --probe tells"
        return skipped(Reason.NO_DATA, message, FLEET, *evidence)
    return failed(f"{told}, although prompts share prefixes", FLEET, *evidence, repeats)


def _hides_info(router: Member) -> bool:
    return router.router_log_level in ("WARNING", "WARN", "ERROR", "CRITICAL")


# -- KV502 -----------------------------------------------------------------------------------------------------------


def misses(snapshot: Snapshot) -> Iterator[Finding]:
    if not kvaware(snapshot):
        yield not_kvaware(snapshot)
        return
    if (missing := no_log(snapshot)) is not None:
        yield missing
        return
    hit = missed = 0
    evidence: list[Evidence] = []
    for log in (router.log for router in snapshot.routers if router.log is not None):
        hit += log.count("router-kv-hit")
        kinds = ("aws-matched-none", "router-lookup-empty", "router-session-fallback")
        missed += max(log.count(kind) for kind in kinds)
        if (last := log.last(*kinds)) is not None:
            evidence.append(log.evidence(last))
    debug = any(router.router_log_level == "DEBUG" for router in snapshot.routers)
    limits = snapshot.thresholds
    if not missed and not debug:
        yield skipped(Reason.LOG_LEVEL_HIDES, "misses are logged at level DEBUG only")
    elif hit + missed < limits.routed_requests_min:
        message = f"{hit + missed} lookups are too few (needs {limits.routed_requests_min})"
        yield skipped(Reason.NO_TRAFFIC, message, FLEET, *evidence)
    else:
        yield _judge_misses(snapshot, hit, missed, evidence)


def _judge_misses(snapshot: Snapshot, hit: int, missed: int, evidence: list[Evidence]) -> Finding:
    share = missed / (hit + missed)
    told = f"{missed} of {hit + missed} lookups missed ({percent(share)})"
    repeats = prefixes_repeat(snapshot) if hit == 0 and missed >= snapshot.thresholds.misses_sure else None
    if repeats is not None:
        return failed(f"{told}, although prompts share prefixes", FLEET, *evidence, repeats)
    judge = warned if share > snapshot.thresholds.miss_share_warn else passed
    return judge(told, FLEET, *evidence)


# -- KV505 -----------------------------------------------------------------------------------------------------------


def load_skew(snapshot: Snapshot) -> Iterator[Finding]:
    workers = snapshot.ready_workers
    if len(workers) < 2:
        yield skipped(Reason.NOT_APPLICABLE, "fewer than two ready workers")
        return
    counts, source = _served(snapshot)
    yield judge_skew(snapshot, workers, counts, source)


_ENDED = ("request_success", "sglang_requests", "trtllm_requests")
"""Counters of requests of vLLM, SGLang and TensorRT-LLM."""


def _served(snapshot: Snapshot) -> tuple[dict[str, float], str]:
    """Requests by worker key, from the router's log or, without any, from the engines' own counters."""
    by_ip = {ip: worker.key for worker in snapshot.workers for ip in worker.ips}
    by_url = {urlsplit(worker.url).netloc: worker.key for worker in snapshot.workers if worker.url}
    counts: dict[str, float] = {}
    for log in (router.log for router in snapshot.routers if router.log is not None):
        for match in log.all("router-route"):
            parts = url_parts(match["url"])
            key = by_url.get(parts.netloc) or by_ip.get(parts.hostname or "")
            if key is not None:
                counts[key] = counts.get(key, 0.0) + 1
    if counts or not snapshot.metrics.by_member:
        return counts, "log"
    for worker in snapshot.workers:
        ended = [snapshot.metrics.grown((name,), worker.key)[0].or_zero() for name in _ENDED]
        counts[worker.key] = max(ended)
    return counts, "metric"


# -- KV506 -----------------------------------------------------------------------------------------------------------


def prefix_aware(snapshot: Snapshot) -> Iterator[Finding]:
    if snapshot.strategy != "prefixaware":
        yield skipped(Reason.NOT_APPLICABLE, f"the strategy is {snapshot.strategy or 'not known'}, not prefixaware")
        return
    if not snapshot.routers:
        yield skipped(Reason.NO_DATA, "no router was found")
    for router in snapshot.routers:
        yield _prefix_aware(router)


def _prefix_aware(router: Member) -> Finding:
    if not router.container.args:
        return skipped(Reason.NO_DATA, "the router's arguments could not be read", router.target)
    told = router.arg("--prefix-min-match-length") or "0"
    shown = args(router, "--prefix-min-match-length")
    if not whole(told.strip()):
        message = "no minimal match length; prefixes are matched in pieces of 128 characters (only --probe shows hits)"
        return passed(message, router.target, shown)
    version = Version.find(router.container.image.rpartition(":")[2])
    told = f"with --prefix-min-match-length {told}"
    if version is None:
        return warned(f"{told} a router before {SEEDS_TRIE} never learns a prefix", router.target, shown, image(router))
    if version < SEEDS_TRIE:
        return failed(f"{told} router {version} never learns a prefix", router.target, shown, image(router))
    return passed(f"{told} router {version} learns prefixes", router.target, shown, image(router))


# -- KV507 -----------------------------------------------------------------------------------------------------------


def session_key(snapshot: Snapshot) -> Iterator[Finding]:
    if not kvaware(snapshot):
        yield skipped(Reason.NOT_APPLICABLE, f"the strategy is {snapshot.strategy or 'not known'}, not kvaware")
        return
    if not snapshot.routers:
        yield skipped(Reason.NO_DATA, "no router was found")
    found = routed(snapshot)
    for router in snapshot.routers:
        if not router.container.args:
            yield skipped(Reason.NO_DATA, "the router's arguments could not be read", router.target)
        elif key := router.arg("--session-key"):
            yield passed(f"what no cache decides follows the session key {key}", router.target)
        else:
            yield _without_key(snapshot, router, found.total, 1 - found.share)


def _without_key(snapshot: Snapshot, router: Member, total: int, missed: float) -> Finding:
    shown = args(router, "--session-key")
    told = "no session key: what no cache decides goes to the least used worker"
    enough = total >= snapshot.thresholds.routed_requests_min
    if enough and missed > snapshot.thresholds.miss_share_warn:
        return warned(f"{told}, which is {percent(missed)} of {total} requests", router.target, shown)
    return passed(told, router.target, shown)


CHECKS: tuple[Check, ...] = (
    Check(
        id="KV501",
        title="Requests are routed by cache",
        group=Group.ROUTING,
        worst=Status.FAIL,
        reads="the router's lines `Routing request to INSTANCE found by kvaware router` and `Routing request ID "
        "with session id …`",
        rule="Skips below 20 routed requests. Passes from 5 % on, warns below. Fails where none of 50 or more was "
        "routed by cache although an engine hit ratio above 10 % or the probe shows that prompts repeat; "
        "without that it skips, since prompts may be unique.",
        hint="see registration (KV2xx) and whether keys agree (KV4xx); chat requests are never routed by cache (KV122)",
        run=kv_routed,
        stacks=STACKS,
        caused_by=NEEDS,
        required=True,
        proves=True,
    ),
    Check(
        id="KV502",
        title="Lookups in the router find something",
        group=Group.ROUTING,
        worst=Status.FAIL,
        reads="`Matched instance url None`, `Lookup return message … layout_info={}`, `Fallback to using session "
        "id` (DEBUG)",
        rule="Skips where the router's level hides misses. Warns above 80 % of 20 or more lookups; fails where all "
        "of 50 or more missed although prompts are known to repeat.",
        hint="see KV2xx and KV4xx. At --log-level debug the router also logs request headers, with bearer tokens: "
        "briefly only",
        run=misses,
        stacks=STACKS,
        caused_by=NEEDS,
    ),
    Check(
        id="KV505",
        title="No worker is overrun while another idles",
        group=Group.ROUTING,
        worst=Status.WARN,
        reads="requests by worker from the router's log, else the engines' own counters; how many wait and run there "
        "(vLLM, SGLang, TensorRT-LLM)",
        rule="Skips below 20 requests. Warns where one worker got more than three times the median and requests "
        "wait there while another runs none.",
        hint="use loadaware, or a router that weighs load: kvaware has no load term",
        run=load_skew,
    ),
    Check(
        id="KV506",
        title="prefixaware learns prefixes",
        group=Group.ROUTING,
        worst=Status.FAIL,
        reads="--prefix-min-match-length and the tag of the router's image",
        rule="Fails where it is above 0 on a router before 0.1.12, which then never fills its tree; warns where "
        "the version is not known.",
        hint="leave --prefix-min-match-length at 0",
        run=prefix_aware,
        stacks=STACKS,
    ),
    Check(
        id="KV507",
        title="What no cache decides is kept together by session",
        group=Group.ROUTING,
        worst=Status.WARN,
        reads="--session-key and the share of requests routed by cache",
        rule="Passes with what happens to misses. Warns where kvaware has no session key and more than 80 % of 20 "
        "or more requests were not routed by cache.",
        hint="give the router --session-key",
        run=session_key,
        stacks=STACKS,
        caused_by=("KV501",),
    ),
)
