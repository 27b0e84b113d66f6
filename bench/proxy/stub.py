"""Engines that do nothing but answer: the other end of a router whose own speed is measured.

One process, several engines, each with a port and a ZMQ publisher of KV events of its own. An answer costs a look at
the request and one write, about 6 us; a stream sends 64 items a second, a held one a single item and then nothing.
Touches sockets only. Ends when its standard input closes. Its ready line names ports and endpoints.

`POST /stub/publish` announces the blocks of every prompt of `prompts`, dealt out over the engines; some other blocks
come and go all the time, so that a router that follows events has some to follow. `GET /stub/paths` counts what was
asked since it was asked last, and for how many prompts the engine that was chosen is the one that holds them (`held`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from collections import Counter
from typing import cast

import numpy as np
import uvloop
import zmq

from bench.proxy import prompts
from bench.sim.events import Publisher, PublisherConfig
from bench.sim.kvcache import CacheEvent, Removed, Stored
from router.tokens.body import parse
from router.tokens.chat import Chat
from router.tokens.tokenizer import LocalTokenizer

STREAM_RATE = 64
EVENTS_EVERY = 0.04
_SCRATCH_BLOCKS = 8
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_STREAMS = re.compile(rb'"stream" *: *true')
_LONG = 1000
_CONVERSATION = re.compile(rb"You answer conversation ([0-9]+)")
_FIRST_IDS = re.compile(rb'"prompt": *\[ *([0-9]+), *([0-9]+), *([0-9]+)')
_USAGE = {
    "prompt_tokens": 2000,
    "completion_tokens": 16,
    "total_tokens": 2016,
    "prompt_tokens_details": {"cached_tokens": 1600},
}


def _json(value: object) -> bytes:
    body = json.dumps(value, separators=(",", ":")).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def _answer(kind: str, choice: dict[str, object]) -> bytes:
    return _json(
        {"id": "cmpl-1", "object": kind, "created": 1, "model": prompts.MODEL, "choices": [choice], "usage": _USAGE}
    )


_COMPLETION = _answer(
    "text_completion", {"index": 0, "text": "One, two, three.", "finish_reason": "length", "logprobs": None}
)
_CHAT = _answer(
    "chat.completion",
    {
        "index": 0,
        "message": {"role": "assistant", "content": "One, two, three."},
        "finish_reason": "length",
        "logprobs": None,
    },
)
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


def _item() -> bytes:
    choice = {"index": 0, "delta": {"content": " word"}, "logprobs": None, "finish_reason": None}
    data = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "sim", "choices": [choice]}
    line = b"data: %b\n\n" % json.dumps(data, separators=(",", ":")).encode()
    return b"%x\r\n%b\r\n" % (len(line), line)


_ITEM = _item()


def _ids(ids: list[int]) -> bytes:
    """As vLLM's render endpoint answers."""
    return _json(
        {"request_id": "chatcmpl-1", "token_ids": ids, "sampling_params": {"max_tokens": 16}, "model": prompts.MODEL}
        | {"stream": False, "features": None, "priority": 0, "cache_salt": None}
    )


_NO_IDS = _ids([1])
_MISSING = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"


class Engine:
    """One engine: what it answers, its open streams, its events."""

    def __init__(self, number: int, context: zmq.Context[zmq.Socket[bytes]], tokenizer: LocalTokenizer) -> None:
        self.number = number
        self._tokenizer = tokenizer
        self.streams: set[asyncio.Transport] = set()
        self.paths: Counter[str] = Counter()
        self.publisher = Publisher(PublisherConfig(), prompts.BLOCK, context)
        self.rendered: dict[tuple[int, int], bytes] = {}
        self.told: list[CacheEvent] = []
        self.prompts: dict[tuple[bytes, ...], int] = {}
        self._scratch = 0
        card = {
            "id": prompts.MODEL,
            "object": "model",
            "owned_by": "vllm",
            "root": prompts.MODEL,
            "max_model_len": 65536,
        }
        info = f'block_size="{prompts.BLOCK}",num_gpu_blocks="65536",enable_prefix_caching="True"'
        metrics = f"vllm:cache_config_info{{{info}}} 1.0\n".encode()
        self.answers = {
            "/v1/completions": _COMPLETION,
            "/v1/chat/completions": _CHAT,
            "/health": _json({}),
            "/v1/models": _json({"object": "list", "data": [card]}),
            "/version": _json({"version": "0.32.0"}),
            "/kv_event_sources": _json({"0": self.publisher.describe()}),
            "/metrics": b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n%b"
            % (len(metrics), metrics),
        }

    def tick(self) -> None:
        for transport in self.streams:
            transport.write(_ITEM)

    def change(self) -> None:
        """Some blocks come and others go."""
        self._scratch += 1
        base = (self.number << 40) + self._scratch * _SCRATCH_BLOCKS + (1 << 50)
        keys = np.arange(base, base + _SCRATCH_BLOCKS, dtype=np.uint64)
        tokens = np.full(_SCRATCH_BLOCKS * prompts.BLOCK, self._scratch % 50_000, np.uint32)
        events: list[CacheEvent] = [Stored(keys, None, tokens, None, None)]
        if self._scratch > 1:
            events.append(Removed(keys - np.uint64(_SCRATCH_BLOCKS)))
        self.publisher.publish(events, time.time())

    def tokenized(self, body: bytes) -> bytes:
        """A router that brings a tokenizer checks it against the engine's before it trusts it."""
        asked = json.loads(body)
        if "messages" in asked:
            chat = parse("/v1/chat/completions", body).chat
            assert chat is not None
            ids = self._tokenizer.encode_chat(chat)
        else:
            ids = self._tokenizer.encode_text(asked["prompt"], asked.get("add_special_tokens", True))
        return _json({"count": len(ids), "max_model_len": 65536, "tokens": ids.tolist()})

    def announce(self) -> None:
        for event in self.told:
            self.publisher.publish([event], time.time())


