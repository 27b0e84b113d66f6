"""Waits until a prompt is where the router, or another engine, can find it.

Looks at what grows when a prompt is stored: kvctl's index, the keys of LMCache's controller, events that Dynamo
applied, tokens that LMCache stored (its counters move every 10 s), LMCache's own line about the request. Where nothing
of that is to be seen the engine's own cache is all there is, which has the prompt as soon as it has answered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from checks.metrics.view import Metrics
from checks.probe.ask import Sent
from checks.probe.watch import Readings, Watch
from checks.snapshot import Member

POLL_S = 0.5
POLLS = 40
LOG_EVERY = 4
SETTLE_S = 1.0
"""For events on their way, where nothing can be watched."""

_GROWING = {
    "kvctl_worker_cached_blocks": "the blocks in kvctl's index",
    "controller_keys": "the keys of LMCache's controller",
    "dynamo_events_applied": "the KV events that Dynamo applied",
    "lmcache_stored_tokens": "the tokens that LMCache stored",
}


@dataclass(frozen=True, slots=True)
class Storing:
    """What can be watched: `members` have the counters, `loggers` may write a line."""

    watch: Watch
    members: Sequence[Member]
    loggers: Sequence[Member]
    lmcache: bool
    """LMCache is to store prompts on some worker."""
    sleep: Callable[[float], None]

    def wait(self, before: Readings, sent: Sent) -> str:
        """Waits at most 20 s; what was seen, in words."""
        names = self._names(self.watch.between(before, before))
        if not names:
            self.sleep(SETTLE_S)
            return "nothing tells when a prompt is stored; the engine's own cache has it at once"
        for poll in range(POLLS):
            if self.watch.deadline.left() <= 0:
                break
            now = self.watch.pages(self.members)
            grown = self.watch.between(before, now)
            if (what := self._grown(names, before, grown)) or (what := self._written(poll, sent)):
                return f"stored after {poll * POLL_S:g} s: {what}"
            self.sleep(POLL_S)
        watched = " and ".join(_GROWING[name] for name in names)
        return f"nothing showed within {POLLS * POLL_S:g} s that the prompt was stored ({watched} did not grow)"

    def _names(self, first: Metrics) -> tuple[str, ...]:
        live = first.now("kvctl_worker_kv_events_live").or_zero() > 0
        usable = {
            "kvctl_worker_cached_blocks": live,
            "controller_keys": bool(first.find("controller_keys")),
            "dynamo_events_applied": bool(first.find("dynamo_events_applied")),
            "lmcache_stored_tokens": self.lmcache,
        }
        return tuple(name for name in _GROWING if usable[name])

    def _grown(self, names: Sequence[str], before: Readings, grown: Metrics) -> str:
        first = self.watch.between(before, before)
        for name in names:
            if grown.now(name).or_zero() > first.now(name).or_zero():
                return f"{_GROWING[name]} grew"
        return ""

    def _written(self, poll: int, sent: Sent) -> str:
        """LMCache's line about this request, looked for now and then."""
        if not self.lmcache or poll % LOG_EVERY:
            return ""
        for member in self.loggers:
            log = self.watch.log(member)
            if log is not None and any(sent.request_id in match["rid"] for match in log.all("lmcache-stored")):
                return f"{member.key} wrote that LMCache stored it"
        return ""
