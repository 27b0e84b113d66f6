"""KV954-KV956: what kvctl's own router decides: predictions, share by cache, load. Pure; reads its admin port."""

from __future__ import annotations

from collections.abc import Iterator

from checks.admin import decisions, number, other_mode, rows, served
from checks.metrics.view import Reading
from checks.model import FLEET, Check, Evidence, Finding, Group, Reason, Stack, Status, passed, skipped, warned
from checks.skew import judge_skew
from checks.snapshot import Snapshot
from checks.traffic import bad, grown_to, no_metric, percent, prefixes_repeat, ratio

STACKS = frozenset({Stack.KVCTL})
FOR_WANT = ("no_worker", "all_workers_busy")
"""Codes with which requests are refused because nobody can take them; others are the client's own mistake."""
NOT_FAILED = frozenset({"ok", "client_gone"})


# -- KV954 -----------------------------------------------------------------------------------------------------------


def predictions(snapshot: Snapshot) -> Iterator[Finding]:
    if (other := other_mode(snapshot)) is not None:
        yield other
        return
    newest = decisions(snapshot)
    joined = [
        (number(one.get("predicted_cached_tokens")), number(one.get("engine_cached_tokens")))
        for one in newest
        if one.get("engine_cached_tokens") is not None
    ]
    if len(joined) >= snapshot.thresholds.routed_requests_min:
        predicted, reported = sum(pair[0] for pair in joined), sum(pair[1] for pair in joined)
        off = sum(abs(pair[0] - pair[1]) for pair in joined)
        evidence = Evidence(
            "http", "fleet", f"/decisions: {len(joined)} with both, sum of differences {off:.0f} tokens"
        )
        more = sum(max(0.0, pair[1] - pair[0]) for pair in joined)
        loaded = snapshot.metrics.now("external_prefix_cache_hits")
        yield _error(snapshot, predicted, reported, off, f"{len(joined)} decisions", evidence, more=more, loaded=loaded)
        return
    yield _by_counters(snapshot, bool(newest))


def _by_counters(snapshot: Snapshot, decided: bool) -> Finding:
    needed = snapshot.thresholds.routed_requests_min
    names = ("kvctl_joined_predicted_tokens", "kvctl_engine_reused_tokens", "kvctl_joined_requests")
    predicted, reported, requests = grown_to(snapshot, names, None, needed)
    if requests.value is None:
        missing = requests.missing or Reason.NO_DATA
        return no_metric(snapshot, missing, "cached tokens, as predicted and as the engines report them,")
    evidence = (predicted.evidence(), reported.evidence(), requests.evidence())
    if requests.value == 0 and decided:
        message = "the engines do not report cached tokens"
        hint = "Start vLLM with --enable-prompt-tokens-details"
        return skipped(Reason.NO_DATA, message, FLEET, *evidence, hint=hint)
    if requests.value < needed:
        message = f"{requests.value:.0f} answers with cached tokens are too few (needs {needed})"
        return skipped(Reason.NO_TRAFFIC, message, FLEET, *evidence)
    off = abs(predicted.or_zero() - reported.or_zero())
    told = f"{requests.value:.0f} requests, {requests.window}"
    more = max(0.0, reported.or_zero() - predicted.or_zero())
    read = snapshot.metrics.now if requests.lifetime else snapshot.metrics.increase
    loaded = read("external_prefix_cache_hits")
    return _error(snapshot, predicted.or_zero(), reported.or_zero(), off, told, *evidence, more=more, loaded=loaded)


def _error(
    snapshot: Snapshot,
    predicted: float,
    reported: float,
    off: float,
    of: str,
    *evidence: Evidence,
    more: float,
    loaded: Reading,
) -> Finding:
    """Judges the differences (`off`, tokens) against what was predicted or reported, whichever is more.

    `more`: the part of them that engines had beyond the prediction. What a connector `loaded` (LMCache) engines report
    as cached, and KV events do not tell of it: so much of `more` is no mistake.
    """
    most = max(predicted, reported)
    if most == 0:
        return skipped(Reason.NO_TRAFFIC, f"no cached token was predicted or reported ({of})", FLEET, *evidence)
    elsewhere = min(more, loaded.or_zero())
    share = (off - elsewhere) / most
    numbers = f"{predicted:.0f} cached tokens predicted, {reported:.0f} reported by the engines"
    if elsewhere:
        numbers += f", {elsewhere:.0f} of them loaded by a connector"
        evidence = (*evidence, loaded.evidence())
    told = f"{numbers} ({of}): off by {percent(share)}"
    judge = passed if share <= snapshot.thresholds.predicted_error_warn and reported > 0 else warned
    return judge(told, FLEET, *evidence)


