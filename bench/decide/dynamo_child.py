"""Dynamo's SelectionService with a fleet of our making, asked the same prompts. A process of its own.

Run by the Python of an environment that has ai-dynamo-runtime, pyzmq and msgspec; imports nothing of this project.
Reads JSON lines from stdin and answers each with one: {"workers", "held", "tokens", "block"} sets up, {"repeat",
"cold"} measures. Workers are told over the service's own ZMQ wire. Times are those of `await select(...)`, without the
booking, with the token ids as the list of integers that the API takes.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
import time
from typing import Any

os.environ.setdefault("DYN_LOG", "error")

import msgspec
import zmq
from dynamo._core import SelectionService  # type: ignore[import-not-found]

COLD_BYTES = 32 << 20
_PATIENCE = 60.0


class Fleet:
    def __init__(self) -> None:
        self.context = zmq.Context()
        self.context.set(zmq.MAX_SOCKETS, 8192)
        self.service = SelectionService(indexer_threads=1)
        self.prompt: list[int] = []

    async def set_up(self, held: list[int], tokens: list[int], block: int) -> None:
        self.prompt = tokens
        publishers = []
        for number in range(len(held)):
            publisher = self.context.socket(zmq.XPUB)
            publisher.setsockopt(zmq.SNDHWM, 0)
            port = publisher.bind_to_random_port("tcp://127.0.0.1")
            publishers.append(publisher)
            await self.service.upsert_worker(
                {
                    "worker_id": number + 1,
                    "model_name": "m",
                    "endpoint": f"http://127.0.0.1:{10000 + number}",
                    "block_size": block,
                    "data_parallel_start_rank": 0,
                    "data_parallel_size": 1,
                    "total_kv_blocks": 1 << 20,
                    "kv_events_endpoint": f"tcp://127.0.0.1:{port}",
                }
            )
        until = time.monotonic() + _PATIENCE
        for number, (publisher, blocks) in enumerate(zip(publishers, held)):
            while not publisher.poll(0):
                if time.monotonic() > until:
                    raise TimeoutError("the service does not follow its workers")
                await asyncio.sleep(0.01)
            event = {
                "type": "BlockStored",
                "block_hashes": [((number + 1) << 32) + block_number for block_number in range(blocks)],
                "parent_block_hash": None,
                "token_ids": tokens[: blocks * block],
                "block_size": block,
                "medium": "GPU",
            }
            if blocks:
                frame = msgspec.msgpack.encode([time.time(), [event], 0])
                publisher.send_multipart([b"", struct.pack(">q", 0), frame])
        while await self.depths() != held:
            if time.monotonic() > until:
                raise TimeoutError("the service does not know what its workers hold")
            await asyncio.sleep(0.05)

    async def depths(self) -> list[int]:
        found = await self.service.overlap_scores(self.request(self.prompt))
        rows = {row["worker_id"]: row["device_blocks"] for row in found["workers"]}
        return [rows.get(number + 1, 0) for number in range(len(self.service.list_workers()))]

    def request(self, tokens: list[int]) -> dict[str, Any]:
        return {"model_name": "m", "token_ids": tokens}

    async def measure(self, repeat: int, cold: bool) -> list[float]:
        times = []
        sweep = bytearray(COLD_BYTES)
        for number in range(repeat):
            tokens = [*self.prompt[:-1], number]
            request = self.request(tokens)
            if cold:
                sweep[:] = bytes(COLD_BYTES)
            start = time.perf_counter_ns()
            await self.service.select(request)
            times.append((time.perf_counter_ns() - start) / 1e3)
        return times


async def main() -> None:
    fleet = Fleet()
    for line in sys.stdin:
        told = json.loads(line)
        try:
            if "held" in told:
                await fleet.set_up(told["held"], told["tokens"], told["block"])
                answer: dict[str, Any] = {"ready": True}
            else:
                answer = {"us": await fleet.measure(told["repeat"], told["cold"])}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
