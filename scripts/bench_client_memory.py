"""What the bench client keeps of a long run: requests over real connections, then memory a request.

    python scripts/bench_client_memory.py --requests 100000

Starts one child process (a server that answers every request with the same stream on a loopback port), ends it, writes
requests.jsonl into a temporary folder. 64 users in a closed loop, so that the number of open streams does not depend on
the machine. Prints one line of JSON; memory is resident memory, beyond what the schedule itself takes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import resource
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from bench.arms import Arm
from bench.client.bodies import BodyStyle
from bench.client.connection import Target
from bench.client.load import LoadGenerator
from bench.cold import ColdProof
from bench.design import Block
from bench.experiment import BlockResult
from bench.guards import BlockFacts
from bench.metrics import Measurements, arm_metrics
from bench.requests_file import RequestsFile
from bench.workload.model import Request
from bench.workload.tokens import Piece, PieceText, Vocabulary

USERS = 64
PROMPT = 256


def answer(chunks: int) -> bytes:
    """A whole response: `chunks` content chunks, a usage chunk, [DONE]."""
    events: list[dict[str, object]] = [
        {"choices": [{"text": " w", "finish_reason": "length" if i == chunks - 1 else None}]} for i in range(chunks)
    ]
    events.append({"choices": [], "usage": {"prompt_tokens": PROMPT, "completion_tokens": chunks}})
    body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(body) + body


class Server(asyncio.Protocol):
    """Answers when as many body bytes have come as the head says."""

    def __init__(self, response: bytes) -> None:
        self._response = response
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._held += data
        head, found, rest = self._held.partition(b"\r\n\r\n")
        if found and len(rest) >= int(head.rpartition(b"content-length: ")[2]):
            self._held = b""
            self._transport.write(self._response)


def serve(ready: Connection, chunks: int) -> None:
    """The child: tells its port, serves until it is ended."""

    async def main() -> None:
        response = answer(chunks)
        server = await asyncio.get_running_loop().create_server(lambda: Server(response), "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


def resident() -> int:
    """Bytes of this process in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def peak_resident() -> int:
    """Most bytes this program ever had in memory; `ru_maxrss` would count those of the process that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024


async def measure(port: int, count: int, chunks: int) -> dict[str, object]:
    """Sends everything and takes the arm's numbers."""
    requests = [
        Request(
            f"r{i}", f"s{i % USERS}", i, "g", 0, 0.0, chunks, (Piece(i, PROMPT),),
            after=f"r{i - USERS}" if i >= USERS else None,
        )
        for i in range(count)
    ]  # fmt: skip
    generator = LoadGenerator(PieceText(Vocabulary(), limit=1_000_000), timeout=600)
    before, start = resident(), time.perf_counter()
    run = await generator.run(requests, Target("127.0.0.1", port), BodyStyle("m"), label="b0")
    generator.pool.close()
    seconds = time.perf_counter() - start
    measured = Measurements.block(run.requests, run.timings, {})
    arm_metrics([measured], [], None)
    block = BlockResult(
        Block(0, 0, 0),
        Arm("a", "a", "http://127.0.0.1"),
        BlockFacts(measured, run.watch),
        ColdProof("nonce"),
        run.start,
    )
    with tempfile.TemporaryDirectory() as folder, RequestsFile(Path(folder)) as file:
        file.add(block)
    peak = peak_resident()
    return {
        "requests": count,
        "ok": int(measured.ok.sum()),
        "chunks_each": chunks,
        "requests_s": round(count / seconds),
        "schedule_mb": round(before / 1e6, 1),
        "peak_mb": round(peak / 1e6, 1),
        "bytes_a_request": round((peak - before) / count),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--chunks", type=int, default=16)
    asked = parser.parse_args()
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(there, asked.chunks), daemon=True)
    server.start()
    try:
        if not here.poll(60):
            raise SystemExit("the server did not start in 60 s")
        found = asyncio.run(measure(here.recv(), asked.requests, asked.chunks))
    finally:
        server.terminate()
        server.join(10)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
