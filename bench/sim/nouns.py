"""What goes into a simulated engine and what comes out: sizes, requests, steps, counters. Pure data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bench.sim.kvcache import CacheEvent, Ids
from bench.sim.timing import StepWork
from router.prefix.hashing import Keys, Tokens

FloatArray = npt.NDArray[np.float64]
SYMBOLS = 2
"""Numbers that stand for a block's tokens in a `SymbolicRequest`."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes of one engine; the defaults are vLLM's. `seed` makes this engine's block hashes its own."""

    block_size: int = 16
    num_blocks: int = 16384
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int = 131072
    prefix_caching: bool = True
    record_events: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        sizes = {
            "block_size": self.block_size,
            "num_blocks": self.num_blocks,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "max_model_len": self.max_model_len,
        }
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} must be at least 1, not {size}")
        if self.max_model_len > self.num_blocks * self.block_size:
            raise ValueError(
                f"max_model_len {self.max_model_len} does not fit into {self.num_blocks} blocks of"
                f" {self.block_size} tokens ({self.num_blocks * self.block_size}): lower it or add blocks"
            )


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A prompt and the answer that it will get.

    `answer` is known beforehand (the simulated model is a function of the prompt), at least one token.
    `finish` is the reason given with the last one. `lora` and `salt` keep prompts apart in the cache.
    """

    id: str
    prompt: Tokens
    answer: Tokens
    finish: str = "length"
    lora: str | None = None
    salt: str | None = None


@dataclass(frozen=True, slots=True)
class SymbolicRequest:
    """A request of which only lengths and the identity of its blocks are known, no tokens: for virtual time.

    `symbols`: uint32, `SYMBOLS` for each full block of prompt and answer, in place of the block's tokens; two blocks
    with the same symbols and the same blocks before them are the same block. Its outputs carry token 0, its events the
    symbols. An engine with a connector does not take it.
    """

    id: str
    prompt_len: int
    answer_len: int
    symbols: Tokens
    finish: str = "length"
    lora: str | None = None
    salt: str | None = None


class Output(NamedTuple):
    """One generated token. `position` counts from 0; `finish` is set on the last; `cached` is the prompt
    tokens reused.
    """

    id: str
    position: int
    token: int
    finish: str | None
    cached: int


class StepResult(NamedTuple):
    """`duration` in seconds from the `now` of the step; outputs and events are those of its end."""

    duration: float
    outputs: list[Output]
    events: list[CacheEvent]
    work: StepWork


class Ahead(NamedTuple):
    """Steps made at once: each gave every one of `ids` a token. `ends` are the times at which they ended, float64
    (steps,); `finished` those of `ids` whose last token came with the last step; `events` with the end of their step.
    """

    ends: FloatArray
    ids: list[str]
    finished: list[str]
    events: list[tuple[float, list[CacheEvent]]]


class Outlook(NamedTuple):
    """What a request would find in an engine: `cached` of its blocks, `prefill` prompt tokens of others to compute
    first, `context` tokens that the decoding sequences attend to, `used` blocks, and the tokens that each of those
    sequences still has to get, int64.
    """

    cached: int
    prefill: int
    context: int
    used: int
    to_go: npt.NDArray[np.int64]


@dataclass(slots=True)
class Counters:
    """Totals since the engine was made. Cache queries and hits are tokens, counted at first admission."""

    steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    cache_queries: int = 0
    cache_hits: int = 0
    preemptions: int = 0
    aborted: int = 0
    finished: dict[str, int] = field(default_factory=dict)


class Snapshot(NamedTuple):
    running: int
    waiting: int
    used_blocks: int
    num_blocks: int
    cached_blocks: int


class Sequence:
    """A request in the engine. `known` tokens exist, `computed` of them have KV; `stored` blocks are
    findable. `tokens` holds `unit` numbers a block: its tokens, or symbols. `addresses` are those of `ids` and `keys`.
    """

    __slots__ = (
        "addresses",
        "answered",
        "cached",
        "computed",
        "decoding",
        "done",
        "held",
        "ids",
        "keys",
        "known",
        "prompt_len",
        "request",
        "stored",
        "tokens",
        "total",
        "unit",
    )

    def __init__(
        self,
        request: EngineRequest | SymbolicRequest,
        keys: Keys,
        tokens: Tokens,
        unit: int,
        lengths: tuple[int, int],
        blocks: int,
        answered: list[int] | None,
    ) -> None:
        self.request = request
        self.keys = keys
        self.tokens = tokens
        self.unit = unit
        self.prompt_len, answer_len = lengths
        self.total = self.prompt_len + answer_len
        self.ids: Ids = np.empty(blocks, np.int32)
        self.addresses = (self.ids.ctypes.data, keys.ctypes.data)
        self.held = 0
        self.stored = 0
        self.computed = 0
        self.known = self.prompt_len
        self.answered = answered
        self.cached = -1
        self.decoding = False
        self.done = False
