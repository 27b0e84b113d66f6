"""One model's way from a request's body to token ids: given, by the model's tokenizer here, by the engine's
`/tokenize`, or approximate. Which way was taken, and what it could not do, is part of the result.

Touches a thread pool and, through `RemoteTokenizer`, the network. What is quick is answered at once, on the loop: ids
that were given or are cached, and texts of which at most `inline_chars` characters have to be encoded (about 1 ms for
4,096). The rest goes to worker threads, where encoding releases the interpreter; rendering a long chat there does not,
so it can delay the loop by one switch interval (5 ms) at a time. A queue of more than `max_queued_chars` before those
threads is not joined: the request is routed by approximate tokens instead of waiting.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from router.model import Degraded
from router.tokens.approximate import approximate
from router.tokens.body import Body
from router.tokens.remote import RemoteTokenizer
from router.tokens.template import TemplateRejected, TemplateTooLong
from router.tokens.token_ids import NO_TOKENS, Tokens
from router.tokens.tokenizer import LocalTokenizer

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class Source(StrEnum):
    """Where the ids come from. Closed: also the label of a metric."""

    GIVEN = "given"
    LOCAL = "local"
    ENGINE = "engine"
    APPROXIMATE = "approximate"


class Cause(StrEnum):
    """Why our ids and the engine's differ, or could not be compared. Closed: also the label of a metric."""

    VOCABULARY = "vocabulary"
    BOS = "bos"
    TEMPLATE = "template"
    NO_TEMPLATE_HERE = "no_template_here"
    NO_TEMPLATE_THERE = "no_template_there"
    NO_TOKENIZE = "no_tokenize"
    NO_ANSWER = "no_answer"


@dataclass(frozen=True, slots=True)
class TokenResult:
    """`ids`: uint32, shape (n,), not to be written to. `degraded`: what the ids are not."""

    ids: Tokens
    source: Source
    degraded: tuple[Degraded, ...] = ()


@dataclass(slots=True)
class TokenStats:
    """Counters for the metrics: results by source, and why a local tokenizer was passed over."""

    given: int = 0
    local: int = 0
    engine: int = 0
    approximate: int = 0
    in_threads: int = 0
    rejected_by_template: int = 0
    template_too_long: int = 0
    not_encodable: int = 0
    queue_full: int = 0


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """What is done on the loop, and what waits at most."""

    inline_chars: int = 4096
    inline_body: int = 64 * 1024
    inline_messages: int = 32
    render_seconds: float = 1.0
    max_queued_chars: int = 16 << 20


