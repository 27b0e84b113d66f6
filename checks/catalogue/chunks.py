"""KV404, KV407, KV408: chunks and blocks of one size everywhere, and prompts long enough to fill one. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from checks.catalogue.llmd import block_sizes
from checks.compatibility import Version
from checks.evidence import lmcache_setting
from checks.metrics.histogram import buckets_of, quantile
from checks.metrics.view import Sample
from checks.model import FLEET, Check, Evidence, Finding, Group, Reason, Status, failed, passed, skipped, warned
from checks.serving import DEFAULT_CHUNK_TOKENS, block_tokens, chunk_tokens
from checks.sharing import defaults_known, in_process_workers, kvaware, shares_l2
from checks.snapshot import Member, Snapshot

UNFULL_OFF = Version.parse("0.3.11")
CONTROLLER_CHUNK = 256
"""The controller in the router splits prompts into chunks of 256 tokens, whatever the workers are told."""

BLOCK_LABELS = ("block_size", "prefix_caching_hash_algo", "cache_dtype")

# -- KV404 -----------------------------------------------------------------------------------------------------------


def chunk_sizes(snapshot: Snapshot) -> Iterator[Finding]:
    workers = in_process_workers(snapshot)
    if not workers:
        yield skipped(Reason.NOT_APPLICABLE, "no worker runs LMCache in its own process")
        return
    sizes = {worker.key: _chunk(snapshot, worker) for worker in workers}
    shared = {sizes[worker.key] for worker in workers if shares_l2(snapshot, worker)} - {None}
    for worker in workers:
        size = sizes[worker.key]
        if size is None:
            yield skipped(Reason.NO_DATA, "LMCache's chunk size could not be read", worker.target)
            continue
        evidence = lmcache_setting(worker, "chunk_size", snapshot.lmcache_config(worker))
        block = block_tokens(snapshot, worker)
        if kvaware(snapshot) and size != CONTROLLER_CHUNK:
            message = f"chunks of {size} tokens; the router's controller always looks for {CONTROLLER_CHUNK}"
            yield failed(message, worker.target, evidence)
        elif len(shared) > 1 and shares_l2(snapshot, worker):
            shown = " and ".join(str(one) for one in sorted(shared, key=str))
            yield warned(f"workers that share a second tier have chunks of {shown} tokens", worker.target, evidence)
        elif block and size % block:
            message = f"chunks of {size} tokens are no multiple of the engine's blocks of {block}"
            yield warned(message, worker.target, evidence)
        else:
            yield passed(f"chunks of {size} tokens", worker.target, evidence)


def _chunk(snapshot: Snapshot, worker: Member) -> int | None:
    """Tokens of a chunk; the default where nothing can say otherwise, None where something may."""
    config = snapshot.lmcache_config(worker)
    answer = worker.answers.get("/conf")
    told = config.get("chunk_size", answer.get("chunk_size") if isinstance(answer, dict) else None)
    if isinstance(told, int) and not isinstance(told, bool) and told > 0:
        return told
    return DEFAULT_CHUNK_TOKENS if defaults_known(snapshot, worker, config, "chunk_size") else None


# -- KV407 -----------------------------------------------------------------------------------------------------------


def unfull_chunks(snapshot: Snapshot) -> Iterator[Finding]:
    workers = in_process_workers(snapshot)
    if not workers:
        yield skipped(Reason.NOT_APPLICABLE, "no worker runs LMCache in its own process")
    for worker in workers:
        yield _unfull(snapshot, worker)


def _unfull(snapshot: Snapshot, worker: Member) -> Finding:
    saves, evidence = _saves_unfull(snapshot, worker)
    if saves is None:
        return skipped(Reason.VERSION_UNKNOWN, "save_unfull_chunk was not printed; its default depends", worker.target)
    if saves:
        return passed("prompts shorter than a chunk are stored too", worker.target, evidence)
    chunk = chunk_tokens(snapshot.lmcache_config(worker))
    told = f"prompts shorter than {chunk} tokens are never stored"
    count = snapshot.metrics.grown(("request_prompt_tokens_count",), worker.key)[0]
    bounds = buckets_of(snapshot.metrics, "request_prompt_tokens", worker.key, lifetime=count.lifetime)
    if count.or_zero() >= snapshot.thresholds.traffic_requests_min and (middle := quantile(bounds, 0.5)) is not None:
        message = f"{told}, and half of {count.or_zero():.0f} prompts have at most {middle:.0f}"
        judge = warned if middle < chunk else passed
        return judge(message, worker.target, evidence, count.evidence())
    return passed(told, worker.target, evidence)


def _saves_unfull(snapshot: Snapshot, worker: Member) -> tuple[bool | None, Evidence]:
    """As configured, else the default of the version: true up to 0.3.10, false since. None: neither is known."""
    config = snapshot.lmcache_config(worker)
    if isinstance(told := config.get("save_unfull_chunk"), bool):
        return told, lmcache_setting(worker, "save_unfull_chunk", config)
    version = snapshot.lmcache_version(worker)
    evidence = Evidence("log", worker.key, f"LMCache {version or 'of unknown version'}, save_unfull_chunk not printed")
    if version is None or (not version.exact and version < UNFULL_OFF):
        return None, evidence
    return version < UNFULL_OFF, evidence


# -- KV408 -----------------------------------------------------------------------------------------------------------


def block_settings(snapshot: Snapshot) -> Iterator[Finding]:
    if not snapshot.workers:
        yield skipped(Reason.NO_DATA, "no worker was found")
    for model, workers in snapshot.by_model():
        yield _settings(snapshot, model, workers)
    wanted = block_sizes(snapshot)
    for worker in snapshot.workers if wanted else ():
        size = block_tokens(snapshot, worker)
        if size is not None and size not in {one for one, _evidence in wanted}:
            shown = " or ".join(str(one) for one, _evidence in wanted)
            message = f"blocks of {size} tokens; the endpoint picker looks for blocks of {shown}"
            yield failed(message, worker.target, *(evidence for _one, evidence in wanted))


def _settings(snapshot: Snapshot, model: str, workers: tuple[Member, ...]) -> Finding:
    of = f" of {model}" if model else ""
    if len(workers) < 2:
        return skipped(Reason.NOT_APPLICABLE, f"only one worker{of}: nothing to compare")
    told: dict[tuple[str, ...], list[str]] = {}
    for worker in workers:
        for one in {
            tuple(each.labels.get(name, "") for name in BLOCK_LABELS): each for each in _info(snapshot, worker)
        }:
            told.setdefault(one, []).append(worker.key)
    if sum(map(len, told.values())) < 2:
        missing = snapshot.metrics.missing or Reason.NO_DATA
        return skipped(missing, f"cache_config_info of the workers{of} could not be read")
    evidence = [
        Evidence("metric", keys[0], ", ".join(f"{name}={value}" for name, value in zip(BLOCK_LABELS, one, strict=True)))
        for one, keys in sorted(told.items())
    ]
    if len(told) == 1:
        return passed(f"blocks{of} are alike: {evidence[0].text}", FLEET, evidence[0])
    differing = [name for at, name in enumerate(BLOCK_LABELS) if len({one[at] for one in told}) > 1]
    groups = "; ".join(
        f"{', '.join(sorted(keys)[:3])}: {shown.text}"
        for (_one, keys), shown in zip(sorted(told.items()), evidence, strict=True)
    )
    return warned(f"workers{of} differ in {', '.join(differing)} ({groups})", FLEET, *evidence)


def _info(snapshot: Snapshot, worker: Member) -> tuple[Sample, ...]:
    return snapshot.metrics.find("cache_config_info", worker.key)


CHECKS: tuple[Check, ...] = (
    Check(
        id="KV404",
        title="LMCache's chunks have the size that is looked for",
        group=Group.IDENTITY,
        worst=Status.FAIL,
        reads="LMCACHE_CHUNK_SIZE, LMCache's printed configuration or /conf; the engine's block size",
        rule="Fails under kvaware where it is not 256: the router's controller takes no configuration. Warns where "
        "workers with a shared second tier differ, or where it is no multiple of the engine's block size.",
        hint="leave LMCACHE_CHUNK_SIZE at 256",
        run=chunk_sizes,
    ),
    Check(
        id="KV407",
        title="Prompts fill a chunk",
        group=Group.IDENTITY,
        worst=Status.WARN,
        reads="save_unfull_chunk (true up to LMCache 0.3.10, false since), vllm:request_prompt_tokens",
        rule="Passes with what holds. Warns where unfull chunks are not stored and the median of 50 or more "
        "prompts is shorter than a chunk: such prompts can never hit.",
        hint="test with prompts of at least two chunks (512 tokens)",
        run=unfull_chunks,
    ),
    Check(
        id="KV408",
        title="Workers of a model have the same blocks",
        group=Group.IDENTITY,
        worst=Status.FAIL,
        reads="vllm:cache_config_info (block_size, prefix_caching_hash_algo, cache_dtype); the endpoint picker's "
        "block size",
        rule="Warns on any difference between workers of one model. Fails where an endpoint picker's block size is "
        "not the engine's.",
        hint="start all workers of a model with the same --block-size, --prefix-caching-hash-algo and --kv-cache-dtype",
        run=block_settings,
    ),
)
