"""KV607-KV609: what bears on the cache's effect: memory pressure, uneven workers, time to first token. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import median

from checks.lmcache import why_not_in_process
from checks.metrics.histogram import buckets_of, quantile
from checks.model import FLEET, Check, Evidence, Finding, Group, Reason, Status, Target, passed, skipped, warned
from checks.probe_evidence import ProbeStep
from checks.snapshot import Member, Snapshot
from checks.traffic import (
    Ratio,
    collapsed,
    engine_ratio,
    no_metric,
    percent,
    subjects,
)

USAGE_LINES_MIN = 6
"""The engine logs its use every ten seconds: a minute of lines before they tell a share of the window."""


def pressure(snapshot: Snapshot) -> Iterable[Finding]:
    if not snapshot.ready_workers:
        return [skipped(Reason.NO_DATA, "no worker is ready")]
    found = subjects(snapshot, snapshot.ready_workers)
    return collapsed(_pressure(snapshot, target, member) for target, member in found)


def _pressure(snapshot: Snapshot, target: Target, member: str | None) -> Finding:
    metrics, limits = snapshot.metrics, snapshot.thresholds
    usage = metrics.now("kv_cache_usage", member, how="max")
    waiting = metrics.now("requests_waiting", member)
    preempted = metrics.increase("preemptions", member)
    worker = None if member is None else snapshot.member(member)
    above = None if worker is None else _share_above(snapshot, worker)
    if usage.value is None and above is None and preempted.value is None:
        return no_metric(snapshot, usage.missing or Reason.NO_DATA, "use of the engine's KV cache", target)
    evidence = [one.evidence() for one in (usage, waiting, preempted) if one]
    if preempted.or_zero() > 0:
        message = f"{preempted.or_zero():.0f} requests were preempted in {preempted.window}: blocks are evicted"
        return warned(message, target, *evidence)
    if above is not None:
        share, line = above
        full, told = share > limits.kv_usage_share_of_window, f"in {percent(share)} of the engine's lines"
        evidence.append(line)
    else:
        full, told = usage.or_zero() > limits.kv_usage_warn, "now"
    if full and waiting.or_zero() > 0:
        message = f"KV cache above {percent(limits.kv_usage_warn)} {told} and {waiting.or_zero():.0f} requests wait"
        return warned(message, target, *evidence)
    shown = "unknown" if usage.value is None else percent(usage.value)
    return passed(f"use of the KV cache {shown}, no request preempted", target, *evidence)


def _share_above(snapshot: Snapshot, worker: Member) -> tuple[float, Evidence] | None:
    """Share of the window's lines in which the KV cache was fuller than the limit; None with too few of them."""
    if worker.log is None:
        return None
    lines = [
        match
        for match in worker.log.since(snapshot.now - snapshot.window_s, "vllm-stats")
        if match.record.at is not None
    ]
    if len(lines) < USAGE_LINES_MIN:
        return None
    above = [float(match["kv_usage"]) > 100 * snapshot.thresholds.kv_usage_warn for match in lines]
    return sum(above) / len(above), worker.log.evidence(lines[-1])


def spread(snapshot: Snapshot) -> Iterator[Finding]:
    if not snapshot.metrics.by_member:
        yield skipped(Reason.NO_DATA, "the metrics do not say which worker they are of")
        return
    for model, workers in snapshot.by_model():
        yield _spread(snapshot, model, [worker for worker in workers if worker.ready])
    if not snapshot.workers:
        yield skipped(Reason.NO_DATA, "no worker was found")


def _spread(snapshot: Snapshot, model: str, workers: list[Member]) -> Finding:
    of = f" of {model}" if model else ""
    if len(workers) < 2:
        return skipped(Reason.NOT_APPLICABLE, f"only one ready worker{of}")
    limits = snapshot.thresholds
    ratios = [(worker, engine_ratio(snapshot, worker.key)) for worker in workers]
    known = [(worker, one) for worker, one in ratios if one.missing is None]
    if not known:
        missing = ratios[0][1].missing or Reason.NO_DATA
        return no_metric(snapshot, missing, f"the prefix cache counters of the workers{of}")
    busy = [(worker, one) for worker, one in known if _of_others(snapshot, worker, one) >= limits.spread_queries_min]
    if len(busy) < 2:
        message = f"fewer than two workers{of} saw {limits.spread_queries_min} prompt tokens"
        return skipped(Reason.NO_TRAFFIC, message)
    low, high = min(busy, key=_value), max(busy, key=_value)
    evidence = (*low[1].evidence()[:2], *high[1].evidence()[:2], *_copies(snapshot, workers))
    told = f"hit ratios{of} from {percent(low[1].value)} ({low[0].name}) to {percent(high[1].value)} ({high[0].name})"
    if high[1].value - low[1].value > limits.hit_ratio_spread_warn:
        return warned(f"{told}, {busy[0][1].whole.window}", FLEET, *evidence)
    return passed(f"{told}, {busy[0][1].whole.window}", FLEET, *evidence)


