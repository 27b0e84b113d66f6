"""The router's own share of TTFT, apart from the engine's. Pure.

Three clocks: the client's (send to first token), the router's (request complete to first content) and the engines'.
Their means over the same requests are laid over each other; differences between them are hops. A clock that did not
count exactly the requests of the blocks (another client, a failed request that one of them counts) is not used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.clocks import BlockClocks
from bench.control import Clock
from bench.explain.columns import BlockColumns
from bench.stats import percentile

NEAR = 0.01
"""By how much a clock's count of requests may be off."""


@dataclass(frozen=True, slots=True)
class Overhead:
    """Milliseconds a request, means (`decide_p50`, `decide_p99` percentiles); None: not known.

    `tokenize`, `decide`: of the router; `outside`: TTFT from the send by the client's clock less that by the engines':
    router, hops, HTTP of client and engine. `to_router`: client less router, `to_engine`: router less engines and
    less `tokenize` and `decide`. `queue`, `prefill`: inside the engines, where they say.
    """

    client_ttft: float | None
    engine_ttft: float | None
    outside: float | None
    tokenize: float | None
    decide: float | None
    decide_p50: float | None
    decide_p99: float | None
    to_router: float | None
    to_engine: float | None
    queue: float | None
    prefill: float | None


def overhead(blocks: Sequence[BlockColumns], clocks: Sequence[BlockClocks]) -> Overhead:
    """Of an arm's blocks, `clocks` in the same order."""
    sent = [float(x) for b in blocks for x in b.ttft_send_ms.tolist() if not math.isnan(x)]
    decides = [float(x) for b in blocks for x in b.decide_ms.tolist() if not math.isnan(x)]
    requests = sum(len(b.ids) for b in blocks)
    client = _mean(sent)
    engine, queue, prefill = (_clock([c.engines for c in clocks], n, requests) for n in ("ttft", "queue", "prefill"))
    router, tokenize = (_clock([c.router for c in clocks], n, requests) for n in ("ttft", "tokenize"))
    decide = _mean(decides)
    found = {q: _finite(percentile(np.array(decides, np.float64), q)) for q in (50, 99)}
    known = router is not None and engine is not None
    return Overhead(
        client,
        engine,
        client - engine if client is not None and engine is not None else None,
        tokenize,
        decide,
        found[50],
        found[99],
        client - router if client is not None and router is not None else None,
        (router or 0) - (engine or 0) - (tokenize or 0) - (decide or 0) if known else None,
        queue,
        prefill,
    )


def _clock(blocks: Sequence[dict[str, Clock]], name: str, requests: int) -> float | None:
    """Mean of a duration in milliseconds; None where a block has none, or it counted other requests too."""
    if not blocks or any(name not in block for block in blocks):
        return None
    total = sum(block[name].seconds for block in blocks)
    count = sum(block[name].count for block in blocks)
    if count <= 0 or abs(count - requests) > max(NEAR * requests, 0.5):
        return None
    return 1000 * total / count


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
