"""Proof that a block starts cold: drain, reset, probe. No proof, no verdict.

A reset endpoint that answers 200 proves nothing (vLLM answers 200 also when a block was in use). The proof is a
canary and a sample, on every engine:

1. drained: no request running or waiting, by the engine's metrics;
2. the canary, ids that no workload holds, is sent twice: the second time the engine must report cached tokens (so it
   reports them at all, and it caches);
3. reset; then the canary and prompts that this engine served in the block before must report 0 (a later prompt: no
   more than it shares with the probes before it);
4. these probes have warmed the cache themselves, so reset again; the canary alone must report 0. A reset drops the
   whole cache or nothing, so this proves the second one; what the canary leaves behind matches no prompt.

Where an engine cannot be reset or reached, a nonce takes its place: ids drawn for this run, block and arm, put before
every prompt. Prompts of one block still share with each other, and with nothing from before. Both ways are checked
once more by `unexplained` on what the block reported: more cached tokens than the block's own prompts can explain are
old ones. Touches the engines' control endpoints; costs about half a second a block.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.client.load import BlockRun
from bench.control import Control, EngineState, Unreachable
from bench.workload.describe import GRID, PrefixKeys
from bench.workload.tokens import Piece, PieceText, Tokens, Vocabulary, piece_key, piece_tokens

RESET_PATIENCE = 5.0
DRAIN_PATIENCE = 30.0
SAMPLES = 2


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that can be asked directly. `id` as the router names it."""

    id: str
    url: str


@dataclass(slots=True)
class ColdProof:
    """How a block was made cold. `way`: reset or nonce. `reasons`: why it is not proven; empty if it is."""

    way: str
    reasons: list[str] = field(default_factory=list)
    probes: int = 0
    resets: int = 0
    lead: tuple[Piece, ...] = ()

    @property
    def proven(self) -> bool:
        return not self.reasons


class Nonces:
    """Lead pieces, new ones for every block. Not from the seed: a second run must not meet the cache of the first."""

    def __init__(self, length: int) -> None:
        self.length = length
        self._run = secrets.token_hex(16)

    def lead(self, block: int) -> tuple[Piece, ...]:
        return (Piece(piece_key("nonce", self._run, block), self.length),)


