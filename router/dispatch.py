"""Where a request goes: the data plane's `Dispatcher`.

Has the request read (`router.reading`), asks the tokens room for ids where the mode needs
blocks, lets the core decide and books at once. Synchronous from parsing to booking unless the body is large or
tokenising has to wait.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from router.aliases import with_model
from router.answers import OwnAnswers
from router.callers.entrance import Entrance
from router.callers.gate import CREDENTIALS, Unauthorized
from router.core import RoutingCore
from router.fleet.breaker import Breaker
from router.fleet.monitor import FleetMonitor
from router.fleet.worker import Circuit, Health
from router.journal.record import RequestRecord
from router.legs import RoutedLeg
from router.load import Booking
from router.metrics import RouterStats
from router.migration import Migrations
from router.model import Decision, Degraded, Need, RouteRequest, RoutingError
from router.model_tokens import ModelTokens
from router.policies.kv_aware import KvAware, announce
from router.proxy.errors import error_answer
from router.proxy.interface import Answer, Inbound, Leg, Outcome
from router.proxy.request_ids import given
from router.reading import DispatchSettings, RequestReader, model_in
from router.records import DecisionLog, Refusal
from router.retry import CONTENT_PATHS, COSTS_NOTHING, ENGINE_PATHS, RetryBudget, repeatable
from router.reuse import best_cached_tokens
from router.secret import Secret, bearer
from router.shadow import Shadows
from router.shared.blocks import shared_model
from router.shared.lookup import RedisLookup
from router.tokens.body import Body, parse
from router.tokens.service import Source, TokenResult
from router.waiting import Waiting, WaitingRoom, settled

if TYPE_CHECKING:
    from router.journal.traces import Traces

TRACE_HEADERS = (b"traceparent", b"tracestate")
_REQUEST_ID = b"x-request-id"
# Looked up once: in Python 3.11 a member of an enum costs a tenth of a microsecond each time.
_OK, _UP, _CLOSED, _BLOCKS = Outcome.OK, Health.UP, Circuit.CLOSED, Need.BLOCKS
_BROKEN = (Outcome.CUT, Outcome.IDLE_TIMEOUT, Outcome.BAD_RESPONSE)
_PARSED_AT_ONCE = 256 * 1024


class RequestDispatcher:
    def __init__(
        self,
        core: RoutingCore,
        monitor: FleetMonitor,
        tokens: ModelTokens,
        log: DecisionLog,
        stats: RouterStats,
        settings: DispatchSettings,
        clock: Callable[[], float],
        shadows: Shadows | None = None,
        lookup: RedisLookup | None = None,
        breaker: Breaker | None = None,
        entrance: Entrance | None = None,
        traces: Traces | None = None,
        upstream_key: Secret | None = None,
    ) -> None:
        self.core = core
        self.monitor = monitor
        self.tokens = tokens
        self.log = log
        self.stats = stats
        self.settings = settings
        self.shadows = shadows
        self.lookup = lookup
        self.breaker = breaker
        self.entrance = entrance
        self.traces = traces
        self._without: tuple[bytes, ...] = CREDENTIALS if entrance is not None or upstream_key is not None else ()
        self._credentials = b"" if upstream_key is None else b"authorization: %b\r\n" % bearer(upstream_key).encode()
        self.budget = RetryBudget(settings.retry)
        self.waiting = WaitingRoom(settings.admission, clock, self._refuse, core.home)
        self._clock = clock
        self._parser = ThreadPoolExecutor(1, thread_name_prefix="bodies")
        self._prefix = os.urandom(4).hex()
        self.reader = RequestReader(core, settings, self._prefix)
        self.migrations = Migrations(settings.migration, tokens) if settings.migration.limit else None
        self.looks_up = lookup is not None
        self.own = OwnAnswers(core, settings.aliases)
        admission = settings.admission
        self._limited = admission.limit > 0 or admission.tenant_limit is not None
        """Whether anything here can hold a request back: else no request is counted or queued."""
        self._counts = core.settings.track_output or core.timing is not None or core.capacity is not None
        self._counts |= entrance is not None
        self._count = 0
        self._retried = 0

    def close(self) -> None:
        self._parser.shutdown(wait=False, cancel_futures=True)

    # -- the data plane's calls --------------------------------------------------------------------------------

    def dispatch(self, inbound: Inbound) -> Answer | Leg | Awaitable[Answer | Leg]:
        path = inbound.path
        inbound.arrived = self._clock()
        allowed: frozenset[str] | None = None
        try:
            if self.entrance is not None:
                allowed = self.entrance.enter(inbound)
            if inbound.method in ("GET", "HEAD"):
                own = self.own.answer(path, allowed)
                if own is not None:
                    return own
            if path in CONTENT_PATHS and inbound.method == "POST":
                return self._content(inbound)
            if (path.startswith("/v1/") and not _climbs(path)) or path in ENGINE_PATHS:
                return self._pass_on(inbound)
        except RoutingError as error:
            return self._refuse(error, inbound)
        return error_answer(404, f"no such path: {inbound.method} {path[:200]}", "not_found")

    def retry(self, inbound: Inbound, failed: Leg, outcome: Outcome) -> Answer | Leg | Awaitable[Answer | Leg]:
        """Another worker for a request that has not begun; where all are busy it queues, if there is a queue."""
        assert isinstance(failed, RoutedLeg)
        request = failed.request
        request.tried = request.tried | {failed.worker.id}
        attempts, retry = len(request.tried), self.settings.retry
        what = f"worker '{failed.worker.id}' failed before its first byte ({outcome})"
        status = 504 if outcome in (Outcome.CONNECT_TIMEOUT, Outcome.FIRST_BYTE_TIMEOUT) else 502
        if request.pin_worker is not None:
            return self._failed(status, f"{what}; the request is pinned to it")
        if attempts >= retry.attempts or (outcome is Outcome.FIRST_BYTE_TIMEOUT and attempts > 1):
            return self._failed(status, f"{what}; {attempts} workers were tried")
        if outcome is not COSTS_NOTHING:
            if not failed.repeatable:
                return self._failed(
                    status, f"{what}; what the request did there may stay, so it is not sent again (--retry-any does)"
                )
            if not self.budget.take(self._count - self._retried, self._clock()):
                return self._out_of_budget(what)
        try:
            placed = self._admit(inbound, request, failed.decision.mode, watch=failed.watch)
        except RoutingError:
            return self._failed(status, f"{what}; no other worker can serve the request")
        self._retried += 1
        return placed

    def go_on(self, inbound: Inbound, failed: Leg, outcome: Outcome) -> Answer | Leg | Awaitable[Answer | Leg]:
        assert isinstance(failed, RoutedLeg) and self.migrations is not None
        return self.migrations.go_on(self, inbound, failed, outcome)

    def elsewhere(self, inbound: Inbound, leg: Leg) -> Leg | None:
        assert isinstance(leg, RoutedLeg)
        request, now = leg.request, self._clock()
        attempts = len(request.tried) + 1
        if request.pin_worker is not None or not leg.repeatable or attempts >= self.settings.retry.attempts:
            return None
        if not self.budget.take(self._count - self._retried, now):
            return None
        before = request.tried
        request.tried = before | {leg.worker.id}
        try:
            placed = self._place(inbound, request, leg.decision.mode, watch=leg.watch)
        except RoutingError:
            request.tried = before
            return None
        self._retried += 1
        return placed

    def first_token(self, leg: RoutedLeg, now: float) -> None:
        self.core.first_token(leg.booking, now - leg.placed, now)
        if self._limited:
            self.waiting.poke()

    def reported(self, leg: RoutedLeg, cached_tokens: int) -> None:
        now = self._clock()
        self.core.reported(leg.request, leg.decision, leg.booking, leg.worker, cached_tokens, now)

    def leg_ended(self, leg: RoutedLeg, outcome: Outcome) -> None:
        if outcome is _OK and leg.gap_s:
            self.core.streamed(leg.booking, leg.gap_s, leg.booking.output_tokens)
        now, worker = self._clock(), leg.worker
        self.core.finished(leg.request, now)
        if self._limited:
            self.waiting.tenants.ended(leg.request.hints.tenant)
            self.waiting.poke()
        if not worker.removed:
            self.stats.leg_ended(worker.id, outcome)
            if self.breaker is not None:
                self.breaker.ended(worker, outcome, leg.placed, now)
            if worker.health is _UP:
                self.core.ended(leg.booking, worker, now)
        if outcome is _OK:
            return
        if self.migrations is not None and leg.request.unfollowed and outcome in _BROKEN:
            self.migrations.broke_unfollowed(leg, outcome)
        if outcome in (Outcome.CONNECT_FAILED, Outcome.CONNECT_TIMEOUT):
            self.monitor.connection_failed(leg.worker, f"a request could not reach it ({outcome})")
        elif outcome in (Outcome.RESET, Outcome.CUT, Outcome.BAD_RESPONSE):
            self.monitor.suspect(leg.worker)

    # -- what a stream needs that goes on elsewhere: router.migration.Placer ------------------------------------

    def may_retry(self, outcome: Outcome) -> bool:
        return outcome is COSTS_NOTHING or self.budget.take(self._count - self._retried, self._clock())

    def context(self, model: str) -> int | None:
        members = self.core.fleet.view.members
        told = [worker.max_model_len for worker in members if worker.serves(model) and worker.max_model_len]
        return min(told, default=None)

    def read(self, request: RouteRequest, body: Body, mode: str) -> None:
        if self._needs_blocks(mode):
            assert body.ids is not None
            self.reader.take_tokens(request, body, TokenResult(body.ids, Source.GIVEN))

    async def look_up(self, request: RouteRequest, body: Body) -> None:
        if self.lookup is not None and request.keys:
            assert body.ids is not None
            await self._look_up(self.lookup, request, body, TokenResult(body.ids, Source.GIVEN))

    def again(self, inbound: Inbound, request: RouteRequest, mode: str) -> Leg | Awaitable[Answer | Leg]:
        placed = self._admit(inbound, request, mode, watch=True)
        self._retried += 1
        return placed

    # -- explain -----------------------------------------------------------------------------------------------

    async def explain(self, path: str, body: bytes, mode: str | None) -> Decision:
        """The decision `body` would get now. Nothing is booked and nothing is sent.

        Raises:
            RoutingError: as a request would be refused.
        """
        parsed = parse(path, body)
        request, _mode = self.reader.request([], body, parsed)
        parsed.model = self.settings.aliases.get(parsed.model or "", parsed.model)
        request.id, request.model = "explain", self.reader.model(parsed)
        name = self.reader.mode(mode) if mode else self.settings.mode
        if _BLOCKS in self.core.policy(name).needs:
            result = self.tokens.tokens(request.model, parsed)
            tokens = await result if isinstance(result, Awaitable) else result
            self.reader.take_tokens(request, parsed, tokens)
            if self.lookup is not None:
                await self._look_up(self.lookup, request, parsed, tokens)
        decision = self._decide(request, name)
        decision.at = time.time()
        return decision

    # -- steps -------------------------------------------------------------------------------------------------

    def _content(self, inbound: Inbound) -> Leg | Awaitable[Answer | Leg]:
        started = time.perf_counter()
        if len(inbound.body) > _PARSED_AT_ONCE:
            return self._when_parsed(inbound, started)
        return self._parsed(inbound, parse(inbound.path, inbound.body), started)

    async def _when_parsed(self, inbound: Inbound, started: float) -> Answer | Leg:
        """A large body is read in a thread, so that other requests are not held up by it for as long as it takes."""
        try:
            body = await asyncio.get_running_loop().run_in_executor(self._parser, parse, inbound.path, inbound.body)
            placed = self._parsed(inbound, body, started)
            if isinstance(placed, asyncio.Future):
                return await settled(placed)
            return await placed if isinstance(placed, Awaitable) else placed
        except RoutingError as error:
            return self._refuse(error, inbound)

    def _parsed(self, inbound: Inbound, body: Body, started: float) -> Leg | Awaitable[Answer | Leg]:
        request, mode = self.reader.request(inbound.headers, inbound.body, body)
        inbound.request_id = request.id
        if self.entrance is not None:
            self.entrance.identify(inbound, request, body.model or self.settings.model, body)
        if body.model is not None and body.model in self.settings.aliases:
            body.model = self.settings.aliases[body.model]
            inbound.body = with_model(inbound.body, body.model)
        request.model = self.reader.model(body)
        if self.migrations is not None and body.stream:
            self.migrations.follow(inbound, request, body)
        if not self._needs_blocks(mode):
            return self._admit(inbound, request, mode, watch=True)
        result = self.tokens.tokens(request.model, body)
        if isinstance(result, TokenResult):
            self._tokenised(inbound, started)
            self.reader.take_tokens(request, body, result)
            if self.lookup is None:
                return self._admit(inbound, request, mode, watch=True)
            return self._when_looked_up(self.lookup, inbound, request, mode, body, result)
        return self._when_tokenised(inbound, request, mode, body, result, started)

    def _needs_blocks(self, mode: str) -> bool:
        return _BLOCKS in self.core.policy(mode).needs or self.shadows is not None

    def _tokenised(self, inbound: Inbound, started: float) -> None:
        took = time.perf_counter() - started
        self.stats.tokenize.observe(took)
        record = inbound.record
        if record is not None:
            assert isinstance(record, RequestRecord)
            record.tokenise_s = took

    async def _when_looked_up(
        self, lookup: RedisLookup, inbound: Inbound, request: RouteRequest, mode: str, body: Body, tokens: TokenResult
    ) -> Answer | Leg:
        try:
            await self._look_up(lookup, request, body, tokens)
            admitted = self._admit(inbound, request, mode, watch=True)
            return await settled(admitted) if isinstance(admitted, asyncio.Future) else admitted
        except RoutingError as error:
            return self._refuse(error, inbound)

    async def _when_tokenised(
        self,
        inbound: Inbound,
        request: RouteRequest,
        mode: str,
        body: Body,
        result: Awaitable[TokenResult],
        started: float,
    ) -> Answer | Leg:
        try:
            tokens = await result
            self._tokenised(inbound, started)
            self.reader.take_tokens(request, body, tokens)
            if self.lookup is not None:
                await self._look_up(self.lookup, request, body, tokens)
            admitted = self._admit(inbound, request, mode, watch=True)
            return await settled(admitted) if isinstance(admitted, asyncio.Future) else admitted
        except RoutingError as error:
            return self._refuse(error, inbound)

    def _pass_on(self, inbound: Inbound) -> Leg | Waiting:
        """A path whose content is not read: routed by load, or as the mode does without tokens."""
        request, mode = self.reader.request(inbound.headers)
        inbound.request_id = request.id
        request.model = self.settings.model or ""
        if inbound.body:
            request.model = model_in(inbound.body)
        if self.entrance is not None:
            self.entrance.identify(inbound, request, request.model or self.settings.model, None)
        if inbound.body:
            if request.model in self.settings.aliases:
                request.model = self.settings.aliases[request.model]
                inbound.body = with_model(inbound.body, request.model)
            self.reader.check_model(request.model)
        return self._admit(inbound, request, mode, watch=False)

    async def _look_up(self, lookup: RedisLookup, request: RouteRequest, body: Body, tokens: TokenResult) -> None:
        """Ask the shared store for the prompt's blocks; ids that are no true ones cannot name them."""
        if tokens.source is Source.APPROXIMATE or request.own_keys is not None:
            return
        view = self.core.fleet.view
        lora = request.model if request.model in view.adapters else None
        model = shared_model(view, request.model)
        request.shared, sure = await lookup.depths(model, tokens.ids, request.keys, lora, body.cache_salt)
        if not sure:
            request.degraded = (*request.degraded, Degraded.SHARED_CACHE_UNREACHABLE)

    def _decide(self, request: RouteRequest, mode: str) -> Decision:
        started = time.perf_counter()
        decision = self.core.decide(request, mode, self._clock())
        decision.decide_us = (time.perf_counter() - started) * 1e6
        return decision

    def _admit(self, inbound: Inbound, request: RouteRequest, mode: str, *, watch: bool) -> Leg | Waiting:
        """Places the request, or lets it wait its turn where a queue is set up and everybody is busy."""
        try:
            if self.entrance is not None:
                self.entrance.charge(inbound, request)
            if not self._limited:
                return self._place(inbound, request, mode, watch=watch)
            return self.waiting.admit(
                request,
                lambda: self._uncached(request),
                inbound.arrived,
                lambda: self._place(inbound, request, mode, watch=watch),
                mode,
            )
        except RoutingError as error:
            error.request, error.mode = request, mode
            raise

    def _uncached(self, request: RouteRequest) -> int:
        """Prompt tokens that the best eligible or busy worker would have to compute."""
        rows = self.core.candidates(request, self._clock())
        held = rows.device * rows.block_size
        return request.prompt_tokens - (int(held.max()) if len(held) else 0)

    def _place(self, inbound: Inbound, request: RouteRequest, mode: str, *, watch: bool) -> Leg:
        decision = self._decide(request, mode)
        self._count += 1
        decision.id = f"d-{self._prefix}{self._count:x}"
        booking = self.core.book(decision, request, decision.at)
        if self._limited:
            self.waiting.tenants.began(request.hints.tenant)
        try:
            return self._booked(inbound, request, decision, booking, watch=watch)
        except BaseException:
            booking.release()
            self.core.finished(request, self._clock())
            self.waiting.tenants.ended(request.hints.tenant)
            raise

    def _booked(
        self, inbound: Inbound, request: RouteRequest, decision: Decision, booking: Booking, *, watch: bool
    ) -> Leg:
        decision.at = time.time()
        decision.waited_s = request.waited_s
        decision.migration = request.migration
        worker = self.core.fleet.view.members[decision.winner]
        self.log.add(decision)
        if decision.mode == KvAware.name:
            announce(decision)
        if self.shadows is not None:
            self.shadows.saw(request, decision)
        self.stats.decided(decision, best_cached_tokens(decision))
        id_line = b"x-request-id: %b\r\n" % request.id.encode("latin-1", "replace")
        upstream, without = self._credentials, self._without
        sent_id = None if self.reader.plain(inbound.headers) else inbound.header(_REQUEST_ID)
        if sent_id != request.id:
            upstream += id_line
            if sent_id is not None:
                without += (_REQUEST_ID,)
        if self.traces is not None and isinstance(inbound.record, RequestRecord):
            upstream += self.traces.upstream(inbound.record)
            without += TRACE_HEADERS
        if worker.ranks > 1:
            upstream += b"x-data-parallel-rank: %d\r\n" % decision.rank
        if worker.circuit is not _CLOSED and self.breaker is not None:
            self.breaker.placed(worker)
        return RoutedLeg(
            self,
            worker,
            request,
            decision,
            booking,
            arrived=inbound.arrived,
            clock=self._clock,
            head_lines=b"x-kvctl-worker: %b\r\nx-kvctl-decision: %b\r\n%b"
            % (worker.id.encode(), decision.id.encode(), id_line),
            upstream_lines=upstream,
            watch=watch,
            counts=self._counts,
            without=without,
            repeatable=watch or self.settings.retry.any or repeatable(inbound),
        )

    def _refuse(self, error: RoutingError, inbound: Inbound | None = None) -> Answer:
        self.stats.refused[error.code] += 1
        headers = error.headers
        if not isinstance(error, Unauthorized):
            headers = (*headers, ("x-kvctl-decision", self._keep_refusal(error, inbound)))
        return error_answer(
            error.status,
            str(error),
            error.code,
            param=error.param,
            extra=error.extra,
            headers=headers,
            retry_after=error.retry_after,
        )

    def _keep_refusal(self, error: RoutingError, inbound: Inbound | None) -> str:
        """Returns the id by which it can be asked for."""
        request = error.request
        if inbound is not None and not inbound.request_id:
            inbound.request_id = given(inbound.headers) or (request.id if request is not None else self.reader.new_id())
        self._count += 1
        refusal = Refusal(
            id=f"d-{self._prefix}{self._count:x}",
            request_id=request.id if request is not None else inbound.request_id if inbound is not None else "",
            mode=error.mode or self.settings.mode,
            model="" if request is None else request.model,
            at=time.time(),
            error=error,
            prompt_tokens=0 if request is None else request.prompt_tokens,
            waited_s=0.0 if request is None else request.waited_s,
        )
        self.log.refuse(refusal)
        return refusal.id

    def _out_of_budget(self, what: str) -> Answer:
        self.stats.refused["retry_budget"] += 1
        retry = self.settings.retry
        limits = f"--retry-budget {retry.share:g} of the requests and --retry-floor {retry.floor:g} a second"
        left = self.budget.left(self._count - self._retried, self._clock())
        return error_answer(
            502,
            f"{what}; the retry budget is used up ({limits})",
            "retry_budget",
            extra={"limit": "retry-budget", "value": retry.share, "current": round(left, 3)},
        )

    def _failed(self, status: int, message: str) -> Answer:
        code = "engine_timeout" if status == 504 else "engine_failed"
        self.stats.refused[code] += 1
        return error_answer(status, message, code)


def _climbs(path: str) -> bool:
    """Whether a path below /v1/ could mean one outside it to whoever resolves `..` behind us."""
    return ".." in path.lower().replace("%2e", ".")