# -- KV955 -----------------------------------------------------------------------------------------------------------


def kv_decided(snapshot: Snapshot) -> Iterator[Finding]:
    if (other := other_mode(snapshot)) is not None:
        yield other
        return
    newest = decisions(snapshot)
    if len(newest) < snapshot.thresholds.routed_requests_min:
        yield _by_tokens(snapshot, len(newest))
        return
    found = sum(number(one.get("predicted_cached_tokens")) > 0 for one in newest)
    share, total = found / len(newest), len(newest)
    told = f"{found} of {total} decisions ({percent(share)}) went to a worker with a cached prefix"
    evidence = (Evidence("http", "fleet", f"/decisions: {total} newest"), *_best(snapshot))
    if found:
        judge = passed if share >= snapshot.thresholds.kv_routed_share else warned
        yield judge(told, FLEET, *evidence)
    else:
        yield _none_decided(snapshot, told, total, evidence, lifetime=False)


def _by_tokens(snapshot: Snapshot, decided: int) -> Finding:
    """By the router's counters of tokens, where it keeps too few decisions."""
    names = ("kvctl_selected_cached_tokens", "kvctl_prompt_tokens", "kvctl_requests")
    one = ratio(snapshot, *names)
    if one.missing is not None or not one.enough(snapshot):
        needed = snapshot.thresholds.routed_requests_min
        reason = Reason.NO_TRAFFIC if decided or one.missing is None else one.missing
        return skipped(reason, f"{decided} decisions are too few (needs {needed})", FLEET)
    told = f"{one} of the prompt tokens were cached on the worker that was chosen"
    if one.part.or_zero() == 0:
        return _none_decided(snapshot, told, int(one.requests.or_zero()), one.evidence(), lifetime=one.lifetime)
    judge = passed if one.value >= snapshot.thresholds.kv_routed_share else warned
    return judge(told, FLEET, *one.evidence(), *_best(snapshot))


def _none_decided(
    snapshot: Snapshot, told: str, total: int, evidence: tuple[Evidence, ...], *, lifetime: bool
) -> Finding:
    needed = snapshot.thresholds.routed_requests_sure
    if total < needed:
        return skipped(Reason.NO_TRAFFIC, f"{told}: too few to judge (needs {needed})", FLEET, *evidence)
    reused = snapshot.metrics.now("kvctl_engine_reused_tokens")
    repeats = reused.evidence() if reused.or_zero() > 0 else prefixes_repeat(snapshot)
    if repeats is None:
        message = f"{told}, and nothing shows that prompts repeat: --probe tells"
        return skipped(Reason.NO_DATA, message, FLEET, *evidence)
    return bad(f"{told}, although prompts share prefixes", FLEET, *evidence, repeats, lifetime=lifetime)


def _best(snapshot: Snapshot) -> tuple[Evidence, ...]:
    """How much of what any worker had cached the chosen ones had."""
    names = ("kvctl_selected_cached_tokens", "kvctl_best_eligible_cached_tokens")
    chosen, best = snapshot.metrics.grown(names)
    if not best.or_zero():
        return ()
    share = percent(min(1.0, chosen.or_zero() / best.or_zero()))
    return (Evidence("metric", "fleet", f"the chosen workers had {share} of the most that any had ({best.window})"),)


# -- KV956 -----------------------------------------------------------------------------------------------------------


def load(snapshot: Snapshot) -> Iterator[Finding]:
    metrics = snapshot.metrics
    if not metrics.has(("kvctl_requests",)):
        yield no_metric(
            snapshot, metrics.missing or Reason.NO_DATA, "the router's counters (/metrics of its admin port)"
        )
        return
    bad_ones = [*_refused(snapshot), *_failing_workers(snapshot)]
    yield from bad_ones
    yield _skew(snapshot)
    if not bad_ones:
        yield passed("no request was refused for want of a worker, and no worker fails more than it should")


