"""What a plane that is told to stop does with new requests while old ones finish: refuses them, so that the client
asks another router. Put in place of the dispatcher then, so that nothing looks for it on any request before.
"""

from __future__ import annotations

from collections.abc import Awaitable

from router.proxy.errors import error_answer
from router.proxy.interface import Answer, Dispatcher, Inbound, Leg, Outcome

_ABOUT_OURSELVES = frozenset(("/health", "/ready", "/version", "/v1/models"))


class Draining:
    """A `Dispatcher` that starts nothing new. Requests that run may still go to another worker."""

    def __init__(self, inner: Dispatcher) -> None:
        self.inner = inner

    def dispatch(self, inbound: Inbound) -> Answer | Leg | Awaitable[Answer | Leg]:
        if inbound.path in _ABOUT_OURSELVES and inbound.method in ("GET", "HEAD"):
            return self.inner.dispatch(inbound)
        return error_answer(503, "The router is shutting down.", "shutting_down")

    def retry(self, inbound: Inbound, failed: Leg, outcome: Outcome) -> Answer | Leg | Awaitable[Answer | Leg]:
        return self.inner.retry(inbound, failed, outcome)

    def elsewhere(self, inbound: Inbound, leg: Leg) -> Leg | None:
        return self.inner.elsewhere(inbound, leg)

    def go_on(self, inbound: Inbound, failed: Leg, outcome: Outcome) -> Answer | Leg | Awaitable[Answer | Leg]:
        return self.inner.go_on(inbound, failed, outcome)
