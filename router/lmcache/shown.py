"""An LMCache worker as JSON for the admin port."""

from __future__ import annotations

from typing import Any

from router.lmcache.binding import Bound
from router.lmcache.index import ChunkIndex, Tier
from router.lmcache.worker import LmWorker


def entry(one: LmWorker, bound: Bound, index: ChunkIndex, now: float) -> dict[str, Any]:
    form = one.scheme.form
    return {
        "instance": one.instance,
        "lmcache_worker": one.number,
        "address": f"{one.ip}:{one.port}",
        "worker": bound.worker or None,
        "dp_rank": bound.rank,
        "bound_by": str(bound.how),
        "state": str(one.state),
        "seconds_since_heartbeat": None if one.heartbeat_at is None else round(now - one.heartbeat_at, 1),
        "heartbeats": one.heartbeats,
        "keys": {"host": index.count(one.bit, Tier.HOST), "disk": index.count(one.bit, Tier.DISK)},
        "locations": {
            name: {"last_seq": location.last_seq, "gaps": location.gaps} for name, location in one.locations.items()
        },
        "admits": one.admits,
        "evicts": one.evicts,
        "full_syncs": one.syncs,
        "full_sync_wanted": one.wants_sync,
        "hash": {
            "state": one.hash_state,
            "algorithm": str(form.algorithm),
            "chunk_size": form.chunk_size,
            "prompts_matched": one.matched,
            "prompts_unmatched": one.unmatched,
        },
    }
