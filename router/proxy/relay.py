"""One request on its way: dispatched, sent to an engine, its answer passed on byte for byte; retried where nothing
was lost.

`Exchange` stands between a client's connection and an engine's. It owns the leg: whatever happens, `Leg.end` is
called exactly once for each. Bytes are handed to the client first and watched afterwards. Touches no socket itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TYPE_CHECKING, cast

from router.proxy.errors import error_answer, gateway_answer, internal_answer
from router.proxy.heads import CHUNKED, UNTIL_CLOSE, RequestHead, ResponseHead, without_headers
from router.proxy.interface import Answer, Inbound, Leg, Outcome, Record
from router.proxy.request_ids import given
from router.proxy.sse import Watcher, watch
from router.proxy.upstream import EngineConnection, EnginePool

if TYPE_CHECKING:
    from router.proxy.downstream import ClientConnection
    from router.proxy.migration import Carry
    from router.proxy.plane import Plane

log = logging.getLogger(__name__)

MAX_LEGS = 16

_Ask = Callable[[Inbound, Leg, Outcome], "Answer | Leg | Awaitable[Answer | Leg]"]

_OK, _ENGINE_ERROR = Outcome.OK, Outcome.ENGINE_ERROR
_RETRIED = frozenset((Outcome.CONNECT_FAILED, Outcome.CONNECT_TIMEOUT, Outcome.RESET, Outcome.FIRST_BYTE_TIMEOUT))
_DECLINED = 503
_USUALLY_BODILESS = frozenset(("GET", "HEAD", "OPTIONS", "DELETE"))


class Exchange:
    """A request, the legs it takes, and the answer it gets. Ends by telling the client, or by `abandon`."""

    __slots__ = (
        "_carry",
        "_client",
        "_connection",
        "_dechunk",
        "_framed",
        "_head",
        "_keep",
        "_leg",
        "_legs",
        "_paused",
        "_plane",
        "_record",
        "_status",
        "_task",
        "_watcher",
        "bodiless",
        "inbound",
        "wants_payload",
    )

    def __init__(self, plane: Plane, client: ClientConnection, head: RequestHead, inbound: Inbound) -> None:
        self.inbound = inbound
        self.bodiless = head.verb == b"HEAD"
        self.wants_payload = False
        self._plane = plane
        self._client: ClientConnection | None = client
        self._head = head
        self._connection: EngineConnection | None = None
        self._leg: Leg | None = None
        self._legs = 0
        self._task: asyncio.Future[Answer | Leg] | None = None
        self._watcher: Watcher | None = None
        self._dechunk = False
        self._framed = True
        self._keep = False
        self._status = 0
        self._record: Record | None = None
        self._carry: Carry | None = None
        """Set once a stream is being passed on that may go on elsewhere."""
        self._paused = False

    # Where it goes.

    def start(self) -> None:
        journal = self._plane.journal
        if journal is not None:
            self._record = self.inbound.record = journal.begin(self.inbound)
        try:
            result = self._plane.dispatcher.dispatch(self.inbound)
        except Exception:
            self._fault("dispatching a request failed")
            return
        if hasattr(result, "__await__"):
            self._await(cast("Awaitable[Answer | Leg]", result))
        else:
            self._take(result)

    def _await(self, result: Awaitable[Answer | Leg]) -> None:
        self._task = asyncio.ensure_future(result)
        self._task.add_done_callback(self._dispatched)

    def _dispatched(self, task: asyncio.Future[Answer | Leg]) -> None:
        self._task = None
        try:
            result = task.result()
        except asyncio.CancelledError:
            if self._client is not None:
                self._answer(error_answer(503, "The router gave the request up.", "request_cancelled"))
        except Exception:
            self._fault("dispatching a request failed")
        else:
            self._take(result)

    def _take(self, result: Answer | Leg) -> None:
        if isinstance(result, Answer):
            if self._client is not None:
                self._answer(result)
            return
        self._leg = result
        self._status = 0
        if self._client is None:
            self._end_leg(Outcome.CLIENT_GONE)
            return
        self._legs += 1
        if self._legs > 1:
            self._plane.stats.retries += 1
        record = self._record
        if record is not None:
            record.leg = result
            record.legs += 1
        self.wants_payload = result.watch or not self._head.http11
        self._connection = self._plane.pool(result.endpoint).send(self, fresh=not result.repeatable)

    def request(self, pool: EnginePool) -> tuple[bytes, bytes]:
        """Head and body for the engine behind `pool`."""
        leg, head, body = self._leg, self._head, self.inbound.body
        assert leg is not None
        if self._record is not None:
            self._record.sent = monotonic()
        lines = (without_headers(head.lines, leg.without) if leg.without else head.lines) + leg.upstream_lines
        if self._plane.forwarding is not None:
            lines = self._plane.forwarding.rewrite(self.inbound, lines)
        bodiless = head.method in _USUALLY_BODILESS
        return pool.request_head(head.verb, self.inbound.target, lines, len(body), bodiless), body

    # What the engine answers.

    def begin(self, head: ResponseHead, data: bytes, payload: list[bytes] | None) -> bool:
        """The head has come, with the first bytes of the body (maybe none). False: the request went elsewhere instead,
        and nothing more of this answer is wanted."""
        client, leg = self._client, self._leg
        assert client is not None and leg is not None
        if head.status == _DECLINED and self.move(Outcome.ENGINE_ERROR, head.status):
            return False
        self._status = head.status
        if self._carry is not None:
            return self._resume(self._carry, head, payload)
        request = self._head
        self._dechunk = head.length == CHUNKED and not request.http11
        self._framed = head.length != UNTIL_CLOSE and not self._dechunk
        self._keep = request.keep_alive and self._framed and not self._plane.draining and not client.last
        lines = head.lines
        if head.length == CHUNKED and not self._dechunk:
            lines += b"transfer-encoding: chunked\r\n"
        if head.request_id and b"x-request-id:" not in leg.head_lines:
            lines += head.request_id
        if not self._keep:
            lines += b"connection: close\r\n"
        elif not request.http11:
            lines += b"connection: keep-alive\r\n"
        if leg.watch and head.status < 300:
            self._watcher = watch(leg, head.content_type, head.encoded)
        body = b"".join(payload or ()) if self._dechunk else data
        carry = self.inbound.carry
        if carry is not None and carry.follows(head):
            self._carry, body = carry, b""
        client.write(b"%b%b\r\n%b" % (lines, leg.head_lines, body))
        record = self._record
        if record is not None:
            record.status = head.status
            record.began = monotonic()
            record.bytes_out += len(body)
        if self._carry is not None:
            self._follow(self._carry, payload or [])
        elif self._watcher is not None:
            self._watch((data,) if payload is None else payload)
        return True

    def relay(self, data: bytes, payload: list[bytes] | None) -> None:
        """The next bytes of the body. `payload`: what they carry, where they are chunked and somebody wants it."""
        client = self._client
        assert client is not None
        if self._carry is not None:
            self._follow(self._carry, payload or [])
            return
        body = b"".join(payload or ()) if self._dechunk else data
        client.write(body)
        if self._record is not None:
            self._record.bytes_out += len(body)
        if self._watcher is not None:
            self._watch((data,) if payload is None else payload)

    def complete(self) -> None:
        """The answer is whole."""
        self._connection = None
        if self._carry is not None and not self._written(self._carry.end(not self._dechunk)):
            self.failed(Outcome.CUT)
            return
        self._end_leg(_ENGINE_ERROR if self._status >= 500 else _OK)
        self._finish()

    def _finish(self) -> None:
        """The client has a whole answer."""
        client = self._client
        self._client = None
        if self._record is not None:
            self._close_record()
        if client is not None:
            client.finished(self._keep)

    def failed(self, outcome: Outcome) -> None:
        """The connection is lost, with the answer or a part of it."""
        connection, self._connection = self._connection, None
        leg, client = self._leg, self._client
        assert leg is not None and client is not None
        if outcome is Outcome.RESET and connection is not None and connection.reused:
            self._plane.stats.upstream_refreshed += 1
            self._connection = self._plane.pool(leg.endpoint).send(self, fresh=True)
            return
        answered = self._status != 0
        self._end_leg(outcome)
        if self._carry is not None:
            self._go_on(self._carry, leg, outcome)
        elif answered:
            self._client = None
            if self._record is not None:
                self._close_record()
            client.cut(self._framed)
        elif outcome in _RETRIED and self._legs < MAX_LEGS and not self._plane.stopped:
            self._again(self._plane.dispatcher.retry, leg, outcome)
        else:
            self._answer(gateway_answer(outcome), leg.head_lines)

    def _again(self, ask: _Ask, failed: Leg, outcome: Outcome) -> None:
        try:
            result = ask(self.inbound, failed, outcome)
        except Exception:
            self._fault("finding another worker for a request failed")
            return
        if hasattr(result, "__await__"):
            self._await(cast("Awaitable[Answer | Leg]", result))
        elif isinstance(result, Answer):
            self._answer(result, failed.head_lines)
        else:
            self._take(result)

    def move(self, outcome: Outcome, status: int = 0) -> bool:
        """Nothing of the answer has been passed on, and the engine will not do it: whether another one got the request.
        If not, all stays as it is."""
        leg = self._leg
        if leg is None or self._legs >= MAX_LEGS or self._plane.stopped:
            return False
        try:
            other = self._plane.dispatcher.elsewhere(self.inbound, leg)
        except Exception:
            self._plane.stats.faults += 1
            log.exception("finding another worker for a request failed")
            return False
        if other is None:
            return False
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self._status = status
        self._end_leg(outcome)
        self._take(other)
        return True

    # A stream that may go on elsewhere.

    def _follow(self, carry: Carry, payload: list[bytes]) -> None:
        """The next bytes of a followed stream."""
        self._written(carry.wire(payload, not self._dechunk))
        if self._watcher is not None:
            self._watch(payload)
        if carry.turn is None or self._connection is None:
            return
        self._connection.close()
        if carry.turn is Outcome.OK:
            self.complete()
        else:
            self.failed(carry.turn)

    def _written(self, data: bytes | None) -> bool:
        """Whether there was something to write, or to leave."""
        if data and self._client is not None:
            self._client.write(data)
            if self._record is not None:
                self._record.bytes_out += len(data)
        return data is not None

    def _resume(self, carry: Carry, head: ResponseHead, payload: list[bytes] | None) -> bool:
        """The first bytes of an engine that goes on with a stream."""
        leg, connection = self._leg, self._connection
        assert leg is not None and connection is not None
        if not carry.follows(head):
            connection.close()
            self.failed(Outcome.ENGINE_ERROR)
            return False
        if self._paused:
            connection.pause()
        if leg.watch:
            self._watcher = watch(leg, head.content_type, head.encoded)
        self._follow(carry, payload or [])
        return True

    def _go_on(self, carry: Carry, failed: Leg, outcome: Outcome) -> None:
        """The stream is broken."""
        if self._written(carry.finish(not self._dechunk)):
            self._plane.stats.completed += 1
            self._finish()
        elif self._legs < MAX_LEGS and not self._plane.stopped:
            self._again(self._plane.dispatcher.go_on, failed, outcome)
        else:
            self._give_up(carry)

    def _give_up(self, carry: Carry) -> None:
        """Nobody goes on with it."""
        if self._written(carry.give_up(not self._dechunk)):
            self._finish()
            return
        client, self._client = self._client, None
        if self._record is not None:
            self._close_record()
        if client is not None:
            client.cut(self._framed)

    # How it ends.

    def _answer(self, answer: Answer, lines: bytes = b"") -> None:
        if self._carry is not None:
            self._give_up(self._carry)
            return
        client, self._client = self._client, None
        assert client is not None
        keep = self._head.keep_alive and not self._plane.draining and not client.last
        if b"x-request-id:" not in lines and not any(name == "x-request-id" for name, _ in answer.headers):
            lines += b"x-request-id: %b\r\n" % self._request_id().encode()
        record = self._record
        if record is not None:
            record.status = answer.status
            record.answer = answer
            record.bytes_out += 0 if self.bodiless else len(answer.body)
            self._close_record()
        client.answer(answer, keep=keep, http11=self._head.http11, bodiless=self.bodiless, lines=lines)
        client.finished(keep)

    def abandon(self, outcome: Outcome) -> None:
        """The client is gone, or the router stops: let go of the engine at once."""
        self._client = None
        record = self._record
        if self._task is not None:
            self._task.cancel()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._end_leg(outcome)
        if record is not None:
            record.outcome = outcome
            self._close_record()

    def _request_id(self) -> str:
        inbound = self.inbound
        if not inbound.request_id:
            inbound.request_id = given(inbound.headers) or self._plane.ids.new()
        return inbound.request_id

    def _close_record(self) -> None:
        """The request is over: the journal hears of it, once."""
        record, self._record = self._record, None
        journal = self._plane.journal
        if record is None or journal is None:
            return
        self._request_id()
        try:
            journal.end(self.inbound, record)
        except Exception:
            self._plane.stats.faults += 1
            log.exception("the journal failed on a request's end")

    def _end_leg(self, outcome: Outcome) -> None:
        leg, self._leg = self._leg, None
        if leg is None:
            return
        watcher, self._watcher = self._watcher, None
        outcomes = self._plane.stats.outcomes
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        if self._record is not None:
            self._record.outcome = outcome
        if watcher is not None:
            try:
                watcher.end(outcome is _OK)
            except Exception:
                self._leg_fault()
            if not watcher.complete:
                self._plane.stats.unwatched += 1
        try:
            leg.end(outcome, self._status)
        except Exception:
            self._leg_fault()

    def _watch(self, pieces: list[bytes] | tuple[bytes, ...]) -> None:
        watcher = self._watcher
        assert watcher is not None
        try:
            for piece in pieces:
                watcher.feed(piece)
        except Exception:
            self._watcher = None
            self._leg_fault()

    def _fault(self, what: str) -> None:
        """The dispatcher raised: say so in the log, once, and answer."""
        self._plane.stats.faults += 1
        log.exception("%s", what)
        if self._client is not None:
            self._answer(internal_answer())

    def _leg_fault(self) -> None:
        self._plane.stats.faults += 1
        log.exception("a leg failed on what it was told")

    # The client is slow.

    def pause(self) -> None:
        self._paused = True
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        self._paused = False
        if self._connection is not None:
            self._connection.resume()