class Connection(asyncio.Protocol):
    """A router's connection to an engine, one request after the other."""

    def __init__(self, engine: Engine, engines: list[Engine]) -> None:
        self._engine = engine
        self._engines = engines
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._engine.streams.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
        while data:
            end = data.find(b"\r\n\r\n") + 4
            if end < 4:
                break
            found = _LENGTH.search(data, 0, end)
            after = end + (int(found[1]) if found is not None else 0)
            if found is None and _CHUNKED.search(data, 0, end):
                last = data.find(b"\r\n0\r\n\r\n", end - 2)
                after = last + 7 if last >= 0 else len(data) + 1
            if len(data) < after:
                break
            self._serve(data[:end], data[end:after])
            data = data[after:]
        self._buffer = data

    def _serve(self, head: bytes, body: bytes) -> None:
        path = head.split(b" ", 2)[1].partition(b"?")[0].decode("latin-1")
        engine = self._engine
        engine.paths[path] += 1
        if path.startswith("/stub/"):
            self._transport.write(self._control(path))
        elif path == "/tokenize":
            self._transport.write(engine.tokenized(body))
        elif path == "/v1/chat/completions/render":
            self._transport.write(self._rendered(body))
        elif b'"stream"' in body and _STREAMS.search(body) is not None:
            self._transport.write(_STREAM_HEAD + _ITEM)
            if b"hold" not in body:
                engine.streams.add(self._transport)
        else:
            self._transport.write(engine.answers.get(path, _MISSING))
            found = (_CONVERSATION.search(body) or _FIRST_IDS.search(body)) if len(body) > _LONG else None
            if found is not None:
                engine.paths["held"] += engine.prompts.get(found.groups(), -1) == engine.number

    def _rendered(self, body: bytes) -> bytes:
        """The ids of a chat, for routers that ask the engine for them; looked up, where a real engine would compute."""
        found = _CONVERSATION.search(body)
        if found is None:
            return _NO_IDS
        return self._engine.rendered.get((int(found[1]), body.count(b'"user"')), _NO_IDS)

    def _control(self, path: str) -> bytes:
        if path == "/stub/publish":
            for engine in self._engines:
                engine.announce()
            return _json({"events": sum(len(engine.told) for engine in self._engines)})
        total: Counter[str] = Counter()
        for engine in self._engines:
            total += engine.paths
            engine.paths.clear()
        return _json(total)


def announced(engines: list[Engine], tokenizer: LocalTokenizer) -> None:
    """Give each engine its share of the prompts, as blocks that it says it holds, and all the ids of each chat."""
    rendered: dict[tuple[int, int], bytes] = {}
    key = 1
    for conversation in range(prompts.CONVERSATIONS):
        engine = engines[conversation % len(engines)]
        first = tuple(b"%d" % one for one in prompts.token_ids(conversation, 1)[:3])
        for each in engines:
            each.prompts[(b"%d" % conversation,)] = each.prompts[first] = engine.number
        chat = Chat(prompts.messages(conversation, prompts.TURNS))
        for turn in range(1, prompts.TURNS + 1):
            ids = tokenizer.encode_chat(Chat(prompts.messages(conversation, turn)))
            rendered[conversation, turn] = _ids(ids.tolist())
        for ids in (
            tokenizer.encode_chat(chat),
            np.array(prompts.token_ids(conversation, prompts.TURNS), np.uint32),
        ):
            blocks = len(ids) // prompts.BLOCK
            keys = np.arange(key, key + blocks, dtype=np.uint64)
            engine.told.append(Stored(keys, None, ids[: blocks * prompts.BLOCK], None, None))
            key += blocks
    for engine in engines:
        engine.rendered = rendered


async def serve(count: int, tokenizer: str) -> None:
    loop = asyncio.get_running_loop()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    local = LocalTokenizer.load(tokenizer)
    engines = [Engine(number, context, local) for number in range(count)]
    announced(engines, local)
    ports = []
    for engine in engines:
        made = await loop.create_server(
            lambda engine=engine: Connection(engine, engines),  # type: ignore[misc]
            "127.0.0.1",
            0,
            backlog=4096,
        )
        ports.append(made.sockets[0].getsockname()[1])
    publishers = [engine.publisher.describe() for engine in engines]
    kv = [str(one["endpoint"]) for one in publishers]
    replay = [str(one["replay_endpoint"]) for one in publishers]
    print(json.dumps({"event": "ready", "ports": ports, "kv": kv, "replay": replay}), flush=True)
    stopped = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), stopped.set)
    tasks = [loop.create_task(_ticks(engines)), loop.create_task(_changes(engines))]
    await stopped.wait()
    for task in tasks:
        task.cancel()
    for engine in engines:
        engine.publisher.close()


async def _ticks(engines: list[Engine]) -> None:
    """Each engine's streams get an item every 1/64 s, the engines one after the other in between."""
    loop = asyncio.get_running_loop()
    start, step = loop.time(), 0
    while True:
        engines[step % len(engines)].tick()
        step += 1
        await asyncio.sleep(max(start + step / STREAM_RATE / len(engines) - loop.time(), 0))


async def _changes(engines: list[Engine]) -> None:
    while True:
        await asyncio.sleep(EVENTS_EVERY)
        for engine in engines:
            engine.change()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--tokenizer", required=True)
    given = parser.parse_args()
    uvloop.run(serve(given.engines, given.tokenizer))


if __name__ == "__main__":
    main()
