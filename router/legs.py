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

    def first_token(self, leg: RoutedLeg, now: float) -> None: ...

    def reported(self, leg: RoutedLeg, cached_tokens: int) -> None: ...

    def leg_ended(self, leg: RoutedLeg, outcome: Outcome) -> None: ...


class RoutedLeg:
    __slots__ = (
        "_began_at",
        "_clock",
        "_ended",
        "_first_at",
        "_last_at",
        "_owner",
        "arrived",
        "booking",
        "counts",
        "decision",
        "endpoint",
        "head_lines",
        "placed",
        "repeatable",
        "reported",
        "request",
        "upstream_lines",
        "watch",
        "without",
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
        counts: bool = False,
        without: tuple[bytes, ...] = (),
        repeatable: bool = True,
    ) -> None:
        self._owner = owner
        self._began_at = 0.0 if request.migration is None else request.migration.first_at
        self._clock = clock
        self._ended = False
        self._first_at = self._last_at = 0.0
        self.reported: Usage | None = None
        self.counts = counts
        self.endpoint: Endpoint = worker.endpoint
        self.worker = worker
        self.request = request
        self.decision = decision
        self.booking = booking
        self.arrived = arrived
        self.placed = clock()
        self.head_lines = head_lines
        self.upstream_lines = upstream_lines
        self.without = without
        self.repeatable = repeatable
        self.watch = watch

    def first_token(self) -> None:
        now = self._clock()
        self._first_at = self._last_at = now
        self._owner.first_token(self, now)
        if not self._began_at:
            self._owner.stats.ttft.observe(now - self.arrived)

    def generated(self, items: int) -> None:
        self._last_at = self._clock()
        self.booking.generated(items)

    def usage(self, usage: Usage) -> None:
        self.reported = usage
        if usage.completion_tokens is not None:
            self.booking.reported_output = usage.completion_tokens
        cached = usage.cached_tokens
        if cached is None or not self.request.joins or self.decision.engine_cached_tokens is not None:
            return
        self.decision.engine_cached_tokens = cached
        if self.decision.prompt_tokens:
            self._owner.stats.joined(self.decision.predicted_cached_tokens, cached)
            self._owner.reported(self, cached)

    def end(self, outcome: Outcome, status: int) -> None:
        if self._ended:
            return
        self._ended = True
        self.booking.release(self._clock())
        self._owner.leg_ended(self, outcome)

    @property
    def first_at(self) -> float:
        """When the answer's first generated token came, maybe from an earlier leg; 0 where none did."""
        return self._began_at or self._first_at

    @property
    def gap_s(self) -> float:
        """Mean seconds between the items of a stream that was counted; 0 where there were fewer than two."""
        items = self.booking.output_tokens
        return (self._last_at - self._first_at) / (items - 1) if items > 1 else 0.0
