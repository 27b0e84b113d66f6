"""Whether an arm kept up: a queue that grows makes every latency a function of how long one measured. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.stats import Floats


@dataclass(frozen=True, slots=True)
class Stability:
    """How the number of requests in flight moved over an arm's blocks. `middle`, `end`: means of `curve`, which is
    in-flight at 100 points of the arrivals, averaged over the blocks.
    """

    stable: bool
    middle: float
    end: float
    curve: tuple[float, ...] = ()


def stability(blocks: Sequence[tuple[Floats, Floats]]) -> Stability:
    """Whether an arm's queue grew while it was measured.

    Args:
        blocks: for each block the intended sends and the ends of its requests (+inf: never ended), in seconds.

    Returns:
        Unstable if in-flight at the end of the arrivals (their last 15 %) is more than 1.5 times that of the middle
        (40 to 60 %) and more than Poisson noise of such counts explains, averaged over the blocks.
    """
    curves = [_in_flight(sent, ended) for sent, ended in blocks if len(sent) > 1]
    if not curves:
        return Stability(True, 0.0, 0.0)
    curve = np.mean(curves, axis=0)
    middle = float(curve[40:60].mean())
    end = float(curve[85:].mean())
    noise = 3.0 * math.sqrt((middle + 1.0) / len(curves)) + 1.0
    return Stability(not (end > 1.5 * middle and end - middle > noise), middle, end, tuple(curve.tolist()))


def _in_flight(sent: Floats, ended: Floats) -> Floats:
    """In-flight at 100 points of the arrival window."""
    start, stop = float(sent.min()), float(sent.max())
    at = start + (stop - start) * (np.arange(100) + 0.5) / 100
    opened = np.searchsorted(np.sort(sent), at, side="right")
    closed = np.searchsorted(np.sort(ended), at, side="right")
    return np.asarray(opened - closed, np.float64)
