"""KV701-KV706: can the metrics be trusted that the other checks read? Pure; reads pages, targets and names.

A failure here breaks nothing for the requests; it hides what happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from checks.evidence import env
from checks.lmcache import is_young, uses_server
from checks.model import ERRORS, FLEET, Check, Evidence, Finding, Group, Reason, Status, failed, passed, skipped, warned
from checks.sharing import lmcache_workers
from checks.snapshot import Member, Snapshot
from checks.traffic import collapsed, metrics_off, names_by_member

MULTIPROC = "PROMETHEUS_MULTIPROC_DIR"
OUTLIVES = frozenset({"emptyDir", "hostPath", "persistentVolumeClaim", "ephemeral", "nfs", "csi"})
"""Kinds of volume whose files are still there after a restart of the container."""

ENGINES = ("vllm", "sglang", "trtllm", "tensorrt_llm", "nv_trt_llm", "dynamo", "lmcache", "kvctl")
"""How the metrics begin that engines and what runs inside them export."""

NO_ANSWER = frozenset({Reason.UNREACHABLE, Reason.TIMEOUT, Reason.PARSE})
"""Why a page was not read, where that is the worker's own doing."""


def _each_worker(snapshot: Snapshot, judge: Callable[[Snapshot, Member], Finding]) -> Iterator[Finding]:
    if not snapshot.workers:
        yield skipped(Reason.NO_DATA, "no worker was found")
        return
    yield from collapsed(judge(snapshot, worker) for worker in snapshot.workers)


# -- KV701 -----------------------------------------------------------------------------------------------------------


def pages(snapshot: Snapshot) -> Iterator[Finding]:
    yield from _each_worker(snapshot, _page)


def _page(snapshot: Snapshot, worker: Member) -> Finding:
    page = snapshot.metrics.pages.get(worker.key)
    if page is None:
        return _not_asked(snapshot, worker)
    shown = Evidence("http", worker.key, f"GET {page.url or '/metrics'}: {page.message or page.status}"[:240])
    if page.problem is not None and page.problem not in NO_ANSWER:
        return skipped(page.problem, f"its metrics could not be read: {page.message or page.problem}", worker.target)
    if not worker.ready:
        return skipped(Reason.NO_DATA, "the worker is not ready", worker.target, shown)
    if page.status == 0:
        return failed(f"/metrics did not answer: {page.message or page.problem}", worker.target, shown)
    if page.status != 200:
        return failed(f"/metrics answered {page.status}", worker.target, shown)
    if page.problem is not None or not page.families:
        return failed("/metrics answered with something that is not Prometheus text", worker.target, shown)
    if not any(name.startswith(ENGINES) for name in page.families):
        message = f"/metrics answered with {len(page.families)} families, none of an engine: a sidecar's page?"
        return warned(message, worker.target, shown)
    return passed(f"/metrics answered with {len(page.families)} families", worker.target)


def _not_asked(snapshot: Snapshot, worker: Member) -> Finding:
    target = snapshot.metrics.targets.get(worker.key)
    if target is not None and target.up == 1:
        return passed("Prometheus scrapes it", worker.target, Evidence("metric", worker.key, "up = 1"))
    if metrics_off(snapshot) is not None:
        return skipped(Reason.DISABLED, "metrics are turned off (spec.metrics.enabled)", worker.target)
    return skipped(snapshot.metrics.missing or Reason.NO_DATA, "its page was not asked for", worker.target)


# -- KV702 -----------------------------------------------------------------------------------------------------------


def lmcache_families(snapshot: Snapshot) -> Iterator[Finding]:
    workers = lmcache_workers(snapshot)
    if not workers:
        yield skipped(Reason.NOT_APPLICABLE, "no worker runs LMCache")
        return
    names = names_by_member(snapshot.metrics)
    yield from collapsed(_families(snapshot, worker, names.get(worker.key, frozenset())) for worker in workers)


def _families(snapshot: Snapshot, worker: Member, names: frozenset[str]) -> Finding:
    if uses_server(worker):
        return skipped(Reason.NOT_APPLICABLE, "LMCache's own server exports its metrics (KV941)", worker.target)
    if not names:
        missing = snapshot.metrics.missing or Reason.NO_DATA
        return skipped(missing, "the worker's metrics could not be read", worker.target)
    found = sum(name.startswith(("lmcache:", "lmcache_")) for name in names)
    if found:
        return passed(f"{found} families of LMCache", worker.target)
    if is_young(snapshot, worker):
        return skipped(Reason.NO_DATA, "started too recently: LMCache's first numbers come after 10 s", worker.target)
    told = "is not set" if MULTIPROC not in worker.container.env else "is set"
    where = f": {MULTIPROC} {told}" if snapshot.cluster else ""
    return warned(f"no metric of LMCache among {len(names)} families{where}", worker.target, env(worker, MULTIPROC))


# -- KV703 -----------------------------------------------------------------------------------------------------------


def multiprocess_files(snapshot: Snapshot) -> Iterator[Finding]:
    yield from _each_worker(snapshot, _files)


