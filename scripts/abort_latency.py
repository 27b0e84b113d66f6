"""How long after a client has left its engine hears of it: `python scripts/abort_latency.py`.

Starts a router before an engine stub that streams, and leaves 200 streams, by FIN and by RST in turn, while 50 others
run. Prints quantiles of the time from the client's close to the end of the engine's connection, and how many requests
the router still counts afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import struct
import subprocess
import sys
import time

import httpx

_MODELS = b'{"object":"list","data":[{"id":"m","object":"model"}]}'
_ASK = b'{"model":"m","prompt":"x","stream":true}'
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_EVENT = b'data: {"choices":[{"text":"a"}]}\n\n'


class Stub:
    """An engine that streams until it is left, and notes when that was."""

    def __init__(self) -> None:
        self.left: asyncio.Queue[float] = asyncio.Queue()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"POST /v1/completions"):
                    await reader.readexactly(len(_ASK))
                    await self._stream(reader, writer)
                    return
                body = _MODELS if head.startswith(b"GET /v1/models") else b"{}"
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_HEAD)
        ended = asyncio.ensure_future(reader.read(1))
        while not ended.done():
            writer.write(b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT))
            await asyncio.wait([ended], timeout=0.05)
        self.left.put_nowait(time.perf_counter())
        ended.exception()


async def _begin(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%b" % (len(_ASK), _ASK))
    await reader.readuntil(b"data: ")
    return reader, writer


async def _leave(writer: asyncio.StreamWriter, how: int) -> float:
    if how % 2:
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    began = time.perf_counter()
    writer.transport.abort()
    return began


async def measure(aborts: int, others: int) -> tuple[list[float], float]:
    """(seconds of each abort, requests that the router counts in the end)"""
    stub = Stub()
    server = await asyncio.start_server(stub.connected, "127.0.0.1", 0)
    engine = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    command = [sys.executable, "-m", "kvctl", "serve", "--port", "0", "--admin-port", "0", "-o", "json"]
    command += ["--router-mode", "round-robin", "--worker", engine, "--log-level", "warning"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("KVCTL_")}
    router = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, env=environment)
    try:
        assert router.stdout is not None
        ready = json.loads(await asyncio.wait_for(router.stdout.readline(), 90))
        port = int(ready["url"].rsplit(":", 1)[1])
        kept = [await _begin(port) for _ in range(others)]
        took = []
        for number in range(aborts):
            _, writer = await _begin(port)
            began = await _leave(writer, number)
            took.append(await asyncio.wait_for(stub.left.get(), 30) - began)
        for _, writer in kept:
            writer.transport.abort()
        for _ in kept:
            await asyncio.wait_for(stub.left.get(), 30)
        async with httpx.AsyncClient(trust_env=False) as http:
            text = (await http.get(f"{ready['admin']}/metrics")).text
        open_requests = next(float(line.split()[1]) for line in text.splitlines() if line.startswith("kvctl_open_req"))
        return took, open_requests
    finally:
        router.terminate()
        await router.wait()
        server.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--aborts", type=int, default=200)
    parser.add_argument("--others", type=int, default=50)
    given = parser.parse_args()
    took, open_requests = asyncio.run(measure(given.aborts, given.others))
    took = sorted(1000 * seconds for seconds in took)

    def quantile(share: float) -> float:
        return took[min(int(share * len(took)), len(took) - 1)]

    print(
        f"{len(took)} aborts beside {given.others} streams: p50 {quantile(0.5):.2f} ms, p99 {quantile(0.99):.2f} ms, "
        f"longest {took[-1]:.2f} ms; open requests afterwards: {open_requests:g}"
    )
    return 0 if open_requests == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
