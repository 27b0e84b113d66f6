"""One attempt of a request at one worker, from booking to truth: the data plane's `Leg`.

Holds the booking and gives it back exactly once; joins what the engine reports to what was predicted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from router.fleet.worker import Worker
from router.load import Booking
from router.metrics import RouterStats
from router.model import Decision, RouteRequest
from router.proxy.interface import Endpoint, Outcome, Usage


class LegOwner(Protocol):
    """Whom a leg tells of its end."""

    stats: RouterStats

    def leg_ended(self, leg: RoutedLeg, outcome: Outcome) -> None: ...


class RoutedLeg:
    __slots__ = (
        "_clock",
        "_ended",
        "_owner",
        "arrived",
        "booking",
        "decision",
        "endpoint",
        "head_lines",
        "request",
        "upstream_lines",
        "watch",
        "worker",
    )

    def __init__(
        self,
        owner: LegOwner,
        worker: Worker,
        request: RouteRequest,
        decision: Decision,
        booking: Booking,
        *,
        arrived: float,
        clock: Callable[[], float],
        head_lines: bytes,
        upstream_lines: bytes,
        watch: bool,
    ) -> None:
        self._owner = owner
        self._clock = clock
        self._ended = False
        self.endpoint: Endpoint = worker.endpoint
        self.worker = worker
        self.request = request
        self.decision = decision
        self.booking = booking
        self.arrived = arrived
        self.head_lines = head_lines
        self.upstream_lines = upstream_lines
        self.watch = watch

    def first_token(self) -> None:
        self.booking.prefill_done()
        self._owner.stats.ttft.observe(self._clock() - self.arrived)

    def usage(self, usage: Usage) -> None:
        cached = usage.cached_tokens
        if cached is None or not self.request.joins or self.decision.engine_cached_tokens is not None:
            return
        self.decision.engine_cached_tokens = cached
        if self.decision.prompt_tokens:
            self._owner.stats.joined(self.decision.predicted_cached_tokens, cached)

    def end(self, outcome: Outcome, status: int) -> None:
        if self._ended:
            return
        self._ended = True
        self.booking.release()
        self._owner.leg_ended(self, outcome)