def _files(snapshot: Snapshot, worker: Member) -> Finding:
    shown = env(worker, MULTIPROC)
    if worker.env_unread(MULTIPROC):
        return skipped(Reason.NO_DATA, f"{MULTIPROC} comes from what was not read", worker.target, shown)
    folder = worker.env(MULTIPROC)
    if not folder:
        line = None if worker.log is None else worker.log.last("vllm-multiproc-dir-set")
        if worker.log is not None and line is not None:
            message = f"{MULTIPROC} was set, and to what could not be read"
            return skipped(Reason.NO_DATA, message, worker.target, worker.log.evidence(line))
        if not snapshot.cluster:
            return skipped(Reason.NO_DATA, "the environment of a process cannot be read", worker.target)
        return skipped(Reason.NOT_APPLICABLE, f"{MULTIPROC} is not set", worker.target)
    mounts = [mount for mount in worker.container.volume_mounts if _inside(folder, mount)]
    kind = worker.container.volume_mounts[max(mounts, key=len)] if mounts else ""
    if kind in OUTLIVES:
        restarts = worker.container.restarts
        so_far = f", and it restarted {restarts} times" if restarts else ""
        message = f"{folder} is on a volume ({kind}) that outlives the container{so_far}: counters survive restarts"
        return warned(message, worker.target, shown)
    return passed(f"{folder} goes with the container", worker.target, shown)


def _inside(folder: str, mount: str) -> bool:
    """The folder is the mount or below it."""
    base = mount.rstrip("/")
    return folder.rstrip("/") == base or folder.startswith(f"{base}/")


# -- KV704 -----------------------------------------------------------------------------------------------------------


def prometheus_targets(snapshot: Snapshot) -> Iterator[Finding]:
    metrics = snapshot.metrics
    unread = next((one for one in snapshot.unread if "prometheus" in one.what.lower()), None)
    failing = metrics.source == "prometheus" and metrics.missing in ERRORS
    if not metrics.targets and unread is not None and (failing or unread.reason in ERRORS):
        yield skipped(unread.reason, f"Prometheus could not be read: {unread.message}")
        return
    if metrics.source != "prometheus" and not metrics.targets:
        yield skipped(Reason.NOT_APPLICABLE, "no Prometheus was asked")
        return
    if not metrics.by_member:
        yield skipped(Reason.NO_DATA, "no label of the series tells which pod they are of")
        return
    yield from _each_worker(snapshot, _target)


def _target(snapshot: Snapshot, worker: Member) -> Finding:
    metrics = snapshot.metrics
    known = metrics.targets.get(worker.key)
    up, age = (None, None) if known is None else (known.up, known.age_s)
    if up is None and age is None:
        if not worker.ready:
            return skipped(Reason.NO_DATA, "the worker is not ready", worker.target)
        return warned("Prometheus has no target for this worker", worker.target)
    shown = Evidence("metric", worker.key, f"up = {'unknown' if up is None else f'{up:g}'}, newest sample {_age(age)}")
    if up == 0:
        return failed("Prometheus cannot scrape this worker (up is 0)", worker.target, shown)
    interval = metrics.scrape_interval_s
    if age is not None and interval is not None and age > snapshot.thresholds.sample_age_intervals * interval:
        return warned(f"newest sample {_age(age)}, at an interval of {interval:.0f} s", worker.target, shown)
    return passed("Prometheus scrapes this worker", worker.target, shown)


def _age(age: float | None) -> str:
    return "of unknown age" if age is None else f"{age:.0f} s old"


# -- KV705 -----------------------------------------------------------------------------------------------------------


OLD_NAMES = ("vllm:gpu_cache_usage_perc", "vllm:gpu_prefix_cache_queries", "vllm:gpu_prefix_cache_hits")
NEW_NAMES = ("vllm:kv_cache_usage_perc", "vllm:prefix_cache_queries", "vllm:prefix_cache_hits")


def name_epochs(snapshot: Snapshot) -> Iterator[Finding]:
    epochs: dict[str, list[str]] = {}
    names = names_by_member(snapshot.metrics)
    for worker in snapshot.workers:
        if epoch := _epoch(_plain(names.get(worker.key, frozenset()))):
            epochs.setdefault(epoch, []).append(worker.key)
    if not epochs:
        yield skipped(snapshot.metrics.missing or Reason.NO_DATA, "no metric of vLLM's KV cache was found")
        return
    shown = [Evidence("metric", keys[0], f"{epoch} names: {', '.join(keys)}"[:240]) for epoch, keys in epochs.items()]
    if len(epochs) > 1:
        parts = ", ".join(f"{len(keys)} with {epoch} names" for epoch, keys in sorted(epochs.items()))
        yield warned(f"workers name their metrics differently: {parts}; dashboards show a part", FLEET, *shown)
        return
    epoch = next(iter(epochs))
    yield passed(f"{epoch} names of vLLM's cache metrics{AFTER[epoch]}", FLEET, *shown)


