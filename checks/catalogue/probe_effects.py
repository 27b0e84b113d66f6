"""KV802, KV804, KV807, KV808: what the probe's requests found in caches. Pure; asks `Snapshot.probe`, sends nothing."""

from __future__ import annotations

from collections.abc import Iterator

from checks.lmcache import remote_url
from checks.model import FLEET, Evidence, Finding, Reason, Status, Target, failed, passed, skipped, warned
from checks.probe_evidence import ProbeEvidence, ProbeStep
from checks.probed import answered, cold_of, evidence_of, probe_check, shown_steps, why_not
from checks.snapshot import Member, Snapshot

TIMED_TOKENS = 2000
"""Shorter prompts take no time that could be told from noise."""


# -- KV802 -----------------------------------------------------------------------------------------------------------


def cached_tokens(snapshot: Snapshot) -> Iterator[Finding]:
    probe = evidence_of(snapshot)
    if (reason := why_not(probe, "cold", "repeat")) is not None:
        yield reason
        return
    cold = cold_of(probe)
    repeats = answered(probe, "repeat")
    if cold is not None and cold.served_by:
        repeats = [step for step in repeats if step.served_by in ("", cold.served_by)]
    if not repeats:
        yield skipped(Reason.NOT_APPLICABLE, "no repeat went to the worker that had the prompt (KV801)")
        return
    known = [step for step in repeats if step.cached_tokens is not None]
    if not known:
        message = "neither the answers, nor LMCache's log, nor a counter tell how many tokens came from a cache"
        yield skipped(Reason.NO_DATA, message, FLEET, *shown_steps(repeats))
        return
    shares = [(step, *_reused(probe, step)) for step in known]
    good = [step for step, cached, reusable in shares if cached >= snapshot.thresholds.affinity_cached_share * reusable]
    _, cached, reusable = min(shares, key=lambda one: one[1] / max(one[2], 1))
    told = (
        f"{len(good)} of {len(known)} repeats found their prompt in a cache "
        f"(least: {cached} of {reusable} reusable tokens, by {known[0].cached_from})"
    )
    evidence = shown_steps([step for step, _, _ in sorted(shares, key=lambda one: one[1])])
    if len(good) == len(known):
        yield passed(told, FLEET, *evidence)
    elif all(found == 0 for _, found, _ in shares):
        yield failed("no repeat found any of its prompt in a cache, at the worker that had it", FLEET, *evidence)
    else:
        yield warned(told, FLEET, *evidence)


def _reused(probe: ProbeEvidence, step: ProbeStep) -> tuple[int, int]:
    """Cached tokens of a repeat, and how many could be: whole pieces, of all but the last token."""
    tokens = step.prompt_tokens or probe.prompt_tokens
    unit = max(1, probe.unit_tokens)
    return step.cached_tokens or 0, (tokens - 1) // unit * unit


# -- KV804 -----------------------------------------------------------------------------------------------------------


def other_instance(snapshot: Snapshot) -> Iterator[Finding]:
    probe = evidence_of(snapshot)
    if (reason := why_not(probe, "cold", "other-instance")) is not None:
        yield reason
        return
    step = answered(probe, "other-instance")[0]
    target = _target(snapshot, step)
    evidence = shown_steps([step])
    found = probe.external_hit_tokens
    if found is None:
        message = "neither LMCache's log nor a counter tells what the second tier delivered"
        yield skipped(Reason.NO_DATA, message, target, *evidence)
    elif found > 0:
        message = f"another engine found {found:.0f} of {step.prompt_tokens or probe.prompt_tokens} tokens in LMCache"
        yield passed(message, target, *evidence)
    else:
        kind = _tier(snapshot, step)
        message = f"another engine found none of the prompt in LMCache{kind}"
        yield failed(message, target, *evidence)


def _target(snapshot: Snapshot, step: ProbeStep) -> Target:
    member = snapshot.member(step.served_by)
    return FLEET if member is None else member.target


def _tier(snapshot: Snapshot, step: ProbeStep) -> str:
    member: Member | None = snapshot.member(step.served_by)
    url = None if member is None else remote_url(snapshot, member)
    return f", although they share {url.partition('://')[0]}" if url else ""


# -- KV807 -----------------------------------------------------------------------------------------------------------


