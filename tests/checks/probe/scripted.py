"""A scripted router and engines over HTTP on loopback, and snapshots of them.

An engine keeps the prompts it has seen and counts as vLLM does; a token is four characters. The router takes requests
as it is told to, one thread a connection, and remembers what it was sent.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from checks.metrics.view import Metrics
from checks.model import Reason, Stack
from checks.probe.options import ProbeOptions
from checks.probe.session import probed
from checks.probe_evidence import ProbeEvidence
from checks.request import CollectRequest, LogFile
from checks.snapshot import Container, Member, Role, Snapshot
from checks.sources.tape import Tape

BLOCK = 16
MODEL = "m"


def tokens_of(text: str) -> int:
    return len(text) // 4


@dataclass
class Engine:
    """What one engine has seen. `shared` is a second tier that engines have in common."""

    name: str
    shared: set[str] | None = None
    waiting: float = 0
    usage: float = 0.1
    counts: dict[str, int] = field(
        default_factory=lambda: {"done": 0, "queries": 0, "hits": 0, "external": 0, "tokens": 0}
    )
    seen: list[str] = field(default_factory=list)
    url: str = ""

    def serve(self, text: str) -> tuple[int, int]:
        """Tokens of the prompt, and how many of them were in a cache, in whole blocks."""
        tokens = tokens_of(text)
        most = (tokens - 1) // BLOCK * BLOCK
        cached = max((self._common(text, old) for old in self.seen), default=0)
        cached = min(cached, most)
        self.counts["queries"] += tokens
        self.counts["hits"] += cached
        if self.shared is not None:
            brought = most if text in self.shared else 0
            if brought > cached:
                self.counts["external"] += brought - cached
                cached = brought
            self.shared.add(text)
        self.seen.append(text)
        self.counts["done"] += 1
        self.counts["tokens"] += tokens
        return tokens, cached

    @staticmethod
    def _common(one: str, other: str) -> int:
        alike = next((at for at, pair in enumerate(zip(one, other)) if pair[0] != pair[1]), min(len(one), len(other)))
        return alike // 4 // BLOCK * BLOCK

    def page(self) -> str:
        counts = self.counts
        lines = [
            f'vllm:cache_config_info{{block_size="{BLOCK}",enable_prefix_caching="True"}} 1',
            f"vllm:num_requests_waiting {self.waiting}",
            f"vllm:kv_cache_usage_perc {self.usage}",
            f'vllm:request_success_total{{finished_reason="length"}} {counts["done"]}',
            f"vllm:prefix_cache_queries_total {counts['queries']}",
            f"vllm:prefix_cache_hits_total {counts['hits']}",
            f"vllm:prompt_tokens_total {counts['tokens']}",
        ]
        if self.shared is not None:
            lines.append(f"vllm:external_prefix_cache_hits_total {counts['external']}")
        return "# TYPE vllm:num_requests_waiting gauge\n" + "\n".join(lines) + "\n"


Choice = Callable[[str, list[Engine]], Engine]


def sticky() -> Choice:
    """By the prompt's first 64 characters; new ones go round."""
    known: dict[str, Engine] = {}
    following = itertools.count()

    def choose(text: str, engines: list[Engine]) -> Engine:
        return known.setdefault(text[:64], engines[next(following) % len(engines)])

    return choose


def by_turns() -> Choice:
    following = itertools.count()
    return lambda text, engines: engines[next(following) % len(engines)]


def by_lot(seed: int) -> Choice:
    lots = random.Random(seed)
    return lambda text, engines: lots.choice(engines)


def always_first() -> Choice:
    return lambda text, engines: engines[0]


