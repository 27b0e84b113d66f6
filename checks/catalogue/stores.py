"""KV605: does LMCache store what is computed anew. Pure; reads metrics, else log lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from checks.lmcache import lookups_told, stored_told
from checks.model import Check, Evidence, Finding, Group, Reason, Status, Target, passed, skipped, warned
from checks.serving import chunk_tokens
from checks.sharing import no_lmcache, ready_in_process
from checks.snapshot import Member, Snapshot
from checks.traffic import bad, collapsed, first_rank, grown_to, no_metric, percent, subjects


def stores(snapshot: Snapshot) -> Iterable[Finding]:
    workers = ready_in_process(snapshot)
    if not workers:
        return [no_lmcache(snapshot)]
    if not snapshot.metrics.has(("lmcache_stored_tokens",)):
        told = [(worker, _stores_by_log(snapshot, worker)) for worker in workers]
        if any(found is not None for _worker, found in told):
            return [found or _silent(worker) for worker, found in told]
    chunks = {worker.key: chunk_tokens(snapshot.lmcache_config(worker)) for worker in workers}
    largest = max(chunks.values())
    return collapsed(
        _stores(snapshot, target, member, chunks[member] if member is not None else largest)
        for target, member in subjects(snapshot, workers)
    )


def _stores(snapshot: Snapshot, target: Target, member: str | None, chunk: int) -> Finding:
    metrics = snapshot.metrics
    floor = snapshot.thresholds.store_chunks_sure * chunk
    names = ("lmcache_stored_tokens", "lmcache_lookup_hits", "prompt_tokens")
    stored, found, prompt = grown_to(snapshot, names, member, floor)
    for needed in (prompt, stored):
        if needed.missing is not None:
            return no_metric(snapshot, needed.missing, f"the counter {needed.name}", target)
    stored, found = first_rank(metrics, stored, member), first_rank(metrics, found, member)
    fresh = max(0.0, prompt.or_zero() - found.or_zero())
    evidence = [one.evidence() for one in (stored, prompt, found) if one]
    return _judge(snapshot, target, stored.or_zero(), fresh, floor, evidence, lifetime=prompt.lifetime)


def _judge(
    snapshot: Snapshot,
    target: Target,
    stored: float,
    fresh: float,
    floor: float,
    evidence: Sequence[Evidence],
    *,
    lifetime: bool = False,
) -> Finding:
    """Stored tokens against prompt tokens that were not there before (`fresh`)."""
    if fresh < floor:
        chunks = snapshot.thresholds.store_chunks_sure
        message = f"{fresh:.0f} new prompt tokens are too few (needs {floor:.0f}, {chunks} chunks)"
        return skipped(Reason.NO_TRAFFIC, message, target, *evidence)
    if stored == 0:
        message = f"LMCache stored nothing of {fresh:.0f} new prompt tokens"
        return bad(message, target, *evidence, lifetime=lifetime)
    share = stored / fresh
    told = f"LMCache stored {percent(min(1.0, share))} of {fresh:.0f} new prompt tokens"
    if share < snapshot.thresholds.store_ratio_warn:
        return warned(told, target, *evidence)
    return passed(told, target, *evidence)


def _stores_by_log(snapshot: Snapshot, worker: Member) -> Finding | None:
    """By LMCache's lines where no metric tells; None where they say nothing of requests."""
    log = worker.log
    if log is None or not (told := lookups_told(log)).requests:
        return None
    chunk = chunk_tokens(snapshot.lmcache_config(worker))
    floor = snapshot.thresholds.store_chunks_sure * chunk
    begun = log.last("lmcache-storing")
    counts = f"{told.requests} requests with {told.tokens:.0f} tokens, of which {told.hit_tokens:.0f} were there"
    counted = Evidence("log", log.where, counts)
    evidence = [counted, *([log.evidence(begun)] if begun is not None else [])]
    return _judge(snapshot, worker.target, stored_told(log), told.tokens - told.hit_tokens, floor, evidence)


def _silent(worker: Member) -> Finding:
    reason = (worker.log_missing or Reason.NO_DATA) if worker.log is None else Reason.NO_TRAFFIC
    return skipped(reason, "neither metrics nor its log tell of requests", worker.target)


CHECKS: tuple[Check, ...] = (
    Check(
        id="KV605",
        title="LMCache stores",
        group=Group.EFFECT,
        worst=Status.FAIL,
        reads="lmcache:num_stored_tokens against vllm:prompt_tokens less what lookups found (that is stored already); "
        "LMCache's lines a request where there is no metric",
        rule="Skips below 20 chunks of new prompt tokens. Fails where nothing was stored, warns below 1 %; over "
        "the engine's lifetime both are warnings.",
        hint="see whether the connector is active (KV141, KV302), the CPU buffer on (KV110), and prompts longer than a "
        "chunk",
        run=stores,
        caused_by=("KV302", "KV303", "KV110", "KV141"),
    ),
)