def _refused(snapshot: Snapshot) -> Iterator[Finding]:
    for code in FOR_WANT:
        count = snapshot.metrics.grown(("kvctl_refused",), None, code=code)[0]
        if count.or_zero() > 0:
            message = f"{count.or_zero():.0f} requests were refused with {code} ({count.window})"
            yield warned(message, FLEET, count.evidence())


def _failing_workers(snapshot: Snapshot) -> Iterator[Finding]:
    """Workers at which more attempts failed than should, over the router's life."""
    ended: dict[str, dict[str, float]] = {}
    for sample in snapshot.metrics.find("kvctl_legs"):
        by_outcome = ended.setdefault(sample.labels.get("worker", ""), {})
        outcome = sample.labels.get("outcome", "")
        by_outcome[outcome] = by_outcome.get(outcome, 0.0) + sample.value
    targets = {row.id: row.target for row in rows(snapshot)}
    for worker, outcomes in sorted(ended.items()):
        total = sum(outcomes.values())
        failures = {name: count for name, count in outcomes.items() if name not in NOT_FAILED and count > 0}
        share = sum(failures.values()) / total if total else 0.0
        if share > snapshot.thresholds.failed_legs_share_warn:
            told = ", ".join(f"{count:.0f} {name}" for name, count in sorted(failures.items()))
            message = f"{percent(share)} of {total:.0f} attempts at worker {worker} failed: {told}"
            yield warned(message, targets.get(worker, FLEET), Evidence("metric", "fleet", f"kvctl_legs: {told}"))


def _skew(snapshot: Snapshot) -> Finding:
    workers = snapshot.ready_workers
    if len(workers) < 2:
        return skipped(Reason.NOT_APPLICABLE, "fewer than two ready workers")
    keys = {row.id: row.member.key for row in rows(snapshot) if row.member is not None}
    counts: dict[str, float] = {}
    for router in snapshot.routers:
        for name, count in served(snapshot, router).items():
            if name in keys:
                counts[keys[name]] = counts.get(keys[name], 0.0) + count
    return judge_skew(snapshot, workers, counts, "metric")


CHECKS: tuple[Check, ...] = (
    Check(
        id="KV954",
        title="Engines had cached what kvctl predicted",
        group=Group.EFFECT,
        worst=Status.WARN,
        reads="predicted_cached_tokens and engine_cached_tokens in /decisions; kvctl_joined_predicted_tokens, "
        "kvctl_engine_reused_tokens and vllm:external_prefix_cache_hits",
        rule="For modes that look at caches. Skips below 20 answers that report cached tokens. Passes where the "
        "differences add up to at most 20 % of what was predicted or reported, whichever is more; warns above. "
        "Tokens that a connector loaded (LMCache) are no mistake: KV events do not tell of them.",
        hint="see whether KV events arrive (KV952), block sizes and tokens agree (KV957); vLLM needs "
        "--enable-prompt-tokens-details",
        run=predictions,
        stacks=STACKS,
        caused_by=("KV952", "KV953", "KV957"),
        proves=True,
    ),
    Check(
        id="KV955",
        title="kvctl routes requests by cache",
        group=Group.ROUTING,
        worst=Status.FAIL,
        reads="/decisions; kvctl_selected_cached_tokens, kvctl_prompt_tokens, kvctl_best_eligible_cached_tokens",
        rule="For modes that look at caches. Skips below 20 decisions. Passes where 5 % went to a worker with a "
        "cached prefix, warns below. Fails where none of 50 did although prompts are known to repeat; without "
        "that it skips.",
        hint="see KV952 to KV954 and KV957",
        run=kv_decided,
        stacks=STACKS,
        caused_by=("KV951", "KV957"),
        required=True,
        proves=True,
    ),
    Check(
        id="KV956",
        title="kvctl's workers can take the load",
        group=Group.ROUTING,
        worst=Status.WARN,
        reads="kvctl_refused, kvctl_legs; vllm:num_requests_waiting and _running",
        rule="Warns where requests were refused because no worker could take them, where more than 5 % of the "
        "attempts at a worker failed, and where one worker got more than three times the median while "
        "requests wait there and another idles.",
        hint="add workers, look at the failing one's log, or raise the busy thresholds",
        run=load,
        stacks=STACKS,
        caused_by=("KV951",),
    ),
)
