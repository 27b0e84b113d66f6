"""What keys, the access log and traces cost: CPU of the router a request, each switched on alone, against none.

Starts a stub engine, one router an arm (round-robin) and a client on this machine; the arms take turns. CPU time is the
router's own, so that a busy machine disturbs it less than a rate would be.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import http.server
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

_KEY = "kv-of-the-benchmark"
_BODY = json.dumps({"model": "m", "prompt": "a prompt of some words " * 8, "max_tokens": 8}).encode()
_ANSWER = json.dumps(
    {"choices": [{"text": "x" * 200}], "usage": {"prompt_tokens": 40, "completion_tokens": 8}}
).encode()
_TICKS = os.sysconf("SC_CLK_TCK")


class Stub(asyncio.Protocol):
    """An engine that answers at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.data = b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        while (end := self.data.find(b"\r\n\r\n")) >= 0:
            head = self.data[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n")[0]) if at >= 0 else 0
            if len(self.data) < end + 4 + length:
                return
            self.data = self.data[end + 4 + length :]
            body = b'{"data":[{"id":"m"}]}' if b"/v1/models" in head else _ANSWER
            write = self.transport.write  # type: ignore[attr-defined]
            write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body)


class Client(asyncio.Protocol):
    """One connection that asks again as soon as it is answered."""

    def __init__(self, request: bytes, left: list[int], done: asyncio.Future[None]) -> None:
        self.request, self.left, self.done = request, left, done
        self.got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.ask()

    def ask(self) -> None:
        if self.left[0] <= 0:
            self.transport.close()
            return
        self.left[0] -= 1
        self.transport.write(self.request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.got += data
        if not self.got.endswith(_ANSWER):
            return
        assert self.got.startswith(b"HTTP/1.1 200"), self.got[:200]
        self.got = b""
        self.ask()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


async def load(port: int, requests: int, connections: int = 16) -> None:
    loop, left = asyncio.get_running_loop(), [requests]
    request = (
        b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nAuthorization: Bearer %b\r\nContent-Length: %d\r\n\r\n%b"
        % (
            _KEY.encode(),
            len(_BODY),
            _BODY,
        )
    )
    ends = [loop.create_future() for _ in range(connections)]
    for end in ends:
        await loop.create_connection(lambda end=end: Client(request, left, end), "127.0.0.1", port)  # type: ignore[misc]
    await asyncio.gather(*ends)


def cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


class Receiver(http.server.BaseHTTPRequestHandler):
    """Takes spans and forgets them."""

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()


async def measure(arms: dict[str, list[str]], rounds: int, requests: int, out: dict[str, list[float]]) -> None:
    stub = await asyncio.get_running_loop().create_server(Stub, "127.0.0.1", 0)
    engine = f"http://127.0.0.1:{stub.sockets[0].getsockname()[1]}"
    routers: dict[str, tuple[subprocess.Popen[str], int]] = {}
    with contextlib.ExitStack() as stack:
        for name, options in arms.items():
            command = [sys.executable, "-m", "kvctl", "serve", "--router-mode", "round-robin", "--port", "0"]
            command += ["--admin-port", "0", "-o", "json", "--log-level", "error", "--worker", engine, *options]
            process = await asyncio.to_thread(subprocess.Popen, command, stdout=subprocess.PIPE, text=True)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            assert process.stdout is not None
            ready = json.loads(await asyncio.to_thread(process.stdout.readline))
            routers[name] = process, int(ready["url"].rpartition(":")[2])
        for _process, port in routers.values():
            await load(port, 2000)
        for _ in range(rounds):
            for name, (process, port) in routers.items():
                before = cpu(process.pid)
                await load(port, requests)
                await asyncio.sleep(0.5)
                out.setdefault(name, []).append((cpu(process.pid) - before) / requests * 1e6)
        stub.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=20_000)
    given = parser.parse_args()
    receiver = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    otel = f"http://127.0.0.1:{receiver.server_address[1]}"
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.jsonl"
        entry = {"name": "a", "sha256": hashlib.sha256(_KEY.encode()).hexdigest(), "requests-per-minute": 10**9}
        keys.write_text(json.dumps(entry | {"tokens-per-minute": 10**12}))
        log = f"{folder}/access.log"
        arms = {
            "nothing": [],
            "keys and limits": ["--api-keys-file", str(keys)],
            "access log, text": ["--access-log", log],
            "access log, json": ["--access-log", f"{log}.json", "--access-log-format", "json"],
            "traces, 1 % sampled": ["--otel-endpoint", otel, "--otel-sample-ratio", "0.01"],
            "traces, all sampled": ["--otel-endpoint", otel, "--otel-sample-ratio", "1"],
        }
        out: dict[str, list[float]] = {}
        asyncio.run(measure(arms, given.rounds, given.requests, out))
    base = statistics.median(out["nothing"])
    print(f"{'':24}{'CPU µs a request':>18}{'more than nothing':>20}")
    for name, found in out.items():
        middle = statistics.median(found)
        print(f"{name:24}{middle:18.1f}{middle - base:20.1f}")


if __name__ == "__main__":
    main()
