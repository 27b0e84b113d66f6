"""KV901-KV905: llm-d and the Gateway API's endpoint picker (EPP): its index, its configuration, its lines. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import yaml

from checks.evidence import shown
from checks.model import (
    FLEET,
    Check,
    Evidence,
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
from checks.serving import block_tokens
from checks.snapshot import Member, Snapshot
from checks.traffic import bad, grown_to, names_by_member, no_metric, percent

STACKS = frozenset({Stack.LLM_D})
MOST_CONFIG = 1 << 20
"""Characters of a configuration that are read."""
MOST_DEPTH = 30

SCORE_LINES = (
    "epp-no-match-info",
    "epp-scores-failed",
    "epp-topic-failed",
    "epp-batch-dropped",
    "epp-parent-missing",
)

MAPPED: dict[str, tuple[tuple[str, str], ...]] = {
    "vllm": (
        ("--total-queued-requests-metric", "vllm:num_requests_waiting"),
        ("--total-running-requests-metric", "vllm:num_requests_running"),
        ("--kv-cache-usage-percentage-metric", "vllm:kv_cache_usage_perc"),
        ("--cache-info-metric", "vllm:cache_config_info"),
    ),
    "sglang": (
        ("--total-queued-requests-metric", "sglang:num_queue_reqs"),
        ("--total-running-requests-metric", "sglang:num_running_reqs"),
        ("--kv-cache-usage-percentage-metric", "sglang:token_usage"),
    ),
    "trtllm": (
        ("--total-queued-requests-metric", "trtllm_num_requests_waiting"),
        ("--total-running-requests-metric", "trtllm_num_requests_running"),
        ("--kv-cache-usage-percentage-metric", "trtllm_kv_cache_utilization"),
    ),
}
"""What the picker reads of each engine: the option that renames it, and its default name."""


def _each_picker(snapshot: Snapshot, judge: Callable[[Snapshot, Target, str | None], Finding]) -> Iterator[Finding]:
    if not snapshot.routers:
        yield skipped(Reason.NO_DATA, "no endpoint picker was found")
    elif not snapshot.metrics.by_member:
        yield judge(snapshot, FLEET, None)
    else:
        for router in snapshot.routers:
            yield judge(snapshot, router.target, router.key)


# -- KV901 -----------------------------------------------------------------------------------------------------------


def prefix_index(snapshot: Snapshot) -> Iterator[Finding]:
    yield from _each_picker(snapshot, _prefix_index)


def _prefix_index(snapshot: Snapshot, target: Target, member: str | None) -> Finding:
    metrics = snapshot.metrics
    size = metrics.now("epp_index_size", member)
    needed = snapshot.thresholds.traffic_requests_min
    names = ("epp_cached_tokens", "epp_input_tokens", "epp_hit_ratio_sum", "epp_hit_ratio_count", "epp_requests")
    cached, given, ratio, count, requests = grown_to(snapshot, names, member, needed + 1)
    if size.value is None and ratio.value is None:
        return no_metric(snapshot, ratio.missing or Reason.NO_DATA, "the endpoint picker's prefix index", target)
    evidence = [one.evidence() for one in (requests, size, ratio, count, cached, given) if one]
    seen = requests.value if requests else count.value
    if ratio.or_zero() > 0:
        told = f"on average {percent(ratio.or_zero() / max(1.0, count.or_zero()))} of a prompt was found in its index"
        if cached.or_zero() > 0 and given.or_zero() > 0:
            told += (
                f"; the engines reported {percent(min(1.0, cached.or_zero() / given.or_zero()))} of the tokens cached"
            )
        return passed(told, target, *evidence)
    if seen is None or seen <= needed:
        message = f"{seen or 0:.0f} requests are too few without a hit (needs more than {needed})"
        return skipped(Reason.NO_TRAFFIC, message, target, *evidence)
    if size.or_zero() == 0:
        message = f"no prefix was found for {seen:.0f} requests and the index is empty"
        return bad(message, target, *evidence, lifetime=requests.lifetime)
    message = f"no prefix was found for {seen:.0f} requests, although the index holds {size.or_zero():.0f} entries"
    return warned(message, target, *evidence)


# -- KV902 -----------------------------------------------------------------------------------------------------------


def precise_index(snapshot: Snapshot) -> Iterator[Finding]:
    yield from _each_picker(snapshot, _precise_index)


def _precise_index(snapshot: Snapshot, target: Target, member: str | None) -> Finding:
    metrics = snapshot.metrics
    admitted = metrics.now("llmd_admissions", member)
    needed = snapshot.thresholds.traffic_requests_min
    hits, lookups = grown_to(snapshot, ("llmd_lookup_hits", "llmd_lookup_requests"), member, needed + 1)
    served = metrics.now("epp_requests", member)
    if admitted.value is None and lookups.value is None:
        missing = metrics.missing or Reason.NO_DATA
        return no_metric(snapshot, missing, "the precise index (kvcache_index_*; it needs enableMetrics)", target)
    evidence = [one.evidence() for one in (admitted, lookups, hits) if one]
    if admitted.or_zero() == 0:
        if lookups.or_zero() == 0 and served.or_zero() == 0:
            return skipped(Reason.NO_TRAFFIC, "no request was looked up and no block admitted", target, *evidence)
        return failed("no KV event has arrived: the index never admitted a block", target, *evidence)
    if hits.or_zero() > 0:
        message = f"{hits.or_zero():.0f} hits in {lookups.or_zero():.0f} lookups, {admitted.or_zero():.0f} admissions"
        return passed(message, target, *evidence)
    if lookups.or_zero() > needed:
        message = (
            f"{lookups.or_zero():.0f} lookups found nothing, although {admitted.or_zero():.0f} blocks were admitted"
        )
        return bad(
            message,
            target,
            *evidence,
            lifetime=lookups.lifetime,
            hint="compare block size, hash seed and tokenizer with the engines' (KV903)",
        )
    message = f"{lookups.or_zero():.0f} lookups without a hit are too few (needs more than {needed})"
    return skipped(Reason.NO_TRAFFIC, message, target, *evidence)


# -- KV903 -----------------------------------------------------------------------------------------------------------


def configuration(snapshot: Snapshot) -> Iterator[Finding]:
    sizes, seeds = block_sizes(snapshot), settings(snapshot, "hashSeed")
    if not sizes and not seeds:
        yield skipped(
            Reason.NO_DATA, "no block size and no hash seed were found in the endpoint picker's configuration"
        )
        return
    if not snapshot.workers:
        yield skipped(Reason.NO_DATA, "no worker was found")
    for worker in snapshot.workers:
        yield from _agrees(snapshot, worker, sizes, seeds)


def _agrees(
    snapshot: Snapshot, worker: Member, sizes: list[tuple[int, Evidence]], seeds: list[tuple[Any, Evidence]]
) -> Iterator[Finding]:
    block, good = block_tokens(snapshot, worker), []
    for size, evidence in sizes if block is not None else ():
        if size != block:
            yield failed(f"blocks of {block} tokens; the endpoint picker looks for {size}", worker.target, evidence)
        else:
            good.append(f"blocks of {size} tokens")
    if sizes and block is None:
        yield skipped(Reason.NO_DATA, "the engine's block size could not be read", worker.target)
    for seed, evidence in seeds if snapshot.cluster else ():
        own = worker.env("PYTHONHASHSEED")
        if worker.env_unread("PYTHONHASHSEED"):
            yield skipped(Reason.NO_DATA, "PYTHONHASHSEED comes from what was not read", worker.target)
        elif str(seed) != (own or ""):
            message = f"hash seed {seed} in the endpoint picker, PYTHONHASHSEED {own or 'not set'} here"
            yield warned(message, worker.target, evidence, hint=SEED_HINT)
        else:
            good.append(f"hash seed {seed}")
    if good:
        yield passed(f"agrees with the endpoint picker: {', '.join(good)}", worker.target)


SEED_HINT = "matters only to pickers that take the engines' hashes as their own keys; newer ones compute theirs"


def block_sizes(snapshot: Snapshot) -> list[tuple[int, Evidence]]:
    """Block sizes that the endpoint pickers are configured with, each once, with where it stands."""
    found: dict[int, Evidence] = {}
    for name in ("blockSize", "blockSizeTokens"):
        for value, evidence in settings(snapshot, name):
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                found.setdefault(value, evidence)
    return sorted(found.items())


def settings(snapshot: Snapshot, name: str) -> list[tuple[Any, Evidence]]:
    """Values of a key anywhere in the pickers' configurations: `--config-text`, or ConfigMaps that they refer to."""
    found = []
    for where, text in _configurations(snapshot):
        for value in _values(_parsed(text), name, 0):
            found.append((value, Evidence("resource", where, shown(f"{name}: {value}"))))
    return found


