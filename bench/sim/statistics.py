"""Rates of an imitated worker over the last interval: for vLLM's periodic line and for LMCache's interval gauges.

Pure: the counters and the length of the interval are passed in. Cost: a pass over at most 1,000 requests an interval.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.sim.engine import Counters, Snapshot
from bench.sim.lmcache import CacheCounters, LMCache
from bench.sim.styles import Style
from bench.sim.worker_log import PeriodicStats


@dataclass(slots=True)
class _Before:
    """Totals at the end of the last interval."""

    cache: CacheCounters
    prompt: int = 0
    generation: int = 0


class Statistics:
    """`retrieve_hit_rate` and `lookup_hit_rate` are LMCache's gauges: of an idle interval 1 and 0."""

    def __init__(self, style: Style, cache: LMCache) -> None:
        self.retrieve_hit_rate = 1.0
        self.lookup_hit_rate = 0.0
        self._style = style
        self._cache = cache
        self._before = _Before(CacheCounters())
        self._was_busy = False

    def roll(self, counters: Counters, state: Snapshot, seconds: float) -> PeriodicStats | None:
        """End an interval; what vLLM tells of it, None where it is silent: in the second idle interval and after."""
        now, before = self._cache.counters, self._before
        prompt = counters.prompt_tokens - before.prompt
        generation = counters.generation_tokens - before.generation
        if self._style.counts_computed_prompt:
            found = now.local_hits + now.hits - before.cache.local_hits - before.cache.hits
            prompt = max(0, prompt - found)
        self._set_gauges(now, before.cache)
        self._before = _Before(replace(now), counters.prompt_tokens, counters.generation_tokens)
        busy = prompt > 0 or generation > 0
        silent = not busy and not self._was_busy
        self._was_busy = busy
        if silent:
            return None
        prefix, external = self._hit_rates()
        return PeriodicStats(
            prompt=prompt / seconds,
            generation=generation / seconds,
            running=state.running,
            waiting=state.waiting,
            usage=100 * state.used_blocks / state.num_blocks,
            prefix_hit_rate=prefix,
            external_hit_rate=external,
        )

    def _set_gauges(self, now: CacheCounters, before: CacheCounters) -> None:
        requested = now.requested_tokens - before.requested_tokens
        self.retrieve_hit_rate = (now.hit_tokens - before.hit_tokens) / requested if requested else 1.0
        looked_up = now.lookup_tokens - before.lookup_tokens
        self.lookup_hit_rate = (now.lookup_hits - before.lookup_hits) / looked_up if looked_up else 0.0

    def _hit_rates(self) -> tuple[float | None, float | None]:
        """Percent of the tokens of the last requests in the engine's cache, and of the rest loaded."""
        recent = self._cache.recent
        total = sum(request.total for request in recent)
        local = sum(request.local for request in recent)
        loaded = sum(request.loaded for request in recent)
        prefix = 100 * local / total if total else None
        external = 100 * loaded / (total - local) if total > local else None
        return prefix, external
