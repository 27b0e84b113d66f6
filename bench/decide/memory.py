"""Bytes that the index takes for a (block, worker) pair: its arrays, and what the process grows by.

Run as a module with the number of blocks and of workers that hold each: a process of its own, because memory that was
given back once is not seen to be taken again. Prints one JSON object.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.decide.fleet import BLOCK

_CHAIN = 512
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class Taken:
    blocks: int
    holders: int
    arrays: float
    """Bytes of the index's arrays, used or not, a pair."""
    process: float
    """Growth of the process's resident memory, a pair."""


def taken(blocks: int, holders: int) -> Taken:
    """Measured in a process of its own. Raises CalledProcessError if that fails."""
    command = [sys.executable, "-m", "bench.decide.memory", str(blocks), str(holders)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root)
    return Taken(**json.loads(done.stdout))


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def main(blocks: int, holders: int) -> None:
    from router.prefix.index import PrefixIndex

    rng = np.random.default_rng(0)
    index = PrefixIndex(1, 1 << 40, holders)
    before_arrays, before = index.bytes, _resident()
    for _ in range(blocks // _CHAIN):
        tokens = rng.integers(0, 150_000, _CHAIN * BLOCK).astype(np.uint32)
        for slot in range(holders):
            index.store(slot, 0, None, rng.integers(0, 2**63, _CHAIN).astype(np.uint64), tokens, BLOCK)
    pairs = blocks // _CHAIN * _CHAIN * holders
    told = Taken(blocks, holders, (index.bytes - before_arrays) / pairs, (_resident() - before) / pairs)
    print(json.dumps({name: getattr(told, name) for name in Taken.__slots__}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
