"""Who must compute the same cache keys, and what LMCache was told of it. Pure."""

from __future__ import annotations

from typing import Any

from checks.hyperpod import endpoint_of
from checks.lmcache import remote_url, why_not_in_process
from checks.model import CONTROLLER_STACKS, Finding, Reason, skipped
from checks.serving import config_unread
from checks.snapshot import Member, Snapshot

NOT_KVAWARE = "the strategy is not kvaware"
"""Why checks of LMCache's controller do not apply."""


def kvaware(snapshot: Snapshot) -> bool:
    """Requests are routed by LMCache's controller: router and workers must compute the same keys.

    kvctl's own mode of that name computes keys from token ids, and asks no controller.
    """
    return snapshot.strategy == "kvaware" and bool(snapshot.stacks & CONTROLLER_STACKS)


def shares_l2(snapshot: Snapshot, worker: Member) -> bool:
    """The worker's LMCache keeps chunks where other workers look for them, by its configuration or its resource."""
    if remote_url(snapshot, worker) is not None:
        return True
    endpoint = endpoint_of(snapshot, worker)
    return endpoint is not None and endpoint.level2 is True


def lmcache_workers(snapshot: Snapshot) -> tuple[Member, ...]:
    """Workers that are meant to run LMCache, in their own process or beside it."""
    return tuple(worker for worker in snapshot.workers if snapshot.lmcache_active(worker))


def in_process_workers(snapshot: Snapshot) -> tuple[Member, ...]:
    """Workers that run LMCache in their own processes."""
    return tuple(worker for worker in snapshot.workers if not why_not_in_process(snapshot, worker))


def ready_in_process(snapshot: Snapshot) -> tuple[Member, ...]:
    """Those of them that are ready; a multi-process server counts on its own page (KV941)."""
    return tuple(worker for worker in in_process_workers(snapshot) if worker.ready)


def no_lmcache(snapshot: Snapshot) -> Finding:
    """Why there is no ready worker with LMCache in its own processes."""
    if lmcache_workers(snapshot):
        return skipped(Reason.NOT_APPLICABLE, "no ready worker runs LMCache in its own process")
    return skipped(Reason.NOT_APPLICABLE, "no worker runs LMCache")


def key_sharers(snapshot: Snapshot) -> tuple[Member, ...]:
    """Workers whose keys must equal somebody else's: all with LMCache under kvaware, else those with a shared L2."""
    workers = in_process_workers(snapshot)
    return workers if kvaware(snapshot) else tuple(one for one in workers if shares_l2(snapshot, one))


def defaults_known(snapshot: Snapshot, worker: Member, config: dict[str, Any], name: str) -> bool:
    """What is not set has its default: the environment was read, and no file may say otherwise."""
    return snapshot.cluster and not config_unread(worker, config, name)
