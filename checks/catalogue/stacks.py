"""KV911 Dynamo, KV921 SGLang, KV931 TensorRT-LLM, KV941 LMCache's multi-process server: their own proof. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from checks.lmcache import times, uses_server
from checks.metrics.view import Metrics, Reading
from checks.model import (
    FLEET,
    Check,
    Finding,
    Group,
    Reason,
    Stack,
    Status,
    Target,
    failed,
    passed,
    skipped,
    warned,
)
from checks.numerals import whole
from checks.serving import block_tokens
from checks.snapshot import Member, Role, Snapshot
from checks.traffic import Ratio, collapsed, grown_to, lifetime, no_metric, percent, ratio, subjects

DEFAULT_TRT_BLOCK = 32
APPLIED = "ok"
"""Value of Dynamo's label `status` for an event that was applied; the others name why it was not."""


# -- KV911 -----------------------------------------------------------------------------------------------------------


def dynamo(snapshot: Snapshot) -> Iterator[Finding]:
    if snapshot.strategy != "kv":
        mode = snapshot.strategy
        reason = Reason.NOT_APPLICABLE if mode else Reason.NO_DATA
        yield skipped(reason, f"the router's mode is {mode}, not kv" if mode else "nothing tells the router's mode")
        return
    metrics = snapshot.metrics
    needed = snapshot.thresholds.traffic_requests_min
    names = ("dynamo_kv_hit_rate_sum", "dynamo_kv_hit_rate_count", "dynamo_router_requests")
    found, observed, requests = grown_to(snapshot, names, None, needed)
    served = max(requests.or_zero(), observed.or_zero())
    if metrics.missing is not None:
        yield no_metric(snapshot, metrics.missing, "Dynamo's metrics")
        return
    if served == 0:
        yield skipped(Reason.NO_TRAFFIC, "Dynamo's metrics are empty before the first request")
        return
    applied, refused = _events(metrics)
    evidence = [one.evidence() for one in (applied, refused, requests, found, observed) if one]
    yield from _losses(snapshot)
    yield from _dynamo_blocks(snapshot)
    if applied.or_zero() == 0:
        message = f"{served:.0f} requests and no KV event applied: the router only guesses what is cached"
        yield failed(message, FLEET, *evidence)
    elif found.or_zero() > 0:
        share = percent(min(1.0, found.or_zero() / max(1.0, observed.or_zero())))
        yield passed(
            f"{applied.or_zero():.0f} KV events applied; on average {share} of a prompt was found", FLEET, *evidence
        )
    elif served < needed:
        message = f"KV events arrive; {served:.0f} requests without a hit are too few (needs {needed})"
        yield skipped(Reason.NO_TRAFFIC, message, FLEET, *evidence)
    else:
        message = f"KV events arrive, and for none of {served:.0f} requests a cached prefix was found"
        yield warned(message, FLEET, *evidence)


def _events(metrics: Metrics) -> tuple[Reading, Reading]:
    """Events applied and events refused since the start; without the label `status` all count as applied."""
    name = "dynamo_events_applied"
    every = metrics.now(name)
    if not any("status" in sample.labels for sample in metrics.find(name)):
        return every, Reading("refused KV events", None, Reason.NO_DATA)
    applied = metrics.now(name, None, status=APPLIED)
    value = applied.or_zero()
    return Reading(name, value, None, "now"), Reading("refused KV events", every.or_zero() - value, None, "now")


def _losses(snapshot: Snapshot) -> Iterator[Finding]:
    lost = snapshot.metrics.now("dynamo_dropped_events")
    if lost.or_zero() > 0:
        yield warned(f"the workers' publishers dropped {lost.or_zero():.0f} events", FLEET, lost.evidence())
    mismatch = snapshot.metrics.now("dynamo_source_mismatch", how="max")
    if mismatch.or_zero() > 0:
        message = f"{mismatch.or_zero():.0f} workers publish no KV events although the router expects them"
        yield warned(message, FLEET, mismatch.evidence())


def _dynamo_blocks(snapshot: Snapshot) -> Iterator[Finding]:
    told = {int(sample.value) for sample in snapshot.metrics.find("dynamo_block_size") if sample.value > 0}
    for worker in snapshot.workers if len(told) == 1 else ():
        block, wanted = block_tokens(snapshot, worker), next(iter(told))
        if block is not None and block != wanted:
            yield warned(f"blocks of {block} tokens; the router counts with {wanted}", worker.target)


# -- KV921 -----------------------------------------------------------------------------------------------------------


def sglang(snapshot: Snapshot) -> Iterable[Finding]:
    if snapshot.stack is not Stack.SGLANG and not snapshot.metrics.has(("sglang_prompt_tokens",)):
        return [skipped(Reason.NOT_APPLICABLE, "no worker exports SGLang's metrics")]
    if not snapshot.ready_workers:
        return [skipped(Reason.NO_DATA, "no worker is ready")]
    return collapsed(_sglang(snapshot, *one) for one in subjects(snapshot, snapshot.ready_workers))


