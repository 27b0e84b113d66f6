"""A workload in numbers: lengths, arrivals, what caches of each size could hold, hottest prefixes, sessions, copies.

Works on accesses to prefix blocks: a trace's own (`hash_ids`, the last block may be partial) or whole blocks of the
engine's size, made from the tokens. Each slice starts cold. Pure; the published conversation trace takes about two
seconds by its own blocks, and 20 ns a token by the engine's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bench.workload.describe import BlockKeys
from bench.workload.model import Request, Workload
from bench.workload.stackdist import COLD, distances, hit_weights

PERCENTILES = (0, 50, 75, 95, 99, 100)
SHOWN_PREFIXES = 5
PEAK_WINDOW = 1.0

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Accesses:
    """Accesses to prefix blocks in the order of sending. `keys`, `tokens`: shape (n,), a block's name and its tokens;
    `ends`: for each request the end of its accesses; `block`: tokens of a whole one.
    """

    keys: npt.NDArray[np.uint64]
    tokens: Numbers
    ends: Numbers
    block: int


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and percentiles of a length; `at` by percentile."""

    mean: float
    at: dict[int, float]


@dataclass(frozen=True, slots=True)
class Arriving:
    """`loop`: open, partly open or closed. `rate` and `peak` (in any second): requests a second; `cv`: of the gaps, 1
    is Poisson; `moments`: different times; `together`: most requests of one time.
    """

    loop: str
    span_s: float
    rate: float
    cv: float | None
    peak: int
    moments: int
    together: int


@dataclass(frozen=True, slots=True)
class Cache:
    """LRU caches of `blocks` blocks: share of all blocks, and of all tokens, that is found there."""

    blocks: int
    tokens: int
    block_hits: float
    token_hits: float


@dataclass(frozen=True, slots=True)
class Prefix:
    """A prefix that no longer one is shared by as many requests. `share`: of the requests."""

    tokens: int
    requests: int
    share: float


@dataclass(frozen=True, slots=True)
class Group:
    """The largest group: `share` of the requests, `fair_shares`: that share in units of one engine's fair share;
    `tokens`: different tokens its prompts hold, `of_cache`: against one engine's cache.
    """

    name: str
    share: float
    fair_shares: float
    tokens: int
    of_cache: float


@dataclass(slots=True)
class Analysis:
    """All of it. `infinite`: what an endless cache would hold; `duplicates`: prompts sent before, whole."""

    name: str
    requests: int
    slices: int
    prompt: Spread
    output: Spread
    arriving: Arriving
    block: int
    infinite: tuple[float, float]
    curve: list[Cache]
    hottest: list[Prefix]
    groups: int
    largest: Group
    sessions: int
    turns: Spread
    duplicates: int
    workers: int
    cache_tokens: int
    aborted: int
    actions: list[str] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def accesses(requests: Iterable[Request], keys: BlockKeys) -> Accesses:
    """Whole blocks of `keys.block` tokens. Requests in the order in which they are sent."""
    parts = [keys.array(request) for request in requests]
    every = np.concatenate([*parts, np.empty(0, np.uint64)])
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
    return Accesses(every, np.full(len(every), keys.block, np.int64), ends, keys.block)


