from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from router.events.wire import (
    MEDIUM,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Tier,
    WireDecoder,
    WireError,
    fold_hash,
)

from .frames import encode, frame, removed, stored

# A batch of one BlockStored in the map layout of vLLM 0.32: [ts, [{type, block_hashes, parent_block_hash, token_ids,
# block_size, lora_id, medium, lora_name, extra_keys, group_idx, kv_cache_spec_kind}], dp_rank].
MAP_FRAME = bytes.fromhex(
    "93cb41da5a0b2e800000918ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cff1e2d3c4b5a69788"
    "b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f69647394016cd20000ea60ce00012345aa626c6f636b5f73697a65"
    "04a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b65797391c0a967726f75705f"
    "69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e02"
)
# The same block in the tagged-array layout of older versions, without dp rank, followed by a removal and a clear.
ARRAY_FRAME = bytes.fromhex(
    "92cb41da5a0b2e8000009397ab426c6f636b53746f72656491cff1e2d3c4b5a69788c094016ccdea60ce0001234504c0a347"
    "505593ac426c6f636b52656d6f7665649107a343505591b0416c6c426c6f636b73436c6561726564"
)


def only(payload: bytes) -> Any:
    (event,) = WireDecoder().decode(payload).events
    return event


def test_a_map_event_of_vllm_is_decoded() -> None:
    batch = WireDecoder().decode(MAP_FRAME)
    (event,) = batch.events
    assert isinstance(event, BlockStored)
    assert event.hashes.tolist() == [0xF1E2D3C4B5A69788]
    assert event.tokens.tolist() == [1, 108, 60000, 74565]
    assert event.tokens.dtype == np.uint32
    assert (event.parent, event.block_size, event.tier) == (None, 4, Tier.DEVICE)
    assert (event.group_idx, event.kv_cache_spec_kind) == (0, "full_attention")
    assert (batch.rank, batch.blocks, batch.at) == (2, 1, 1768434874.0)


def test_tagged_array_events_are_decoded_in_order() -> None:
    batch = WireDecoder().decode(ARRAY_FRAME)
    first, second, third = batch.events
    assert isinstance(first, BlockStored)
    assert first.tokens.tolist() == [1, 108, 60000, 74565]
    assert isinstance(second, BlockRemoved)
    assert (second.hashes.tolist(), second.tier) == ([7], Tier.HOST)
    assert isinstance(third, AllBlocksCleared)
    assert batch.rank is None


@pytest.mark.parametrize("as_map", [True, False])
def test_both_layouts_say_the_same(as_map: bool) -> None:
    told = stored([5], [1, 2], 4, extra_keys=[["x"]], group_idx=3, kv_cache_spec_kind="full_attention")
    event = only(frame(told if as_map else list(told.values())))
    assert (event.parent, event.extra_keys, event.group_idx) == (4, [["x"]], 3)


def test_a_negative_hash_is_taken_as_its_64_bits() -> None:
    event = only(frame(stored([-1, -(2**63), -129, -33000], list(range(8)), -2)))
    assert event.hashes.tolist() == [2**64 - 1, 2**63, 2**64 - 129, 2**64 - 33000]
    assert event.parent == 2**64 - 2


def test_a_hash_of_bytes_is_folded_to_its_last_eight() -> None:
    long, short = bytes(range(32)), b"\x01\x02"
    event = only(frame(stored([long, short], [1, 2, 3, 4], long)))
    assert event.hashes.tolist() == [0x18191A1B1C1D1E1F, 0x0102]
    assert event.parent == 0x18191A1B1C1D1E1F


@settings(deadline=None)
@given(st.lists(st.one_of(st.integers(-(2**63), 2**64 - 1), st.binary(max_size=300)), max_size=40))
def test_hashes_equal_the_plain_fold(hashes: list[int | bytes]) -> None:
    event = only(frame(removed(hashes)))
    assert event.hashes.tolist() == [fold_hash(value) for value in hashes]


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1), max_size=200))
def test_token_ids_come_out_as_they_went_in(tokens: list[int]) -> None:
    event = only(frame(stored([9], tokens, size=max(len(tokens), 1)))) if tokens else None
    assert event is None or event.tokens.tolist() == tokens


@pytest.mark.parametrize("medium", [name for name in MEDIUM if name])
def test_every_medium_has_its_tier_in_any_case(medium: str) -> None:
    assert only(frame(removed([1], medium=medium.lower()))).tier == MEDIUM[medium]


def test_no_medium_is_the_device() -> None:
    assert only(frame({"type": "BlockRemoved", "block_hashes": [1]})).tier == Tier.DEVICE


def test_an_unknown_medium_is_left_out_and_counted() -> None:
    decoder = WireDecoder()
    batch = decoder.decode(frame(stored([1], [1, 2], medium="TAPE"), removed([1], medium="TAPE"), removed([2])))
    assert len(batch.events) == 1
    assert decoder.ignored == {"unknown_medium": 2}


