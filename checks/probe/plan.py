"""How long the probe's prompts are and how many it sends, from what is known of the system. Pure.

Lengths are in tokens. A prompt must fill at least two of the pieces that are reused (blocks, LMCache's chunks, or the
128 characters of a prefix trie), and should fill three and a half, so that a repeat has something to find.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from checks.lmcache import number
from checks.probe.options import LEAST_REQUESTS, Budget
from checks.serving import block_tokens, chunk_tokens, max_model_len, served_names, transfer
from checks.snapshot import Member, Snapshot
from checks.traffic import DEFAULT_BLOCK_SIZE

TRIE_TOKENS = 32
"""128 characters of the production stack's prefix trie."""
LOOKUP_CHUNK = 256
"""The router's controller looks prompts up in chunks of 256 tokens."""
KV_AWARE_THRESHOLD = 2000
"""The router's default of --kv-aware-threshold."""
ROOM = 64
"""Tokens that a prompt leaves of the model's context."""
BY_CHANCE = 0.01
"""How likely a router without a memory may send all repeats to one worker."""
LEAST_REPEATS, MOST_REPEATS = 3, 10
TIMED_TOKENS = 2300
"""Of the streamed pair: from 2,000 on a warm prompt must be quicker."""
UNKNOWN_WORKERS = 2


class NoPlan(Exception):
    """The probe cannot be sent; the message says why, in one line."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is going to be sent."""

    model: str
    workers: tuple[Member, ...]
    """Ready workers of that model; () where none is known."""
    tokens: int
    unit: int
    """Tokens of the smallest piece that a warm repeat reuses."""
    repeats: int
    longest: int | None
    """Tokens that a prompt may have at most; None where the model's length is not known."""

    @property
    def choices(self) -> int:
        """Workers that the router chooses among; two where that is not known."""
        return len(self.workers) or UNKNOWN_WORKERS

    @property
    def least(self) -> int:
        """Fewer tokens fill no two pieces."""
        return 2 * self.unit


def make(snapshot: Snapshot, model: str, budget: Budget, *, charged: int) -> Plan:
    """The plan for one model. `charged`: tokens of the request that comes before all others. Raises NoPlan."""
    workers = _serving(snapshot, model)
    block, chunk, by_chunk = _pieces(snapshot, workers)
    piece = max(block, chunk, TRIE_TOKENS)
    longest = min((known for worker in workers if (known := max_model_len(worker))), default=None)
    most = None if longest is None else longest - ROOM
    least = 2 * max(block, chunk)
    if most is not None and most < least:
        raise NoPlan(
            f"a prompt must have {least} tokens to fill two pieces of {least // 2}; the model takes {longest} (KV143)"
        )
    tokens = math.ceil(3.5 * piece)
    if most is not None:
        tokens = min(tokens, most)
    repeats = _repeats(len(workers) or UNKNOWN_WORKERS)
    left = Budget(budget.requests - 1, budget.tokens - charged)
    repeats = min(repeats, (left.requests - 1) // 2)
    each = left.tokens // (1 + 2 * repeats)
    if each < tokens:
        tokens = min(tokens, max(each, least + ROOM // 2))
    while repeats > 2 and not left.allows(1 + 2 * repeats, tokens):
        repeats -= 1
    if repeats < 2 or not left.allows(1 + 2 * repeats, tokens):
        raise NoPlan(
            f"{LEAST_REQUESTS} prompts of {tokens} tokens are more than the {budget.requests} requests and "
            f"{budget.tokens} tokens that the probe may send"
        )
    tokens = _within_threshold(snapshot, tokens, least)
    return Plan(model, workers, tokens, max(block, chunk) if by_chunk else block, repeats, most)


def model_of(snapshot: Snapshot) -> str:
    """The model of most ready workers, as requests name it; else the first one a router lists; '' where none tells."""
    counts: dict[str, int] = {}
    for worker in snapshot.ready_workers:
        name = next(iter(served_names(worker)), worker.model)
        if name:
            counts[name] = counts.get(name, 0) + 1
    if counts:
        return min(counts, key=lambda name: (-counts[name], name))
    for router in snapshot.routers:
        if names := served_names(router):
            return names[0]
    return ""


def _serving(snapshot: Snapshot, model: str) -> tuple[Member, ...]:
    ready = snapshot.ready_workers
    return tuple(one for one in ready if not model or model in (*served_names(one), one.model)) or ready


def _pieces(snapshot: Snapshot, workers: tuple[Member, ...]) -> tuple[int, int, bool]:
    """Largest block, largest LMCache chunk (0 without LMCache), and whether only LMCache can reuse anything."""
    told = [block_tokens(snapshot, worker) or _trtllm_block(snapshot, worker) for worker in workers]
    block = max((one for one in told if one), default=DEFAULT_BLOCK_SIZE)
    caching = [worker for worker in workers if _lmcache(snapshot, worker)]
    chunk = max((chunk_tokens(snapshot.lmcache_config(worker)) for worker in caching), default=0)
    off = bool(workers) and all(worker.has_arg("--no-enable-prefix-caching") for worker in workers)
    return block, chunk, bool(chunk) and off


def _lmcache(snapshot: Snapshot, worker: Member) -> bool:
    connector = transfer(worker)
    return (connector is not None and connector.lmcache) or snapshot.lmcache_active(worker)


def _trtllm_block(snapshot: Snapshot, worker: Member) -> int | None:
    told = snapshot.metrics.now("trtllm_tokens_per_block", worker.key, how="max").value
    return int(told) if told else None


def _repeats(workers: int) -> int:
    """So many that a router without a memory sends them all to one worker in one of a hundred runs; 3 to 10."""
    if workers < 2:
        return LEAST_REPEATS
    return min(MOST_REPEATS, max(LEAST_REPEATS, math.ceil(math.log(BY_CHANCE) / math.log(1 / workers))))


def _within_threshold(snapshot: Snapshot, tokens: int, least: int) -> int:
    """For kvaware a prompt whose part beyond whole chunks is no longer than the router's threshold."""
    if snapshot.strategy != "kvaware":
        return tokens
    told = [number(router.arg("--kv-aware-threshold")) for router in snapshot.routers]
    threshold = min((int(one) for one in told if one is not None), default=KV_AWARE_THRESHOLD)
    chunks, rest = divmod(tokens, LOOKUP_CHUNK)
    fitting = chunks * LOOKUP_CHUNK + max(0, threshold) // 2
    return fitting if rest > threshold and fitting >= least else tokens