def _sglang(snapshot: Snapshot, target: Target, member: str | None) -> Finding:
    floor = snapshot.thresholds.traffic_tokens_min
    cached, prompt = grown_to(snapshot, ("sglang_cached_tokens", "sglang_prompt_tokens"), member, floor)
    if prompt.missing is not None:
        message = "SGLang's prompt tokens (start it with --enable-metrics)"
        return no_metric(snapshot, prompt.missing, message, target)
    # no series of cached tokens before the first hit: 0
    hits = Reading(cached.name, cached.or_zero(), None, prompt.window, cached.reset, prompt.where)
    one = Ratio(hits, prompt, Reading("requests", None))
    return _hit_share(snapshot, one, "of the prompt tokens were cached", target)


def _hit_share(snapshot: Snapshot, one: Ratio, what: str, target: Target) -> Finding:
    """Passes or warns by the share of hits; skips with too little traffic."""
    if not one.enough(snapshot):
        needed = snapshot.thresholds.traffic_tokens_min
        seen = one.whole.or_zero() * one.unit_tokens
        message = f"too little traffic to judge: {seen:.0f} tokens (needs {needed})"
        return skipped(Reason.NO_TRAFFIC, message, target, *one.evidence())
    judge = warned if one.value < snapshot.thresholds.prefix_hit_ratio_warn else passed
    return judge(f"{one} {what}", target, *one.evidence())


# -- KV931 -----------------------------------------------------------------------------------------------------------


def tensorrt_llm(snapshot: Snapshot) -> Iterator[Finding]:
    names = ("trtllm_missed_blocks", "trtllm_prompt_tokens", "trtllm_hit_rate")
    if snapshot.stack is not Stack.TRTLLM and not snapshot.metrics.has(names):
        yield skipped(Reason.NOT_APPLICABLE, "no worker exports TensorRT-LLM's metrics")
        return
    if not snapshot.ready_workers:
        yield skipped(Reason.NO_DATA, "no worker is ready")
        return
    yield from collapsed(_trtllm(snapshot, *one) for one in subjects(snapshot, snapshot.ready_workers))
    yield from _trtllm_blocks(snapshot)


def _trtllm(snapshot: Snapshot, target: Target, member: str | None) -> Finding:
    metrics = snapshot.metrics
    unit = metrics.now("trtllm_tokens_per_block", member, how="max").value or DEFAULT_TRT_BLOCK
    floor = snapshot.thresholds.traffic_tokens_min / unit
    reused, missed = grown_to(snapshot, ("trtllm_reused_blocks", "trtllm_missed_blocks"), member, floor)
    if reused and missed:
        blocks = reused.or_zero() + missed.or_zero()
        whole = Reading("reused and missed blocks", blocks, None, missed.window, missed.reset, missed.where)
        one = Ratio(reused, whole, Reading("requests", None), unit)
        if metrics.source == "scrape" and not one.enough(snapshot):
            reused, missed = lifetime(metrics, ("trtllm_reused_blocks", "trtllm_missed_blocks"), member)
            whole = Reading(whole.name, reused.or_zero() + missed.or_zero(), None, missed.window, False, missed.where)
            one = Ratio(reused, whole, Reading("requests", None), unit)
        return _hit_share(snapshot, one, "of the blocks were reused", target)
    one = ratio(snapshot, "trtllm_cached_tokens", "trtllm_prompt_tokens", "requests", member)
    if one.missing is None:
        return _hit_share(snapshot, one, "of the prompt tokens were cached", target)
    gauge = metrics.now("trtllm_hit_rate", member)
    if gauge.value is None:
        return no_metric(snapshot, gauge.missing or Reason.NO_DATA, "TensorRT-LLM's cache counters", target)
    message = f"only the gauge of the hit rate is exported ({percent(gauge.value)} now), which says nothing of a span"
    return skipped(Reason.NO_DATA, message, target, gauge.evidence())


def _trtllm_blocks(snapshot: Snapshot) -> Iterator[Finding]:
    for router in snapshot.routers:
        told = whole(router.arg("--kv-cache-block-size", "--block-size"))
        for worker in snapshot.workers if told is not None else ():
            block = snapshot.metrics.now("trtllm_tokens_per_block", worker.key, how="max")
            if block.value is not None and block.value != told:
                message = f"blocks of {block.value:.0f} tokens; router {router.name} counts with {told}"
                yield failed(message, worker.target, block.evidence())


# -- KV941 -----------------------------------------------------------------------------------------------------------


def multi_process(snapshot: Snapshot) -> Iterator[Finding]:
    clients = [worker for worker in snapshot.workers if uses_server(worker)]
    servers = snapshot.of(Role.CACHE_SERVER)
    counted = snapshot.metrics.has(("mp_lookup_requested_tokens",))
    if not clients and not counted:
        yield skipped(Reason.NOT_APPLICABLE, "LMCache does not run in multi-process mode")
        return
    for member in (*clients, *servers):
        yield from _lost_contexts(snapshot, member)
    yield from _server_counts(snapshot)


