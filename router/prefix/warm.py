"""Make sure that no compile falls on a request: load, or compile, every kernel and run each once.

Importing the modules does the compiling: every kernel has an explicit signature, so numba builds it, or reads it from
its on-disk cache, at import: about 12 s of one core when nothing is cached, 0.3 s when all is (and 0.4 s for numba
itself). The runs here, 20 ms, make the first dispatch with read-only arrays as they come from the wire.
"""

from __future__ import annotations

import msgspec
import numpy as np

from router.events.wire import AllBlocksCleared, WireDecoder
from router.prefix import rows
from router.prefix.active import ActiveBlocks
from router.prefix.capacity import CapacityLru
from router.prefix.hashing import Keys, block_keys
from router.prefix.index import PrefixIndex
from router.prefix.predict import Predictions


def warm() -> None:
    """Run every kernel once, on throw-away tables that are made to grow, move and evict."""
    frame = msgspec.msgpack.encode(
        [
            0.0,
            [
                {
                    "type": "BlockStored",
                    "block_hashes": list(range(first, first + 300)),
                    "parent_block_hash": parent,
                    "token_ids": list(range(600)),
                    "block_size": 2,
                    "medium": "GPU",
                    "extra_keys": [None, ["image"]],
                }
                for first, parent in ((0, None), (300, 299))
            ]
            + [{"type": "BlockRemoved", "block_hashes": [0, 1], "medium": "GPU"}],
        ]
    )
    for limit in (0, 1 << 24):
        index = PrefixIndex(1, limit, 2)
        for event in WireDecoder().decode(frame).events:
            for slot in (0, 1):
                index.apply(slot, event)
        index.remove(0, None, np.array([5], np.uint64))
        index.match(block_keys(np.arange(600, dtype=np.uint32), 2, index.root(2, None, None)))
        index.move(0, 0, 1, np.array([9], np.uint64))
        index.apply(0, AllBlocksCleared())
        index.holds(0, 1)
    keys = np.arange(1, 600, dtype=np.uint64)
    active = ActiveBlocks(2)
    active.release(0, keys, active.acquire(0, keys))
    active.shared_depth(keys)
    active.drop(0)
    lru = CapacityLru(400, slots=2)
    lru.touch(0, keys, 300, output_blocks=2)
    lru.match(keys)
    lru.drop(0)
    predictions = Predictions(1.0, limit=300, slots=2)
    predictions.add(0, keys, 0.0)
    predictions.match(keys, 0.5)
    predictions.drop(0)
    predictions.add(1, keys, 1.0)
    predictions.expire(9.0)
    _decide(PrefixIndex(1, 1 << 24, 2), active, predictions, keys)


def _decide(index: PrefixIndex, active: ActiveBlocks, predictions: Predictions, keys: Keys) -> None:
    """A kv decision over two rows."""
    pending = np.full((rows.PENDING, 1), -1, np.int64)
    where = np.array([[0, 1], [16, 16]])
    eligible = np.ones(2, np.bool_)
    for array in (where, eligible):
        array.flags.writeable = False
    rows.own_blocks(pending, keys, np.zeros(2, np.int64))
    rows.decide(
        index.where,
        active.where,
        predictions.where,
        keys,
        index.inner,
        pending,
        np.zeros(2, np.int64),
        where,
        eligible,
        np.zeros(2, np.int64),
        np.zeros(2, np.int64),
        np.ones(rows.WEIGHTS),
        16 * len(keys),
        16,
        True,
        True,
        np.empty((rows.INTS, 2), np.int64),
        np.empty((rows.FLOATS, 2)),
        np.zeros(rows.TIED + 2, np.int64),
    )