def test_an_unknown_event_type_is_left_out_and_counted() -> None:
    decoder = WireDecoder()
    batch = decoder.decode(frame({"type": "BlockMoved", "to": 3}, ["Ignored", {"a": 1}], removed([2])))
    assert len(batch.events) == 1
    assert decoder.ignored == {"unknown_type": 2}


def test_unknown_keys_and_extra_positions_are_not_looked_at() -> None:
    told = stored([1], [1, 2], future={"deep": [1, {}]})
    assert only(frame(told)).hashes.tolist() == [1]
    layout = [
        "BlockStored",
        [1],
        None,
        [1, 2],
        2,
        None,
        "GPU",
        None,
        None,
        0,
        "full_attention",
        None,
        "LOCAL",
        "x",
        [{}],
    ]
    assert only(frame(layout)).hashes.tolist() == [1]
    assert only(frame(["AllBlocksCleared", "engine", 5])) == AllBlocksCleared()


def test_groups_that_are_not_full_attention_are_left_out_with_their_removals() -> None:
    decoder = WireDecoder()
    decoder.decode(frame(stored([1], [1, 2], group_idx=1, kv_cache_spec_kind="sliding_window")))
    batch = decoder.decode(frame(removed([1], group_idx=1), removed([1], group_idx=0)))
    assert [event.group_idx for event in batch.events if isinstance(event, BlockRemoved)] == [0]
    assert decoder.ignored == {"other_group": 2}


def test_blocks_and_tokens_that_do_not_fit_are_left_out_and_counted() -> None:
    decoder = WireDecoder()
    batch = decoder.decode(frame(stored([1, 2], [1, 2, 3]), stored([1], [], size=0), removed([3])))
    assert len(batch.events) == 1
    assert decoder.ignored == {"bad_shape": 2}


def test_a_salt_named_by_the_map_is_kept() -> None:
    assert only(frame(stored([1], [1, 2], cache_salt="tenant"))).cache_salt == "tenant"


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        MAP_FRAME[:-1],
        MAP_FRAME + b"\x00",
        encode({"ts": 1}),
        encode([1.0]),
        encode([1.0, {}]),
        encode([1.0, [5]]),
        encode([1.0, [[]]]),
        encode([1.0, [{}]]),
        encode([1.0, [], "rank"]),
        encode([1.0, [], -1]),
        frame({"type": "BlockStored", "block_hashes": [1]}),
        frame(stored([1], "no list")),  # type: ignore[arg-type]
        frame(stored([1], [1, -2])),
        frame(stored([1], [1, 2**32])),
        frame(stored([1], [1, 2.5])),  # type: ignore[list-item]
        frame(stored([1], [1, b"x"])),  # type: ignore[list-item]
        frame(stored(["text"], [1, 2])),
        frame(stored([1], [1, 2], size="two")),  # type: ignore[arg-type]
        frame(removed([1.5])),
        frame(removed({"a": 1})),  # type: ignore[arg-type]
        frame({"type": "BlockRemoved", "block_hashes": [1], "medium": 5}),
    ],
)
def test_a_malformed_frame_is_a_wire_error(payload: bytes) -> None:
    with pytest.raises(WireError):
        WireDecoder().decode(payload)


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)
mutated = st.fixed_dictionaries(
    {"type": st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared"])},
    optional={
        name: anything | st.lists(st.integers(0, 9), max_size=6)
        for name in (
            "block_hashes",
            "parent_block_hash",
            "token_ids",
            "block_size",
            "medium",
            "extra_keys",
            "group_idx",
        )
    },
)


def decode_or_wire_error(payload: bytes) -> None:
    with contextlib.suppress(WireError):
        WireDecoder().decode(payload)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
@example(b"\x92\xcb" + b"\x00" * 8 + b"\x91" * 150)
@example(b"\x92\x01" + b"\x91" * 100_000)
def test_random_bytes_never_raise_anything_else(payload: bytes) -> None:
    decode_or_wire_error(payload)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(MAP_FRAME) - 1), st.integers(0, 255), st.integers(0, len(ARRAY_FRAME)))
def test_frames_with_one_byte_changed_or_cut_never_raise_anything_else(at: int, value: int, cut: int) -> None:
    for recorded in (MAP_FRAME, ARRAY_FRAME):
        changed = bytearray(recorded)
        changed[at % len(changed)] = value
        decode_or_wire_error(bytes(changed))
        decode_or_wire_error(recorded[:cut])


@settings(max_examples=300, deadline=None)
@given(st.lists(mutated | anything, max_size=4), anything)
def test_well_formed_msgpack_of_any_shape_never_raises_anything_else(events: list[Any], rank: Any) -> None:
    decode_or_wire_error(encode([1.0, events, rank]))
    decode_or_wire_error(encode([1.0, [list(e.values()) if isinstance(e, dict) else e for e in events]]))
    decode_or_wire_error(msgspec.msgpack.encode(events))
