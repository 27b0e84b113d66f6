"""Memory layout of the block table: record types, numba types and the entries of the state array.

Sizes: a node 16 bytes, a handle 36, a set 24, a set word 16, plus 4-byte entries of the three open-addressing
tables (filled to two thirds at most). So a block held by one worker costs 52 bytes plus 12 to 24 of tables,
and a further worker that holds the same block 36 plus 6 to 12.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

import numpy as np
from numba import from_dtype, types

log = logging.getLogger(__name__)

NODE: Final = np.dtype([("key", "u8"), ("set", "i4"), ("head", "i4")])
"""`set`: id of the owner set, bit 30 the CLOCK mark, -1 a free node. `head`: first handle, or the next free
node."""

HANDLE: Final = np.dtype(
    [
        ("hash", "u8"),
        ("node", "i4"),
        ("next", "i4"),
        ("prev", "i4"),
        ("slot_next", "i4"),
        ("slot_prev", "i4"),
        ("slot", "u2"),
        ("tiers", "u1"),
        ("twin", "u1"),
        ("copies", "u4"),
    ]
)
"""(slot, engine hash) -> node. `twin`: another handle of this slot is or was on the node.
`copies`: a byte a tier, how many copies of the block the engine holds there beyond the first. `next` chains free
ones."""

SET: Final = np.dtype([("hash", "u8"), ("refs", "i4"), ("offset", "i4"), ("words", "i4"), ("next", "i4")])
"""An interned owner set: `words` entries of the word pool from `offset`, sorted by index; `refs` nodes use
it."""

WORD: Final = np.dtype([("bits", "u8"), ("index", "i8")])
"""Word `(slot // 64) * TIERS + tier` of a set's bitmap, bit `slot % 64`. Words without a bit are not kept."""

KERNEL: Final[dict[str, Any]] = {"cache": True, "nogil": True, "_nrt": False}
"""Options of every kernel on these arrays. `_nrt` False: they allocate nothing, so no reference counts for
each array in
each call; storing is five times faster without."""

TIERS: Final = 4
MAX_SLOTS: Final = 1 << 16

# state: int64 array of counters and list heads
NODE_FREE: Final = 0
NODE_TOP: Final = 1
NODE_LIVE: Final = 2
HANDLE_FREE: Final = 3
HANDLE_TOP: Final = 4
HANDLE_LIVE: Final = 5
SET_FREE: Final = 6
SET_TOP: Final = 7
SET_LIVE: Final = 8
WORD_TOP: Final = 9
WORD_DEAD: Final = 10
HAND: Final = 11
NEED: Final = 12
FRESH: Final = 13
DUPLICATES: Final = 14
UNKNOWN: Final = 15
PARENT: Final = 16
COPIES: Final = 17
GONE: Final = 18
TIERS_USED: Final = 19
FLIP_FROM: Final = 20
FLIP_MEMBER: Final = 21
FLIP_TO: Final = 22
CHAINS_FREE: Final = 23
STATE_SIZE: Final = 24

# `where`: int64 array of a table's addresses and lengths, for kernels that read several tables (`address.py`)
NODES_AT: Final = 0
NODES_LEN: Final = 1
NTAB_AT: Final = 2
NTAB_LEN: Final = 3
SETS_AT: Final = 4
SETS_LEN: Final = 5
WORDS_AT: Final = 6
WORDS_LEN: Final = 7
STATE_AT: Final = 8
SLOTS_AT: Final = 9
MEMBERS_AT: Final = 10
GROUPS: Final = 11
SCRATCH_AT: Final = 12
OUT_AT: Final = 13
RUNS_AT: Final = 14
LIVE_AT: Final = 15
WHERE_SIZE: Final = 16

# what a kernel that stopped early asks for (as a negative result)
NEED_NODES: Final = -2
NEED_HANDLES: Final = -3
NEED_SETS: Final = -4
NEED_WORDS: Final = -5

NODES_T = from_dtype(NODE)[::1]
HANDLES_T = from_dtype(HANDLE)[::1]
SETS_T = from_dtype(SET)[::1]
WORDS_T = from_dtype(WORD)[::1]
TABLE_T = types.int32[::1]
STATE_T = types.int64[::1]
SLOTS_T = types.int64[:, ::1]
"""Per slot: [0] first handle, [1] handles."""

U64S = types.Array(types.uint64, 1, "C", readonly=True)
U32S = types.Array(types.uint32, 1, "C", readonly=True)

# every kernel that changes the table takes these, in this order
CORE = (NODES_T, TABLE_T, HANDLES_T, TABLE_T, SETS_T, TABLE_T, WORDS_T, STATE_T, SLOTS_T)

KERNEL_FILES: Final = (
    "address.py",
    "hashing.py",
    "layout.py",
    "owners.py",
    "blocks.py",
    "operations.py",
    "runs.py",
    "rows.py",
)


def drop_stale_kernels(folder: Path) -> int:
    """Remove compiled kernels that are older than a file they were compiled from. Returns how many.

    Numba's on-disk cache only looks at the file a kernel is written in, and kernels here call kernels of other files.
    Runs once, when this module is imported, before any of them is loaded.
    """
    sources = [folder / name for name in KERNEL_FILES]
    newest = max(source.stat().st_mtime_ns for source in sources if source.exists())
    stems = {source.stem for source in sources}
    dropped = 0
    for index in (folder / "__pycache__").glob("*.nbi"):
        if index.name.split(".")[0] in stems and index.stat().st_mtime_ns < newest:
            try:
                index.unlink(missing_ok=True)
                dropped += 1
            except PermissionError:
                log.warning("%s is older than its source and cannot be removed; delete it", index)
    return dropped


drop_stale_kernels(Path(__file__).parent)
