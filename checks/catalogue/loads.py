"""KV313-KV316: the CPU buffer and loads from it: is there room, are loads whole, alike on all ranks, and quick.

Pure. Counts of log lines are those of the window; a line without a time counts as inside. Costs a look at the matches
of each worker's log and a few samples of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from checks.lmcache import each_worker, last_line, ranks, recent, times, why_quiet
from checks.logs.view import Match
from checks.metrics.view import Metrics, Reading
from checks.model import Check, Evidence, Finding, Group, Reason, Status, failed, passed, skipped, warned
from checks.snapshot import Member, Snapshot


def cpu_buffer(snapshot: Snapshot) -> Iterator[Finding]:
    return each_worker(snapshot, _cpu_buffer)


def _cpu_buffer(snapshot: Snapshot, worker: Member) -> Iterator[Finding]:
    target, metrics = worker.target, snapshot.metrics
    evictions = metrics.increase("lmcache_local_cpu_evict_failed", worker.key)
    lines = [] if worker.log is None else recent(snapshot, worker.log, "lmcache-no-eviction")
    busiest = _busiest_minute(lines)
    limit = snapshot.thresholds.eviction_failures_per_minute
    usage = metrics.now("lmcache_local_cache_usage", worker.key)
    shown = last_line(worker, lines) + [reading.evidence() for reading in (evictions, usage) if reading]
    if busiest >= limit or evictions.or_zero() > 0:
        count = f"{busiest} lines in a minute" if busiest >= limit else f"{evictions.or_zero():.0f} failed evictions"
        tokens = metrics.increase("generation_tokens", worker.key)
        running = metrics.now("requests_running", worker.key)
        if tokens and running and tokens.or_zero() == 0 and running.or_zero() > 0:
            yield failed(
                f"the CPU buffer is full ({count}) and nothing is generated for {running.or_zero():.0f} requests",
                target,
                *shown,
                tokens.evidence(),
                running.evidence(),
                hint="restart the worker (LMCache#2942) and give LMCACHE_MAX_LOCAL_CPU_SIZE more room",
            )
        else:
            yield warned(f"the CPU buffer has no room for what is stored ({count})", target, *shown)
        return
    why = why_quiet(worker, snapshot.patterns["lmcache-no-eviction"], snapshot)
    stores = [] if worker.log is None else recent(snapshot, worker.log, "lmcache-stored")
    if evictions or (why is None and stores):
        yield passed("the CPU buffer takes what is stored", target, *(shown or last_line(worker, stores)))
    elif why is None:
        yield skipped(Reason.NO_TRAFFIC, "nothing was stored", target)
    else:
        yield skipped(why, "neither metrics nor the log can show the CPU buffer", target)


def partial_loads(snapshot: Snapshot) -> Iterator[Finding]:
    return each_worker(snapshot, _partial_loads)


def _partial_loads(snapshot: Snapshot, worker: Member) -> Iterator[Finding]:
    log, target = worker.log, worker.target
    lines = [] if log is None else recent(snapshot, log, "lmcache-partial-load", "lmcache-failed-load")
    if log is not None and lines:
        yield warned(f"loads from the cache came short {times(len(lines))}", target, log.evidence(lines[-1]))
        return
    why = why_quiet(worker, snapshot.patterns["lmcache-partial-load"], snapshot)
    if log is None or why is not None:
        yield skipped(why or Reason.NO_DATA, "the log cannot show loads", target)
        return
    loads = recent(snapshot, log, "lmcache-retrieved")
    if loads:
        yield passed(f"{len(loads)} loads, none of them short", target, log.evidence(loads[-1]))
    else:
        yield skipped(Reason.NO_TRAFFIC, "nothing was loaded from the cache", target)


def ranks_agree(snapshot: Snapshot) -> Iterator[Finding]:
    return each_worker(snapshot, _ranks_agree)


def _ranks_agree(snapshot: Snapshot, worker: Member) -> Iterator[Finding]:
    log, target = worker.log, worker.target
    lines = [] if log is None else log.all("lmcache-ranks-differ")
    if log is not None and lines:
        yield warned(f"ranks found different numbers of tokens {times(len(lines))}", target, log.evidence(lines[-1]))
        return
    if ranks(worker) == 1:
        yield skipped(Reason.NOT_APPLICABLE, "the engine has one rank", target)
        return
    why = why_quiet(worker, snapshot.patterns["lmcache-ranks-differ"], snapshot)
    if log is None or why is not None:
        yield skipped(why or Reason.NO_DATA, "the log cannot show whether ranks agree", target)
        return
    lookups = log.all("lmcache-request")
    if lookups:
        yield passed(f"{len(lookups)} look-ups, all ranks agree", target, log.evidence(lookups[-1]))
    else:
        yield skipped(Reason.NO_TRAFFIC, "nothing was looked up", target)


def slow_loads(snapshot: Snapshot) -> Iterator[Finding]:
    return each_worker(snapshot, _slow_loads)


def _slow_loads(snapshot: Snapshot, worker: Member) -> Iterator[Finding]:
    metrics, key, target = snapshot.metrics, worker.key, worker.target
    names = ("lmcache_slow_retrieval_by_time", "lmcache_slow_retrieval_by_speed")
    slow = [metrics.increase(name, key) for name in names]
    total, loads = metrics.grown(("lmcache_retrieve_speed_sum", "lmcache_retrieve_speed_count"), key)
    count = sum(reading.or_zero() for reading in slow)
    shown = [reading.evidence() for reading in (*slow, total, loads) if reading]
    fetches = metrics.grown(("lmcache_remote_time_to_get_sum", "lmcache_remote_time_to_get_count"), key)
    if fetches[0] and fetches[1].or_zero() > 0:
        mean = fetches[0].or_zero() / fetches[1].or_zero()
        shown.append(Evidence("metric", key, f"a get of the second tier takes {mean:.1f} ms on average"))
    if not any(slow) and not loads:
        yield skipped(total.missing or Reason.NO_DATA, "no metric tells how quick loads are", target)
        return
    if loads and loads.or_zero() > 0 and total:
        speed = total.or_zero() / loads.or_zero()
        computed, seconds = _computed(metrics, key), _seconds(metrics.window)
        rate = computed.or_zero() / seconds if seconds else 0.0
        if speed < rate:
            yield warned(
                f"loads bring {speed:.0f} tokens/s, less than the {rate:.0f} tokens/s that the engine computes",
                target,
                *shown,
                computed.evidence(),
            )
        else:
            yield passed(f"loads bring {speed:.0f} tokens/s; {count:.0f} were called slow", target, *shown)
    elif count > 0:
        yield warned(f"LMCache called {count:.0f} loads slow", target, *shown)
    else:
        yield skipped(Reason.NO_TRAFFIC, "nothing was loaded from the cache", target, *shown)


def _busiest_minute(matches: list[Match]) -> int:
    """The most matches within 60 s; those without a time count together."""
    times = sorted(match.record.at for match in matches if match.record.at is not None)
    most, first = 0, 0
    for last, at in enumerate(times):
        while at - times[first] > 60:
            first += 1
        most = max(most, last - first + 1)
    return max(most, len(matches) - len(times))


def _computed(metrics: Metrics, worker: str) -> Reading:
    """Prompt tokens that the engine computed itself in the window."""
    by_source = metrics.increase("prompt_tokens_by_source", worker, source="local_compute")
    if by_source:
        return by_source
    prompts = metrics.increase("prompt_tokens", worker)
    if not prompts or prompts.value is None:
        return prompts
    cached = sum(
        metrics.increase(name, worker).or_zero() for name in ("prefix_cache_hits", "external_prefix_cache_hits")
    )
    return replace(prompts, name="prompt_tokens without cached ones", value=max(0.0, prompts.value - cached))


def _seconds(window: str) -> float | None:
    """Seconds of `15m` or `14s`; None for other texts."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", window)
    return float(match.group(1)) * {"s": 1, "m": 60, "h": 3600}[match.group(2)] if match else None


