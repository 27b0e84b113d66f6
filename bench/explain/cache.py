"""What the router expected to be cached against what the engines found, and against what a cache can hold. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from bench.explain.columns import BlockColumns
from bench.stats import Floats

EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Of the bins of the predicted share of a prompt; a prediction of 0 has a bin of its own."""


@dataclass(frozen=True, slots=True)
class Bin:
    """Requests whose predicted share of the prompt is above `low` and at most `high`. Shares are means over them."""

    low: float
    high: float
    requests: int
    predicted: float
    actual: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Predicted against engine-reported cached tokens, over `requests` for which both are known.

    `bias`, `error`: mean of (predicted - reported), and of its absolute value, tokens. `exact`, `over`, `under`:
    shares of the requests.
    """

    requests: int
    bias: float
    error: float
    exact: float
    over: float
    under: float
    bins: tuple[Bin, ...]


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Shares of prompt tokens; None where not known. `bound`: what an endless cache would hold; `reached`: actual /
    bound.
    """

    actual: float | None
    predicted: float | None
    bound: float | None
    reached: float | None
    calibration: Calibration | None


def cache_use(blocks: Sequence[BlockColumns], bound: float | None) -> CacheUse:
    """Of an arm's blocks. `bound`: of the workload, as a share of its prompt tokens."""
    prompt, cached = _joined([b.prompt for b in blocks]), _joined([b.cached for b in blocks])
    predicted = _joined([b.predicted for b in blocks])
    known, said = ~np.isnan(cached), ~np.isnan(predicted) & ~np.isnan(prompt)
    actual = _share(cached[known], prompt[known])
    reached = actual / bound if actual is not None and bound else None
    return CacheUse(
        actual, _share(predicted[said], prompt[said]), bound, reached, calibration(prompt, cached, predicted)
    )


def calibration(prompt: Floats, cached: Floats, predicted: Floats) -> Calibration | None:
    """Arrays of shape (n,), tokens; NaN: not known. None if both are known for no request."""
    known = ~(np.isnan(prompt) | np.isnan(cached) | np.isnan(predicted)) & (prompt > 0)
    if not known.any():
        return None
    prompt, cached, predicted = prompt[known], cached[known], predicted[known]
    off = predicted - cached
    share, real = predicted / prompt, cached / prompt
    bins = []
    for low, high in [(-1.0, 0.0), *pairwise(EDGES)]:
        inside = (share > low) & (share <= high)
        if inside.any():
            bins.append(
                Bin(max(low, 0.0), high, int(inside.sum()), float(share[inside].mean()), float(real[inside].mean()))
            )
    return Calibration(
        len(prompt),
        float(off.mean()),
        float(np.abs(off).mean()),
        float((off == 0).mean()),
        float((off > 0).mean()),
        float((off < 0).mean()),
        tuple(bins),
    )


def _joined(parts: Sequence[Floats]) -> Floats:
    return np.concatenate(parts) if parts else np.empty(0)


def _share(part: Floats, whole: Floats) -> float | None:
    total = float(whole.sum())
    return float(part.sum()) / total if total > 0 else None
