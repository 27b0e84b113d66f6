"""Whether a fleet has room for the probe: requests that wait, caches that are nearly full. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from checks.metrics.view import Metrics
from checks.snapshot import Member

WAITING = ("requests_waiting", "sglang_queue_requests", "trtllm_requests_waiting")
USAGE = ("kv_cache_usage", "sglang_token_usage", "trtllm_kv_utilization")
FULL = 0.9


@dataclass(frozen=True, slots=True)
class Load:
    """The busiest worker's numbers; None where no engine tells."""

    waiting: float | None = None
    waiting_at: str = ""
    usage: float | None = None
    usage_at: str = ""

    @staticmethod
    def of(metrics: Metrics, workers: Iterable[Member]) -> Load:
        keys = [worker.key for worker in workers]
        waiting, waiting_at = _most(metrics, WAITING, keys)
        usage, usage_at = _most(metrics, USAGE, keys)
        return Load(waiting, waiting_at, usage, usage_at)

    @property
    def known(self) -> bool:
        return self.waiting is not None or self.usage is not None

    @property
    def problem(self) -> str:
        """Why no request should be sent; '' where there is room."""
        if self.waiting:
            return f"{self.waiting:.0f} requests wait at {self.waiting_at}"
        if self.usage is not None and self.usage > FULL:
            return f"the KV cache of {self.usage_at} is {self.usage:.0%} full"
        return ""

    def worse_than(self, before: Load) -> str:
        """Why the probe should not go on; '' where nothing got worse since it began."""
        if (self.waiting or 0) > (before.waiting or 0) or not before.problem:
            return self.problem
        return ""


def _most(metrics: Metrics, names: Iterable[str], keys: list[str]) -> tuple[float | None, str]:
    found = [
        (value, key) for name in names for key in keys if (value := metrics.now(name, key, how="max").value) is not None
    ]
    return max(found, default=(None, ""), key=lambda one: one[0])
