"""Small servers for the tests: a scripted one, and an engine with a prefix cache and a reset that may lie."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    """Runs `handler` for every connection; yields the server's URL."""
    tasks: set[asyncio.Task[None]] = set()

    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(guarded, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def read_request(reader: asyncio.StreamReader) -> tuple[str, str, bytes]:
    """(method, path, body) of the next request on a connection."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    method, path, _ = head.split("\r\n")[0].split(" ")
    length = next(
        (int(line.split(":")[1]) for line in head.split("\r\n") if line.lower().startswith("content-length")), 0
    )
    return method, path, await reader.readexactly(length)


def plain(status: int, data: object) -> bytes:
    body = json.dumps(data).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def stream_events(tokens: int, prompt: int, cached: int | None) -> list[bytes]:
    """The events of a completion as vLLM sends them."""
    events: list[object] = [
        {"choices": [{"index": 0, "text": "x", "finish_reason": "length" if i == tokens - 1 else None}]}
        for i in range(tokens)
    ]
    usage: dict[str, object] = {"prompt_tokens": prompt, "completion_tokens": tokens}
    if cached:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    events.append({"choices": [], "usage": usage})
    return [b"data: " + json.dumps(e).encode() + b"\n\n" for e in events] + [b"data: [DONE]\n\n"]


@dataclass
class FakeEngine:
    """Completions over a prefix cache of 16-token blocks. `resets`: honest, lying (200, keeps all) or missing (404).

    `answer_delay` seconds before the first token; `fail_every` n answers each n-th request with 500.
    """

    model: str = "m"
    resets: str = "honest"
    reports: bool = True
    busy: int = 0
    answer_delay: float = 0.0
    fail_every: int = 0
    headers: bytes = b""
    cache: set[tuple[int, ...]] = field(default_factory=set)
    seen: list[dict[str, object]] = field(default_factory=list)
    reset_count: int = 0

    def cached_tokens(self, prompt: list[int]) -> int:
        depth = 0
        while (depth + 1) * 16 < len(prompt) and tuple(prompt[: (depth + 1) * 16]) in self.cache:
            depth += 1
        self.cache.update(tuple(prompt[: n * 16]) for n in range(1, len(prompt) // 16 + 1))
        return depth * 16

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            method, path, body = await read_request(reader)
            if path == "/v1/completions":
                await self._complete(json.loads(body), writer)
            else:
                writer.write(self._control(method, path))
            await writer.drain()

    def _control(self, method: str, path: str) -> bytes:
        if path == "/v1/models":
            return plain(200, {"data": [{"id": self.model, "max_model_len": 100_000}]})
        if path == "/reset_prefix_cache" and self.resets != "missing":
            self.reset_count += 1
            if self.resets == "honest":
                self.cache.clear()
            return plain(200, {})
        if path == "/metrics":
            text = f'vllm:num_requests_running{{m="x"}} {self.busy}\nvllm:cache_config_info{{block_size="16"}} 1.0\n'
            return f"HTTP/1.1 200 OK\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode()
        return plain(404, {"error": "no such page"})

    async def _complete(self, request: dict[str, object], writer: asyncio.StreamWriter) -> None:
        self.seen.append(request)
        prompt = request["prompt"]
        tokens = request["max_tokens"]
        assert isinstance(prompt, list)
        assert isinstance(tokens, int)
        cached = self.cached_tokens(prompt) if self.reports else None
        if self.fail_every and len(self.seen) % self.fail_every == 0:
            writer.write(plain(500, {"error": {"message": "broken"}}))
            return
        if self.answer_delay:
            await asyncio.sleep(self.answer_delay)
        if not request.get("stream"):
            details = {"prompt_tokens_details": {"cached_tokens": cached}} if cached else {}
            writer.write(plain(200, {"usage": {"prompt_tokens": len(prompt), "completion_tokens": tokens, **details}}))
            return
        writer.write(STREAM_HEAD + self.headers + b"\r\n")
        for event in stream_events(tokens, len(prompt), cached):
            writer.write(chunk(event))
        writer.write(b"0\r\n\r\n")
