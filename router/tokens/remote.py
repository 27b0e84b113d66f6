"""Token ids from the engine's own `POST /tokenize`: for a router without the model's tokenizer, or with a wrong one.

Touches the network, through `EngineHttp`. A failure never reaches the request: it is counted, and the approximate way
takes over. Bounded: seconds a call (waiting for a free slot included), calls at once, bytes sent, bytes cached. After
several failures in a row nobody is asked for a while, so that a dead engine does not cost every request its timeout.
Cost: a round trip, and on the loop about 1 ms a megabyte to write and hash the question.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from router.tokens.body import Body
from router.tokens.engine_http import EngineHttp, EngineUnreachable
from router.tokens.lru import ByteLru
from router.tokens.token_ids import BadTokenIds, Tokens, parse_ids

log = logging.getLogger(__name__)

_ENTRY_OVERHEAD = 400
_FAILURES_BEFORE_PAUSE = 3
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 30.0
_TRIES = 2


@dataclass(frozen=True, slots=True)
class Fetched:
    """What an engine said. `ids` is None when it gave none; `status` is 0 when it did not answer at all."""

    ids: Tokens | None
    status: int
    message: str = ""
    max_model_len: int | None = None


@dataclass(slots=True)
class RemoteStats:
    """Counters for the metrics. `failures` are by cause."""

    calls: int = 0
    answers: int = 0
    skipped: int = 0
    failures: dict[str, int] = field(default_factory=dict)

    def failed(self, cause: str) -> None:
        self.failures[cause] = self.failures.get(cause, 0) + 1


class _Answer(msgspec.Struct):
    tokens: msgspec.Raw
    max_model_len: int | None = None


_decoder = msgspec.json.Decoder(_Answer)
_encoder = msgspec.json.Encoder()


def question(body: Body) -> dict[str, Any] | None:
    """What to ask `/tokenize` for this body; None where even the engine could not know the prompt."""
    asked: dict[str, Any] = {} if body.model is None else {"model": body.model}
    if body.text is not None:
        return {**asked, "prompt": body.text, "add_special_tokens": body.add_special_tokens}
    chat = body.chat
    if chat is None or not chat.remote:
        return None
    asked.update(
        messages=chat.messages,
        add_generation_prompt=chat.add_generation_prompt,
        continue_final_message=chat.continue_final_message,
        add_special_tokens=chat.add_special_tokens,
    )
    if chat.tools is not None:
        asked["tools"] = chat.tools
    extra = chat.extra_variables()
    if extra:
        asked["chat_template_kwargs"] = extra
    if chat.client_template is not None:
        asked["chat_template"] = chat.client_template
    return asked


async def fetch(http: EngineHttp, base: str, asked: bytes, seconds: float) -> Fetched:
    """Ask one engine. `asked` is the JSON of the question. Raises nothing but a cancellation."""
    try:
        async with asyncio.timeout(seconds):
            answer = await http.post(base, "/tokenize", asked)
    except TimeoutError:
        return Fetched(None, 0, f"no answer within {seconds:g} s")
    except EngineUnreachable as error:
        return Fetched(None, 0, str(error))
    if answer.status != 200:
        return Fetched(None, answer.status, answer.body[:300].decode("utf-8", "replace"))
    try:
        found = _decoder.decode(answer.body)
        ids = parse_ids(found.tokens)
    except (msgspec.DecodeError, RecursionError, BadTokenIds) as error:
        return Fetched(None, answer.status, f"its answer holds no token ids: {error}")
    ids.setflags(write=False)
    return Fetched(ids, 200, max_model_len=found.max_model_len)


class _Text(msgspec.Struct):
    prompt: str


_text_decoder = msgspec.json.Decoder(_Text)


async def fetch_text(http: EngineHttp, base: str, asked: bytes, seconds: float) -> str | None:
    """Ask one engine's `/detokenize`; None if it does not say. Raises nothing but a cancellation."""
    try:
        async with asyncio.timeout(seconds):
            answer = await http.post(base, "/detokenize", asked)
    except (TimeoutError, EngineUnreachable) as error:
        log.debug("/detokenize of %s: %s", base, error or "no answer in time")
        return None
    if answer.status != 200:
        log.debug("/detokenize of %s: status %d", base, answer.status)
        return None
    try:
        return _text_decoder.decode(answer.body).prompt
    except (msgspec.MsgspecError, RecursionError):
        log.debug("/detokenize of %s: its answer holds no text", base)
        return None


