"""A queue that grows is named; noise and a constant load are not."""

from __future__ import annotations

import numpy as np

from bench.stability import stability


def block(rate: float, span: float, service: list[float]) -> tuple[np.ndarray, np.ndarray]:
    sent = np.arange(0, span, 1 / rate)
    return sent, sent + np.interp(sent, np.linspace(0, span, len(service)), service)


def test_a_constant_service_time_is_stable() -> None:
    found = stability([block(20, 10, [0.5, 0.5])] * 3)
    assert found.stable
    assert round(found.middle) == round(found.end) == 10


def test_a_latency_that_grows_without_end_is_unstable() -> None:
    found = stability([block(20, 10, [0.1, 5.0])] * 3)
    assert not found.stable
    assert found.end > 1.5 * found.middle


def test_requests_that_never_end_are_unstable() -> None:
    sent = np.arange(0, 10, 0.05)
    assert not stability([(sent, np.full(len(sent), np.inf))]).stable


def test_poisson_noise_of_a_small_load_is_stable() -> None:
    rng = np.random.default_rng(3)
    verdicts = []
    for _ in range(100):
        blocks = []
        for _ in range(4):
            sent = np.sort(rng.uniform(0, 5, 100))
            blocks.append((sent, sent + rng.exponential(0.1, 100)))
        verdicts.append(stability(blocks).stable)
    assert all(verdicts)


def test_nothing_measured_is_not_called_unstable() -> None:
    assert stability([]).stable
