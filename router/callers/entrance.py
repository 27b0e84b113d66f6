"""What a request goes through because keys are in use: let in, held to its models, counted as its caller's tenant,
charged for the tokens that it is expected to take. Between the dispatcher and the `Gate`; the end of a request, where
the charge is settled, is `router.journal`'s.
"""

from __future__ import annotations

from dataclasses import replace

from router.callers.gate import OPEN_PATHS, Gate
from router.callers.keys import MAX_KEYS
from router.journal.record import RequestRecord
from router.model import NO_HINTS, Hints, RouteRequest
from router.proxy.interface import Inbound
from router.tokens.body import Body

UNBOUNDED_OUTPUT = 256
"""Tokens an answer is taken to have where the request sets no bound and names no expected length."""
_BYTES_A_TOKEN = 4


class Entrance:
    """Every request here has a record: the router keeps a journal wherever it has a gate."""

    def __init__(self, gate: Gate, *, tenants: bool) -> None:
        """`tenants`: whether anything counts requests by tenant; else the caller's is not put in its place."""
        self.gate = gate
        self._tenants = tenants
        self._hints: dict[str, Hints] = {}

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
        if self._tenants:
            request.hints = self._as_tenant(request.hints, account.caller.tenant)
        if body is not None:
            bound, expected = body.max_tokens, request.hints.osl
            if bound is None or bound < 0:
                bound = UNBOUNDED_OUTPUT if expected is None else expected
            elif expected is not None and expected < bound:
                bound = expected
            record.expected_output = bound * body.n if body.n > 1 else bound

    def _as_tenant(self, hints: Hints, tenant: str) -> Hints:
        if hints is not NO_HINTS:
            return replace(hints, tenant=tenant)
        known = self._hints.get(tenant)
        if known is None:
            if len(self._hints) >= MAX_KEYS:
                self._hints.clear()
            known = self._hints[tenant] = Hints(tenant=tenant)
        return known

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
