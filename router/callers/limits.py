"""What a caller has used of its limits: requests and tokens of the last minute, requests open now.

Pure: the clock is passed in, in seconds. A minute is the last 60 seconds in steps of one, so that no 60 seconds ever
see more than the limit, as they could with a bucket that is full at the beginning. Memory: 60 numbers a limit.
"""

from __future__ import annotations

from math import ceil

from router.callers.keys import Caller
from router.model import RoutingError

_SPAN = 60


class CallerLimit(RoutingError):
    """A limit of the caller's own."""

    status = 429
    code = "caller_limit"

    def __init__(self, name: str, value: int, current: int, retry_after: float, message: str = "") -> None:
        message = message or f"{name}: limit {value}, now {current}"
        super().__init__(message, extra={"limit": name, "value": value, "current": current})
        self.retry_after = max(1, ceil(retry_after))


class Window:
    """The sum of what was added within the last 60 seconds."""

    __slots__ = ("_counts", "_second", "total")

    def __init__(self) -> None:
        self._counts = [0] * _SPAN
        self._second = 0
        self.total = 0

    def advance(self, now: float) -> None:
        """Let go of what is older than a minute."""
        second = int(now)
        if second - self._second >= _SPAN:
            self._counts = [0] * _SPAN
            self.total = 0
        else:
            for passed in range(self._second + 1, second + 1):
                self.total -= self._counts[passed % _SPAN]
                self._counts[passed % _SPAN] = 0
        self._second = max(second, self._second)

    def add(self, amount: int, now: float) -> int:
        """Returns the second that it counts for."""
        self.advance(now)
        self._counts[self._second % _SPAN] += amount
        self.total += amount
        return self._second

    def correct(self, second: int, by: int, now: float) -> None:
        """What was added in `second` proved to be `by` more (or less). More counts from now on, less where it was."""
        self.advance(now)
        if by > 0:
            self.add(by, now)
        elif self._second - second < _SPAN:
            less = min(-by, self._counts[second % _SPAN])
            self._counts[second % _SPAN] -= less
            self.total -= less

    def frees(self, amount: int, now: float) -> float:
        """Seconds until so much of the total is older than a minute; 60 if it never was there."""
        for second in range(self._second - _SPAN + 1, self._second + 1):
            amount -= self._counts[second % _SPAN]
            if amount <= 0:
                return max(second + _SPAN - now, 0.0)
        return float(_SPAN)


class Account:
    """One caller's use. Outlives a new reading of the file, as long as the name stays in it."""

    __slots__ = ("caller", "charged", "open", "refused", "requests", "served", "tokens")

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.open = 0
        self.served = 0
        self.charged = 0
        """Tokens in all, as far as they are settled."""
        self.refused: dict[str, int] = {}
        self.requests = Window()
        self.tokens = Window()

    def enter(self, now: float) -> None:
        """One more request is open. Raises CallerLimit."""
        caller = self.caller
        if caller.concurrent_requests is not None and self.open >= caller.concurrent_requests:
            raise self._refusal("concurrent-requests", caller.concurrent_requests, self.open, 1)
        limit = caller.requests_per_minute
        if limit is not None:
            self.requests.advance(now)
            if self.requests.total >= limit:
                excess = self.requests.total - limit + 1
                raise self._refusal("requests-per-minute", limit, self.requests.total, self.requests.frees(excess, now))
            self.requests.add(1, now)
        self.open += 1
        self.served += 1

    def charge(self, tokens: int, now: float) -> tuple[int, int]:
        """Count an estimate. Returns what `settle` wants to have. Raises CallerLimit."""
        limit = self.caller.tokens_per_minute
        if limit is None:
            return 0, tokens
        window = self.tokens
        window.advance(now)
        if tokens > limit:
            message = (
                f"tokens-per-minute: limit {limit}, and this request alone is expected to take {tokens}; ask for a "
                "shorter answer (max_tokens) or send a shorter prompt"
            )
            raise self._refusal("tokens-per-minute", limit, tokens, _SPAN, message)
        if window.total + tokens > limit:
            after = window.frees(window.total + tokens - limit, now)
            message = (
                f"tokens-per-minute: limit {limit}, now {window.total}, and this request is expected to take {tokens}"
            )
            raise self._refusal("tokens-per-minute", limit, window.total, after, message)
        return window.add(tokens, now), tokens

    def settle(self, charge: tuple[int, int], tokens: int, now: float) -> None:
        """What the charged request really took."""
        self.charged += tokens
        if self.caller.tokens_per_minute is not None and tokens != charge[1]:
            self.tokens.correct(charge[0], tokens - charge[1], now)

    def leave(self) -> None:
        self.open -= 1

    def _refusal(self, name: str, limit: int, current: int, after: float, message: str = "") -> CallerLimit:
        self.refused[name] = self.refused.get(name, 0) + 1
        return CallerLimit(name, limit, current, after, message)