class RemoteTokenizer:
    """Asks one of a model's engines, remembers the answers.

    Args:
        engines: base URLs to ask now; looked up on each call, asked in turn.
        http: shared or own; whoever made it closes it.
        timeout: seconds for a call, waiting for a slot and a second try included.
        concurrency: calls at once.
        max_bytes: longer questions are not asked.
        cache_bytes: limit of the cache.
    """

    def __init__(
        self,
        engines: Callable[[], Sequence[str]],
        http: EngineHttp,
        *,
        timeout: float = 2.0,
        concurrency: int = 16,
        max_bytes: int = 8 << 20,
        cache_bytes: int = 64 << 20,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stats = RemoteStats()
        self.lru: ByteLru[bytes, Tokens] = ByteLru(cache_bytes)
        self.timeout = timeout
        self._engines = engines
        self._http = http
        self._slots = asyncio.Semaphore(concurrency)
        self._max_bytes = max_bytes
        self._clock = clock
        self._turn = 0
        self._failures = 0
        self._pause_until = 0.0

    def prepare(self, body: Body) -> bytes | None:
        """The question as it would be sent; None where no engine could know the prompt, or it is too long to ask."""
        asked = question(body)
        if asked is None:
            return None
        try:
            raw = b"" if body.size > self._max_bytes else _encoder.encode(asked)
        except RecursionError:  # it nests more deeply than can be written
            raw = b""
        if not raw or len(raw) > self._max_bytes:
            self.stats.skipped += 1
            return None
        return raw

    def cached(self, asked: bytes) -> Tokens | None:
        """The answer to a question asked before."""
        return self.lru.get(_key(asked))

    @property
    def available(self) -> bool:
        """Whether there is somebody to ask, and they did not just fail several times in a row."""
        return self._clock() >= self._pause_until and bool(self._engines())

    async def ask(self, asked: bytes) -> Tokens | None:
        """The ids, or None after a failure, which is counted and logged."""
        if not self.available:
            self.stats.skipped += 1
            return None
        self.stats.calls += 1
        deadline = self._clock() + self.timeout
        try:
            async with asyncio.timeout(self.timeout):
                await self._slots.acquire()
        except TimeoutError:
            self.stats.failed("queue_timeout")
            return None
        try:
            return await self._ask_in_turn(asked, deadline)
        finally:
            self._slots.release()

    async def _ask_in_turn(self, asked: bytes, deadline: float) -> Tokens | None:
        engines = list(self._engines())
        self._turn += 1
        for attempt in range(min(_TRIES, len(engines))):
            base = engines[(self._turn + attempt) % len(engines)]
            left = deadline - self._clock()
            if left <= 0:
                break
            fetched = await fetch(self._http, base, asked, left)
            if fetched.ids is not None:
                self._failures = 0
                self.stats.answers += 1
                self.lru.put(_key(asked), fetched.ids, fetched.ids.nbytes + _ENTRY_OVERHEAD)
                return fetched.ids
            self.stats.failed("no_answer" if fetched.status == 0 else f"status_{fetched.status}")
            if 400 <= fetched.status < 500 and fetched.status not in (404, 405, 429):
                log.debug("%s/tokenize refused a prompt: status %d", base, fetched.status)
                return None
            # An engine's own words are not logged: they may quote the prompt.
            why = f"status {fetched.status}" if fetched.status else fetched.message
            log.warning("%s/tokenize failed, approximate tokens are used: %s", base, why)
            self._failed()
        return None

    def _failed(self) -> None:
        self._failures += 1
        over = self._failures - _FAILURES_BEFORE_PAUSE
        if over >= 0:
            self._pause_until = self._clock() + min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(over, 10))


def _key(asked: bytes) -> bytes:
    return hashlib.blake2b(asked, digest_size=16).digest()
