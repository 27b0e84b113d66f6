"""How long one step of the engine takes: the models' coefficients, no clock, no state; the formula is `step_time`'s.

A step computes some new prompt tokens (prefill) and one token for every decoding sequence. Every model
answers in milliseconds; `Timing` scales the answer (`speedup` divides, `slow` multiplies, a speedup of 0
means no delay at all).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from bench.sim import step_time
from bench.sim.step_time import Form


class StepWork(NamedTuple):
    """What one step does.

    `prefill_tokens` are prompt tokens to compute, `decode_seqs` the sequences that get one more token,
    `decode_context` the tokens those attend to, `active_tokens` what the blocks in use can hold,
    `total_tokens` what the whole cache can.
    """

    prefill_tokens: int
    decode_seqs: int
    decode_context: int
    active_tokens: int
    total_tokens: int


class TimingModel(Protocol):
    def form(self) -> Form:
        """The coefficients of `step_time`, float64 (9,)."""
        ...


@dataclass(frozen=True, slots=True)
class PolynomialTiming:
    """Prefill quadratic in the step's new tokens, decode quadratic in the share of the cache in use.

    The constants are those of the Dynamo mocker's default model. Decode does not depend on the batch size
    here: use `BatchTiming` to judge a policy by its inter-token latency.
    """

    prefill_square: float = 4.209989e-07
    prefill_linear: float = 1.518344e-02
    prefill_base: float = 16.50142
    decode_square: float = -25.74
    decode_linear: float = 54.01
    decode_base: float = 5.74
    decode_floor: float = 1.0

    def form(self) -> Form:
        return _form(
            (self.prefill_square, self.prefill_linear, self.prefill_base),
            (self.decode_square, self.decode_linear, self.decode_base),
            floor=self.decode_floor,
        )


@dataclass(frozen=True, slots=True)
class FixedTiming:
    """A constant for a step with prefill in it, another for a step with decode in it; a step with both takes
    the sum.
    """

    prefill_ms: float = 20.0
    decode_ms: float = 10.0

    def form(self) -> Form:
        return _form((0.0, 0.0, self.prefill_ms), (0.0, 0.0, self.decode_ms))


@dataclass(frozen=True, slots=True)
class BatchTiming:
    """Decode slows with the batch: `base + seq * sequences + token * tokens attended to`; prefill as in the
    polynomials.

    A decode step reads the weights once and the KV cache of every sequence. The defaults are that arithmetic
    for an 8-billion-parameter model in 16 bit (16 GB of weights, 128 KiB of KV a token) at 3.35 TB/s, and 50
    microseconds of sampling and bookkeeping a sequence. They are not a measurement.
    """

    prefill_square: float = 4.209989e-07
    prefill_linear: float = 1.518344e-02
    prefill_base: float = 16.50142
    decode_base: float = 4.8
    decode_seq: float = 0.05
    decode_token: float = 3.9e-05

    def form(self) -> Form:
        prefill = self.prefill_square, self.prefill_linear, self.prefill_base
        return _form(prefill, (0.0, 0.0, self.decode_base), seq=self.decode_seq, token=self.decode_token)


def _form(
    prefill: tuple[float, float, float],
    decode: tuple[float, float, float],
    *,
    floor: float = 0.0,
    seq: float = 0.0,
    token: float = 0.0,
) -> Form:
    return np.array((*prefill, *decode, floor, seq, token), np.float64)


def step_ms(model: TimingModel, work: StepWork) -> float:
    """Milliseconds of one step, not scaled."""
    return float(step_time.step_ms(model.form(), *work))


@dataclass(frozen=True, slots=True)
class Timing:
    """A model and its scale: seconds of a step are `step_ms / 1000 * slow / speedup`."""

    model: TimingModel
    speedup: float = 1.0
    slow: float = 1.0
    form: Form = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.speedup < 0 or self.slow <= 0:
            raise ValueError("speedup must be 0 or more, slow above 0")
        object.__setattr__(self, "form", self.model.form())

    @property
    def scale(self) -> float:
        """What any other time of the engine is multiplied by; 0 is no time at all."""
        return self.slow / self.speedup if self.speedup else 0.0

    def step_seconds(self, work: StepWork) -> float:
        if self.speedup == 0:
            return 0.0
        return float(step_time.step_ms(self.form, *work)) * self.slow / self.speedup / 1000.0
