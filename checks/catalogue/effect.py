"""KV601-KV604, KV606: is the cache really hit, by the engines' and LMCache's counters. Pure; reads metrics and lines.

Every ratio comes from a numerator and a denominator that were read apart. Numbers that span the engine's lifetime are
at most a warning. What a ratio should be depends on the workload: only what cannot be right is a failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from checks.lmcache import lookups_told, stored_told
from checks.metrics.histogram import hit_rates
from checks.metrics.view import Reading
from checks.model import FLEET, Check, Evidence, Finding, Group, Reason, Status, Target, passed, skipped, warned
from checks.sharing import lmcache_workers, no_lmcache, ready_in_process
from checks.snapshot import Member, Snapshot
from checks.traffic import (
    Ratio,
    bad,
    collapsed,
    engine_ratio,
    first_rank,
    grown_to,
    judge_ratio,
    lifetime,
    lookup_ratio,
    no_metric,
    percent,
    prefixes_repeat,
    ratio,
    routed_repeats,
    subjects,
)

# -- KV601 -----------------------------------------------------------------------------------------------------------


def engine_hits(snapshot: Snapshot) -> Iterator[Finding]:
    repeats = routed_repeats(snapshot)
    on = []
    for worker in snapshot.ready_workers:
        if snapshot.metrics.find("cache_config_info", worker.key, enable_prefix_caching="False"):
            yield skipped(Reason.DISABLED, "the engine's prefix caching is off", worker.target)
        else:
            on.append(worker)
    if not on and snapshot.ready_workers:
        return

    def judge(target: Target, one: Ratio) -> Finding:
        told = f"the engine's prefix cache had {one} of the prompt tokens"
        if one.part.or_zero() == 0 and repeats is not None:
            return bad(
                f"{told}, although prompts share prefixes", target, *one.evidence(), repeats, lifetime=one.lifetime
            )
        if one.value < snapshot.thresholds.prefix_hit_ratio_warn:
            return warned(told, target, *one.evidence())
        return passed(told, target, *one.evidence())

    yield from judge_ratio(snapshot, on, engine_ratio, "the engines' prefix cache counters", judge)


# -- KV602 -----------------------------------------------------------------------------------------------------------


def lookup_hits(snapshot: Snapshot) -> Iterator[Finding]:
    workers = ready_in_process(snapshot)
    if not workers:
        yield no_lmcache(snapshot)
        return
    repeats = prefixes_repeat(snapshot)

    def judge(target: Target, one: Ratio) -> Finding:
        told = f"LMCache found {one} of the tokens it was asked for"
        if one.part.or_zero() == 0:
            stored = _stored(snapshot, target, one)
            sure = one.whole.or_zero() >= snapshot.thresholds.lookup_tokens_sure
            if sure and repeats is not None and stored.or_zero() > 0:
                message = f"{told}, although it stored {stored.or_zero():.0f} tokens and prompts share prefixes"
                return bad(message, target, *one.evidence(), stored.evidence(), repeats, lifetime=one.lifetime)
        if one.value < snapshot.thresholds.lookup_hit_ratio_warn:
            return warned(told, target, *one.evidence())
        return passed(told, target, *one.evidence())

    unmeasured = [] if snapshot.metrics.has(("lmcache_lookup_tokens",)) else workers
    told = [(worker, one) for worker in unmeasured if (one := _ratio_by_log(snapshot, worker)) is not None]
    for worker, one in told:
        yield judge(worker.target, one)
    if not told:
        yield from judge_ratio(snapshot, workers, lookup_ratio, "LMCache's lookup counters", judge)


def _ratio_by_log(snapshot: Snapshot, worker: Member) -> Ratio | None:
    """Found over asked tokens by LMCache's lines a request, each request once; None with too few of them."""
    if worker.log is None or (told := lookups_told(worker.log)).requests < snapshot.thresholds.routed_requests_min:
        return None
    where = worker.key
    return Ratio(
        Reading("LMCache hit tokens", told.hit_tokens, window="log", where=where),
        Reading("total tokens", told.tokens, window="log", where=where),
        Reading("requests", float(told.requests), window="log", where=where),
    )


def _stored(snapshot: Snapshot, target: Target, one: Ratio) -> Reading:
    """Tokens stored over the span of the ratio, by the same source."""
    member = one.whole.where or None
    if one.whole.window != "log":
        name = "lmcache_stored_tokens"
        return snapshot.metrics.now(name, member) if one.lifetime else snapshot.metrics.increase(name, member)
    worker = snapshot.member(one.whole.where)
    total = 0.0 if worker is None or worker.log is None else stored_told(worker.log)
    return Reading("stored tokens", total, window="log", where=target.name)


# -- KV603 -----------------------------------------------------------------------------------------------------------


def delivered(snapshot: Snapshot) -> Iterable[Finding]:
    workers = ready_in_process(snapshot)
    if not workers:
        return [no_lmcache(snapshot)]
    return collapsed(_delivered(snapshot, target, member) for target, member in subjects(snapshot, workers))


