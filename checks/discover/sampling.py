"""Whose logs are read when there are many: all that matter or are in trouble, and the same few of the healthy. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from checks.metrics.view import Metrics
from checks.snapshot import Member, Role

TROUBLED_TIMES = 4
"""Not-ready and restarted workers read, as a multiple of the healthy ones."""


@dataclass(frozen=True, slots=True)
class Sample:
    keys: frozenset[str]
    """Members whose logs are read."""
    text: str = ""
    """`50 of 1200 worker logs`; '' where all were read."""


def sample(members: Sequence[Member], metrics: Metrics, limit: int) -> Sample:
    """Every router and cache server, every worker in trouble, `limit` healthy workers by a hash of their uid.

    Of the healthy ones that were left out, the one whose hit ratio is furthest from the others' is added.
    """
    workers = [member for member in members if member.role is Role.WORKER]
    troubled = sorted((one for one in workers if not one.ready or one.container.restarts > 0), key=_order)
    healthy = sorted((one for one in workers if one.ready and one.container.restarts == 0), key=_order)
    chosen = troubled[: max(limit, limit * TROUBLED_TIMES)] + healthy[:limit]
    if (odd := outlier(metrics, workers)) is not None and odd in healthy[limit:]:
        chosen.append(odd)
    others = [member for member in members if member.role is not Role.WORKER]
    text = f"{len(chosen)} of {len(workers)} worker logs" if len(chosen) < len(workers) else ""
    return Sample(frozenset(member.key for member in (*others, *chosen)), text)


def outlier(metrics: Metrics, workers: Sequence[Member]) -> Member | None:
    """The worker whose prefix hit ratio since its start is furthest from the median; None for fewer than three."""
    ratios: dict[str, float] = {}
    hits = {one.member: one.value for one in metrics.find("prefix_cache_hits")}
    for one in metrics.find("prefix_cache_queries"):
        if one.value > 0 and one.member in hits:
            ratios[one.member] = hits[one.member] / one.value
    found = [worker for worker in workers if worker.key in ratios]
    if len(found) < 3:
        return None
    middle = median(ratios[worker.key] for worker in found)
    return max(found, key=lambda worker: (abs(ratios[worker.key] - middle), worker.key))


def _order(member: Member) -> str:
    return hashlib.sha256((member.uid or member.key).encode()).hexdigest()
