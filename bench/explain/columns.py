"""A block's requests as columns, with what was in front of each when it was sent. Pure.

What is in front of a request at its worker is known to the client alone: requests that it has sent there and whose
answers are not complete, and the uncached prompt tokens of those that have no first token yet. Times of the client,
so the hop to the worker is in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.metrics import Measured, Measurements, reports_cached
from bench.stats import Floats, Ints

SCHED, SEND, FIRST, END, OVER = 0, 1, 3, 5, 6
"""Columns of `Table.times`."""


@dataclass(frozen=True, slots=True)
class BlockColumns:
    """One block; every array has the shape (requests,), times are seconds.

    `worker`: index into the arm's workers, -1 where the answer names none. `over`: end of the answer, or of the
    failed request. `cached`: NaN for failed and aborted requests, and everywhere if the arm's engines report none.
    `predicted`, `decide_ms`: NaN where the router does not say.
    """

    round: int
    ids: list[str]
    sessions: list[str]
    ok: npt.NDArray[np.bool_]
    sched: Floats
    send: Floats
    first: Floats
    over: Floats
    worker: Ints
    prompt: Floats
    cached: Floats
    predicted: Floats
    decide_ms: Floats

    @property
    def uncached(self) -> Floats:
        """Prompt tokens that the engine had to compute; NaN where not known."""
        return self.prompt - self.cached

    @property
    def ttft_send_ms(self) -> Floats:
        """From the send to the first token; NaN of failed requests."""
        return np.where(self.ok, self.first - self.send, np.nan) * 1000

    @property
    def late_ms(self) -> Floats:
        return (self.send - self.sched) * 1000


def columns(block: Sequence[Measured], round_: int, workers: Sequence[str], reports: bool) -> BlockColumns:
    """The columns of a block.

    Args:
        block: its requests.
        round_: its round.
        workers: the arm's workers; answers of others count as of no known one.
        reports: whether the arm's engines report cached tokens at all (0 is left out by vLLM).
    """
    every = Measurements.of(block)
    known = {name: index for index, name in enumerate(workers)}
    pairs = every.cached_pairs()
    named = [name for table in every.tables for name in table.workers]
    return BlockColumns(
        round_,
        [request.id for request in every.requests()],
        [request.session for request in every.requests()],
        every.ok,
        every.time(SCHED),
        every.time(SEND),
        every.time(FIRST),
        _over(every),
        np.array([known.get(name, -1) if name else -1 for name in named], np.int64),
        pairs[:, 1],
        pairs[:, 0] if reports else np.full(len(every), np.nan),
        every.predicted(),
        every.decisions_us() / 1000,
    )


def _over(every: Measurements) -> Floats:
    """When a request no longer was a load: its end, else when it failed, else (never answered) +inf."""
    end, over = every.time(END), every.time(OVER)
    found: Floats = np.where(np.isnan(end), over, end)
    return np.where(np.isnan(found), np.inf, found)


def all_columns(blocks: Sequence[tuple[int, Sequence[Measured]]], workers: Sequence[str]) -> list[BlockColumns]:
    """The columns of an arm's blocks, given as (round, requests)."""
    reports = reports_cached(Measurements.join(measured for _, measured in blocks))
    return [columns(measured, round_, workers, reports) for round_, measured in blocks]


@dataclass(frozen=True, slots=True)
class Ahead:
    """What was in front of each request of a block when it was sent, shape (requests,) each.

    `requests`, `tokens`: at its own worker, NaN where that is not known; `mean_requests`, `mean_tokens`: of all
    workers, an average a worker.
    """

    requests: Floats
    tokens: Floats
    mean_requests: Floats
    mean_tokens: Floats


def ahead(block: BlockColumns, workers: int) -> Ahead:
    """`workers`: how many there are (at least 1). Cost: sorting the block once for each worker."""
    sent = ~np.isnan(block.send)
    work = np.where(np.isnan(block.uncached), 0.0, block.uncached)
    first = np.where(np.isnan(block.first), block.over, block.first)
    own_requests, own_tokens = np.full(len(sent), np.nan), np.full(len(sent), np.nan)
    for worker in range(workers):
        mine = sent & (block.worker == worker)
        if mine.any():
            own_requests[mine], own_tokens[mine] = _ahead(block.send, first, block.over, work, mine, mine)
    mean_requests, mean_tokens = np.full(len(sent), np.nan), np.full(len(sent), np.nan)
    mean_requests[sent], mean_tokens[sent] = _ahead(block.send, first, block.over, work, sent, sent)
    return Ahead(own_requests, own_tokens, mean_requests / workers, mean_tokens / workers)


def _ahead(
    send: Floats, first: Floats, over: Floats, work: Floats, among: npt.NDArray[np.bool_], asked: npt.NDArray[np.bool_]
) -> tuple[Floats, Floats]:
    """Requests, and tokens without a first token, of `among` at the moments when `asked` were sent."""
    at = send[asked]
    requests = _before(send[among], at, "left") - _before(over[among], at, "right")
    tokens = _before(send[among], at, "left", work[among]) - _before(first[among], at, "right", work[among])
    return np.maximum(requests, 0.0), np.maximum(tokens, 0.0)


def _before(moments: Floats, at: Floats, side: str, weights: Floats | None = None) -> Floats:
    """How many `moments`, or how much of their weight, lie before `at`; with `right` also those at it."""
    order = np.argsort(moments, kind="stable")
    total = np.concatenate([[0.0], np.cumsum(weights[order] if weights is not None else np.ones(len(order)))])
    places = np.searchsorted(moments[order], at, side=side)  # type: ignore[call-overload]
    found: Floats = total[places]
    return found
