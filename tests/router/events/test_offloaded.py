"""What vLLM's offloading connector tells without `self_describing_kv_events`: hashes and a medium, no tokens."""

from __future__ import annotations

import numpy as np

from router.events.cache_events import BlockMoved, Tier
from router.events.wire import WireDecoder
from router.prefix.hashing import block_keys, root_key
from router.prefix.index import PrefixIndex
from tests.router.events.frames import frame, removed, stored

SEED = 5
TOKENS = np.arange(8, dtype=np.uint32)
KEYS = block_keys(TOKENS, 2, root_key(SEED, 2))


def offloaded(*hashes: int, **more: object) -> dict[str, object]:
    return stored(list(hashes), [], size=0, **({"medium": "CPU", "group_idx": 0} | more))


def index_after(*frames: bytes) -> PrefixIndex:
    index, decoder = PrefixIndex(SEED, 1 << 20), WireDecoder()
    for payload in frames:
        for event in decoder.decode(payload).events:
            index.apply(0, event)
    return index


def tiers(index: PrefixIndex) -> tuple[int, int]:
    found = index.match(KEYS)
    return int(found.device[0]), int(found.host[0])


DEVICE = frame(stored([1, 2, 3, 4], TOKENS.tolist(), kv_cache_spec_kind="full_attention", group_idx=0))


def test_offloaded_blocks_are_found_in_host_memory_when_the_device_has_lost_them() -> None:
    assert tiers(index_after(DEVICE, frame(offloaded(1, 2, 3)))) == (4, 0)
    assert tiers(index_after(DEVICE, frame(offloaded(1, 2, 3)), frame(removed([4, 3, 2])))) == (1, 2)


def test_blocks_that_host_memory_gives_up_are_gone() -> None:
    lost = frame(removed([2, 3, 4]), removed([3], medium="CPU"))
    assert tiers(index_after(DEVICE, frame(offloaded(1, 2, 3)), lost)) == (1, 1)


def test_blocks_that_the_device_never_told_of_are_not_made_up() -> None:
    assert index_after(frame(offloaded(7, 8))).nodes == 0


def test_a_group_that_is_not_indexed_stays_so() -> None:
    decoder = WireDecoder()
    window = stored([9], [1, 2], kv_cache_spec_kind="sliding_window", group_idx=1)
    events = decoder.decode(frame(window, offloaded(9, group_idx=1), offloaded(9, group_idx=1))).events
    assert events == []
    assert decoder.ignored == {"other_group": 3}


def test_without_tokens_on_the_device_it_is_a_bad_shape() -> None:
    decoder = WireDecoder()
    assert decoder.decode(frame(offloaded(1, medium="GPU"), stored([1], [5], size=0, medium="CPU"))).events == []
    assert decoder.ignored == {"bad_shape": 2}


def test_the_event_says_that_the_blocks_are_there_too() -> None:
    (event,) = WireDecoder().decode(frame(offloaded(1))).events
    assert isinstance(event, BlockMoved)
    assert (event.source, event.target, event.hashes.tolist()) == (Tier.HOST, Tier.HOST, [1])
