"""What a workload is, in numbers: lengths, arrivals, and how much of it an endless cache could hold. Pure.

The infinite-cache bound of a request is the longest prefix that it shares with something sent before it in the same
slice, in whole grid blocks: no router can do better on a cold fleet, and no honest engine can report more. Cost:
every token once (about 15 ns each).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.workload.model import Request, Workload
from bench.workload.tokens import Piece, PieceText, Vocabulary, piece_key

GRID = 16
_ROOT = 0


@dataclass(frozen=True, slots=True)
class Summary:
    """Lengths are tokens. `bound`: share of prompt tokens that an endless cache would hold, per slice start cold."""

    requests: int
    sessions: int
    slices: int
    prompt_mean: float
    prompt_max: int
    output_mean: float
    rate: float
    token_rate: float
    bound: float


class BlockKeys:
    """Prompts -> keys of whole blocks of `block` tokens, apart for each adapter. `lead` stands before every prompt.
    Nothing is kept; 15 ns a token.
    """

    def __init__(self, vocabulary: Vocabulary, block: int, lead: tuple[Piece, ...] = ()) -> None:
        self.block = block
        self._text = PieceText(vocabulary)
        self._lead = lead

    def array(self, request: Request) -> npt.NDArray[np.uint64]:
        """A key a block, shape (whole blocks,); it names the prompt up to the block's end."""
        from router.prefix.hashing import block_keys

        root = _ROOT if request.model is None else piece_key("adapter", request.model)
        return block_keys(self._text.tokens(self._lead + request.pieces), self.block, root)


class PrefixKeys(BlockKeys):
    """Block keys on the grid, as integers."""

    def __init__(self, vocabulary: Vocabulary, lead: tuple[Piece, ...] = ()) -> None:
        super().__init__(vocabulary, GRID, lead)

    def of(self, request: Request) -> list[int]:
        keys: list[int] = self.array(request).tolist()
        return keys


def shared_prefixes(requests: Iterable[Request], keys: PrefixKeys) -> list[int]:
    """For each request, in the order given: tokens it shares with anything before it, in whole grid blocks."""
    seen: set[int] = set()
    shared = []
    for request in requests:
        mine = keys.of(request)
        depth = 0
        while depth < len(mine) and mine[depth] in seen:
            depth += 1
        shared.append(depth * GRID)
        seen.update(mine)
    return shared


def describe(workload: Workload) -> Summary:
    """The summary of a workload as the experiment sends it: each slice on its own, starting cold."""
    keys = PrefixKeys(workload.vocabulary)
    prompts = np.array([request.prompt_len for request in workload.requests])
    outputs = np.array([request.output_len for request in workload.requests])
    cached = 0
    spans = 0.0
    for index in range(workload.slices):
        part = workload.of_slice(index)
        cached += sum(shared_prefixes(part, keys))
        spans += _span(part)
    spans = spans or 1.0
    return Summary(
        requests=len(prompts),
        sessions=len({(request.slice, request.session) for request in workload.requests}),
        slices=workload.slices,
        prompt_mean=float(prompts.mean()),
        prompt_max=int(prompts.max()),
        output_mean=float(outputs.mean()),
        rate=len(prompts) / spans,
        token_rate=float(outputs.sum()) / spans,
        bound=cached / float(prompts.sum()),
    )


def _span(part: Sequence[Request]) -> float:
    return part[-1].at - part[0].at if part else 0.0
