"""How long engines take: prefill seconds over tokens, and seconds a decode step over load, learned while routing.

    prefill(n)    = a + b*n + c*n^2                     n: uncached tokens of a prompt
    step(r, k)    = d + e*r + f*k                       r: requests decoding, k: their KV blocks

Both start from a preset (the mocker's polynomial of NVIDIA Dynamo for prefill, a flat 6 ms step) and are then fitted a
slot at a time by recursive least squares with forgetting (Ljung, "System Identification", ch. 11): prefill from the
time to first token of requests that found no queue, steps from the mean gap between a stream's items. Coefficients
below zero count as zero. Pure: times are passed in. An update costs about 15 us, a look nothing but array arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from router.model import FloatArray, IntArray

_FORGETTING = 0.998
_PRIOR_VARIANCE = 10.0
_NOISE_FLOOR_S = 1e-4
_KILO = 1e-3

POLYNOMIAL = (16.50142e-3, 15.18344e-3, 0.4209989e-3)
"""Seconds: constant, a thousand tokens, that squared. Source: the default prefill polynomial of Dynamo's mocker."""
_STEP = (6e-3, 0.0, 0.0)


class PrefillModel(StrEnum):
    """`--router-prefill-load-model`: none, the preset as it is, or fitted to what is seen."""

    NONE = "none"
    POLYNOMIAL = "polynomial"
    FITTED = "fitted"


class LeastSquares:
    """Three coefficients a slot, fitted recursively. `theta`: float64 (slots, 3)."""

    def __init__(self, prior: tuple[float, float, float], slots: int = 64) -> None:
        self._prior = np.array(prior)
        self.theta: FloatArray = np.tile(self._prior, (slots, 1))
        self._covariance: FloatArray = np.tile(np.eye(3) * _PRIOR_VARIANCE, (slots, 1, 1))
        self.seen: IntArray = np.zeros(slots, np.int64)

    def ensure_slots(self, count: int) -> None:
        missing = count - len(self.theta)
        if missing > 0:
            more = max(missing, len(self.theta))
            self.theta = np.concatenate([self.theta, np.tile(self._prior, (more, 1))])
            self._covariance = np.concatenate([self._covariance, np.tile(np.eye(3) * _PRIOR_VARIANCE, (more, 1, 1))])
            self.seen = np.concatenate([self.seen, np.zeros(more, np.int64)])

    def observe(self, slot: int, features: tuple[float, float, float], seconds: float) -> None:
        x = np.array(features)
        covariance = self._covariance[slot]
        gained = covariance @ x
        scale = _FORGETTING + float(x @ gained)
        gain = gained / scale
        self.theta[slot] += gain * (seconds - float(x @ self.theta[slot]))
        updated = (covariance - np.outer(gain, gained)) / _FORGETTING
        self._covariance[slot] = (updated + updated.T) / 2
        if self._covariance[slot].trace() > 3 * _PRIOR_VARIANCE:
            self._covariance[slot] *= 3 * _PRIOR_VARIANCE / self._covariance[slot].trace()
        self.seen[slot] += 1

    def forget(self, slot: int) -> None:
        self.theta[slot] = self._prior
        self._covariance[slot] = np.eye(3) * _PRIOR_VARIANCE
        self.seen[slot] = 0


@dataclass(slots=True)
class EngineTimes:
    """What a request's candidates need to be judged in time; arrays of one row a candidate.

    `queued_s`: prefill already waiting there; `prefill`, `step`: coefficients, float64 (n, 3), none below zero;
    `output_tokens`: expected of this request.
    """

    queued_s: FloatArray
    prefill: FloatArray
    step: FloatArray
    output_tokens: float

    def prefill_s(self, tokens: FloatArray) -> FloatArray:
        """Seconds to prefill `tokens` uncached ones on each row; nothing for none."""
        kilo = tokens * _KILO
        taken: FloatArray = self.prefill[:, 0] + self.prefill[:, 1] * kilo + self.prefill[:, 2] * kilo * kilo
        return np.where(tokens > 0, taken, 0.0)

    def step_growth_s(self, blocks: IntArray) -> FloatArray:
        """Seconds by which one more request with `blocks` KV blocks of its own lengthens each row's decode step."""
        growth: FloatArray = self.step[:, 1] + self.step[:, 2] * blocks * _KILO
        return growth


class EngineTiming:
    """The estimates of all slots, and of how long answers are."""

    def __init__(self, model: PrefillModel = PrefillModel.FITTED) -> None:
        self.model = model
        self.prefill = LeastSquares(POLYNOMIAL)
        self.step = LeastSquares(_STEP)
        self.mean_output = 128.0
        """Tokens of an answer, an exponential mean over those that ended well."""

    def ensure_slots(self, count: int) -> None:
        self.prefill.ensure_slots(count)
        self.step.ensure_slots(count)

    def forget(self, slot: int) -> None:
        """A new engine stands there: what was learned of the old one is not its."""
        self.prefill.forget(slot)
        self.step.forget(slot)

    def prefill_seconds(self, slot: int, tokens: int) -> float:
        """Expected seconds to prefill `tokens` uncached ones; 0 with the model `none`."""
        if tokens <= 0 or self.model is PrefillModel.NONE:
            return 0.0
        a, b, c = np.maximum(self.prefill.theta[slot], 0.0)
        kilo = tokens * _KILO
        return max(float(a + b * kilo + c * kilo * kilo), _NOISE_FLOOR_S)

    def saw_prefill(self, slot: int, tokens: int, seconds: float) -> None:
        """A prompt with so many uncached tokens, which found no queue, had its first token after so long."""
        if self.model is PrefillModel.FITTED and tokens > 0 and 0 < seconds < 600:
            kilo = tokens * _KILO
            self.prefill.observe(slot, (1.0, kilo, kilo * kilo), seconds)

    def saw_steps(self, slot: int, requests: int, blocks: int, seconds: float) -> None:
        """A stream's mean gap between items, and the load of its worker while it ran."""
        if 0 < seconds < 60:
            self.step.observe(slot, (1.0, float(requests), blocks * _KILO), seconds)

    def saw_output(self, tokens: int) -> None:
        if tokens > 0:
            self.mean_output += (tokens - self.mean_output) * 0.02

    def times(self, slots: IntArray, queued_s: FloatArray, output_tokens: int | None) -> EngineTimes:
        return EngineTimes(
            queued_s=queued_s,
            prefill=np.maximum(self.prefill.theta[slots], 0.0),
            step=np.maximum(self.step.theta[slots], 0.0),
            output_tokens=self.mean_output if output_tokens is None else float(output_tokens),
        )
