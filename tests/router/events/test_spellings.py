"""The same wire as other engines write it: SGLang, Dynamo's TensorRT-LLM workers, and TensorRT-LLM's own events.

The bytes are frames in these engines' layouts (field order, optional fields left out as they do), encoded once and kept
here, so that a change of the decoder cannot change what it is tested against.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from router.events.wire import (
    AllBlocksCleared,
    BlockMoved,
    BlockRemoved,
    BlockStored,
    Event,
    Tier,
    WireDecoder,
    WireError,
)
from router.prefix.hashing import block_keys
from router.prefix.index import PrefixIndex

from .frames import frame, stored

SGLANG_ARRAYS = bytes.fromhex(
    "93cb41da4b36a01000009497ab426c6f636b53746f72656491d39000000000000000c091cd25eb01c0a347505597ab426c6f"
    "636b53746f72656491cf112210f47de98115d3900000000000000091cd075701c0a347505597ab426c6f636b53746f726564"
    "91d39000000000000000c091cd25eb01c0a94350555f544945523193ac426c6f636b52656d6f76656491cf112210f47de981"
    "15a347505501"
)
"""HiCache, page size 1, rank 1: two pages on the device, the first backed up to the host, the second evicted."""
SGLANG_FIRST_ARRAY = bytes.fromhex("92cb41da4b36a01000009196ab426c6f636b53746f72656491d39000000000000000c091cd25eb01c0")
"""The first releases with KV events: no medium, no rank."""
SGLANG_CLEARED = bytes.fromhex("93cb41da4b36a04000009191b0416c6c426c6f636b73436c656172656400")
SGLANG_MAPS = bytes.fromhex(
    "93cb41daac4ee02000009389a474797065ab426c6f636b53746f726564ac626c6f636b5f686173686573914db1706172656e"
    "745f626c6f636b5f68617368c0a9746f6b656e5f6964739401020304aa626c6f636b5f73697a6504a76c6f72615f6964c0a6"
    "6d656469756da3475055aa63616368655f73616c74a874656e616e742d61aa73657373696f6e5f6964a3732d3188a4747970"
    "65ab426c6f636b53746f726564ac626c6f636b5f686173686573914db1706172656e745f626c6f636b5f68617368c0a9746f"
    "6b656e5f6964739401020304aa626c6f636b5f73697a6504a76c6f72615f6964c0a66d656469756daa4350555f50494e4e45"
    "44aa63616368655f73616c74a874656e616e742d6183a474797065ac426c6f636b52656d6f766564ac626c6f636b5f686173"
    "686573914da66d656469756da347505503"
)
"""Current SGLang: maps, a cache salt, a session id; a block goes from the device to pinned host memory. Rank 3."""
DYNAMO_TENSORRT = bytes.fromhex(
    "93cb41daac4ee02000009187a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392fb06b170617265"
    "6e745f626c6f636b5f68617368c0a9746f6b656e5f696473986465666768696a6baa626c6f636b5f73697a6504a96c6f7261"
    "5f6e616d65a373716cae626c6f636b5f6d6d5f696e666f7392c081aa6d6d5f6f626a656374739182a76d6d5f68617368cd10"
    "92a76f6666736574739192010302"
)
"""A TensorRT-LLM worker of Dynamo: two blocks under an adapter, an image in the second. Rank 2."""
TENSORRT = bytes.fromhex(
    "92cb41daac4ee02000009483a86576656e745f696400a46461746182a474797065a763726561746564ba6e756d5f626c6f63"
    "6b735f7065725f63616368655f6c6576656c92cd0400cd0100ab77696e646f775f73697a65cd100083a86576656e745f6964"
    "01a46461746183a474797065a673746f726564ab706172656e745f68617368c0a6626c6f636b739387a474797065ac73746f"
    "7265645f626c6f636baa626c6f636b5f68617368cf3a5468e958b2edd5a6746f6b656e739483a474797065ac756e69717565"
    "5f746f6b656ea8746f6b656e5f696401ae746f6b656e5f65787472615f69640083a474797065ac756e697175655f746f6b65"
    "6ea8746f6b656e5f696402ae746f6b656e5f65787472615f69640083a474797065ac756e697175655f746f6b656ea8746f6b"
    "656e5f696403ae746f6b656e5f65787472615f69640083a474797065ac756e697175655f746f6b656ea8746f6b656e5f6964"
    "04ae746f6b656e5f65787472615f696400ab63616368655f6c6576656c00a87072696f7269747923a76d6d5f6b65797390aa"
    "63616368655f73616c74c087a474797065ac73746f7265645f626c6f636baa626c6f636b5f686173684da6746f6b656e7394"
    "83a474797065ac756e697175655f746f6b656ea8746f6b656e5f696405ae746f6b656e5f65787472615f69640083a4747970"
    "65ac756e697175655f746f6b656ea8746f6b656e5f696406ae746f6b656e5f65787472615f69640083a474797065ac756e69"
    "7175655f746f6b656ea8746f6b656e5f696407ae746f6b656e5f65787472615f69640083a474797065ac756e697175655f74"
    "6f6b656ea8746f6b656e5f696408ae746f6b656e5f65787472615f696400ab63616368655f6c6576656c00a87072696f7269"
    "747923a76d6d5f6b65797390aa63616368655f73616c74c087a474797065ac73746f7265645f626c6f636baa626c6f636b5f"
    "686173684ea6746f6b656e739283a474797065ac756e697175655f746f6b656ea8746f6b656e5f696409ae746f6b656e5f65"
    "787472615f69640083a474797065ac756e697175655f746f6b656ea8746f6b656e5f69640aae746f6b656e5f65787472615f"
    "696400ab63616368655f6c6576656c00a87072696f7269747923a76d6d5f6b65797390aa63616368655f73616c74c0ab7769"
    "6e646f775f73697a65cd100083a86576656e745f696402a46461746184a474797065a775706461746564aa626c6f636b5f68"
    "6173684dab63616368655f6c6576656c83a474797065aa6576656e745f64696666a96e65775f76616c756501a96f6c645f76"
    "616c756500a87072696f72697479c0ab77696e646f775f73697a65cd100083a86576656e745f696403a46461746182a47479"
    "7065a772656d6f766564ac626c6f636b5f68617368657391cf3a5468e958b2edd5ab77696e646f775f73697a65cd1000"
)
"""TensorRT-LLM itself: created; blocks of 4, 4 and 2 tokens stored; the second moved to the host, the first gone."""

SEED = 5


def told(event: Event) -> tuple[Any, ...]:
    """An event in plain values."""
    if isinstance(event, BlockStored):
        return ("stored", event.hashes.tolist(), event.parent, event.tokens.tolist(), event.block_size, event.tier)
    if isinstance(event, BlockRemoved):
        return ("removed", event.hashes.tolist(), event.tier)
    if isinstance(event, BlockMoved):
        return ("moved", event.hashes.tolist(), event.source, event.target)
    return ("cleared",)


def test_sglangs_arrays_with_pages_of_one_token_and_a_host_tier() -> None:
    batch = WireDecoder().decode(SGLANG_ARRAYS)
    first, second = (-8070450532247928832) % 2**64, 1234567890123456789
    assert batch.rank == 1
    assert [told(event) for event in batch.events] == [
        ("stored", [first], None, [9707], 1, Tier.DEVICE),
        ("stored", [second], first, [1879], 1, Tier.DEVICE),
        ("stored", [first], None, [9707], 1, Tier.HOST),
        ("removed", [second], Tier.DEVICE),
    ]


def test_sglangs_first_arrays_are_of_the_device_and_name_no_rank() -> None:
    batch = WireDecoder().decode(SGLANG_FIRST_ARRAY)
    assert batch.rank is None
    assert told(batch.events[0])[-2:] == (1, Tier.DEVICE)


def test_sglangs_flush_of_a_rank_is_a_clear_of_that_rank() -> None:
    batch = WireDecoder().decode(SGLANG_CLEARED)
    assert (batch.rank, batch.events) == (0, [AllBlocksCleared()])


def test_sglangs_maps_keep_the_salt_and_the_tier() -> None:
    batch = WireDecoder().decode(SGLANG_MAPS)
    device, host, gone = batch.events
    assert isinstance(device, BlockStored)
    assert isinstance(host, BlockStored)
    assert batch.rank == 3
    assert (device.cache_salt, device.tier, host.tier) == ("tenant-a", Tier.DEVICE, Tier.HOST)
    assert told(gone) == ("removed", [77], Tier.DEVICE)


@pytest.mark.parametrize("medium", ["GPU", "CPU", "CPU_PINNED", "CPU_TIER1", "CPU_TIER2", "DISK", "EXTERNAL"])
def test_no_medium_of_sglangs_is_unknown(medium: str) -> None:
    decoder = WireDecoder()
    assert len(decoder.decode(frame(stored([1], [1, 2], medium=medium))).events) == 1
    assert not decoder.ignored


def indexed(payload: bytes) -> PrefixIndex:
    index = PrefixIndex(SEED, 1 << 20)
    for event in WireDecoder().decode(payload).events:
        index.apply(0, event)
    return index


def held(index: PrefixIndex, ids: list[int], size: int, lora: str | None = None, salt: str | None = None) -> list[int]:
    found = index.match(block_keys(np.array(ids, np.uint32), size, index.root(size, lora, salt)))
    return [int(found.device[0]), int(found.host[0])]


def test_dynamos_tensorrt_workers_name_the_adapter_and_the_image_of_each_block() -> None:
    batch = WireDecoder().decode(DYNAMO_TENSORRT)
    (event,) = batch.events
    assert isinstance(event, BlockStored)
    assert (batch.rank, event.lora_name, event.hashes.tolist()) == (2, "sql", [2**64 - 5, 6])
    index = indexed(DYNAMO_TENSORRT)
    ids = list(range(100, 108))
    assert held(index, ids, 4, lora="sql") == [1, 0]
    assert held(index, ids, 4) == [0, 0]


def test_tensorrts_own_events_are_decoded_in_order_and_partial_blocks_are_counted() -> None:
    decoder = WireDecoder()
    events = decoder.decode(TENSORRT).events
    first = 4203099703668305365
    assert [told(event) for event in events] == [
        ("cleared",),
        ("stored", [first], None, [1, 2, 3, 4], 4, Tier.DEVICE),
        ("stored", [77], first, [5, 6, 7, 8], 4, Tier.DEVICE),
        ("moved", [77], Tier.DEVICE, Tier.HOST),
        ("removed", [first], None),
    ]
    assert decoder.ignored == {"partial_block": 1}


def native(kind: str, **data: Any) -> dict[str, Any]:
    return {"event_id": 1, "data": {"type": kind, **data}}


def block(number: int, ids: list[Any], **more: Any) -> dict[str, Any]:
    tokens = [token if isinstance(token, dict) else {"token_id": token} for token in ids]
    return {"block_hash": number, "tokens": tokens, **more}


def test_a_block_that_tensorrt_moves_to_the_host_is_held_there() -> None:
    stored_blocks = native("stored", parent_hash=None, blocks=[block(1, [1, 2]), block(2, [3, 4])])
    moved = native("updated", block_hash=2, cache_level={"old_value": 0, "new_value": 1})
    back = native("updated", block_hash=2, cache_level={"old_value": 1, "new_value": 0})
    assert held(indexed(frame(stored_blocks, moved)), [1, 2, 3, 4], 2) == [1, 1]
    assert held(indexed(frame(stored_blocks, moved, back)), [1, 2, 3, 4], 2) == [2, 0]


def test_a_change_of_priority_changes_nothing() -> None:
    decoder = WireDecoder()
    assert (
        decoder.decode(frame(native("updated", block_hash=2, priority={"old_value": 1, "new_value": 2}))).events == []
    )
    assert not decoder.ignored


@pytest.mark.parametrize(
    "apart",
    [
        {"cache_salt": "tenant"},
        {"mm_keys": [{"type": "mm_key", "hash": "00" * 32, "start_offset": 0}]},
    ],
)
def test_tensorrts_salted_and_media_blocks_never_match_plain_text(apart: dict[str, Any]) -> None:
    index = indexed(frame(native("stored", parent_hash=None, blocks=[block(1, [1, 2], **apart)])))
    assert held(index, [1, 2], 2) == [0, 0]
    assert index.blocks(0) == 1


def test_tokens_of_a_prompt_table_never_match_plain_text() -> None:
    ids = [{"token_id": 1, "token_extra_id": 9}, {"token_id": 2}]
    assert held(indexed(frame(native("stored", parent_hash=None, blocks=[block(1, ids)]))), [1, 2], 2) == [0, 0]


def test_of_several_attention_windows_only_the_largest_is_indexed() -> None:
    decoder = WireDecoder()
    created = [native("created") | {"window_size": size} for size in (512, 4096)]
    small, large = (
        native("stored", parent_hash=None, blocks=[block(size, [1, 2])]) | {"window_size": size} for size in (512, 4096)
    )
    events = decoder.decode(frame(*created, small, large)).events
    assert [told(event) for event in events[2:]] == [("stored", [4096], None, [1, 2], 2, Tier.DEVICE)]
    assert decoder.ignored == {"other_group": 1}


def test_the_rank_may_stand_in_the_event_alone() -> None:
    event = native("removed", block_hashes=[1]) | {"attention_dp_rank": 2}
    assert WireDecoder().decode(frame(event)).rank == 2


def test_an_event_of_another_rank_than_its_frame_is_counted_and_left_out() -> None:
    decoder = WireDecoder()
    event = native("removed", block_hashes=[1]) | {"attention_dp_rank": 2}
    assert decoder.decode(frame(event, rank=1)).events == []
    assert decoder.ignored == {"other_rank": 1}


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (native("resized"), "unknown_type"),
        (native("updated", block_hash=1, cache_level={"old_value": 0, "new_value": 9}), "unknown_medium"),
        (native("stored", parent_hash=None, blocks=[block(1, [1, 2], cache_level=9)]), "unknown_medium"),
        (native("stored", parent_hash=None, blocks=[block(1, ["a", "b"])]), "partial_block"),
    ],
)
def test_what_tensorrt_may_say_one_day_is_counted_and_left_out(event: dict[str, Any], why: str) -> None:
    decoder = WireDecoder()
    assert decoder.decode(frame(event)).events == []
    assert decoder.ignored == {why: 1}


@pytest.mark.parametrize(
    "event",
    [
        {"data": 5},
        {"data": {}},
        {"no": "type"},
        native("stored", blocks=5),
        native("stored", blocks=[block(1, [-1, 2])]),
        native("stored", blocks=[block(1, [2**32, 2])]),
        native("removed"),
    ],
)
def test_a_malformed_event_of_its_own_is_a_wire_error(event: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        WireDecoder().decode(frame(event))


def test_a_hash_that_is_a_text_is_a_handle_like_any_other() -> None:
    blocks = [{"block_hash": "ab" * 32, "tokens": [{"token_id": 1}, {"token_id": 2}]}]
    stored_block = native("stored", parent_hash=None, blocks=blocks)
    gone = native("removed", block_hashes=["ab" * 32])
    assert indexed(frame(stored_block)).blocks(0) == 1
    assert indexed(frame(stored_block, gone)).blocks(0) == 0


@pytest.mark.parametrize("number", [3, "0b7c", 2**40])
def test_an_adapter_that_is_only_numbered_never_matches_a_plain_prompt(number: int | str) -> None:
    as_map = indexed(frame(stored([1], [1, 2], lora_id=number)))
    as_array = indexed(frame(["BlockStored", [1], None, [1, 2], 2, number]))
    for index in (as_map, as_array):
        assert index.blocks(0) == 1
        assert held(index, [1, 2], 2) == [0, 0]


def test_adapter_number_nought_is_the_model_itself() -> None:
    assert held(indexed(frame(stored([1], [1, 2], lora_id=0))), [1, 2], 2) == [1, 0]


def test_a_named_adapter_counts_by_its_name_whatever_its_number() -> None:
    index = indexed(frame(stored([1], [1, 2], lora_id=3, lora_name="sql")))
    assert held(index, [1, 2], 2, lora="sql") == [1, 0]


@pytest.mark.parametrize("length", range(0, len(TENSORRT), 37))
def test_a_frame_of_its_own_cut_anywhere_is_a_wire_error(length: int) -> None:
    with pytest.raises(WireError):
        WireDecoder().decode(TENSORRT[:length])


def test_frames_of_all_three_engines_decode_one_after_the_other() -> None:
    decoder = WireDecoder()
    for payload in (SGLANG_ARRAYS, SGLANG_MAPS, DYNAMO_TENSORRT, TENSORRT, SGLANG_CLEARED):
        assert decoder.decode(payload).events
    assert msgspec.msgpack.decode(SGLANG_CLEARED)[1] == [["AllBlocksCleared"]]
