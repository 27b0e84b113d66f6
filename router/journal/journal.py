"""Follows requests from beginning to end: settles what a caller was charged, writes the access log, ends the trace.

The data plane's `Journal`; made only where one of the three is wanted. Cost: a record a request, and at its end a line
of scalars (the log keeps no reference to a decision's arrays).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from router.journal.access_log import AccessLog
from router.journal.line import AccessLine, clean, ms, stamp
from router.journal.record import RequestRecord
from router.legs import RoutedLeg
from router.proxy.interface import Answer, Inbound, Outcome, Record

if TYPE_CHECKING:
    from router.journal.traces import Traces


class RequestJournal:
    """Any of its parts may be missing."""

    def __init__(self, access: AccessLog | None = None, traces: Traces | None = None) -> None:
        self.access = access
        self.traces = traces

    def begin(self, inbound: Inbound) -> RequestRecord:
        record = RequestRecord(time.time())
        if self.traces is not None:
            record.span = self.traces.begin(inbound, record)
        return record

    def end(self, inbound: Inbound, record: Record) -> None:
        assert isinstance(record, RequestRecord)
        now = time.monotonic()
        leg = record.leg if isinstance(record.leg, RoutedLeg) else None
        if record.account is not None:
            if record.charge is not None:
                record.account.settle(record.charge, _taken(record, leg), now)
            record.account.leave()
        if self.access is not None:
            self.access.add(_line(inbound, record, leg, now))
        if self.traces is not None:
            self.traces.end(inbound, record, leg, now)

    def refused(self, client: str, method: str, path: str, request_id: str, answer: Answer) -> None:
        if self.access is None:
            return
        record = RequestRecord(time.time())
        record.status, record.answer, record.bytes_out = answer.status, answer, len(answer.body)
        now = time.monotonic()
        inbound = Inbound(method, b"", path, [], b"", True, now, client, request_id)
        self.access.add(_line(inbound, record, None, now))


def _taken(record: RequestRecord, leg: RoutedLeg | None) -> int:
    """Tokens that the request took: as the engine said, else as far as they were counted, else as estimated; nothing
    where no engine has begun to answer."""
    assert record.charge is not None
    if leg is None or (record.began == 0.0 and record.outcome is not Outcome.CLIENT_GONE):
        return 0
    said = leg.reported
    prompt = None if said is None else said.prompt_tokens
    if prompt is None:
        prompt = leg.request.prompt_tokens or record.charge[1] - record.expected_output
    output = None if said is None else said.completion_tokens
    if output is None:
        output = leg.booking.output_tokens or (record.expected_output if record.outcome is Outcome.OK else 0)
    return prompt + output


def _line(inbound: Inbound, record: RequestRecord, leg: RoutedLeg | None, now: float) -> AccessLine:
    answer, caller = record.answer, record.caller
    line = AccessLine(
        time=stamp(record.at),
        request_id=inbound.request_id,
        decision_id=None,
        client=inbound.client,
        caller=None if caller is None else caller.name,
        tenant=None if caller is None else caller.tenant,
        method=inbound.method,
        path=clean(inbound.path),
        model=None,
        worker=None,
        status=record.status,
        outcome="answered" if record.outcome is None else record.outcome.value,
        code=None if answer is None else answer.code or None,
        bytes_in=len(inbound.body if inbound.carry is None else inbound.carry.raw),
        bytes_out=record.bytes_out,
        total_ms=ms(now - inbound.arrived),
        ttft_ms=ms(record.began - inbound.arrived) if record.began else None,
        queue_ms=0.0,
        tokenise_ms=ms(record.tokenise_s) if record.tokenise_s else None,
        decide_ms=None,
        prompt_tokens=None,
        cached_tokens=None,
        output_tokens=None,
        retries=max(record.legs - 1, 0),
    )
    if leg is None:
        if answer is not None:
            line.decision_id = next((value for name, value in answer.headers if name == "x-kvctl-decision"), None)
        return line
    request, decision, said = leg.request, leg.decision, leg.reported
    line.decision_id = decision.id
    if caller is None:
        line.tenant = clean(request.hints.tenant) or None
    line.model = clean(request.model) or None
    line.worker = leg.worker.id
    line.queue_ms = ms(request.waited_s)
    line.decide_ms = ms(decision.decide_us / 1e6)
    line.prompt_tokens = request.prompt_tokens or None
    line.output_tokens = leg.booking.output_tokens or None
    if leg.first_at:
        line.ttft_ms = ms(leg.first_at - inbound.arrived)
    if said is not None:
        line.prompt_tokens = line.prompt_tokens if said.prompt_tokens is None else said.prompt_tokens
        line.cached_tokens = said.cached_tokens
        line.output_tokens = line.output_tokens if said.completion_tokens is None else said.completion_tokens
    if request.migration is not None:
        # The last engine's prompt held what the client already had of the answer.
        carried = request.migration.tokens
        line.prompt_tokens = None if line.prompt_tokens is None else line.prompt_tokens - carried
        line.output_tokens = (line.output_tokens or 0) + carried
    return line
