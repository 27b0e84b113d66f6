"""KV events on the wire: frames, shapes, replay, loss."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq
import zmq.asyncio

from bench.sim.events import END_OF_REPLAY, Publisher, PublisherConfig, wire_events
from bench.sim.kvcache import Cleared, Removed, Stored


def stored(parent: int | None = None, lora: str | None = None, salt: str | None = None) -> Stored:
    return Stored(np.array([2**64 - 1, 7], np.uint64), parent, np.arange(8, dtype=np.uint32), lora, salt)


@pytest.fixture
async def context() -> AsyncIterator[zmq.asyncio.Context]:
    made = zmq.asyncio.Context()
    yield made
    made.destroy(linger=0)


MakePublisher = Callable[..., Publisher]


@pytest.fixture
async def publisher() -> AsyncIterator[MakePublisher]:
    plain: zmq.Context[Any] = zmq.Context()
    made: list[Publisher] = []

    def make(**options: Any) -> Publisher:
        made.append(Publisher(PublisherConfig(**options), 4, plain))
        return made[-1]

    yield make
    for each in made:
        each.close()
    plain.destroy(linger=0)


async def subscribed(context: zmq.asyncio.Context, source: Publisher) -> zmq.asyncio.Socket:
    """A SUB socket that surely gets what is published from now on."""
    socket = context.socket(zmq.SUB)
    socket.subscribe(b"")
    monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    socket.connect(source.endpoint)
    await asyncio.wait_for(monitor.recv_multipart(), 10)
    socket.disable_monitor()
    await asyncio.sleep(0.1)  # the subscription itself travels after the handshake
    return socket


async def replayed(context: zmq.asyncio.Context, source: Publisher, first: int) -> list[tuple[int, bytes]]:
    socket = context.socket(zmq.DEALER)
    socket.connect(source.replay_endpoint)
    await socket.send_multipart([b"", first.to_bytes(8, "big")])
    batches = []
    while True:
        sequence, payload = (await asyncio.wait_for(socket.recv_multipart(), 10))[-2:]
        if sequence == END_OF_REPLAY:
            return batches
        batches.append((int.from_bytes(sequence, "big"), payload))


async def test_a_batch_is_topic_sequence_and_msgpack(context: zmq.asyncio.Context, publisher: MakePublisher) -> None:
    source = publisher(topic="kv-x", dp_rank=3)
    reader = await subscribed(context, source)
    source.publish([stored(parent=5)], 12.5)
    topic, sequence, payload = await asyncio.wait_for(reader.recv_multipart(), 10)
    assert (topic, sequence) == (b"kv-x", b"\0" * 8)
    timestamp, events, rank = msgspec.msgpack.decode(payload)
    assert (timestamp, rank) == (12.5, 3)
    assert events == [
        {
            "type": "BlockStored",
            "block_hashes": [2**64 - 1, 7],
            "parent_block_hash": 5,
            "token_ids": list(range(8)),
            "block_size": 4,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [None, None],
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }
    ]


def test_a_root_block_has_a_null_parent_and_not_a_missing_one() -> None:
    event = msgspec.msgpack.decode(msgspec.msgpack.encode(wire_events([stored()], 4)))[0]
    assert event["parent_block_hash"] is None


def test_the_salt_is_an_extra_key_of_the_first_block_only() -> None:
    (event,) = wire_events([stored(lora="a", salt="s")], 4)
    assert event.extra_keys == [["a", "s"], ["a"]]
    (later,) = wire_events([stored(parent=1, salt="s")], 4)
    assert later.extra_keys == [None, None]


def test_removed_blocks_are_told_one_by_one() -> None:
    events = msgspec.msgpack.decode(msgspec.msgpack.encode(wire_events([Removed(np.array([3, 4], np.uint64))], 4)))
    assert events == [
        {"type": "BlockRemoved", "block_hashes": [key], "medium": "GPU", "group_idx": 0} for key in (3, 4)
    ]


def test_cleared_is_a_map_with_a_type_alone() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(wire_events([Cleared()], 4))) == [{"type": "AllBlocksCleared"}]


async def test_sequence_numbers_count_up_from_zero(context: zmq.asyncio.Context, publisher: MakePublisher) -> None:
    source = publisher()
    for _ in range(3):
        source.publish([Cleared()], 0.0)
    assert [sequence for sequence, _ in await replayed(context, source, 0)] == [0, 1, 2]


async def test_a_replayed_batch_is_the_published_one_behind_an_empty_frame_and_the_end_has_no_topic(
    context: zmq.asyncio.Context, publisher: MakePublisher
) -> None:
    source = publisher(topic="kv-x")
    reader = await subscribed(context, source)
    source.publish([Cleared()], 0.0)
    published = await asyncio.wait_for(reader.recv_multipart(), 10)
    socket = context.socket(zmq.DEALER)
    socket.connect(source.replay_endpoint)
    await socket.send_multipart([b"", b"\0" * 8])
    answers = [await asyncio.wait_for(socket.recv_multipart(), 10) for _ in range(2)]
    assert answers == [[b"", *published], [b"", b"", b"\xff" * 8, b""]]


async def test_replay_begins_where_it_is_asked_to(context: zmq.asyncio.Context, publisher: MakePublisher) -> None:
    source = publisher()
    for _ in range(5):
        source.publish([Cleared()], 0.0)
    assert [sequence for sequence, _ in await replayed(context, source, 3)] == [3, 4]
    assert await replayed(context, source, 5) == []


async def test_replay_has_the_last_batches_only(context: zmq.asyncio.Context, publisher: MakePublisher) -> None:
    source = publisher(buffer_steps=2)
    for _ in range(5):
        source.publish([Cleared()], 0.0)
    assert [sequence for sequence, _ in await replayed(context, source, 0)] == [3, 4]


async def test_replay_of_more_batches_than_a_default_queue_is_whole(
    context: zmq.asyncio.Context, publisher: MakePublisher
) -> None:
    source = publisher()
    for _ in range(2500):
        source.publish([Cleared()], 0.0)
    assert len(await replayed(context, source, 0)) == 2500


async def test_dropped_batches_leave_a_gap_that_replay_repairs(
    context: zmq.asyncio.Context, publisher: MakePublisher
) -> None:
    source = publisher(drop=0.5, seed=1)
    reader = await subscribed(context, source)
    for number in range(40):
        source.publish([Cleared()], float(number))
    sent = 40 - source.stats.dropped
    assert 0 < sent < 40
    seen = [await asyncio.wait_for(reader.recv_multipart(), 10) for _ in range(sent)]
    numbers = [int.from_bytes(frames[1], "big") for frames in seen]
    assert len(set(numbers)) == sent and max(numbers) <= 39
    assert dict(await replayed(context, source, 0)).keys() == set(range(40))


async def test_a_malformed_replay_request_is_counted_and_the_next_one_served(
    context: zmq.asyncio.Context, publisher: MakePublisher
) -> None:
    source = publisher()
    source.publish([Cleared()], 0.0)
    socket = context.socket(zmq.DEALER)
    socket.connect(source.replay_endpoint)
    await socket.send_multipart([b"nonsense"])
    await socket.send_multipart([b"", (0).to_bytes(8, "big")])
    assert (await asyncio.wait_for(socket.recv_multipart(), 10))[-2] == b"\0" * 8
    assert source.stats.bad_replay_requests == 1


async def test_a_taken_port_is_an_error_that_names_it(publisher: MakePublisher) -> None:
    port = int(publisher().endpoint.rsplit(":", 1)[1])
    with pytest.raises(OSError, match=str(port)):
        publisher(port=port)
