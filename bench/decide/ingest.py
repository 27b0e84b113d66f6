"""KV events from ZMQ frame bytes into the index: blocks a second, and with the socket and the loop in between.

Frames are what vLLM sends, one event a frame of so many blocks of 16 tokens, or many one-block events in one frame as
after a decoding step. The publisher of the second measurement is a process of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

import msgspec
import numpy as np

from bench.decide.fleet import BLOCK, MODEL
from router.core import CoreSettings, RoutingCore
from router.events.delivery import Delivery, Events, Source
from router.events.subscriber import EventListener
from router.events.wire import WireDecoder
from router.fleet.worker import Health
from router.model import WorkerSpec

_PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Shape:
    """Frames of `events` events of `blocks` blocks each."""

    events: int
    blocks: int

    @property
    def name(self) -> str:
        return f"{self.events} × {self.blocks}" if self.events > 1 else f"{self.blocks}"


def frames_of(shape: Shape, total: int) -> list[bytes]:
    """About `total` blocks, chains of eight events, no two blocks alike."""
    rng = np.random.default_rng(7)
    frames, parent = [], None
    for number in range(max(total // (shape.events * shape.blocks), 1)):
        events = []
        for place in range(shape.events):
            hashes = rng.integers(0, 2**63, shape.blocks).tolist()
            events.append(
                {
                    "type": "BlockStored",
                    "block_hashes": hashes,
                    "parent_block_hash": parent,
                    "token_ids": rng.integers(0, 150_000, shape.blocks * BLOCK).tolist(),
                    "block_size": BLOCK,
                    "lora_id": None,
                    "medium": "GPU",
                    "lora_name": None,
                }
            )
            parent = hashes[-1] if (number * shape.events + place) % 8 else None
        frames.append(msgspec.msgpack.encode([float(number), events, 0]))
    return frames


def core_with_room(blocks: int) -> RoutingCore:
    core = RoutingCore(CoreSettings(seed=1))
    worker = core.fleet.add(WorkerSpec(url="http://w0:1", id="w0"))
    worker.health, worker.models, worker.block_size = Health.UP, (MODEL,), BLOCK
    core.add_slots()
    core.index.reserve(blocks)
    return core


def from_bytes(shape: Shape, total: int) -> float:
    """Blocks a second from frame bytes to index, everything on one thread."""
    frames = frames_of(shape, total)
    stored = len(frames) * shape.events * shape.blocks
    core, decoder = core_with_room(stored), WireDecoder()
    start = time.perf_counter()
    for frame in frames:
        for event in decoder.decode(frame).events:
            core.apply(0, event)
    seconds = time.perf_counter() - start
    if core.index.blocks(0) != stored:
        raise RuntimeError(f"{core.index.blocks(0)} of {stored} blocks are in the index")
    return stored / seconds


def over_zmq(shape: Shape, total: int) -> float:
    """The same from a publisher's socket: the listener's thread, the loop and the index, blocks a second."""
    here, there = multiprocessing.Pipe()
    publisher = multiprocessing.get_context("spawn").Process(target=_publish, args=(there, shape, total), daemon=True)
    publisher.start()
    try:
        if not here.poll(_PATIENCE):
            raise RuntimeError("the publisher does not start")
        port = here.recv()
        return asyncio.run(_listen(here, port, shape, total))
    finally:
        publisher.kill()
        publisher.join()


def _publish(parent: Connection, shape: Shape, total: int) -> None:
    import zmq

    frames = frames_of(shape, total)
    with zmq.Context() as context, context.socket(zmq.XPUB) as publisher:
        publisher.setsockopt(zmq.SNDHWM, 0)
        parent.send(publisher.bind_to_random_port("tcp://127.0.0.1"))
        publisher.recv()
        parent.recv()
        for number, frame in enumerate(frames):
            publisher.send_multipart([b"", struct.pack(">q", number), frame])
        with contextlib.suppress(EOFError):
            parent.recv()


async def _listen(publisher: Connection, port: int, shape: Shape, total: int) -> float:
    stored = max(total // (shape.events * shape.blocks), 1) * shape.events * shape.blocks
    core, done, loop = core_with_room(stored), asyncio.Event(), asyncio.get_running_loop()
    listener = EventListener(_applier(core, stored, done), loop)
    try:
        listener.add(Source("w0", 0, f"tcp://127.0.0.1:{port}"))
        async with asyncio.timeout(_PATIENCE):
            while not listener.states()["w0", 0].connected:  # noqa: ASYNC110  written by the listener's thread
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            start = time.perf_counter()
            publisher.send("go")
            await done.wait()
        return stored / (time.perf_counter() - start)
    finally:
        listener.close()


def _applier(core: RoutingCore, stored: int, done: asyncio.Event) -> Callable[[Delivery], None]:
    def deliver(delivery: Delivery) -> None:
        assert isinstance(delivery, Events), delivery
        for event in delivery.events:
            core.apply(0, event)
        if core.index.blocks(0) >= stored:
            done.set()

    return deliver