class TokenService:
    """Token ids for one model's requests.

    Args:
        local: the model's tokenizer, if there is one here.
        remote: the engines' `/tokenize`, if they may be asked.
        pool: threads for what is long; an own pool of two is made when absent, and shut down by `close`.
    """

    def __init__(
        self,
        local: LocalTokenizer | None = None,
        remote: RemoteTokenizer | None = None,
        *,
        limits: TokenLimits | None = None,
        pool: ThreadPoolExecutor | None = None,
    ) -> None:
        self.local = local
        self.remote = remote
        self.limits = limits or TokenLimits()
        self.stats = TokenStats()
        self.distrusted: Cause | None = None
        self._distrust_text = False
        self._distrust_chat = False
        self._own_pool = pool is None
        self._pool = pool or ThreadPoolExecutor(2, thread_name_prefix="tokens")
        self._queued = 0
        self._lock = threading.Lock()

    def tokens(self, body: Body) -> TokenResult | Awaitable[TokenResult]:
        """The ids of the body's (first) prompt; an awaitable when finding them takes long. Never raises for what a
        client sent: what cannot be tokenised is approximated, and says so."""
        if body.ids is not None:
            self.stats.given += 1
            return TokenResult(body.ids, Source.GIVEN)
        if body.text is None and body.chat is None:
            return TokenResult(NO_TOKENS, Source.APPROXIMATE, (Degraded.NO_TOKENS,))
        local = self.local
        if local is not None and (body.chat is None or local.can_render(body.chat)):
            distrusted = self._distrust_text if body.chat is None else self._distrust_chat
            if not distrusted:
                return self._locally(local, body, ())
            if self.remote is None:
                return self._locally(local, body, (Degraded.APPROXIMATE_TOKENS,))
        return self._by_engine(body)

    def distrust(self, cause: Cause, *, text: bool = True, chat: bool = True) -> None:
        """From now on the engine is asked instead of the local tokenizer, for plain texts, chats or both."""
        if self.distrusted is not cause:
            log.warning("The local tokenizer is not used any more for %s: %s", _scope(text, chat), cause.value)
        self.distrusted, self._distrust_text, self._distrust_chat = cause, text, chat

    def trust(self) -> None:
        """The local tokenizer agrees with the engine (again)."""
        if self.distrusted is not None:
            log.info("The local tokenizer agrees with the engine again")
        self.distrusted, self._distrust_text, self._distrust_chat = None, False, False

    def close(self) -> None:
        if self._own_pool:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _locally(
        self, local: LocalTokenizer, body: Body, degraded: tuple[Degraded, ...]
    ) -> TokenResult | Awaitable[TokenResult]:
        limits = self.limits
        long = body.size > limits.inline_body or (
            body.chat is not None and len(body.chat.messages) > limits.inline_messages
        )
        if long:
            return self._in_thread(body, body.size, lambda: self._whole(local, body), degraded)
        try:
            text, add_special = _text(local, body, limits.render_seconds)
            partial = local.look_up(text)
            if partial.missing <= limits.inline_chars:
                return self._result(local.finish(partial, add_special), Source.LOCAL, degraded)
        except Exception as error:
            return self._after_failure(body, error)
        return self._in_thread(body, partial.missing, lambda: local.finish(partial, add_special), degraded)

    def _whole(self, local: LocalTokenizer, body: Body) -> Tokens:
        text, add_special = _text(local, body, self.limits.render_seconds)
        return local.finish(local.look_up(text), add_special)

    def _in_thread(
        self, body: Body, chars: int, work: Callable[[], Tokens], degraded: tuple[Degraded, ...]
    ) -> TokenResult | Awaitable[TokenResult]:
        with self._lock:
            full = self._queued > 0 and self._queued + chars > self.limits.max_queued_chars
            self._queued += 0 if full else chars
        if full:
            self.stats.queue_full += 1
            return self._approximately(body)
        self.stats.in_threads += 1
        return self._finish(body, self._submit(work, chars), degraded)

    def _submit(self, work: Callable[[], _Result], chars: int) -> Future[_Result]:
        def done(_: Future[_Result]) -> None:
            with self._lock:
                self._queued -= chars

        try:
            future = self._pool.submit(work)
        except RuntimeError:  # the pool is shut down
            with self._lock:
                self._queued -= chars
            raise
        future.add_done_callback(done)
        return future

    async def _finish(self, body: Body, future: Future[Tokens], degraded: tuple[Degraded, ...]) -> TokenResult:
        try:
            ids = await asyncio.wrap_future(future)
        except Exception as error:
            return self._after_failure(body, error)
        return self._result(ids, Source.LOCAL, degraded)

    def _after_failure(self, body: Body, error: Exception) -> TokenResult:
        """The engine will fail on it as well, or is not worth asking: approximate."""
        if isinstance(error, TemplateRejected):
            self.stats.rejected_by_template += 1
            log.debug("The chat template refused a chat: %s", error)
        elif isinstance(error, TemplateTooLong):
            self.stats.template_too_long += 1
            log.warning("A chat was not rendered: %s", error)
        else:
            self.stats.not_encodable += 1
            log.warning("A prompt could not be tokenised: %s: %s", type(error).__name__, error)
        return self._approximately(body)

    def _by_engine(self, body: Body) -> TokenResult | Awaitable[TokenResult]:
        remote = self.remote
        asked = None if remote is None else remote.prepare(body)
        if remote is None or asked is None:
            return self._approximately(body)
        found = remote.cached(asked)
        if found is not None:
            return self._result(found, Source.ENGINE, ())
        if not remote.available:
            remote.stats.skipped += 1
            return self._approximately(body)
        return self._ask(remote, body, asked)

    async def _ask(self, remote: RemoteTokenizer, body: Body, asked: bytes) -> TokenResult:
        ids = await remote.ask(asked)
        return self._approximately(body) if ids is None else self._result(ids, Source.ENGINE, ())

    def _approximately(self, body: Body) -> TokenResult:
        return self._result(approximate(body), Source.APPROXIMATE, (Degraded.APPROXIMATE_TOKENS,))

    def _result(self, ids: Tokens, source: Source, degraded: tuple[Degraded, ...]) -> TokenResult:
        if source is Source.LOCAL:
            self.stats.local += 1
        elif source is Source.ENGINE:
            self.stats.engine += 1
        else:
            self.stats.approximate += 1
        return TokenResult(ids, source, degraded)


def _text(local: LocalTokenizer, body: Body, render_seconds: float) -> tuple[str, bool]:
    """The text to encode, and whether the post-processor adds its special tokens."""
    if body.chat is None:
        assert body.text is not None
        return body.text, body.add_special_tokens
    return local.render(body.chat, render_seconds), body.chat.add_special_tokens


def _scope(text: bool, chat: bool) -> str:
    return "texts and chats" if text and chat else "texts" if text else "chats"
