"""A workload made ready for virtual time: symbols of every prompt and answer, and what an endless cache would hold.

Made once for all modes of a replay. Cost: about 20 us a request and some nanoseconds a block; 8 bytes a block. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.replay.content import symbols
from bench.sim.nouns import SYMBOLS
from bench.workload.model import Request, Workload, WorkloadError, chains
from bench.workload.tokens import Piece, Tokens, piece_key
from router.prefix.hashing import block_keys, root_key

_SEED = 0


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request as virtual time knows it. `length`, `output`: tokens; `output` is what the client stays for. `symbols`:
    uint32, those of prompt and answer; `of_prompt`: how many are the prompt's.
    """

    request: Request
    length: int
    output: int
    symbols: Tokens
    of_prompt: int
    lora: str | None


@dataclass(frozen=True, slots=True)
class Prompts:
    """`waiting`: by id, the requests that wait for its answer. `bound`: share of all prompt tokens that a cache without
    end would hold, in whole blocks.
    """

    all: list[Prompt]
    block_size: int
    waiting: dict[str, list[int]]
    bound: float


def prepare(workload: Workload, block_size: int) -> Prompts:
    """All requests of a workload of one slice.

    Raises:
        WorkloadError: it does what virtual time does not know (engines that die), or its turns contradict each other.
    """
    if workload.actions:
        raise WorkloadError(f"workload {workload.name} kills engines: that is not simulated in virtual time yet")
    if workload.slices != 1:
        raise WorkloadError(f"a replay sends one slice, the workload has {workload.slices}")
    adapters = workload.engine.get("lora", [])
    known = frozenset(adapters if isinstance(adapters, list) else ())
    every = [_prompt(request, block_size, known) for request in workload.requests]
    return Prompts(every, block_size, chains(workload.requests), infinite_bound(every, block_size))


def _prompt(request: Request, block_size: int, adapters: frozenset[str]) -> Prompt:
    length = request.prompt_len
    if length < 1:
        raise WorkloadError(f"request {request.id}: a prompt of at least one token wanted")
    output = request.output_len if request.abort_after is None else min(request.abort_after, request.output_len)
    output = max(output, 1)
    answer = Piece(piece_key("answer", *((piece.key, piece.length) for piece in request.pieces)), output)
    lora = request.model if request.model in adapters else None
    marks = symbols((*request.pieces, answer), block_size)
    return Prompt(request, length, output, marks, length // block_size * SYMBOLS, lora)


def infinite_bound(prompts: Sequence[Prompt], block_size: int) -> float:
    """Share of prompt tokens that were in an earlier prompt, as a cache without end would find them: the longest prefix
    in whole blocks, at least one token of each prompt left to compute.
    """
    keys = [block_keys(p.symbols[: p.of_prompt], SYMBOLS, root_key(_SEED, block_size, p.lora, None)) for p in prompts]
    counts = np.array([len(one) for one in keys], np.int64)
    if not counts.sum():
        return 0.0
    owner = np.repeat(np.arange(len(prompts)), counts)
    _, first, inverse = np.unique(np.concatenate(keys), return_index=True, return_inverse=True)
    known = owner[first][inverse] < owner
    hits: npt.NDArray[np.int64] = np.bincount(owner[known], minlength=len(prompts))
    lengths = np.array([p.length for p in prompts], np.int64)
    return float((np.minimum(hits, (lengths - 1) // block_size) * block_size).sum() / lengths.sum())
