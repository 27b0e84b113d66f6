"""The soak's look at memory: what counts as growth."""

from __future__ import annotations

import pytest

from bench.soak.watch import Sample, slope


def sample(at: float, rss: float, kept: float = 0.0) -> Sample:
    return Sample(at, int(rss), 10, 0, 0, 0.0, 0.0, int(kept))


def test_memory_that_grows_evenly_has_that_slope() -> None:
    assert slope([sample(at, 1e8 + 1000 * at) for at in range(100)]) == pytest.approx(1000)


def test_what_the_router_keeps_within_limits_is_no_growth() -> None:
    assert slope([sample(at, 1e8 + 5000 * at, 5000 * at) for at in range(100)]) == pytest.approx(0)


def test_the_first_third_does_not_count() -> None:
    assert slope([sample(at, 1e8 + min(at, 30) * 1e6) for at in range(100)]) == pytest.approx(0)


def test_too_few_samples_say_nothing() -> None:
    assert slope([sample(0, 1e8)]) == 0.0
