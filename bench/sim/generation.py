"""One HTTP request in the engine: its sequences, and the way of their tokens to the client.

Every step's tokens of a request leave in one write. A client that leaves aborts all its sequences at once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench.sim.answers import Choice, Shape, Usage
from bench.sim.engine import EngineRequest, Output
from bench.sim.http import Exchange
from bench.sim.live import LiveEngine
from bench.sim.metrics import RequestTimes
from bench.sim.text import TextModel

EVENT_STREAM = "text/event-stream; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Delivery:
    """How the client wants the answer. `prompts` of them share the counted prompt tokens, with `n` choices
    each.
    """

    stream: bool
    continuous_usage: bool
    report_cached: bool
    n: int


class Generation:
    """Choice i belongs to `requests[i]`; prompt i // n.

    The cached tokens are those of one prompt, as vLLM reports them: of a stream the one that answers first, of a
    whole answer the last.
    """

    def __init__(
        self,
        exchange: Exchange,
        live: LiveEngine,
        text: TextModel,
        times: RequestTimes,
        shape: Shape,
        delivery: Delivery,
        requests: list[EngineRequest],
    ) -> None:
        self._exchange = exchange
        self._live = live
        self._text = text
        self._times = times
        self._shape = shape
        self._delivery = delivery
        self._requests = requests
        self._choice = {request.id: index for index, request in enumerate(requests)}
        self._tokens: list[list[int]] = [[] for _ in requests]
        self._finish: list[str | None] = [None] * len(requests)
        self._last = [0.0] * len(requests)
        self._prompt_tokens = sum(len(request.prompt) for request in requests[:: delivery.n])
        self._generated = 0
        self._cached = 0
        self._left = len(requests)
        self._pending = bytearray()
        self._began = time.monotonic()

    def start(self) -> None:
        """Queue the sequences; a stream's head goes out now, as from the real server."""
        self._exchange.on_gone = self._abort
        if self._delivery.stream:
            self._exchange.start(EVENT_STREAM, b"")
        for request in self._requests:
            self._live.submit(request, self)

    def token(self, output: Output, now: float) -> None:
        index = self._choice[output.id]
        self._tokens[index].append(output.token)
        self._generated += 1
        first = output.position == 0
        if first:
            self._times.ttft.observe(now - self._began)
            if self._reports(index):
                self._cached = output.cached
        else:
            self._times.itl.observe(now - self._last[index])
        self._last[index] = now
        if output.finish is not None:
            self._finish[index] = output.finish
            self._left -= 1
            self._times.e2e.observe(now - self._began)
        if self._delivery.stream:
            if first:
                self._pending += self._shape.opening(index, self._usage())
            running = self._usage() if self._delivery.continuous_usage else None
            piece = self._text.piece_json(output.token)
            self._pending += self._shape.token(index, piece, output.finish, running, output.token)

    def flush(self) -> None:
        if self._left:
            if self._pending:
                self._exchange.write(bytes(self._pending))
                self._pending.clear()
            return
        if not self._delivery.stream:
            self._exchange.respond(self._shape.whole(self._choices(), self._usage()))
            return
        self._pending += self._shape.closing(self._choices(), self._usage())
        self._exchange.finish(bytes(self._pending))

    def _reports(self, choice: int) -> bool:
        """Whether the cached tokens of this choice, which has just begun, are those of the usage."""
        if self._delivery.stream:
            return self._generated == 1
        return choice == len(self._requests) - self._delivery.n

    def _choices(self) -> list[Choice]:
        piece = self._text.piece
        return [
            Choice("".join(map(piece, tokens)), finish or "")
            for tokens, finish in zip(self._tokens, self._finish, strict=True)
        ]

    def _usage(self) -> Usage:
        cached = self._cached if self._delivery.report_cached else None
        return Usage(self._prompt_tokens, self._generated, cached)

    def _abort(self) -> None:
        for request in self._requests:
            self._live.abort(request.id)
