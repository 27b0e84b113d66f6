"""Is one worker overrun while another idles? Asked of the router's log, of the engines' counters and of kvctl. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from checks.metrics.view import Reading
from checks.model import FLEET, Evidence, Finding, Reason, passed, skipped, warned
from checks.snapshot import Member, Snapshot
from checks.traffic import percent

SHOWN = 8
"""Workers whose counts are shown as evidence, the busiest first."""


WAITING = ("requests_waiting", "sglang_queue_requests", "trtllm_requests_waiting")
RUNNING = ("requests_running", "sglang_running_requests", "trtllm_requests_running")
"""Gauges of vLLM, SGLang and TensorRT-LLM."""


def judge_skew(snapshot: Snapshot, workers: Sequence[Member], counts: Mapping[str, float], source: str) -> Finding:
    """Requests by worker key (`counts`), as read from `source` (log or metric); at least two workers.

    Skew alone is what routing by cache does; it is a warning only where requests wait on the busiest worker while
    another runs none.
    """
    needed = snapshot.thresholds.routed_requests_min
    total = sum(counts.values())
    if total < needed:
        return skipped(Reason.NO_TRAFFIC, f"{total:.0f} requests are too few (needs {needed})")
    ordered = sorted(workers, key=lambda worker: (-counts.get(worker.key, 0.0), worker.key))
    busiest, middle = ordered[0], median(counts.get(worker.key, 0.0) for worker in workers)
    most = counts.get(busiest.key, 0.0)
    shown = ", ".join(f"{worker.key}: {counts.get(worker.key, 0.0):.0f}" for worker in ordered[:SHOWN])
    evidence = Evidence(source, "fleet", shown[:240])
    told = f"{busiest.name} got {percent(most / total)} of {total:.0f} requests"
    if most <= snapshot.thresholds.skew_times_median * middle:
        return passed(f"{told}, the median worker {percent(middle / total)}", FLEET, evidence)
    waiting = _gauge(snapshot, WAITING, busiest)
    running = [_gauge(snapshot, RUNNING, worker) for worker in ordered[1:]]
    if waiting.value is None or not any(running):
        message = f"{told}, and whether requests wait there could not be read"
        return skipped(Reason.NO_DATA, message, FLEET, evidence)
    if waiting.or_zero() > 0 and any(one.value == 0 for one in running):
        message = f"{told}, where {waiting.or_zero():.0f} wait while another worker idles"
        return warned(message, busiest.target, evidence, waiting.evidence())
    return passed(f"{told}, and nothing waits there while another idles", FLEET, evidence, waiting.evidence())


def _gauge(snapshot: Snapshot, names: Sequence[str], worker: Member) -> Reading:
    """The gauge of whichever engine the worker runs; missing where it exports none of them."""
    found = [snapshot.metrics.now(name, worker.key) for name in names]
    return next((one for one in found if one), found[0])
