"""The estimates of engine times: what they start from, what they learn, and what stays out."""

from __future__ import annotations

import random

import numpy as np
import pytest

from router.engine_time import EngineTiming, PrefillModel


def test_the_preset_is_the_polynomial() -> None:
    """2,000 tokens: 16.50142 + 0.01518344 * 2000 + 4.209989e-07 * 2000^2 = 48.552 ms."""
    timing = EngineTiming(PrefillModel.POLYNOMIAL)
    assert timing.prefill_seconds(0, 2000) == pytest.approx(0.0485523, abs=1e-6)


def test_nothing_to_compute_takes_no_time() -> None:
    assert EngineTiming().prefill_seconds(0, 0) == 0.0
    assert EngineTiming(PrefillModel.NONE).prefill_seconds(0, 2000) == 0.0


def test_the_fit_finds_an_engines_own_times_from_noisy_ones() -> None:
    """An engine of 5 ms + 0.1 ms a token: 10,000 tokens take 1.005 s."""
    timing, chance = EngineTiming(), random.Random(1)
    for _ in range(300):
        tokens = chance.randrange(100, 12_000)
        timing.saw_prefill(3, tokens, (0.005 + 1e-4 * tokens) * chance.uniform(0.97, 1.03))
    assert timing.prefill_seconds(3, 10_000) == pytest.approx(1.005, rel=0.03)
    assert timing.prefill_seconds(3, 1_000) == pytest.approx(0.105, rel=0.10)


def test_each_worker_is_learned_apart_and_a_new_engine_starts_anew() -> None:
    timing = EngineTiming()
    for tokens in (500, 1000, 2000, 4000) * 20:
        timing.saw_prefill(1, tokens, 1e-3 * tokens)
    assert timing.prefill_seconds(1, 2000) == pytest.approx(2.0, rel=0.05)
    assert timing.prefill_seconds(2, 2000) == pytest.approx(0.04855, abs=1e-4)
    timing.forget(1)
    assert timing.prefill_seconds(1, 2000) == pytest.approx(0.04855, abs=1e-4)


def test_an_engine_that_becomes_slower_is_learned_again() -> None:
    timing = EngineTiming()
    for pace in (1e-4, 3e-4):
        for tokens in (500, 1000, 2000, 4000) * 400:
            timing.saw_prefill(0, tokens, pace * tokens)
    assert timing.prefill_seconds(0, 2000) == pytest.approx(0.6, rel=0.1)


def test_the_preset_does_not_learn() -> None:
    timing = EngineTiming(PrefillModel.POLYNOMIAL)
    timing.saw_prefill(0, 1000, 9.0)
    assert timing.prefill_seconds(0, 1000) < 0.04


@pytest.mark.parametrize("seconds", [0.0, -1.0, 601.0, float("nan")])
def test_an_observation_that_cannot_be_one_is_left_out(seconds: float) -> None:
    timing = EngineTiming()
    before = timing.prefill_seconds(0, 1000)
    timing.saw_prefill(0, 1000, seconds)
    assert timing.prefill_seconds(0, 1000) == before


def test_a_decode_step_grows_with_requests_and_blocks_as_observed() -> None:
    """Steps of 4 ms + 0.2 ms a request + 1 ms a thousand blocks."""
    timing, chance = EngineTiming(), random.Random(2)
    for _ in range(400):
        requests, blocks = chance.randrange(1, 64), chance.randrange(10, 8000)
        timing.saw_steps(0, requests, blocks, 4e-3 + 2e-4 * requests + 1e-6 * blocks)
    times = timing.times(np.array([0]), np.zeros(1), None)
    assert times.step_growth_s(np.array([500])).tolist() == pytest.approx([2e-4 + 5e-4], rel=0.05)


def test_the_expected_answer_is_the_hint_or_the_mean_of_those_seen() -> None:
    timing = EngineTiming()
    for _ in range(500):
        timing.saw_output(40)
    assert timing.times(np.array([0]), np.zeros(1), 300).output_tokens == 300
    assert timing.times(np.array([0]), np.zeros(1), None).output_tokens == pytest.approx(40, abs=1)


def test_estimates_survive_growth_of_the_fleet() -> None:
    timing = EngineTiming()
    for tokens in (500, 1000, 2000) * 20:
        timing.saw_prefill(63, tokens, 1e-3 * tokens)
    timing.ensure_slots(500)
    assert timing.prefill_seconds(63, 2000) == pytest.approx(2.0, rel=0.05)
    assert timing.prefill_seconds(499, 2000) == pytest.approx(0.04855, abs=1e-4)