@dataclass
class Fleet:
    """Engines and the router before them; the fields say how it behaves."""

    choose: Choice
    engines: list[Engine]
    header: str = "x-kvctl-worker"
    """In which the router names the worker; '' for none."""
    details: bool = True
    """Usage tells cached tokens."""
    status: Callable[[int], int] = lambda number: 200
    """Status of the n-th request, from 1."""
    hang: bool = False
    cut: bool = False
    chat: bool = True
    page: Callable[[], str] = lambda: ""
    """The router's own metrics."""
    before: Callable[[int], None] = lambda number: None
    """Called before the n-th request is served."""
    log: Path | None = None
    """Where the router writes a line a request."""
    found_line: str = ""
    """Written before the line of a request whose prompt an engine had."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    most_at_once: int = 0
    closed_early: threading.Event = field(default_factory=threading.Event)
    router: str = ""
    _at_once: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def prompts(self) -> list[str]:
        return [body["prompt"] if "prompt" in body else body["messages"][0]["content"] for body in self.bodies]

    def route(self, handler: _Handler, path: str, body: dict[str, Any]) -> None:
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            self.bodies.append(body)
            self.ids.append(handler.headers.get("X-Request-Id", ""))
            number = len(self.bodies)
        try:
            self._route(handler, path, body, number)
        finally:
            with self._lock:
                self._at_once -= 1

    def _route(self, handler: _Handler, path: str, body: dict[str, Any], number: int) -> None:
        self.before(number)
        status = self.status(number)
        if self.hang:
            with contextlib.suppress(OSError):
                handler.connection.settimeout(20)
                if not handler.connection.recv(1):
                    self.closed_early.set()
            return
        if status != 200 or (path.endswith("chat/completions") and not self.chat):
            handler.answer(status if status != 200 else 400, {"error": {"message": "sorry, no"}})
            return
        text = self.prompts()[number - 1]
        known = [engine for engine in self.engines if text in engine.seen]
        engine = self.choose(text, self.engines)
        tokens, cached = engine.serve(text)
        if self.log is not None:
            self._write(engine, handler.headers.get("X-Request-Id", ""), bool(known))
        usage: dict[str, Any] = {"prompt_tokens": tokens, "completion_tokens": 1, "total_tokens": tokens + 1}
        if self.details:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        headers = {self.header: engine.name} if self.header else {}
        handler.complete(body, usage, headers, cut=self.cut)

    def _write(self, engine: Engine, request_id: str, found: bool) -> None:
        assert self.log is not None
        text = f"Routing request {request_id} with session id None to {engine.url} at 1.0"
        with self.log.open("a") as file:
            if found and self.found_line:
                file.write(f"[2026-08-01 10:01:00,000] INFO: {self.found_line}\n")
            file.write(f"[2026-08-01 10:01:00,001] INFO: {text}\n")


class _Handler(BaseHTTPRequestHandler):
    """Of one router or engine."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    fleet: Fleet
    engine: Engine | None = None

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        page = self.fleet.page() if self.engine is None else self.engine.page()
        self._send(200, page.encode(), "text/plain")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.engine is None:
            self.fleet.route(self, self.path, body)
            return
        self.fleet.ids.append(self.headers.get("X-Request-Id", ""))
        tokens, cached = self.engine.serve(body["prompt"])
        details = {"prompt_tokens_details": {"cached_tokens": cached}} if self.fleet.details else {}
        self.complete(body, {"prompt_tokens": tokens} | details, {}, cut=False)

    def answer(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        self._send(status, json.dumps(value).encode(), "application/json", headers)

    def complete(self, body: dict[str, Any], usage: dict[str, Any], headers: dict[str, str], *, cut: bool) -> None:
        if body.get("stream"):
            events = [{"choices": [{"text": "x"}]}, {"choices": [], "usage": usage}]
            text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
            self._send(200, text.encode(), "text/event-stream", headers)
            return
        data = json.dumps({"choices": [{"text": "x"}], "usage": usage}).encode()
        if cut:
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self._send(200, data, "application/json", headers)

    def _send(self, status: int, data: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


@contextlib.contextmanager
def running(fleet: Fleet) -> Iterator[Fleet]:
    """The router and its engines on free ports."""
    servers = []

    def start(engine: Engine | None) -> str:
        handler = type("Handler", (_Handler,), {"fleet": fleet, "engine": engine})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    try:
        for engine in fleet.engines:
            engine.url = start(engine)
        fleet.router = start(None)
        yield fleet
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def fleet(choose: Choice, count: int = 3, **behaviour: Any) -> Fleet:
    return Fleet(choose, [Engine(f"e{number}") for number in range(count)], **behaviour)


def members(
    of: Fleet, *, router_args: tuple[str, ...] = (), env: dict[str, str] | None = None, workers: bool = True
) -> tuple[Member, ...]:
    listed = {"/v1/models": {"data": [{"id": MODEL, "max_model_len": 8192}]}}
    router = Member(
        Role.ROUTER, "router", kind="Process", url=of.router, answers=listed, container=Container(args=router_args)
    )
    told = Container(env=env or {})
    engines = [
        Member(Role.WORKER, one.name, kind="Process", url=one.url, answers=listed, model=MODEL, container=told)
        for one in of.engines
    ]
    return (router, *(engines if workers else ()))


def snapshot(of: Fleet, **how: Any) -> Snapshot:
    """What a collection would have found; no metrics, so that the probe reads its own."""
    return Snapshot(
        stack=Stack.PRODUCTION_STACK,
        members=members(of, **how),
        now=time.time(),
        cluster=False,
        metrics=Metrics(missing=Reason.NO_DATA),
    )


def request(of: Fleet) -> CollectRequest:
    logs = () if of.log is None else (LogFile(Role.ROUTER, "router", str(of.log)),)
    return CollectRequest(routers=(of.router,), workers=tuple(one.url for one in of.engines), log_files=logs)


def after(of: Fleet, options: ProbeOptions | None = None, tape: Tape | None = None, **how: Any) -> Snapshot:
    """The snapshot with what a probe of the running fleet saw."""
    return probed(snapshot(of, **how), request(of), tape or Tape.live(), options or ProbeOptions())


def evidence(of: Snapshot) -> ProbeEvidence:
    assert of.probe is not None
    return of.probe