def _of_others(snapshot: Snapshot, worker: Member, ratio: Ratio) -> float:
    """Prompt tokens behind a ratio beside those of the probe; 0 where the probe sent most of them."""
    own = 0 if snapshot.probe is None else snapshot.probe.tokens_at(worker.key)
    rest = ratio.whole.or_zero() * ratio.unit_tokens - own
    return rest if rest >= own else 0.0


def _value(pair: tuple[Member, Ratio]) -> float:
    return pair[1].value


def _copies(snapshot: Snapshot, workers: list[Member]) -> tuple[Evidence, ...]:
    """Chunks that the workers hold against keys that the controller knows: how often a chunk is held twice."""
    keys = snapshot.metrics.now("controller_keys")
    held = [
        snapshot.metrics.now("lmcache_hot_cache_count", worker.key)
        for worker in workers
        if not why_not_in_process(snapshot, worker)
    ]
    if not keys.or_zero() or not any(held):
        return ()
    total = sum(one.or_zero() for one in held)
    return (
        Evidence("metric", "fleet", f"workers hold {total:.0f} chunks, the controller knows {keys.value:.0f} keys"),
    )


def latency(snapshot: Snapshot) -> Iterator[Finding]:
    metrics = snapshot.metrics
    count = metrics.grown(("ttft_seconds_count",))[0]
    fleet = None
    if count.or_zero() > 0:
        bounds = buckets_of(metrics, "ttft_seconds", lifetime=count.lifetime)
        fleet = quantile(bounds, 0.5)
    cold, warm = _ttft(snapshot, "stream-cold"), _ttft(snapshot, "stream-warm")
    parts = []
    if fleet is not None:
        parts.append(f"median TTFT of all requests {fleet * 1000:.0f} ms ({count.window})")
    if cold is not None and warm is not None:
        times = f", {cold / warm:.1f} times as fast" if 0 < warm < cold else ""
        parts.append(f"of the probe {cold * 1000:.0f} ms cold, {warm * 1000:.0f} ms warm{times}")
    if not parts:
        missing = count.missing or Reason.NO_TRAFFIC
        if missing is Reason.NO_TRAFFIC:
            yield skipped(missing, "no request was answered in the window and no probe was sent")
        else:
            yield no_metric(snapshot, missing, "time to first token")
        return
    yield passed("; ".join(parts), FLEET, *([count.evidence()] if count else []))


def _ttft(snapshot: Snapshot, name: str) -> float | None:
    """Median over the probe's steps of that name, seconds; None where none was measured."""
    steps: list[ProbeStep] = [] if snapshot.probe is None else snapshot.probe.named(name)
    measured = [step.ttft_s for step in steps if step.ttft_s is not None and step.status == 200]
    return median(measured) if measured else None


CHECKS: tuple[Check, ...] = (
    Check(
        id="KV607",
        title="The engine's KV cache has room",
        group=Group.EFFECT,
        worst=Status.WARN,
        reads="vllm:kv_cache_usage_perc, num_requests_waiting, num_preemptions; vLLM's own lines of its use",
        rule="Warns where requests were preempted in the window, or where the cache was above 95 % in more than "
        "half of the engine's lines (without at least six lines: is above 95 % now) and requests wait. What "
        "was just stored is then evicted, which explains few hits.",
        hint="add workers or KV cache memory, or shorten what is kept; few hits are then no fault of the routing",
        run=pressure,
    ),
    Check(
        id="KV608",
        title="Workers of a model are hit alike",
        group=Group.EFFECT,
        worst=Status.WARN,
        reads="the prefix cache's hit ratio of each worker; LMCache's chunks held against the controller's keys",
        rule="Skips where fewer than two ready workers of a model saw 1,000 prompt tokens. Warns where the highest "
        "and the lowest ratio are more than 25 points apart.",
        hint="see where requests go (KV501, KV505) and whether one worker differs in its settings (KV408)",
        run=spread,
        caused_by=("KV408", "KV142", "KV607"),
    ),
    Check(
        id="KV609",
        title="Time to first token",
        group=Group.EFFECT,
        worst=Status.PASS,
        reads="vllm:time_to_first_token_seconds; the probe's streamed requests, cold and warm",
        rule="Shows numbers and judges nothing (KV807 judges the probe's). Skips where there are none.",
        hint="send traffic, or give --probe",
        run=latency,
    ),
)
