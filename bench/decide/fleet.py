"""The fleet and the prompt that both selectors are asked about. Pure but for what it builds.

Worker k of n holds the first k/n of the prompt, so that the walk over its blocks has as many ends as there are
workers: the hardest case for an index that shares holders. Everything follows from the seed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from router.core import CoreSettings, RoutingCore
from router.fleet.worker import Health, KvState
from router.model import RouteRequest, WorkerSpec
from router.prefix.hashing import Keys, Tokens

BLOCK = 16
MODEL = "m"
_VOCABULARY = 150_000


@dataclass(frozen=True, slots=True)
class Cell:
    workers: int
    tokens: int


def prompt_of(cell: Cell) -> Tokens:
    """uint32 (tokens,), the same for the same cell."""
    ids: Tokens = np.random.default_rng(cell.tokens).integers(0, _VOCABULARY, cell.tokens).astype(np.uint32)
    return ids


def held_blocks(cell: Cell) -> list[int]:
    """Blocks of the prompt that each worker holds."""
    return [cell.tokens * (number + 1) // cell.workers // BLOCK for number in range(cell.workers)]


def core_of(cell: Cell) -> RoutingCore:
    """A router with that fleet, all of it told by events as far as the index is concerned."""
    core = RoutingCore(CoreSettings(seed=1))
    for number in range(cell.workers):
        worker = core.fleet.add(WorkerSpec(url=f"http://w{number}:1", id=f"w{number}"))
        worker.health, worker.models, worker.kv = Health.UP, (MODEL,), KvState.LIVE
        worker.block_size, worker.capacity_blocks = BLOCK, 1 << 20
    core.fleet.changed()
    core.add_slots()
    prompt = prompt_of(cell)
    for number, held in enumerate(held_blocks(cell)):
        if held:
            hashes = (np.uint64(number + 1) << np.uint64(32)) + np.arange(held, dtype=np.uint64)
            core.index.store(number, 0, None, hashes, prompt[: held * BLOCK], BLOCK)
    return core


def request_of(ids: Tokens, keys: dict[int, Keys]) -> RouteRequest:
    return RouteRequest(id="r", model=MODEL, prompt_tokens=len(ids), keys=keys)
