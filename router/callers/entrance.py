"""What a request goes through because keys are in use: let in, held to its models, counted as its caller's tenant,
charged for the tokens that it is expected to take. Between the dispatcher and the `Gate`; the end of a request, where
the charge is settled, is `router.journal`'s.
"""

from __future__ import annotations

from dataclasses import replace

from router.callers.gate import OPEN_PATHS, Gate
from router.journal.record import RequestRecord
from router.model import NO_HINTS, Hints, RouteRequest
from router.proxy.interface import Inbound
from router.tokens.body import Body

UNBOUNDED_OUTPUT = 256
"""Tokens an answer is taken to have where the request sets no bound and names no expected length."""
_BYTES_A_TOKEN = 4


class Entrance:
    """Every request here has a record: the router keeps a journal wherever it has a gate."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def enter(self, inbound: Inbound) -> frozenset[str] | None:
        """Returns the models the caller may use, None for all.

        Raises:
            RoutingError: no good key, or too many requests.
        """
        if inbound.path in OPEN_PATHS:
            return None
        record = _record(inbound)
        account = self.gate.account(inbound.headers)
        record.caller = account.caller
        account.enter(inbound.arrived)
        record.account = account
        return self.gate.allowed(account)

    def identify(self, inbound: Inbound, request: RouteRequest, model: str | None, body: Body | None) -> None:
        """The request's headers and body were read. Raises ModelNotAllowed."""
        record = _record(inbound)
        account = record.account
        if account is None:
            return
        self.gate.check_model(account, model or "")
        tenant = account.caller.tenant
        request.hints = Hints(tenant=tenant) if request.hints is NO_HINTS else replace(request.hints, tenant=tenant)
        if body is not None:
            bounds = [bound for bound in (body.max_tokens, request.hints.osl) if bound is not None and bound >= 0]
            record.expected_output = max(body.n, 1) * min(bounds, default=UNBOUNDED_OUTPUT)

    @staticmethod
    def charge(inbound: Inbound, request: RouteRequest) -> None:
        """Count the tokens it should take; once, however often it is placed. Raises CallerLimit."""
        record = _record(inbound)
        if record.account is None or record.charge is not None:
            return
        prompt = request.prompt_tokens or len(inbound.body) // _BYTES_A_TOKEN
        record.charge = record.account.charge(prompt + record.expected_output, inbound.arrived)


def _record(inbound: Inbound) -> RequestRecord:
    record = inbound.record
    assert isinstance(record, RequestRecord), "a gate needs a journal"
    return record