def first_token(snapshot: Snapshot) -> Iterator[Finding]:
    probe = evidence_of(snapshot)
    if (reason := why_not(probe, "stream-cold", "stream-warm")) is not None:
        yield reason
        return
    cold, warm = answered(probe, "stream-cold"), answered(probe, "stream-warm")
    times = [[step.ttft_s for step in steps if step.ttft_s is not None] for steps in (cold, warm)]
    evidence = shown_steps([*cold, *warm])
    if not all(times):
        yield skipped(Reason.NO_DATA, "the answers did not come as a stream", FLEET, *evidence)
        return
    if any(step.served_by != cold[0].served_by for step in warm):
        message = "the warm prompt went to another worker: the two times are not comparable"
        yield skipped(Reason.NOT_APPLICABLE, message, FLEET, *evidence)
        return
    slow, quick = min(times[0]), min(times[1])
    tokens = cold[0].prompt_tokens or 0
    ratio = f" ({slow / quick:.1f} times)" if quick > 0 else ""
    told = f"first token after {slow * 1000:.0f} ms cold, {quick * 1000:.0f} ms warm{ratio}, {tokens} tokens"
    if tokens >= TIMED_TOKENS and quick >= slow:
        yield warned(f"{told}: the cache saves no time", FLEET, *evidence)
    else:
        yield passed(told, FLEET, *evidence)


# -- KV808 -----------------------------------------------------------------------------------------------------------


def expiry(snapshot: Snapshot) -> Iterator[Finding]:
    probe = evidence_of(snapshot)
    if not probe.refused and "expiry" in probe.skipped:
        yield skipped(Reason.DISABLED, f"not sent: {probe.skipped['expiry']}")
        return
    if (reason := why_not(probe, "cold", "expiry")) is not None:
        yield reason
        return
    step, repeats = answered(probe, "expiry")[0], answered(probe, "repeat")
    before, after = probe.registered_before_expiry, probe.registered_after_expiry
    evidence = [*shown_steps([step])]
    if before is not None and after is not None:
        evidence.append(Evidence("metric", "router", f"registered workers {before:g} before, {after:g} after"))
        if after < before:
            yield failed(f"{before - after:g} of {before:g} workers were dropped while idle", FLEET, *evidence)
            return
    was_routed = any(one.kv_routed for one in repeats)
    if was_routed and step.kv_routed is False:
        yield failed("the prompt is no longer found by its cache after an idle time", FLEET, *evidence)
    elif was_routed and step.kv_routed:
        yield passed("the prompt is still found by its cache after an idle time", FLEET, *evidence)
    elif before is not None and after is not None:
        yield passed(f"all {after:g} workers are still registered after an idle time", FLEET, *evidence)
    else:
        message = "neither the router's log nor its metrics tell what became of the registrations"
        yield skipped(Reason.NO_DATA, message, FLEET, *evidence)


CHECKS = (
    probe_check(
        "KV802",
        "Repeats find their prompt in a cache",
        Status.FAIL,
        cached_tokens,
        reads="usage.prompt_tokens_details of the repeats, else LMCache's line about the request, else counters",
        rule="Of the repeats that went to the worker that had the prompt. Passes where each found at least 90 % of the "
        "whole blocks of all but its last token (LMCache's chunks where the engine's own cache is off). Fails where "
        "none found anything, warns in between. An answer that does not say is unknown, not 0.",
        hint="check prefix caching (KV142) and the pressure on the engine's cache (KV607); start vLLM with "
        "--enable-prompt-tokens-details where it does not tell",
        caused_by=("KV142", "KV144"),
    ),
    probe_check(
        "KV804",
        "Another engine finds the prompt in the second tier",
        Status.FAIL,
        other_instance,
        reads="the prompt sent straight to an engine that has not served it; what its LMCache found",
        rule="Passes where LMCache there had some of the prompt, fails where it had nothing although both engines "
        "share a second tier. Skips where no two workers share one, and where every worker has the prompt by now.",
        hint="compare NONE_HASH (KV401), PYTHONHASHSEED (KV402), the backend (KV114) and its health (KV311): "
        "the prompt is stored under other keys, or elsewhere",
        caused_by=("KV401", "KV402", "KV302", "KV303", "KV311", "KV312", "KV605"),
    ),
    probe_check(
        "KV807",
        "A cached prompt is quicker",
        Status.WARN,
        first_token,
        reads="time to the first token of a new prompt and of the same again, both streamed, by kvctl's own clock",
        rule="Shows both times. Warns where the second, and a third that is then sent, is not quicker for a prompt of "
        "at least 2,000 tokens: loading from the cache then takes as long as computing.",
        hint="see how fast the second tier is (KV316) and whether the GPU's own cache is under pressure (KV607)",
        caused_by=("KV802",),
    ),
    probe_check(
        "KV808",
        "Registrations outlive an idle time",
        Status.FAIL,
        expiry,
        reads="with --probe-heartbeat: the prompt again after the controller's timeout and 15 s; registered workers",
        rule="Fails where fewer workers are registered than before the wait, or where kvaware found the prompt before "
        "and does not find it after.",
        hint="set LMCACHE_LMCACHE_WORKER_HEARTBEAT_TIME below the router's --lmcache-worker-timeout (KV207)",
        caused_by=("KV207", "KV208"),
    ),
)