def _delivered(snapshot: Snapshot, target: Target, member: str | None) -> Finding:
    metrics = snapshot.metrics
    names = ("lmcache_lookup_hits", "lmcache_hit_tokens", "lmcache_requested_tokens", "lmcache_vllm_hit_tokens")
    *counted, prompt, lookups = grown_to(
        snapshot, (*names, "prompt_tokens", "lmcache_lookup_tokens"), member, snapshot.thresholds.traffic_tokens_min
    )
    found, loaded, asked, engine = (first_rank(metrics, one, member) for one in counted)
    for needed in (lookups, found, loaded):
        if needed.missing is not None:
            return no_metric(snapshot, needed.missing, f"LMCache's counter {needed.name}", target)
    evidence = [one.evidence() for one in (found, loaded, asked, engine, prompt) if one]
    if loaded.or_zero() > 0:
        parts = [f"LMCache delivered {loaded.or_zero():.0f} tokens"]
        if prompt.or_zero() > 0:
            parts.append(f"{percent(min(1.0, loaded.or_zero() / prompt.or_zero()))} of all prompt tokens")
        if asked.or_zero() > 0:
            parts.append(f"{percent(min(1.0, loaded.or_zero() / asked.or_zero()))} of those it was asked to load")
        return passed(", ".join(parts), target, *evidence)
    if found.or_zero() == 0:
        return skipped(Reason.NO_TRAFFIC, "LMCache found nothing that it could deliver", target, *evidence)
    if engine.or_zero() >= found.or_zero():
        message = "the engine's own cache held all that LMCache found: nothing had to be loaded"
        return skipped(Reason.NO_TRAFFIC, message, target, *evidence)
    worker = None if member is None else snapshot.member(member)
    log = None if worker is None else worker.log
    if log is not None and (line := log.last("lmcache-skip-retrieve", "lmcache-failed-load")) is not None:
        evidence.append(log.evidence(line))
    return warned(f"LMCache found {found.or_zero():.0f} tokens and delivered none of them", target, *evidence)


# -- KV604 -----------------------------------------------------------------------------------------------------------


def distribution(snapshot: Snapshot) -> Iterable[Finding]:
    workers = ready_in_process(snapshot)
    if not workers:
        return [no_lmcache(snapshot)]
    found = [_distribution(snapshot, target, member) for target, member in subjects(snapshot, workers)]
    if any(one.status is not Status.SKIP for one in found):
        return found
    whole = _distribution(snapshot, found[0].target if len(found) == 1 else FLEET, None)
    return [whole] if whole.status is not Status.SKIP else collapsed(found)


def _distribution(snapshot: Snapshot, target: Target, member: str | None) -> Finding:
    needed = snapshot.thresholds.traffic_requests_min
    rates = hit_rates(snapshot.metrics, member, floor=needed)
    if rates is None:
        missing = snapshot.metrics.missing or Reason.NO_DATA
        return no_metric(snapshot, missing, "LMCache's hit rate a request", target)
    counted = f"{rates.zeros:.0f} requests without a hit, {rates.observed:.0f} with one ({rates.window})"
    evidence = Evidence("metric", member or "fleet", counted)
    if rates.requests < needed or rates.zero_share is None or rates.mean is None:
        message = f"{rates.requests:.0f} lookups are too few (needs {needed})"
        return skipped(Reason.NO_TRAFFIC, message, target, evidence)
    told = f"{percent(rates.zero_share)} of {rates.requests:.0f} requests hit nothing in LMCache"
    if rates.zero_share > snapshot.thresholds.zero_hit_share_warn:
        return warned(told, target, evidence)
    middle = rates.quantile(0.5)
    half = "" if middle is None else f", in the median {percent(middle)}"
    return passed(f"{told}; on average {percent(rates.mean)} of a prompt was found{half}", target, evidence)


# -- KV606 -----------------------------------------------------------------------------------------------------------


def external_hits(snapshot: Snapshot) -> Iterable[Finding]:
    workers = lmcache_workers(snapshot)
    if not workers:
        return [no_lmcache(snapshot)]
    return collapsed(_external(snapshot, target, member) for target, member in subjects(snapshot, workers))


