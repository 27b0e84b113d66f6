"""A child process of `test_index_limit.py`: fills an index past its limit and says, as JSON, what that took.

    python -m tests.router.prefix.fill_index BLOCKS LIMIT_MIB

Chains of 500 blocks, one after the other, spread over 64 workers; every tenth chain is told by a second worker too, and
each worker takes back 20 blocks at the end of some of its own chains. The peak is the process's, by the system's count.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from router.prefix.hashing import block_keys, root_key
from router.prefix.index import PrefixIndex
from router.prefix.warm import warm

SEED, SIZE, CHAIN, WORKERS = 11, 16, 500, 64
GONE = 20


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def most_resident() -> int:
    """The most bytes that this program had in memory. Not getrusage's figure: that begins with the parent's."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024


def chain(number: int) -> np.ndarray:
    """Token ids of a chain, uint32 (CHAIN * SIZE,); no two chains share a block."""
    ids = np.arange(CHAIN * SIZE, dtype=np.uint32)
    ids[0::SIZE] = number
    return ids


def hashes(number: int) -> np.ndarray:
    return np.arange(number * CHAIN, (number + 1) * CHAIN, dtype=np.uint64)


def holders(number: int) -> list[int]:
    return [number % WORKERS, (number + 1) % WORKERS] if number % 10 == 0 else [number % WORKERS]


def fill(blocks: int, limit: int) -> dict[str, Any]:
    index = PrefixIndex(SEED, limit, WORKERS)
    root = root_key(SEED, SIZE)
    before = resident()
    most_bytes = index.bytes
    started = time.monotonic()
    for number in range(blocks // CHAIN):
        ids, told = chain(number), hashes(number)
        for slot in holders(number):
            index.store(slot, 0, None, told, ids, SIZE)
        if number % 7 == 0:
            index.remove(number % WORKERS, 0, told[-GONE:])
        most_bytes = max(most_bytes, index.bytes)
    seconds = time.monotonic() - started
    peak = most_resident()
    wrong, deep, untrue = 0, 0, 0
    numbers = np.unique(np.linspace(0, blocks // CHAIN - 1, 2000).astype(int))
    for number in numbers.tolist():
        depths = index.match(block_keys(chain(number), SIZE, root)).device
        told = hashes(number)
        for slot in range(WORKERS):
            expected, truly = 0, 0
            if slot in holders(number):
                expected = next((place for place, one in enumerate(told) if not index.holds(slot, int(one))), CHAIN)
                truly = CHAIN - GONE if number % 7 == 0 and slot == number % WORKERS else CHAIN
            wrong += int(depths[slot]) != expected
            untrue += int(depths[slot]) > truly
            deep += int(depths[slot]) > 0
    return {
        "peak_growth": peak - before,
        "bytes": most_bytes,
        "nodes": index.nodes,
        "evicted": index.counters.evicted,
        "stored": index.counters.stored,
        "removed": index.counters.removed,
        "unknown_removals": index.counters.unknown_removals,
        "matches": len(numbers) * WORKERS,
        "wrong": wrong,
        "untrue": untrue,
        "deep": deep,
        "seconds": seconds,
    }


if __name__ == "__main__":
    warm()
    print(json.dumps(fill(int(sys.argv[1]), int(sys.argv[2]) << 20)))
