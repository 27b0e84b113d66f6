"""Mixed traffic to a router, and what became of each request, judged by a client's eyes alone.

A request is judged *wrong* when it failed although it had not begun and others could have served it, or when an answer
that came to its end was not the one that was asked for. A stream that breaks off after its head, because its engine
was killed, is *cut*: nobody could have saved it. Sockets and counting only; about 0.3 ms of processor time a request.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

_PROMPTS = 40
_LONGEST = 600


class Kind(StrEnum):
    STREAM = "stream"
    WHOLE = "whole"
    CHAT = "chat"
    ABORT = "abort"
    BAD = "bad"
    PLAIN = "plain"


class End(StrEnum):
    """`OK`: what was asked for. `CUT`: broke off after it had begun. `STALLED`: began, then nothing for a long time.
    `ABORTED`: by this client, as planned. `WRONG`: see above."""

    OK = "ok"
    CUT = "cut"
    STALLED = "stalled"
    ABORTED = "aborted"
    WRONG = "wrong"


_WEIGHTS = {Kind.STREAM: 45, Kind.WHOLE: 15, Kind.CHAT: 15, Kind.ABORT: 15, Kind.BAD: 5, Kind.PLAIN: 5}


@dataclass(frozen=True, slots=True)
class TrafficSettings:
    """`rate`: requests a second, Poisson. `tokens`: of an answer at most. `patience`: seconds that a client waits for
    the head, `stall` for the next bytes of a body that has begun."""

    rate: float = 20.0
    tokens: int = 40
    patience: float = 60.0
    stall: float = 20.0
    model: str = "sim"
    seed: int = 1


@dataclass(slots=True)
class Tally:
    """What became of requests: counts by (kind, end), and words on those that went wrong (the first hundred)."""

    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    open: int = 0

    def add(self, kind: Kind, end: End, words: str) -> None:
        self.ends[kind, end] += 1
        if end is End.WRONG and len(self.wrong) < 100:
            self.wrong.append(f"{kind}: {words}")

    def count(self, end: End) -> int:
        return sum(times for (_kind, one), times in self.ends.items() if one == end)

    @property
    def total(self) -> int:
        return sum(self.ends.values())


class Broken(Exception):
    """The connection ended, or what came is no HTTP. `begun`: a head had come."""

    def __init__(self, words: str, begun: bool) -> None:
        super().__init__(words)
        self.begun = begun


@dataclass(slots=True)
class Reply:
    status: int
    headers: dict[bytes, bytes]
    body: bytes = b""


class Traffic:
    """Sends requests until it is stopped; `tally` is read while it runs."""

    def __init__(self, url: str, settings: TrafficSettings) -> None:
        parts = urlsplit(url)
        self.tally = Tally()
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._settings = settings
        self._chance = random.Random(settings.seed)
        self._tasks: set[asyncio.Task[None]] = set()
        self._number = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; then until each request has ended, one way or another."""
        while not stop.is_set():
            task = asyncio.create_task(self._one())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            try:
                async with asyncio.timeout(self._chance.expovariate(self._settings.rate)):
                    await stop.wait()
            except TimeoutError:
                pass
        await asyncio.gather(*self._tasks)

    async def _one(self) -> None:
        kind = self._chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        self._number += 1
        self.tally.open += 1
        try:
            end, words = await self._end_of(kind, f"soak-{self._number}")
        except Broken as error:
            end, words = (End.CUT if error.begun else End.WRONG), str(error)
        except TimeoutError:
            end, words = End.WRONG, f"no answer within {self._settings.patience:g} s"
        except OSError as error:
            end, words = End.WRONG, f"{type(error).__name__}: {error}"
        finally:
            self.tally.open -= 1
        self.tally.add(kind, end, words)

    async def _end_of(self, kind: Kind, name: str) -> tuple[End, str]:
        """Sends one request and says how it ended."""
        path, body, tokens = self._request(kind)
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            head = f"POST {path} HTTP/1.1\r\nhost: soak\r\nx-request-id: {name}\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            if kind is Kind.ABORT and self._chance.random() < 0.4:
                await asyncio.sleep(self._chance.random() * 0.1)
                return End.ABORTED, ""
            async with asyncio.timeout(self._settings.patience):
                reply = await _head(reader)
            self.tally.statuses[reply.status] += 1
            if kind is Kind.ABORT and reply.status == 200:
                await asyncio.sleep(self._chance.random() * 0.3)
                return End.ABORTED, ""
            try:
                await self._body(reader, reply)
            except TimeoutError:
                return End.STALLED, ""
            return _judged(kind, reply, tokens, name)
        finally:
            writer.transport.abort()

    def _request(self, kind: Kind) -> tuple[str, bytes, int]:
        """(path, body, tokens asked for). Prompts are few, so that caches are hit, and of many lengths."""
        chance = self._chance
        tokens = chance.randrange(1, self._settings.tokens + 1)
        which = chance.randrange(_PROMPTS)
        model = self._settings.model
        if kind is Kind.BAD:
            return "/v1/completions", b'{"model": "sim", "prompt": ', 0
        if kind is Kind.PLAIN:
            return "/tokenize", json.dumps({"model": model, "prompt": f"plain {which}"}).encode(), 0
        if kind is Kind.CHAT:
            messages = [{"role": "user", "content": f"{which} and on " * (1 + which)}]
            data: dict[str, object] = {"model": model, "messages": messages, "max_tokens": tokens, "stream": True}
            return "/v1/chat/completions", json.dumps(data).encode(), tokens
        ids = [1 + (which * 7 + place) % 900 for place in range(16 + (which * 37) % _LONGEST)]
        data = {"model": model, "prompt": ids, "max_tokens": tokens}
        if kind is not Kind.WHOLE:
            data |= {"stream": True, "stream_options": {"include_usage": True}}
        return "/v1/completions", json.dumps(data).encode(), tokens

    async def _body(self, reader: asyncio.StreamReader, reply: Reply) -> None:
        """Reads the body to its end; a piece of it may take `stall` seconds."""

        async def within(wanted: int | None) -> bytes:
            async with asyncio.timeout(self._settings.stall):
                try:
                    return await (reader.readline() if wanted is None else reader.readexactly(wanted))
                except asyncio.IncompleteReadError:
                    raise Broken("the body broke off", begun=True) from None
                except ConnectionError as error:
                    raise Broken(f"the body broke off: {type(error).__name__}", begun=True) from None

        if reply.headers.get(b"transfer-encoding") == b"chunked":
            while True:
                line = await within(None)
                if not line.endswith(b"\r\n"):
                    raise Broken("the body broke off", begun=True)
                size = int(line, 16)
                data = await within(size + 2)
                if not size:
                    return
                reply.body += data[:-2]
        reply.body = await within(int(reply.headers.get(b"content-length", b"0")))