def nonce_length(block_sizes: Sequence[int]) -> int:
    """Tokens of a nonce: whole blocks of every engine, at least 64; 512 where no block size is known."""
    sizes = [size for size in block_sizes if size > 0]
    if not sizes:
        return 512
    largest = max(sizes)
    return largest * max(1, -(-64 // largest))


class ColdStarter:
    """Makes engines cold and proves it. One for the whole run; remembers nothing but the canary's number."""

    def __init__(self, control: Control, engines: Sequence[Engine], model: str, vocabulary: Vocabulary) -> None:
        self._control = control
        self._engines = engines
        self._model = model
        self._vocabulary = vocabulary
        self._run = secrets.token_hex(16)
        self._count = 0
        self.block_sizes: list[int] = []

    async def can_reset(self) -> bool:
        """Whether every engine has the reset endpoint. Also learns the block sizes."""
        if not self._engines:
            return False
        await self.learn_block_sizes()
        codes = await asyncio.gather(*(self._control.reset_engine(engine.url) for engine in self._engines))
        return all(code == 200 for code in codes)

    async def learn_block_sizes(self) -> None:
        """Asks the engines for them."""
        states = await asyncio.gather(*(self._control.engine_state(engine.url) for engine in self._engines))
        self.block_sizes = [state.block_size for state in states if state.block_size]

    async def start(self, samples: dict[str, list[Tokens]], engines: Sequence[Engine] | None = None) -> ColdProof:
        """Resets engines (all, unless `engines` names some) and proves it. `samples`: prompts by engine id that the
        engine has served before.
        """
        self._count += 1
        proof = ColdProof("reset")
        chosen = self._engines if engines is None else engines
        await asyncio.gather(*(self._one(engine, samples.get(engine.id, []), proof) for engine in chosen))
        return proof

    async def _one(self, engine: Engine, samples: list[Tokens], proof: ColdProof) -> None:
        try:
            if not await self._drained(engine):
                proof.reasons.append(f"{engine.id}: still busy after {DRAIN_PATIENCE:g} s")
                return
            canary = self._canary(engine)
            await self._probe(engine, canary, proof)
            if not await self._probe(engine, canary, proof):
                proof.reasons.append(
                    f"{engine.id} reports no cached tokens for a prompt sent twice: caching or the report is off "
                    "(vLLM: --enable-prompt-tokens-details), so a cold cache cannot be proven"
                )
                return
            if not await self._reset_until_cold(engine, canary, proof):
                proof.reasons.append(f"{engine.id}: the cache survived its reset")
                return
            for number, prompt in enumerate(samples):
                cached = await self._probe(engine, prompt, proof)
                if cached > max((_shared(prompt, sent) for sent in samples[:number]), default=0):
                    proof.reasons.append(f"{engine.id}: {cached} tokens of the block before are cached after the reset")
            if not await self._reset_until_cold(engine, canary, proof):
                proof.reasons.append(f"{engine.id}: the cache survived its second reset")
        except Unreachable as error:
            proof.reasons.append(f"{engine.id}: {error}")

    async def _drained(self, engine: Engine) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DRAIN_PATIENCE
        while True:
            state: EngineState = await self._control.engine_state(engine.url)
            if state.idle:
                return True
            if loop.time() > deadline:
                return False
            await asyncio.sleep(0.05)

    async def _reset_until_cold(self, engine: Engine, canary: Tokens, proof: ColdProof) -> bool:
        """Resets and probes until the canary is gone: blocks of a finished request may be freed a moment late."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RESET_PATIENCE
        while True:
            proof.resets += 1
            await self._control.reset_engine(engine.url)
            if not await self._probe(engine, canary, proof):
                return True
            if loop.time() > deadline:
                return False
            await asyncio.sleep(0.1)

    async def _probe(self, engine: Engine, prompt: Tokens, proof: ColdProof) -> int:
        proof.probes += 1
        return await self._control.cached_tokens(engine.url, self._model, prompt) or 0

    def _canary(self, engine: Engine) -> Tokens:
        largest = max(self.block_sizes, default=512)
        key = piece_key("canary", self._run, self._count, engine.id)
        return piece_tokens(Piece(key, 2 * largest + 1), self._vocabulary)


def _shared(one: Tokens, other: Tokens) -> int:
    """Length of the common prefix of two prompts."""
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length


def samples_by_worker(run: BlockRun, text: PieceText, lead: tuple[Piece, ...] = ()) -> dict[str, list[Tokens]]:
    """For each worker of a block the last prompts that it served: what its cache surely holds if it is not cold."""
    latest: dict[str, list[int]] = {}
    for index, timing in enumerate(run.timings):
        if timing.ok and timing.worker:
            latest.setdefault(timing.worker, []).append(index)
    return {
        worker: [text.tokens(lead + run.requests[i].pieces) for i in indices[-SAMPLES:]]
        for worker, indices in latest.items()
    }


def unexplained(run: BlockRun, keys: PrefixKeys) -> int:
    """Requests that report more cached tokens than everything sent before their first token can explain.

    The bound is the longest prefix shared with another request of the same block that was sent earlier, rounded up by
    one grid block.
    """
    order = sorted(
        [(t.t_send, 0, i) for i, t in enumerate(run.timings) if t.t_send == t.t_send]
        + [(t.t_first, 1, i) for i, t in enumerate(run.timings) if t.ok and t.cached_tokens]
    )
    owners: dict[int, int] = {}
    shared = -1
    count = 0
    for _, kind, index in order:
        mine = keys.of(run.requests[index])
        if kind == 0:
            for key in mine:
                owner = owners.setdefault(key, index)
                if owner != index:
                    owners[key] = shared
            continue
        depth = 0
        while depth < len(mine) and owners.get(mine[depth], index) != index:
            depth += 1
        if (run.timings[index].cached_tokens or 0) > (depth + 1) * GRID:
            count += 1
    return count


def first_is_cold(run: BlockRun) -> bool:
    """Whether the request of the block that was sent first reports nothing cached (the check of a nonce)."""
    sent = [t for t in run.timings if t.t_send == t.t_send and t.ok]
    return bool(sent) and not min(sent, key=lambda t: t.t_send).cached_tokens
