"""The HTTP endpoints of one simulated engine: vLLM's, and `/sim/stats`.

Checks a request, turns it into tokens (long texts in a thread: encoding releases the GIL) and hands it to the
engine.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from itertools import count
from urllib.parse import parse_qs

import numpy as np

from bench.sim import bodies
from bench.sim.answers import ChatShape, CompletionShape, Shape
from bench.sim.bodies import BadBody, StreamOptions
from bench.sim.dialects import MessagesShape, ResponsesShape
from bench.sim.engine import EngineRequest
from bench.sim.events import Publisher
from bench.sim.generation import Delivery, Generation
from bench.sim.http import Exchange
from bench.sim.l2 import RedisStore
from bench.sim.live import LiveEngine
from bench.sim.metrics import RequestTimes, exposition
from bench.sim.text import TextError, TextModel
from bench.sim.tiers import Tiers
from bench.sim.worker import SimWorker
from router.prefix.hashing import Tokens

log = logging.getLogger(__name__)

LONG_TEXT = 4_000
MOST_CHOICES = 128

Endpoint = Callable[[Exchange], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ApiConfig:
    """`default_output` bounds an answer whose length the request leaves open; `report_cached` is vLLM's
    --enable-prompt-tokens-details; with `strict_reset` a refused cache reset is a 409 instead of `success:
    false`. `adapters`: names of LoRA adapters that it serves beside the model.
    """

    model: str = "sim"
    default_output: int = 128
    report_cached: bool = True
    strict_reset: bool = False
    adapters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What an endpoint asks of the engine. `most_tokens` None: until the model is done."""

    prompts: list[Tokens]
    n: int
    most_tokens: int | None
    stream: bool
    options: StreamOptions | None
    salt: str | None
    chat: bool
    adapter: str | None = None


