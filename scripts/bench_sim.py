"""How far a live simulated engine distorts its own timing: 64 streams of one token every 20 ms, on one core.

Pins the engine to the last core and this client to the others where the system allows it. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
from urllib.parse import urlsplit

import httpx
import uvloop

from bench.sim.fleet import SimFleet


async def read_stream(host: str, port: int, prompt: list[int], tokens: int) -> int:
    """One streamed completion; returns the bytes of its answer. The body is not parsed, to leave the core to others."""
    body = json.dumps(
        {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True, "model": "sim"}
    ).encode()
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 22)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: sim\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    )
    writer.write(body)
    size = 0
    while part := await reader.read(1 << 16):
        size += len(part)
    writer.close()
    return size


async def load(url: str, streams: int, tokens: int) -> None:
    where = urlsplit(url)
    host, port = where.hostname or "127.0.0.1", where.port or 80
    sizes = await asyncio.gather(*(read_stream(host, port, [number] * 32, tokens) for number in range(streams)))
    short = [size for size in sizes if size < tokens * 50]
    if short:
        raise SystemExit(f"{len(short)} of {streams} streams were cut short")


def pin(fleet: SimFleet) -> str:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2 or fleet.pid is None:
        return "not pinned"
    with contextlib.suppress(OSError):
        os.sched_setaffinity(fleet.pid, {cores[-1]})
        os.sched_setaffinity(0, set(cores[:-1]))
        return "engine on a core of its own"
    return "not pinned"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=500, help="a stream")
    parser.add_argument("--step-ms", type=float, default=20.0)
    given = parser.parse_args()
    with SimFleet(1, timing="fixed", decode_ms=given.step_ms, prefill_ms=0.0) as fleet:
        pinned = pin(fleet)
        url = fleet.engines[0].url
        uvloop.run(load(url, given.streams, 50))
        httpx.post(f"{url}/sim/stats/reset").raise_for_status()
        uvloop.run(load(url, given.streams, given.tokens))
        stats = httpx.get(f"{url}/sim/stats").json()["lag"]
    step, late, error = stats["step_ms"], stats["lag_ms"], stats["step_error_share"]
    rate = given.streams * 1000 / given.step_ms
    print(f"{given.streams} streams, {rate:.0f} tokens/s, {stats['steps']} steps, {pinned}\n")
    print("| | value |\n|---|---|")
    print(f"| mean step, ms | {step['actual']:.3f}, intended {step['intended']:.3f} ({stats['distortion']:+.2%}) |")
    print(f"| error of a single step | mean {error['mean']:.1%}, p50 {error['p50']:.1%}, p99 {error['p99']:.1%} |")
    print(f"| lag of a step's last byte, ms | mean {late['mean']:.2f}, p50 {late['p50']:.2f}, p99 {late['p99']:.2f} |")


if __name__ == "__main__":
    main()