def _external(snapshot: Snapshot, target: Target, member: str | None) -> Finding:
    metrics = snapshot.metrics
    one = ratio(snapshot, "external_prefix_cache_hits", "external_prefix_cache_queries", "request_success", member)
    if one.missing is not None:
        return no_metric(snapshot, one.missing, "the engine's counters of its connector (vLLM 0.10 or newer)", target)
    if one.whole.or_zero() == 0:
        return skipped(Reason.NO_TRAFFIC, "the engine asked its connector for nothing", target, *one.evidence())
    names = ("lmcache_vllm_hit_tokens", "prefix_cache_hits", "prefix_cache_queries", "lmcache_lookup_hits")
    span = lifetime(metrics, names, member) if one.lifetime else tuple(metrics.increase(name, member) for name in names)
    engine, local_hits, local_queries, found = span
    if one.part.or_zero() == 0:
        beyond = first_rank(metrics, found, member).or_zero() - first_rank(metrics, engine, member).or_zero()
        evidence = (*one.evidence(), found.evidence())
        if beyond > 0:
            message = f"LMCache found {beyond:.0f} tokens that the engine lacked, and the engine counts no hit of them"
            return warned(message, target, *evidence)
        message = "no hit through the connector, and LMCache found nothing that the engine lacked"
        return skipped(Reason.NO_TRAFFIC, message, target, *evidence)
    told = f"the connector had {one} of the tokens that the engine lacked"
    evidence = (*one.evidence(),)
    if local_queries.or_zero() > 0:
        both = min(1.0, (local_hits.or_zero() + one.part.or_zero()) / local_queries.or_zero())
        told += f"; with the engine's own cache {percent(both)} of all prompt tokens were found"
        evidence = (*evidence, local_hits.evidence(), local_queries.evidence())
    for source in sorted(
        {sample.labels.get("source", "") for sample in metrics.find("prompt_tokens_by_source", member)}
    ):
        read = metrics.now if one.lifetime else metrics.increase
        came = read("prompt_tokens_by_source", member, source=source)
        evidence = (
            *evidence,
            Evidence("metric", member or "fleet", f"prompt tokens from {source}: {came.or_zero():.0f}"),
        )
    return passed(told, target, *evidence)


CHECKS: tuple[Check, ...] = (
    Check(
        id="KV601",
        title="The engine's prefix cache is hit",
        group=Group.EFFECT,
        worst=Status.FAIL,
        reads="vLLM's prefix_cache_hits and prefix_cache_queries (gpu_prefix_cache_* before 0.9), each worker",
        rule="Skips below 10,000 prompt tokens or 50 requests. Warns below 10 %: the value depends on the "
        "workload. Fails only where nothing was hit although the router's log or the probe shows that prompts "
        "repeat; over the engine's lifetime that is a warning.",
        hint="see whether requests with one prefix reach one worker (KV501, KV505), and whether it is evicted (KV607)",
        run=engine_hits,
        caused_by=("KV142", "KV144"),
        proves=True,
    ),
    Check(
        id="KV602",
        title="LMCache's lookups hit",
        group=Group.EFFECT,
        worst=Status.FAIL,
        reads="lmcache:num_lookup_hits and num_lookup_tokens, each worker; LMCache's line a request where there is "
        "no metric",
        rule="Skips below 10,000 looked-up tokens or 50 requests (20 by log). Warns below 5 %. Fails at 0 of "
        "100,000 tokens or more while tokens were stored and prompts are known to repeat: stored and never "
        "found means that keys differ. Without proof that prompts repeat, or over the engine's lifetime, that "
        "is a warning.",
        hint="compare NONE_HASH, PYTHONHASHSEED, hash algorithm and chunk size (KV401-KV404)",
        run=lookup_hits,
        caused_by=("KV302", "KV303", "KV401", "KV402", "KV403", "KV404", "KV405", "KV605"),
        proves=True,
    ),
    Check(
        id="KV603",
        title="LMCache delivers what it finds",
        group=Group.EFFECT,
        worst=Status.WARN,
        reads="lmcache:num_hit_tokens (delivered), num_lookup_hits, num_requested_tokens; num_vllm_hit_tokens for "
        "comparison",
        rule="Passes where tokens were delivered. Warns where lookups hit and nothing was delivered, unless the "
        "engine's own cache held all of it (num_vllm_hit_tokens, which counts what vLLM had, not what LMCache "
        "served).",
        hint="look for failed or skipped loads (KV314) and at min_retrieve_tokens",
        run=delivered,
        caused_by=("KV302", "KV303", "KV311", "KV314"),
        proves=True,
    ),
    Check(
        id="KV604",
        title="Few requests miss LMCache altogether",
        group=Group.EFFECT,
        worst=Status.WARN,
        reads="lmcache:request_cache_hit_rate (histogram) and lookup_0_hit_requests",
        rule="The histogram leaves out requests without a hit; they are added again before mean and median are "
        "formed. Skips below 50 requests. Warns where more than 95 % of the requests hit nothing.",
        hint="see KV602; prompts shorter than a chunk never hit (KV407)",
        run=distribution,
        caused_by=("KV302", "KV401", "KV402", "KV403", "KV404", "KV602", "KV605"),
    ),
    Check(
        id="KV606",
        title="The engine counts hits of its connector",
        group=Group.EFFECT,
        worst=Status.WARN,
        reads="vllm:external_prefix_cache_hits and external_prefix_cache_queries (vLLM 0.10 and newer)",
        rule="Warns where the engine asked its connector and counts no hit although LMCache found tokens that the "
        "engine lacked. Otherwise shows the ratio and that of both caches together.",
        hint="look at the worker's log for failed loads (KV314): the scheduler refuses what LMCache found",
        run=external_hits,
        caused_by=("KV302", "KV303", "KV603"),
    ),
)