class Api:
    def __init__(
        self,
        live: LiveEngine,
        text: TextModel,
        config: ApiConfig,
        publisher: Publisher | None,
        worker: SimWorker | None = None,
        tiers: Tiers | None = None,
        redis: RedisStore | None = None,
    ) -> None:
        self._live = live
        self._worker = worker
        self._tiers = tiers
        self._redis = redis
        self._text = text
        self._config = config
        self._publisher = publisher
        self._times = RequestTimes()
        self._created = int(time.time())
        self._ids = count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pool = ThreadPoolExecutor(1, "tokenize")
        self._max_len = live.engine.config.max_model_len
        self._routes: dict[tuple[str, str], Endpoint | Callable[[Exchange], None]] = {
            ("POST", "/v1/completions"): self._completions,
            ("POST", "/v1/chat/completions"): self._chat,
            ("POST", "/v1/responses"): self._responses,
            ("POST", "/v1/messages"): self._messages,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
            ("GET", "/v1/models"): self._models,
            ("GET", "/health"): _empty,
            ("GET", "/ping"): _empty,
            ("POST", "/ping"): _empty,
            ("GET", "/version"): _version,
            ("GET", "/load"): self._load,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/kv_event_sources"): self._kv_event_sources,
            ("POST", "/reset_prefix_cache"): self._reset_prefix_cache,
            ("GET", "/sim/stats"): self._stats,
            ("POST", "/sim/stats/reset"): self._reset_stats,
        }
        self._paths = {path for _, path in self._routes}

    def handle(self, exchange: Exchange) -> None:
        endpoint = self._routes.get((exchange.method, exchange.path))
        if endpoint is None:
            known = exchange.path in self._paths
            exchange.json({"detail": "Method Not Allowed" if known else "Not Found"}, 405 if known else 404)
            return
        answer = endpoint(exchange)
        if answer is not None:
            task = asyncio.ensure_future(_guard(exchange, answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _completions(self, exchange: Exchange) -> None:
        body = bodies.decode(exchange.body, bodies.CompletionBody)
        adapter = self._adapter(body.model)
        if body.echo:
            raise BadBody("echo is not supported by the simulated engine", param="echo")
        prompts = [await self._ids_of(prompt, body.add_special_tokens) for prompt in bodies.prompts_of(body.prompt)]
        wanted = _Wanted(
            prompts, body.n, body.max_tokens, bool(body.stream), body.stream_options, body.cache_salt, False, adapter
        )
        request_id = f"cmpl-{_id(exchange)}"
        include = bool(body.stream_options and body.stream_options.include_usage)
        shape = CompletionShape(
            request_id,
            adapter or self._config.model,
            int(time.time()),
            include_usage=include,
            prompts=prompts if body.return_token_ids else None,
            n=body.n,
        )
        self._generate(exchange, shape, wanted, request_id)

    async def _chat(self, exchange: Exchange) -> None:
        body = bodies.decode(exchange.body, bodies.ChatBody)
        adapter = self._adapter(body.model)
        text = self._text.render(
            body.messages,
            body.tools,
            generation_prompt=body.add_generation_prompt,
            extra=body.chat_template_kwargs,
        )
        prompt = await self._ids_of(text, body.add_special_tokens)
        most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        wanted = _Wanted(
            [prompt], body.n or 1, most, bool(body.stream), body.stream_options, body.cache_salt, True, adapter
        )
        include = bool(body.stream_options and body.stream_options.include_usage)
        request_id = f"chatcmpl-{_id(exchange)}"
        shape = ChatShape(
            request_id,
            adapter or self._config.model,
            int(time.time()),
            include_usage=include,
            prompt=prompt if body.return_token_ids else None,
        )
        self._generate(exchange, shape, wanted, request_id)

    async def _responses(self, exchange: Exchange) -> None:
        body = bodies.decode(exchange.body, bodies.ResponsesBody)
        adapter = self._adapter(body.model)
        text = self._text.render(bodies.responses_messages(body), bodies.responses_tools(body.tools))
        prompt = await self._ids_of(text, False)
        wanted = _Wanted([prompt], 1, body.max_output_tokens, bool(body.stream), None, body.cache_salt, True, adapter)
        request_id = f"resp_{_id(exchange)}"
        shape = ResponsesShape(request_id, adapter or self._config.model, int(time.time()))
        self._generate(exchange, shape, wanted, request_id)

    async def _messages(self, exchange: Exchange) -> None:
        body = bodies.decode(exchange.body, bodies.MessagesBody)
        adapter = self._adapter(body.model)
        text = self._text.render(bodies.messages_messages(body), bodies.messages_tools(body.tools))
        prompt = await self._ids_of(text, False)
        wanted = _Wanted([prompt], 1, body.max_tokens, bool(body.stream), None, None, True, adapter)
        request_id = f"msg_{_id(exchange)}"
        self._generate(exchange, MessagesShape(request_id, adapter or self._config.model), wanted, request_id)

    def _generate(self, exchange: Exchange, shape: Shape, wanted: _Wanted, request_id: str) -> None:
        if exchange.gone:
            return
        if not 1 <= wanted.n <= MOST_CHOICES:
            raise BadBody(f"n must be between 1 and {MOST_CHOICES}, got {wanted.n}.", param="n")
        requests = []
        for index, prompt in enumerate(wanted.prompts):
            length, finish = self._answer_length(prompt, wanted.most_tokens)
            chat = wanted.chat or self._text.opens_a_turn(prompt)
            for choice in range(wanted.n):
                answer = self._text.answer(prompt, length, choice, chat=chat)
                own = self._own_id(request_id, wanted, index, choice)
                requests.append(EngineRequest(own, prompt, answer, finish, wanted.adapter, wanted.salt))
        continuous = bool(wanted.options and wanted.options.include_usage and wanted.options.continuous_usage_stats)
        delivery = Delivery(wanted.stream, continuous, self._config.report_cached, wanted.n)
        Generation(exchange, self._live, self._text, self._times, shape, delivery, requests).start()

    def _own_id(self, request_id: str, wanted: _Wanted, prompt: int, choice: int) -> str:
        """The engine's id of one choice: a number, or, in an imitated log, what vLLM makes of the request's id."""
        if self._worker is None:
            return f"r{next(self._ids)}"
        name = request_id if wanted.chat else f"{request_id}-{prompt}"
        return self._worker.request_id(name if wanted.n == 1 else f"{choice}_{name}")

    def _answer_length(self, ids: Tokens, most: int | None) -> tuple[int, str]:
        """How long the answer becomes, and why it ends: cut to what the context has room for. A request that asks for
        just that much leaves the length open too; what stands of the answer in the prompt counts then."""
        prompt = len(ids)
        if prompt == 0:
            raise BadBody("The prompt has no tokens.", param="prompt")
        if most is not None and most < 1:
            raise BadBody(f"max_tokens must be at least 1, got {most}.", param="max_tokens")
        if prompt >= self._max_len:
            raise BadBody(
                f"This model's maximum context length is {self._max_len} tokens. However, your prompt contains "
                f"{prompt} input tokens, which leaves no room for any output tokens. "
                "Please reduce the length of the input prompt.",
                param="input_tokens",
            )
        room = self._max_len - prompt
        if (most is None or most == room) and self._config.default_output <= room:
            return max(self._config.default_output - self._text.begun(ids), 1), "stop"
        return room if most is None else min(most, room), "length"

    async def _ids_of(self, prompt: str | list[int], special: bool) -> Tokens:
        if isinstance(prompt, str):
            if len(prompt) < LONG_TEXT:
                return self._text.encode(prompt, special=special)
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._pool, lambda: self._text.encode(prompt, special=special))
        ids = np.array(prompt, np.int64)
        if ids.min() < 0 or ids.max() >= self._text.vocab_size:
            raise BadBody(f"Token id {int(ids.max())} is out of vocabulary", param="prompt")
        return ids.astype(np.uint32)

    def _adapter(self, model: str | None) -> str | None:
        """The adapter that a request names; None for the model itself."""
        if model in self._config.adapters:
            return model
        self._check_model(model)
        return None

    def _check_model(self, model: str | None) -> None:
        if model is not None and model != self._config.model and model not in self._config.adapters:
            raise BadBody(f"The model `{model}` does not exist.", status=404, kind="NotFoundError", param="model")

    async def _tokenize(self, exchange: Exchange) -> None:
        body = bodies.decode(exchange.body, bodies.TokenizeBody)
        self._check_model(body.model)
        if body.messages is not None:
            text = self._text.render(
                body.messages,
                body.tools,
                generation_prompt=body.add_generation_prompt,
                extra=body.chat_template_kwargs,
            )
            ids = await self._ids_of(text, bool(body.add_special_tokens))
        elif body.prompt is not None:
            ids = await self._ids_of(body.prompt, body.add_special_tokens is not False)
        else:
            raise BadBody("either prompt or messages is needed", kind="Bad Request")
        tokens = ids.tolist()
        strings = [self._text.decode([token]) for token in tokens] if body.return_token_strs else None
        exchange.json({"count": len(tokens), "max_model_len": self._max_len, "tokens": tokens, "token_strs": strings})

    async def _detokenize(self, exchange: Exchange) -> None:
        body = bodies.decode(exchange.body, bodies.DetokenizeBody)
        self._check_model(body.model)
        if body.tokens and not 0 <= min(body.tokens) <= max(body.tokens) < self._text.vocab_size:
            raise BadBody("token ids out of vocabulary", param="tokens")
        exchange.json({"prompt": self._text.decode(body.tokens)})

    def _models(self, exchange: Exchange) -> None:
        cards = [self._card(self._config.model, None)]
        cards += [self._card(name, self._config.model) for name in self._config.adapters]
        exchange.json({"object": "list", "data": cards})

    def _card(self, name: str, parent: str | None) -> dict[str, object]:
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "kvctl-sim",
            "root": name,
            "parent": parent,
            "max_model_len": self._max_len if parent is None else None,
            "permission": [],
        }

    def _load(self, exchange: Exchange) -> None:
        exchange.json({"server_load": self._live.open_requests})

    def _metrics(self, exchange: Exchange) -> None:
        text = exposition(self._live, self._times, self._config.model, self._worker, self._tiers, self._redis)
        exchange.respond(text, content_type="text/plain; version=0.0.4; charset=utf-8")

    def _kv_event_sources(self, exchange: Exchange) -> None:
        exchange.json({} if self._publisher is None else {"0": self._publisher.describe()})

    def _reset_prefix_cache(self, exchange: Exchange) -> None:
        query = parse_qs(exchange.query)
        preempt = query.get("reset_running_requests", ["false"])[0].lower() in ("true", "1")
        done = self._live.reset_prefix_cache(preempt=preempt)
        if done:
            exchange.json({"success": True})
            return
        used = self._live.engine.snapshot().used_blocks
        reason = f"{used} blocks are in use"
        exchange.json({"success": False, "reason": reason}, 409 if self._config.strict_reset else 200)

    def _stats(self, exchange: Exchange) -> None:
        state = self._live.engine.snapshot()._asdict()
        counters = self._live.engine.counters
        events = None
        if self._publisher is not None:
            stats = self._publisher.stats
            events = {"batches": stats.batches, "dropped": stats.dropped, "replayed": stats.replayed}
        report = {"lag": self._live.lag.report(), "state": state, "counters": counters, "events": events}
        if self._worker is not None:
            report["lmcache"] = {"registered": self._worker.registered, "counters": self._worker.cache.counters}
        if self._tiers is not None:
            report["tiers"] = {"held": self._tiers.held, "counters": self._tiers.counters}
        if self._redis is not None:
            report["l2"] = {"up": self._redis.up, "counters": self._redis.counters}
        exchange.json(report)

    def _reset_stats(self, exchange: Exchange) -> None:
        self._live.lag.reset()
        exchange.json({})


async def _guard(exchange: Exchange, answer: Awaitable[None]) -> None:
    """Errors of an endpoint become answers."""
    try:
        await answer
    except BadBody as error:
        exchange.json(error.body(), error.status)
    except TextError as error:
        exchange.json(BadBody(str(error)).body(), 400)
    except Exception:
        log.exception("%s %s failed", exchange.method, exchange.path)
        exchange.json(BadBody("internal error", status=500, kind="InternalServerError").body(), 500)


def _id(exchange: Exchange) -> str:
    """The client's own request id, or a new one."""
    return exchange.headers.get("x-request-id") or uuid.uuid4().hex


def _empty(exchange: Exchange) -> None:
    exchange.respond(b"", content_type="text/plain")


def _version(exchange: Exchange) -> None:
    try:
        version = metadata.version("kvctl")
    except metadata.PackageNotFoundError:
        version = "0"
    exchange.json({"version": f"{version}+sim"})
