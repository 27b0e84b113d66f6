"""What engines' events tell of a shared store, and whose it is."""

from __future__ import annotations

import numpy as np
import pytest

from router.events.cache_events import AllBlocksCleared, BlockRemoved, BlockStored, Tier
from router.fleet.view import FleetView
from router.fleet.worker import Worker, endpoint_of
from router.model import WorkerSpec
from router.prefix.hashing import Keys, block_keys, root_key
from router.shared.blocks import SharedBlocks, base_model, shared_model

SEED = 3
BLOCK = 4
TOKENS = np.arange(1, 25, dtype=np.uint32)


def worker(name: str, *models: str, adapters: tuple[str, ...] = ()) -> Worker:
    url = f"http://127.0.0.1/{name}"
    return Worker(WorkerSpec(url, name), (0,), endpoint_of(url), models=models, adapters=adapters)


def stored(first: int, count: int, base: int = 0, tier: Tier = Tier.EXTERNAL) -> BlockStored:
    """Blocks of the prompt under an engine's own hashes, which begin at `base`."""
    hashes = np.arange(base + first, base + first + count, dtype=np.uint64)
    parent = base + first - 1 if first else None
    return BlockStored(hashes, parent, TOKENS[first * BLOCK : (first + count) * BLOCK], BLOCK, tier)


@pytest.fixture
def shared() -> SharedBlocks:
    return SharedBlocks(SEED, 1 << 20)


@pytest.fixture
def keys() -> Keys:
    return block_keys(TOKENS, BLOCK, root_key(SEED, BLOCK))


def test_only_events_of_the_external_tier_are_about_the_store() -> None:
    removed = np.array([1], np.uint64)
    assert SharedBlocks.tells(stored(0, 1))
    assert SharedBlocks.tells(BlockRemoved(removed, Tier.EXTERNAL))
    assert not SharedBlocks.tells(stored(0, 1, tier=Tier.HOST))
    assert not SharedBlocks.tells(BlockRemoved(removed, None))
    assert not SharedBlocks.tells(AllBlocksCleared())


def test_what_two_workers_stored_adds_up(shared: SharedBlocks, keys: Keys) -> None:
    shared.apply(worker("a", "m"), stored(0, 3, base=100))
    shared.apply(worker("b", "m"), stored(0, 5, base=500))
    assert shared.depth("m", keys) == 5


def test_models_do_not_share(shared: SharedBlocks, keys: Keys) -> None:
    shared.apply(worker("a", "m"), stored(0, 3))
    assert (shared.depth("m", keys), shared.depth("other", keys)) == (3, 0)


def test_a_removed_block_is_gone_however_often_it_was_stored(shared: SharedBlocks, keys: Keys) -> None:
    for name in ("a", "b"):
        shared.apply(worker(name, "m"), stored(0, 3))
    shared.apply(worker("a", "m"), BlockRemoved(np.array([1], np.uint64), Tier.EXTERNAL))
    assert shared.depth("m", keys) == 1


def test_clear_forgets_all(shared: SharedBlocks, keys: Keys) -> None:
    shared.apply(worker("a", "m"), stored(0, 3))
    shared.clear()
    assert shared.depth("m", keys) == 0


def test_models_past_the_most_are_counted() -> None:
    shared = SharedBlocks(SEED, 1 << 20)
    for number in range(65):
        shared.apply(worker("a", f"m{number}"), stored(0, 1))
    assert shared.not_kept == 1


def test_an_adapter_shares_with_its_base_model() -> None:
    view = FleetView([worker("a", "base", "sql", adapters=("sql",)), worker("b", "other")])
    assert base_model(view.members[0]) == "base"
    assert shared_model(view, "sql") == "base"
    assert shared_model(view, "base") == "base"


def test_a_request_without_a_model_shares_with_the_only_one() -> None:
    assert shared_model(FleetView([worker("a", "m"), worker("b", "m")]), "") == "m"
    assert shared_model(FleetView([worker("a", "m"), worker("b", "n")]), "") == ""
