"""One soak: engines, a router, traffic and faults for a while; then quiet, and the verdict.

Starts child processes (engines, a router) and ends them. The verdict looks for four things: a request that failed
though it need not have, load or a booking that is left when all is over, memory that grows, descriptors that stay open.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.arms import Child
from bench.soak.faults import Faults, FaultSettings
from bench.soak.fleet import ForkedFleet
from bench.soak.forked import ForkSettings
from bench.soak.traffic import End, Traffic, TrafficSettings
from bench.soak.watch import AdminClient, Sample, Watch, slope

_QUIET = 30.0
_NOISE = 24 << 20
"""Bytes by which memory may grow in a short run without a word: pages that are touched for the first time."""
_COUNTED = re.compile(r"^(kvctl_(?:retries|faults|retry_budget_exhausted|upstream_refreshed)_total) ([0-9.e+]+)$", re.M)
_LEGS = re.compile(r'^kvctl_legs_total\{outcome="(\w+)",worker="[^"]*"\} ([0-9.e+]+)$', re.M)
_EJECTED = re.compile(r'^kvctl_ejections_total\{cause="(\w+)",worker="[^"]*"\} ([0-9.e+]+)$', re.M)


@dataclass(frozen=True, slots=True)
class SoakSettings:
    """`seconds` of traffic; `arguments`: further ones for `kvctl serve`. `growth`: bytes a second of memory that are
    taken for growth; `descriptors`: how many more may be open at the end than at the start."""

    seconds: float
    engines: int = 20
    mode: str = "kv"
    traffic: TrafficSettings = field(default_factory=TrafficSettings)
    faults: FaultSettings | None = field(default_factory=FaultSettings)
    engine: ForkSettings = field(default_factory=lambda: ForkSettings(drop=0.05))
    every: float = 60.0
    arguments: tuple[str, ...] = ("--health-interval", "0.5", "--health-timeout", "1")
    growth: float = 20_000.0
    descriptors: int = 50


@dataclass(slots=True)
class SoakReport:
    """What came of it. `leaks` and `wrong` are empty if all is well."""

    seconds: float
    requests: int
    ends: dict[str, int]
    statuses: dict[str, int]
    deeds: dict[str, int]
    legs: dict[str, int]
    counters: dict[str, float]
    ejections: dict[str, int]
    rss_slope: float
    worst_lag_ms: float
    router_cpu_s: float
    samples: list[Sample]
    leaks: list[str]
    wrong: list[str]
    log: str

    @property
    def good(self) -> bool:
        return not self.leaks and not self.wrong

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "good": self.good}


Tell = Callable[[Sample, Traffic], None]


def soak(settings: SoakSettings, tell: Tell | None = None) -> SoakReport:
    """Runs one, blocking; `tell` is called with each sample.

    Raises:
        ArmError: the router could not be started.
        RuntimeError: the engines could not.
    """
    with (
        tempfile.TemporaryDirectory(prefix="kvctl-soak-") as folder,
        ForkedFleet(settings.engines, settings.engine) as fleet,
    ):
        log = Path(folder) / "router.log"
        arguments = ["serve", "--router-mode", settings.mode, "--port", "0", "--admin-port", "0", "-o", "json"]
        for engine in fleet.engines:
            arguments += ["--worker", engine.spec]
        child = Child("soak", [*arguments, *settings.arguments], log)
        try:
            ready = child.ready()
            report = asyncio.run(_run(settings, fleet, child, str(ready["url"]), str(ready["admin"]), tell))
            lines = log.read_text("utf-8", "replace").splitlines()
            report.log = "\n".join(line for line in lines if " ERROR " in line or "Traceback" in line)[:20_000]
            if report.log:
                report.wrong.append(f"the router logged errors: {report.log[:500]}")
            return report
        finally:
            child.stop()


async def _run(
    settings: SoakSettings, fleet: ForkedFleet, child: Child, url: str, admin_url: str, tell: Tell | None
) -> SoakReport:
    admin = AdminClient(admin_url, url)
    traffic = Traffic(url, settings.traffic)
    watch = Watch(child.pid, admin, settings.every)
    try:
        before = await watch.take()
        stop, calm, over = asyncio.Event(), asyncio.Event(), asyncio.Event()
        faults = Faults(fleet, admin, settings.faults) if settings.faults is not None else None
        began = time.monotonic()
        sending = asyncio.create_task(traffic.run(stop))
        striking = asyncio.create_task(faults.run(calm)) if faults is not None else None
        watching = asyncio.create_task(watch.run(over))
        told = len(watch.samples)
        while time.monotonic() - began < settings.seconds:
            await asyncio.sleep(min(0.5, settings.seconds))
            for task in (sending, striking, watching):
                if task is not None and task.done():
                    task.result()
            if tell is not None:
                for sample in watch.samples[told:]:
                    tell(sample, traffic)
            told = len(watch.samples)
        seconds = time.monotonic() - began
        calm.set()
        if striking is not None:
            await striking
        stop.set()
        await sending
        over.set()
        await watching
        leaks = await _quiet(admin, watch, before, settings)
        grown = slope(watch.samples)
        if grown > settings.growth and grown * seconds > _NOISE:
            leaks.append(f"memory grew by {grown / 1024:.1f} KiB a second")
        if not child.alive:
            leaks.append("the router ended")
        text = await admin.text("/metrics")
        wrong = list(traffic.tally.wrong)
        counters = {name: float(value) for name, value in _COUNTED.findall(text)}
        if counters.get("kvctl_faults_total"):
            wrong.append(f"{counters['kvctl_faults_total']:g} internal errors in the router")
        return SoakReport(
            seconds=seconds,
            requests=traffic.tally.total,
            ends={f"{kind} {end}": times for (kind, end), times in sorted(traffic.tally.ends.items())},
            statuses={str(status): times for status, times in sorted(traffic.tally.statuses.items())},
            deeds=dict(faults.deeds) if faults is not None else {},
            legs=_summed(_LEGS, text),
            counters=counters,
            ejections=_summed(_EJECTED, text),
            rss_slope=grown,
            worst_lag_ms=watch.worst_lag_ms,
            router_cpu_s=watch.samples[-1].cpu_s - before.cpu_s,
            samples=watch.samples,
            leaks=leaks,
            wrong=wrong,
            log="",
        )
    finally:
        await admin.close()


async def _quiet(admin: AdminClient, watch: Watch, before: Sample, settings: SoakSettings) -> list[str]:
    """Waits until nothing is booked any more; what is left then is a leak."""
    deadline = time.monotonic() + _QUIET
    while True:
        sample = await watch.take()
        loads = (await admin.get("/loads"))["loads"]
        left = [row for row in loads if row["active_requests"] or row["prefill_tokens"] or row["decode_blocks"]]
        open_files = sample.fds - before.fds
        if not left and not sample.bookings and open_files <= settings.descriptors:
            return []
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(0.25)
    leaks = [f"load left on {row['worker']}: {row}" for row in left]
    if sample.bookings:
        leaks.append(f"{sample.bookings} bookings left")
    if open_files > settings.descriptors:
        leaks.append(f"{open_files} descriptors more than at the start")
    return leaks


def _summed(pattern: re.Pattern[str], text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for label, value in pattern.findall(text):
        found[label] = found.get(label, 0) + int(float(value))
    return found


def wrong_of(report: SoakReport) -> int:
    """Requests that went wrong, all of them, also those without words."""
    return sum(times for name, times in report.ends.items() if name.endswith(f" {End.WRONG}"))