def analyse(
    workload: Workload,
    *,
    block: int,
    workers: int,
    cache_tokens: int,
    sizes: Sequence[int] | None = None,
    native: Accesses | None = None,
) -> Analysis:
    """Everything about a workload.

    Args:
        workload: of at least one request.
        block: tokens of an engine's block.
        workers: engines of the fleet.
        cache_tokens: tokens that one engine's cache holds.
        sizes: cache sizes of the curve in blocks; None: parts and multiples of one engine's and of the fleet's.
        native: accesses by a trace's own blocks, in place of the engine's; the workload then has one slice.
    """
    prompts = np.array([request.prompt_len for request in workload.requests])
    keys = BlockKeys(workload.vocabulary, block)
    parts = [workload.of_slice(index) for index in range(workload.slices)]
    found = [native] if native is not None else [accesses(part, keys) for part in parts]
    size = found[0].block
    wanted = sizes if sizes is not None else _sizes(cache_tokens // size, workers)
    curve, infinite = _caches(found, wanted, int(prompts.sum()))
    turns = Counter((request.slice, request.session) for request in workload.requests)
    copies = Counter((request.slice, request.model, request.pieces) for request in workload.requests)
    return Analysis(
        name=workload.name,
        requests=len(workload.requests),
        slices=workload.slices,
        prompt=_spread(prompts),
        output=_spread(np.array([request.output_len for request in workload.requests])),
        arriving=_arriving(workload, parts),
        block=size,
        infinite=infinite,
        curve=curve,
        hottest=_hottest(found, len(workload.requests)),
        groups=len({request.group for request in workload.requests}),
        largest=_largest(workload, parts[0], workers, cache_tokens),
        sessions=len(turns),
        turns=_spread(np.array(list(turns.values()))),
        duplicates=sum(count - 1 for count in copies.values()),
        workers=workers,
        cache_tokens=cache_tokens,
        aborted=sum(request.abort_after is not None for request in workload.requests),
        actions=[f"{action.deed} engine {action.worker} at {action.at:.2f} s" for action in workload.actions],
        facts=workload.facts,
        notes=workload.notes,
    )


def _spread(values: npt.NDArray[np.int64]) -> Spread:
    return Spread(float(values.mean()), {p: float(np.percentile(values, p)) for p in PERCENTILES})


def _sizes(one: int, workers: int) -> list[int]:
    fleet = one * workers
    return sorted({max(1, size) for size in (one // 4, one // 2, one, 2 * one, fleet // 2, fleet, 2 * fleet)})


def _caches(
    found: Sequence[Accesses], sizes: Sequence[int], prompt_tokens: int
) -> tuple[list[Cache], tuple[float, float]]:
    blocks = sum(len(part.keys) for part in found) or 1
    hits, tokens, endless = [0] * len(sizes), [0] * len(sizes), [0, 0]
    for part in found:
        far = distances(part.keys)
        for i, (hit, weight) in enumerate(
            zip(hit_weights(far, np.ones_like(far), sizes), hit_weights(far, part.tokens, sizes), strict=True)
        ):
            hits[i] += hit
            tokens[i] += weight
        endless[0] += int((far != COLD).sum())
        endless[1] += int(part.tokens[far != COLD].sum())
    curve = [
        Cache(size, size * found[0].block, hit / blocks, weight / prompt_tokens)
        for size, hit, weight in zip(sizes, hits, tokens, strict=True)
    ]
    return curve, (endless[0] / blocks, endless[1] / prompt_tokens)


def _arriving(workload: Workload, parts: Sequence[list[Request]]) -> Arriving:
    gaps: list[float] = []
    span = 0.0
    peak = moments = together = 0
    for part in parts:
        times = np.array([request.at for request in part])
        span += float(times[-1] - times[0]) if len(times) else 0.0
        gaps += np.diff(times).tolist()
        if len(times):
            peak = max(peak, int((np.searchsorted(times, times + PEAK_WINDOW, "left") - np.arange(len(times))).max()))
            same = np.unique(times, return_counts=True)[1]
            moments += len(same)
            together = max(together, int(same.max()))
    mean = float(np.mean(gaps)) if gaps else 0.0
    cv = float(np.std(gaps)) / mean if mean > 0 else None
    rate = len(gaps) / span if span > 0 else 0.0
    return Arriving(workload.loop, span, rate, cv, peak, moments, together)


def _hottest(found: Sequence[Accesses], requests: int) -> list[Prefix]:
    """The prefixes that most requests hold, longest first among those of the same requests."""
    keys = np.concatenate([part.keys for part in found])
    starts = np.concatenate([np.diff(part.ends, prepend=0) for part in found])
    if not len(keys):
        return []
    depths = np.concatenate([np.arange(length) for length in starts.tolist()])
    _, first, inverse, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    longer = np.zeros(len(counts), np.int64)
    inner = depths[first] > 0
    np.maximum.at(longer, inverse[first[inner] - 1], counts[inner])
    ends = np.flatnonzero((counts > longer) & (counts > 1))
    top = ends[np.lexsort((first[ends], -counts[ends]))][:SHOWN_PREFIXES]
    return [
        Prefix(int(depths[first[i]] + 1) * found[0].block, int(counts[i]), float(counts[i] / requests)) for i in top
    ]


def _largest(workload: Workload, part: Sequence[Request], workers: int, cache_tokens: int) -> Group:
    """By requests. Its tokens are those of the first slice: what one block can bring into a cache."""
    counts = Counter(request.group for request in workload.requests)
    name, most = counts.most_common(1)[0]
    pieces: dict[tuple[int, ...], int] = {}
    for request in part:
        if request.group == name:
            chain = 0
            for piece in request.pieces:
                chain = hash((chain, piece.key))
                pieces[(chain,)] = max(pieces.get((chain,), 0), piece.length)
    tokens = sum(pieces.values())
    share = most / len(workload.requests)
    return Group(name, share, share * workers, tokens, tokens / cache_tokens)
