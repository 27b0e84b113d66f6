"""How late the live engine is: the part of a measurement that is the instrument's own fault.

A step's lag is the time from its scheduled end to the moment its last byte was handed to the sockets.
Constant cost and memory: the last 65,536 steps are kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np

KEPT = 65_536


class LagMeter:
    def __init__(self) -> None:
        self.resyncs = 0
        self.total_lag = 0.0
        self.total_steps = 0
        self._lag = np.zeros(KEPT)
        self._intended = np.zeros(KEPT)
        self._actual = np.full(KEPT, np.nan)
        self._next = 0

    def record(self, lag: float, intended: float, actual: float) -> None:
        """One step, in seconds: its lag, its planned duration, and the time from the release before it to its
        own.

        `actual` is NaN for the first step after an idle time.
        """
        place = self._next % KEPT
        self._lag[place] = lag
        self._intended[place] = intended
        self._actual[place] = actual
        self._next += 1
        self.total_lag += lag
        self.total_steps += 1

    def reset(self) -> None:
        """Forget the kept steps; the totals go on."""
        self._next = 0
        self.resyncs = 0

    def report(self) -> dict[str, Any]:
        """Milliseconds, and lag as a share of the planned step. `distortion` is the mean step's error, as a
        share.
        """
        count = min(self._next, KEPT)
        if not count:
            return {"steps": 0, "resyncs": self.resyncs}
        lag = self._lag[:count] * 1e3
        intended = self._intended[:count] * 1e3
        actual = self._actual[:count] * 1e3
        timed = (intended > 0) & ~np.isnan(actual)
        report: dict[str, Any] = {
            "steps": count,
            "resyncs": self.resyncs,
            "lag_ms": _summary(lag),
            "step_ms": {"intended_mean": float(intended.mean())},
        }
        if timed.any():
            planned, measured = float(intended[timed].mean()), float(actual[timed].mean())
            report["step_ms"] |= {"timed_steps": int(timed.sum()), "intended": planned, "actual": measured}
            report["distortion"] = measured / planned - 1
            report["lag_share"] = _summary(lag[timed] / intended[timed])
            report["step_error_share"] = _summary(np.abs(actual[timed] - intended[timed]) / intended[timed])
        return report


def _summary(values: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, float]:
    p50, p99 = np.percentile(values, (50, 99))
    return {"mean": float(values.mean()), "p50": float(p50), "p99": float(p99), "max": float(values.max())}