CHECKS: tuple[Check, ...] = (
    Check(
        id="KV313",
        title="CPU buffer has room",
        group=Group.LMCACHE,
        worst=Status.FAIL,
        reads="worker logs; lmcache:local_cpu_evict_failed_count",
        rule=(
            "Warns on ten or more `No eviction candidates` lines within a minute, or failed evictions in the window; "
            "fails when the engine also generates nothing while requests run (a deadlock)."
        ),
        hint="raise LMCACHE_MAX_LOCAL_CPU_SIZE (it counts once for each rank, and into the pod's memory)",
        run=cpu_buffer,
    ),
    Check(
        id="KV314",
        title="Loads are whole",
        group=Group.LMCACHE,
        worst=Status.WARN,
        reads="worker logs",
        rule="Warns when fewer tokens came than were promised; passes when loads were seen and none came short.",
        hint="enlarge the second tier, which evicts between look-up and load, or see whether its network fails (KV311)",
        run=partial_loads,
        caused_by=("KV311",),
    ),
    Check(
        id="KV315",
        title="Ranks find the same tokens",
        group=Group.LMCACHE,
        worst=Status.WARN,
        reads="worker logs",
        rule="Warns when LMCache says that look-ups differ across ranks; only for engines of several ranks.",
        hint="give all ranks one PYTHONHASHSEED (LMCache#2979)",
        run=ranks_agree,
        caused_by=("KV402",),
    ),
    Check(
        id="KV316",
        title="Loads are quicker than prefill",
        group=Group.LMCACHE,
        worst=Status.WARN,
        reads="lmcache:retrieve_speed, num_slow_retrieval_by_* and remote_time_to_get; vllm:prompt_tokens",
        rule=(
            "Warns when loads bring fewer tokens a second than the engine computed of prompts over the window (it can "
            "compute more than that), or when LMCache calls loads slow and no speed is known."
        ),
        hint="use a nearer second tier, or load less from it: this one is too slow to help",
        run=slow_loads,
    ),
)