async def _head(reader: asyncio.StreamReader) -> Reply:
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise Broken(f"the connection ended before the answer: {type(error).__name__}", begun=False) from None
    first, *lines = raw[:-4].split(b"\r\n")
    pairs = (line.partition(b":") for line in lines)
    return Reply(int(first.split(b" ")[1]), {name.lower(): value.strip() for name, _, value in pairs})


def _judged(kind: Kind, reply: Reply, tokens: int, name: str) -> tuple[End, str]:
    """How a whole answer is to be taken."""
    if kind is Kind.BAD:
        return (End.OK, "") if reply.status == 400 else (End.WRONG, f"{name}: {reply.status} to a broken body")
    if reply.status != 200:
        return End.WRONG, f"{name}: {reply.status} {reply.body[:300]!r}"
    if kind is Kind.WHOLE:
        got = json.loads(reply.body)["usage"]["completion_tokens"]
        return (End.OK, "") if got == tokens else (End.WRONG, f"{name}: {got} tokens of {tokens}")
    if kind in (Kind.STREAM, Kind.CHAT, Kind.ABORT):
        whole = reply.body.rstrip().endswith(b"data: [DONE]")
        return (End.OK, "") if whole else (End.WRONG, f"{name}: a whole stream without its end")
    return End.OK, ""