AFTER = {
    "old": " (up to 0.8); dashboards for newer names stay empty",
    "both": " (0.9)",
    "new": "; the production stack's router still scrapes the old ones, and its own hit rate stays 0",
}


def _epoch(names: frozenset[str]) -> str:
    old, new = (any(_plain_name(name) in names for name in group) for group in (OLD_NAMES, NEW_NAMES))
    return "both" if old and new else ("old" if old else ("new" if new else ""))


def _plain(names: frozenset[str]) -> frozenset[str]:
    return frozenset(_plain_name(name) for name in names)


def _plain_name(name: str) -> str:
    return name.replace(":", "_").removesuffix("_total")


# -- KV706 -----------------------------------------------------------------------------------------------------------


def name_spelling(snapshot: Snapshot) -> Iterator[Finding]:
    colons: dict[str, str] = {}
    renamed: dict[str, str] = {}
    names = names_by_member(snapshot.metrics)
    for worker in snapshot.workers:
        for name in sorted(names.get(worker.key, frozenset())):
            if name.startswith(("vllm:", "lmcache:")):
                colons.setdefault(worker.key, name)
            elif name.startswith(("vllm_", "lmcache_")) and not name.startswith("lmcache_mp_"):
                renamed.setdefault(worker.key, name)
    if not colons and not renamed:
        yield skipped(snapshot.metrics.missing or Reason.NO_DATA, "no metric of vLLM or LMCache was found")
        return
    shown = [Evidence("metric", *next(iter(group.items()))) for group in (colons, renamed) if group]
    if colons and renamed:
        message = "some metrics come with `:` and some with `_`: a dashboard shows one kind, or counts twice"
        yield warned(message, FLEET, *shown)
    elif renamed:
        message = "an exporter writes `_` for `:` in metric names; they are read all the same, dashboards may not"
        yield passed(message, FLEET, *shown)
    else:
        yield passed("metric names are as the engine writes them", FLEET, *shown)


CHECKS: tuple[Check, ...] = (
    Check(
        id="KV701",
        title="Workers answer at /metrics",
        group=Group.METRICS,
        worst=Status.FAIL,
        reads="GET /metrics of each worker",
        rule="Fails where it does not answer, answers with another status than 200, or with something that is not "
        "Prometheus text. Warns where none of its metrics is an engine's (HyperPod's sidecar has a page of its own). "
        "Skips workers that are not ready, and where no page was asked for and Prometheus "
        "does not scrape it.",
        hint="compare the port with the engine's --port (KV131)",
        run=pages,
        caused_by=("KV951", "KV004", "KV131"),
    ),
    Check(
        id="KV702",
        title="LMCache's metrics are exported",
        group=Group.METRICS,
        worst=Status.WARN,
        reads="families on each worker's page that begin with lmcache",
        rule="Warns where LMCache runs in the engine and none is there: it counts in other processes than the one "
        "that answers, unless they share a directory. Skips young workers and multi-process mode.",
        hint="set PROMETHEUS_MULTIPROC_DIR to a path inside the container, such as /tmp/prometheus",
        run=lmcache_families,
        caused_by=("KV302", "KV701"),
    ),
    Check(
        id="KV703",
        title="Counters restart with the container",
        group=Group.METRICS,
        worst=Status.WARN,
        reads="PROMETHEUS_MULTIPROC_DIR and the container's volume mounts",
        rule="Warns where the directory is on a volume that outlives a restart of the container (an emptyDir lives "
        "as long as the pod): counters of dead processes are then still added.",
        hint="use a path of the container's own file system, or empty the directory at start",
        run=multiprocess_files,
    ),
    Check(
        id="KV704",
        title="Prometheus scrapes the workers",
        group=Group.METRICS,
        worst=Status.FAIL,
        reads="up and the age of the newest sample of each worker, in Prometheus",
        rule="Fails where up is 0. Warns where Prometheus has no target for a ready worker, or its newest sample "
        "is older than three scrape intervals.",
        hint="enable the chart's ServiceMonitor and compare its labels with the Service's",
        run=prometheus_targets,
        caused_by=("KV131", "KV701"),
    ),
    Check(
        id="KV705",
        title="All workers use the same metric names",
        group=Group.METRICS,
        worst=Status.WARN,
        reads="vllm:gpu_cache_usage_perc and gpu_prefix_cache_* (old), vllm:kv_cache_usage_perc and prefix_cache_* "
        "(new)",
        rule="Passes with which names are there. Warns where workers differ: dashboards then show a part of the fleet.",
        hint="finish the rollout; update dashboards to the names of this vLLM",
        run=name_epochs,
        caused_by=("KV154",),
    ),
    Check(
        id="KV706",
        title="Metric names are spelled in one way",
        group=Group.METRICS,
        worst=Status.WARN,
        reads="names that begin with vllm or lmcache, with `:` or with `_`",
        rule="Passes for either spelling (exporters such as an OpenTelemetry collector write `_`). Warns where "
        "both are there.",
        hint="scrape each worker in one way only",
        run=name_spelling,
    ),
)
