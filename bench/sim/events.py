"""KV events on vLLM's wire: a ZMQ PUB socket, and a ROUTER socket that replays the last batches.

A batch is three frames: topic, 8-byte big-endian sequence number, msgpack `[timestamp, [event, ...], dp
rank]` with events as maps tagged by `type`. A replay request is `["", first sequence number]`; the answer is
one `["", topic, sequence number, payload]` for each kept batch from there on, then `["", "", -1, ""]`.

Cost: encoding is about 50 ns a token of the stored blocks; sending never blocks (a reader that does not keep
up loses frames, as with the real one, and repairs the gap by replay).
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from dataclasses import dataclass
from typing import Any

import msgspec
import zmq

from bench.sim.kvcache import CacheEvent, Cleared, Removed, Stored

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)


class BlockStored(msgspec.Struct, tag_field="type", tag="BlockStored", omit_defaults=True, gc=False):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[str] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class BlockRemoved(msgspec.Struct, tag_field="type", tag="BlockRemoved", omit_defaults=True, gc=False):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag_field="type", tag="AllBlocksCleared", omit_defaults=True, gc=False):
    pass


WireEvent = BlockStored | BlockRemoved | AllBlocksCleared


def wire_events(events: list[CacheEvent], block_size: int) -> list[WireEvent]:
    """Cache changes as the engine publishes them: a BlockStored a run of blocks, a BlockRemoved a block."""
    out: list[WireEvent] = []
    for event in events:
        if isinstance(event, Stored):
            count = len(event.keys)
            keys: list[str] = [event.lora] if event.lora else []
            extra: list[list[str] | None] = [keys or None] * count
            if event.salt and event.parent is None:
                extra[0] = [*keys, event.salt]
            out.append(
                BlockStored(
                    block_hashes=event.keys.tolist(),
                    parent_block_hash=event.parent,
                    token_ids=event.tokens.tolist(),
                    block_size=block_size,
                    lora_id=1 if event.lora else None,
                    medium=event.medium,
                    lora_name=event.lora,
                    extra_keys=extra,
                    group_idx=0,
                    kv_cache_spec_kind="full_attention",
                )
            )
        elif isinstance(event, Removed):
            out.extend(BlockRemoved([key], event.medium, 0) for key in event.keys.tolist())
        elif isinstance(event, Cleared):
            out.append(AllBlocksCleared())
    return out


@dataclass(frozen=True, slots=True)
class PublisherConfig:
    """Where and how. Port 0 lets the kernel choose. `drop` is the share of batches that are never sent (but
    kept for replay), drawn from `seed`: a fault to test a reader with.
    """

    host: str = "127.0.0.1"
    port: int = 0
    replay_port: int = 0
    topic: str = "kv"
    buffer_steps: int = 10_000
    hwm: int = 100_000
    dp_rank: int = 0
    drop: float = 0.0
    seed: int = 0


@dataclass(slots=True)
class PublisherStats:
    batches: int = 0
    events: int = 0
    dropped: int = 0
    not_sent: int = 0
    replay_requests: int = 0
    bad_replay_requests: int = 0
    replayed: int = 0


class Publisher:
    """Binds both sockets when made. Lives on the running loop; `close` frees the ports."""

    def __init__(self, config: PublisherConfig, block_size: int, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.config = config
        self.stats = PublisherStats()
        self._block_size = block_size
        self._topic = config.topic.encode()
        self._encoder = msgspec.msgpack.Encoder()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        self._next = 0
        self._rng = random.Random(config.seed)
        self._loop = asyncio.get_running_loop()
        self._pub = context.socket(zmq.PUB)
        self._replay = context.socket(zmq.ROUTER)
        self._pub.set_hwm(config.hwm)
        self._replay.set_hwm(0)
        try:
            self.endpoint = _bind(self._pub, config.host, config.port)
            self.replay_endpoint = _bind(self._replay, config.host, config.replay_port)
        except OSError:
            self._pub.close(linger=0)
            self._replay.close(linger=0)
            raise
        self._replay_fd = int(self._replay.getsockopt(zmq.FD))
        self._loop.add_reader(self._replay_fd, self._on_replay)

    def publish(self, events: list[CacheEvent], timestamp: float) -> None:
        """Send one batch. `timestamp` is wall-clock seconds."""
        wire = wire_events(events, self._block_size)
        payload = self._encoder.encode([timestamp, wire, self.config.dp_rank])
        sequence = self._next
        self._next += 1
        self._kept.append((sequence, payload))
        self.stats.batches += 1
        self.stats.events += len(wire)
        if self.config.drop and self._rng.random() < self.config.drop:
            self.stats.dropped += 1
            return
        try:
            self._pub.send_multipart((self._topic, sequence.to_bytes(8, "big"), payload), zmq.NOBLOCK)
        except zmq.Again:
            self.stats.not_sent += 1

    def describe(self) -> dict[str, Any]:
        """The publisher's configuration, as `GET /kv_event_sources` gives it for a rank."""
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self.endpoint,
            "replay_endpoint": self.replay_endpoint,
            "buffer_steps": self.config.buffer_steps,
            "hwm": self.config.hwm,
            "max_queue_size": self.config.hwm,
            "topic": self.config.topic,
        }

    def close(self) -> None:
        self._loop.remove_reader(self._replay_fd)
        self._pub.close(linger=0)
        self._replay.close(linger=0)

    def _on_replay(self) -> None:
        """The socket's descriptor is edge-triggered: read until there is nothing left."""
        while int(self._replay.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            try:
                frames = self._replay.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) != 3 or len(frames[2]) != 8:
                self.stats.bad_replay_requests += 1
                continue
            self._answer(frames[0], int.from_bytes(frames[2], "big"))

    def _answer(self, reader: bytes, first: int) -> None:
        self.stats.replay_requests += 1
        for sequence, payload in self._kept:
            if sequence >= first:
                batch = (self._topic, sequence.to_bytes(8, "big"), payload)
                self._replay.send_multipart((reader, b"", *batch), zmq.NOBLOCK)
                self.stats.replayed += 1
        self._replay.send_multipart((reader, b"", b"", END_OF_REPLAY, b""), zmq.NOBLOCK)


def _bind(socket: zmq.Socket[bytes], host: str, port: int) -> str:
    """Bind and return the address that a reader connects to. `zmq.ZMQError` (an OSError) says why not."""
    try:
        socket.bind(f"tcp://{host}:{port or '*'}")
    except zmq.ZMQError as error:
        raise OSError(error.errno, f"tcp://{host}:{port}: {error.strerror}") from error
    return bytes(socket.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()
