"""Whether a request that failed may go to another worker: its kind, and the budget for all of them.

Pure: the clock is passed in. A request that is not retried costs nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass

from router.proxy.interface import Inbound, Outcome

CONTENT_PATHS = frozenset({"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"})
ENGINE_PATHS = frozenset(
    {"/tokenize", "/detokenize", "/score", "/rerank", "/v2/rerank", "/pooling", "/classify", "/embed", "/invocations"}
)
_COMPUTE_PATHS = (
    CONTENT_PATHS
    | ENGINE_PATHS
    | {
        "/v1/embeddings",
        "/v1/rerank",
        "/v1/score",
        "/v1/pooling",
        "/v1/classify",
        "/v1/moderations",
        "/v1/messages/count_tokens",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/v1/audio/speech",
    }
)
_WINDOW = 10.0


def repeatable(inbound: Inbound) -> bool:
    """Whether an engine may do the request twice: it reads, or it computes an answer and keeps nothing.

    All else below /v1/ (files, batches, fine-tuning, adapters that are loaded) may have effects that stay.
    """
    return inbound.method in ("GET", "HEAD") or (inbound.method == "POST" and inbound.path in _COMPUTE_PATHS)


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """`attempts`: legs a request may have in all. `share`: retries for each request of the last ten seconds; `floor`:
    retries a second that are free besides, so that a quiet router can retry at all. `any`: retry requests with effects
    as well."""

    attempts: int = 4
    share: float = 0.2
    floor: float = 10.0
    any: bool = False


class RetryBudget:
    """Two buckets: one filled by requests, one by time; both hold what ten seconds bring. Looked at only by retries.

    Source of the idea: Finagle's retry budgets. An outage that every request meets then costs `share` more load, not
    `attempts` times the load.
    """

    def __init__(self, settings: RetrySettings) -> None:
        self.settings = settings
        self.exhausted = 0
        self._earned = 0.0
        self._free = settings.floor * _WINDOW
        self._last = 0.0
        self._seen = 0

    def left(self, requests: int, now: float) -> float:
        """Retries that are allowed now. `requests`: how many there have been since the start."""
        passed = max(now - self._last, 0.0)
        fresh = min(_WINDOW / passed, 1.0) if passed > 0 else 1.0
        self._earned *= max(1.0 - passed / _WINDOW, 0.0)
        self._earned += self.settings.share * (requests - self._seen) * fresh
        self._free = min(self._free + self.settings.floor * passed, self.settings.floor * _WINDOW)
        self._last, self._seen = now, requests
        return self._earned + self._free

    def take(self, requests: int, now: float) -> bool:
        """Whether one more retry is allowed; if so it is counted."""
        if self.left(requests, now) < 1.0:
            self.exhausted += 1
            return False
        from_earned = min(self._earned, 1.0)
        self._earned -= from_earned
        self._free -= 1.0 - from_earned
        return True


COSTS_NOTHING = Outcome.CONNECT_FAILED
"""A retry after it puts no load on the fleet: nobody has had the request yet. It is not taken from the budget."""