def _configurations(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    for router in snapshot.routers:
        if text := router.arg("--config-text"):
            yield router.key, text
    for one in snapshot.resources.all("configmaps"):
        name = str((one.get("metadata") or {}).get("name") or "")
        data = one.get("data")
        for key, text in data.items() if isinstance(data, Mapping) else ():
            if isinstance(text, str) and "EndpointPickerConfig" in text:
                yield f"ConfigMap {name}/{key}", text


def _parsed(text: str) -> Any:
    """The YAML; None where it is too long or no YAML, which KV903 then has nothing to compare with."""
    if len(text) > MOST_CONFIG:
        return None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        return None


def _values(node: Any, name: str, depth: int) -> Iterator[Any]:
    if depth > MOST_DEPTH:
        return
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key == name:
                yield value
            yield from _values(value, name, depth + 1)
    elif isinstance(node, list):
        for value in node:
            yield from _values(value, name, depth + 1)


# -- KV904 -----------------------------------------------------------------------------------------------------------


def picker_lines(snapshot: Snapshot) -> Iterator[Finding]:
    if not snapshot.routers:
        yield skipped(Reason.NO_DATA, "no endpoint picker was found")
    for router in snapshot.routers:
        log = router.log
        if log is None or not log.records:
            yield skipped(router.log_missing or Reason.NO_DATA, "its log was not read", router.target)
            continue
        since = snapshot.now - snapshot.window_s
        found = log.since(since, *SCORE_LINES)
        times = [record.at for record in log.records if record.at is not None]
        covered = min(snapshot.window_s, snapshot.now - min(times)) if times else snapshot.window_s
        minutes = max(1.0, covered / 60)
        if len(found) / minutes >= 1:
            kinds = [pattern for pattern in SCORE_LINES if any(match.pattern == pattern for match in found)]
            evidence = [log.evidence(next(match for match in found if match.pattern == kind)) for kind in kinds]
            message = f"{len(found)} lines in {minutes:.0f} min say that events or scores are lost"
            yield warned(message, router.target, *evidence)
        else:
            yield passed(f"{len(found)} lines of lost events or scores in {minutes:.0f} min", router.target)


# -- KV905 -----------------------------------------------------------------------------------------------------------


def mapped_metrics(snapshot: Snapshot) -> Iterable[Finding]:
    if not snapshot.workers:
        return [skipped(Reason.NO_DATA, "no worker was found")]
    names = names_by_member(snapshot.metrics)
    return [_mapped(snapshot, worker, names.get(worker.key, frozenset())) for worker in snapshot.workers]


def _mapped(snapshot: Snapshot, worker: Member, names: frozenset[str]) -> Finding:
    if not names:
        page = snapshot.metrics.pages.get(worker.key)
        missing = (page.problem if page is not None else None) or snapshot.metrics.missing or Reason.NO_DATA
        return skipped(missing, "the worker's metrics could not be read", worker.target)
    engine = next((engine for engine in MAPPED if any(name.startswith(engine) for name in names)), None)
    if engine is None:
        return skipped(Reason.NOT_APPLICABLE, "no metrics of vLLM, SGLang or TensorRT-LLM", worker.target)
    wanted = [_wanted(snapshot, option, default) for option, default in MAPPED[engine]]
    absent = [name for name in wanted if name not in names and name.replace(":", "_") not in names]
    if absent:
        message = f"does not expose {', '.join(absent)}, which the endpoint picker reads"
        return failed(message, worker.target, Evidence("metric", worker.key, f"{engine}: {len(names)} families"))
    return passed(f"exposes what the endpoint picker reads ({engine})", worker.target)


def _wanted(snapshot: Snapshot, option: str, default: str) -> str:
    """The name the picker was told to read, without its label selector."""
    told = next((value for router in snapshot.routers if (value := router.arg(option))), default)
    return told.partition("{")[0].strip()


CHECKS: tuple[Check, ...] = (
    Check(
        id="KV901",
        title="The endpoint picker's prefix index hits",
        group=Group.ROUTING,
        worst=Status.FAIL,
        reads="prefix_indexer_size and prefix_indexer_hit_ratio of the endpoint picker, its requests and cached tokens",
        rule="Passes where prefixes were found. Skips up to 50 requests without a hit. Fails where more than 50 "
        "requests found nothing and the index is empty (a warning over the picker's lifetime); warns where it "
        "is not empty, since prompts may be unique.",
        hint="see whether the prefix plugin is in the picker's configuration and requests carry a prompt it can hash",
        run=prefix_index,
        stacks=STACKS,
        proves=True,
    ),
    Check(
        id="KV902",
        title="The precise index takes KV events and hits",
        group=Group.ROUTING,
        worst=Status.FAIL,
        reads="kvcache_index_admissions, _lookup_requests and _lookup_hits of the endpoint picker (enableMetrics)",
        rule="Fails where requests were served and no block was ever admitted, and where more than 50 lookups hit "
        "nothing although blocks were admitted (a warning over the picker's lifetime). Passes where lookups "
        "hit.",
        hint="check vLLM's --kv-events-config and its topic kv@POD@MODEL, and that the picker reaches the port",
        run=precise_index,
        stacks=STACKS,
        caused_by=("KV903",),
        proves=True,
    ),
    Check(
        id="KV903",
        title="The endpoint picker hashes as the engines do",
        group=Group.IDENTITY,
        worst=Status.FAIL,
        reads="blockSize, blockSizeTokens and hashSeed in the picker's configuration; --block-size and "
        "PYTHONHASHSEED of the workers",
        rule="Fails where the block sizes differ. Warns where the hash seed differs, which matters only to older "
        "pickers.",
        hint="set tokenProcessorConfig.blockSize to the engines' --block-size",
        run=configuration,
        stacks=STACKS,
    ),
    Check(
        id="KV904",
        title="The endpoint picker loses no events and scores",
        group=Group.ROUTING,
        worst=Status.WARN,
        reads="the endpoint picker's log",
        rule="Warns at one line a minute or more, over the window, of events that could not be read or of scores "
        "that are 0 for want of data.",
        hint="match the picker's version with the engines' event format",
        run=picker_lines,
        stacks=STACKS,
        caused_by=("KV902",),
    ),
    Check(
        id="KV905",
        title="Workers expose what the endpoint picker reads",
        group=Group.METRICS,
        worst=Status.FAIL,
        reads="metric names of each worker; the picker's options that rename them",
        rule="Fails where a worker does not expose one of the names that the picker reads for its engine (waiting, "
        "running, KV use, and vLLM's cache_config_info).",
        hint="give the picker the names of this engine version, or upgrade the engine",
        run=mapped_metrics,
        stacks=STACKS,
    ),
)