def _lost_contexts(snapshot: Snapshot, member: Member) -> Iterator[Finding]:
    log = member.log
    if log is None or not log.records:
        yield skipped(member.log_missing or Reason.NO_DATA, "its log was not read", member.target)
        return
    since = snapshot.now - snapshot.window_s
    gone, late = log.since(since, "lmcache-mp-gone"), log.since(since, "lmcache-mp-timeout")
    last = log.last("lmcache-mp-gone", "lmcache-mp-recovered", "lmcache-stored", "lmcache-retrieved")
    if gone:
        message = f"LMCache's server dropped an idle worker: stores or loads failed {times(len(gone))} since"
        yield failed(message, member.target, log.evidence(gone[-1]))
    elif late:
        message = f"{len(late)} requests to LMCache's server timed out"
        yield warned(message, member.target, log.evidence(late[-1]))
    elif last is not None and last.pattern == "lmcache-mp-gone":
        message = "LMCache's server dropped an idle worker some time ago, and nothing shows that it is back"
        yield warned(message, member.target, log.evidence(last))
    else:
        yield passed("no dropped worker in its log, and no timeout in the window", member.target)


def _server_counts(snapshot: Snapshot) -> Iterator[Finding]:
    metrics, limits = snapshot.metrics, snapshot.thresholds
    names = ("mp_lookup_hit_tokens", "mp_lookup_requested_tokens")
    hits, asked = grown_to(snapshot, names, None, limits.traffic_tokens_min)
    if asked.value is None:
        missing = asked.missing or Reason.NO_DATA
        yield skipped(missing, "the metrics of LMCache's server (default port 9090) could not be read")
        return
    for name, what in (
        ("mp_timeouts", "timeouts"),
        ("mp_l1_allocation_failures", "chunks found no room in its memory"),
        ("mp_l2_prefetch_failures", "chunks could not be fetched from its second tier"),
    ):
        count = lifetime(metrics, (name,), None)[0] if asked.lifetime else metrics.increase(name)
        if count.or_zero() > 0:
            yield warned(f"LMCache's server: {count.or_zero():.0f} {what} ({count.window})", FLEET, count.evidence())
    one = Ratio(hits, asked, Reading("requests", None))
    told = f"LMCache's server found {one} of the tokens it was asked for"
    if not one.enough(snapshot):
        needed = limits.traffic_tokens_min
        yield skipped(Reason.NO_TRAFFIC, f"{told}: too few to judge (needs {needed})", FLEET, *one.evidence())
    elif one.value < limits.lookup_hit_ratio_warn:
        yield warned(told, FLEET, *one.evidence())
    else:
        yield passed(told, FLEET, *one.evidence())


CHECKS: tuple[Check, ...] = (
    Check(
        id="KV911",
        title="Dynamo's router takes KV events and hits",
        group=Group.ROUTING,
        worst=Status.FAIL,
        reads="dynamo_component_kv_cache_events_applied, router_kv_hit_rate, router_requests, dropped events, "
        "block size",
        rule="For --router-mode kv. Fails where requests were routed and no event was ever applied: the router "
        "then guesses. Warns at dropped events, at workers whose events do not come, at another block size "
        "than the engine's, and where 50 or more requests found nothing. Skips before the first request.",
        hint="start the workers with KV events (--kv-events-config) and see that the router reaches them",
        run=dynamo,
        stacks=frozenset({Stack.DYNAMO}),
        proves=True,
    ),
    Check(
        id="KV921",
        title="SGLang's prefix cache is hit",
        group=Group.EFFECT,
        worst=Status.WARN,
        reads="sglang:cached_tokens_total and prompt_tokens_total (the gauge cache_hit_rate is of the last batch only)",
        rule="Skips below 10,000 prompt tokens. Warns below 10 %. A missing series of cached tokens means none.",
        hint="see whether requests with one prefix reach one worker (KV505)",
        run=sglang,
        proves=True,
    ),
    Check(
        id="KV931",
        title="TensorRT-LLM's blocks are reused",
        group=Group.EFFECT,
        worst=Status.FAIL,
        reads="trtllm_kv_cache_reused_blocks_total and _missed_blocks_total, else cached and prompt tokens; "
        "tokens_per_block",
        rule="Fails where the router's block size is not the engine's tokens_per_block. Warns below 10 % reuse. "
        "Skips below 10,000 tokens.",
        hint="set the router's block size to kv_cache_config.tokens_per_block",
        run=tensorrt_llm,
        proves=True,
    ),
    Check(
        id="KV941",
        title="LMCache's multi-process server serves",
        group=Group.LMCACHE,
        worst=Status.FAIL,
        reads="lmcache_mp_* metrics of the server; lines of dropped contexts and timeouts in the workers' and the "
        "server's logs",
        rule="Fails where the server dropped a worker in the window (an idle one is reaped, its later stores and "
        "loads fail). Warns where it did so earlier and nothing shows that the worker is back, at timeouts, at failed "
        "allocations or fetches, and below 5 % found.",
        hint="upgrade LMCache or raise the server's idle timeout; restart the worker that was dropped",
        run=multi_process,
    ),
)
