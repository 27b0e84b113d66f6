"""What the engine asks of a cache beside its own. The interface only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from bench.sim.kvcache import CacheEvent
from router.prefix.hashing import Tokens

if TYPE_CHECKING:
    from bench.sim.engine import EngineRequest


class Connector(Protocol):
    """A cache beside the engine's own, as vLLM's KV connectors are; called in the order of the engine's work.

    `match` is asked at each admission with all known tokens and how many of them the engine's cache holds, and
    answers how many more will be loaded, less than are left; `first` is false for a sequence that was preempted.
    `computed` tells that the KV of `tokens`, a prompt's first ones, exists when the step has ended; `last` that no
    more will come. `forget` ends an aborted request. `step_ended` is called before the next step is planned, and
    `take_seconds` once a step for the time that its transfers add. `take_events` gives what the engine publishes of
    this cache, after its own changes of the step.
    """

    def match(self, request: EngineRequest, tokens: Tokens, computed: int, *, first: bool) -> int: ...

    def computed(self, request: EngineRequest, tokens: Tokens, *, last: bool) -> None: ...

    def forget(self, request_id: str) -> None: ...

    def step_ended(self) -> None: ...

    def take_seconds(self) -> float: ...

    def take_events(self) -> list[CacheEvent]: ...
