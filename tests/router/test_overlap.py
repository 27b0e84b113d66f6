"""Tiers count from where the nearer ones stop."""

from __future__ import annotations

import numpy as np

from router.events.cache_events import BlockStored, Tier
from router.fleet.view import FleetView
from router.fleet.worker import Worker, endpoint_of
from router.model import Degraded, RouteRequest, WorkerSpec
from router.overlap import behind, shared_beyond
from router.prefix.hashing import Keys, block_keys, root_key
from router.prefix.index import Overlap
from router.shared.blocks import SharedBlocks

BLOCK = 4
SEED = 8
TOKENS = np.arange(1, 41, dtype=np.uint32)
KEYS: Keys = block_keys(TOKENS, BLOCK, root_key(SEED, BLOCK))


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def found(device: int, host: int, disk: int, external: int) -> Overlap:
    return Overlap(ints(device), ints(host), ints(disk), ints(external))


def after(device: int, events: Overlap) -> tuple[int, ...]:
    return tuple(int(tier[0]) for tier in behind(ints(device), events, ints(0)))


def test_lower_tiers_stand_as_told_where_the_device_is_as_told() -> None:
    assert after(2, found(2, 3, 4, 5)) == (3, 4, 5)


def test_a_device_that_reaches_further_takes_from_the_next_tier() -> None:
    assert after(4, found(2, 3, 4, 5)) == (1, 4, 5)


def test_a_device_that_reaches_past_a_tier_takes_from_the_one_behind_it() -> None:
    assert after(7, found(2, 3, 4, 5)) == (0, 2, 5)


def test_a_device_that_reaches_past_all_leaves_nothing() -> None:
    assert after(20, found(2, 3, 4, 5)) == (0, 0, 0)


def fleet() -> FleetView:
    """Two workers with blocks of 4, and one of 8."""
    members = []
    for slot, size in enumerate((BLOCK, BLOCK, 2 * BLOCK)):
        url = f"http://127.0.0.1/{slot}"
        spec = WorkerSpec(url, f"w{slot}")
        members.append(Worker(spec, (slot,), endpoint_of(url), models=("m",), block_size=size))
    return FleetView(members)


def told(blocks: int) -> SharedBlocks:
    shared = SharedBlocks(SEED, 1 << 20)
    hashes = np.arange(blocks, dtype=np.uint64)
    shared.apply(fleet().members[0], BlockStored(hashes, None, TOKENS[: blocks * BLOCK], BLOCK, Tier.EXTERNAL))
    return shared


def test_shared_blocks_count_beyond_what_each_worker_holds() -> None:
    request = RouteRequest("r", "m", keys={BLOCK: KEYS}, shared={BLOCK: 7})
    assert shared_beyond(request, fleet(), told(0), ints(0, 3, 9)).tolist() == [7, 4, 0]


def test_each_block_size_has_its_own_depth() -> None:
    request = RouteRequest("r", "m", keys={BLOCK: KEYS, 2 * BLOCK: KEYS[:5]}, shared={BLOCK: 7, 2 * BLOCK: 2})
    assert shared_beyond(request, fleet(), told(0), ints(0, 3, 0)).tolist() == [7, 4, 2]


def test_what_redis_said_is_believed_before_older_events() -> None:
    request = RouteRequest("r", "m", keys={BLOCK: KEYS}, shared={BLOCK: 1})
    assert shared_beyond(request, fleet(), told(6), ints(0, 0, 0)).tolist() == [1, 1, 1]


def test_events_count_where_redis_was_not_asked() -> None:
    request = RouteRequest("r", "m", keys={BLOCK: KEYS})
    assert shared_beyond(request, fleet(), told(6), ints(0, 2, 0)).tolist() == [6, 4, 6]


def test_events_count_where_redis_did_not_answer() -> None:
    unsure = (Degraded.SHARED_CACHE_UNREACHABLE,)
    request = RouteRequest("r", "m", keys={BLOCK: KEYS}, shared={BLOCK: 1}, degraded=unsure)
    assert shared_beyond(request, fleet(), told(6), ints(0, 0, 0)).tolist() == [6, 6, 6]
