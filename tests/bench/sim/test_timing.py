"""The timing formulas, against values worked out by hand."""

from __future__ import annotations

import pytest

from bench.sim.timing import BatchTiming, FixedTiming, PolynomialTiming, StepWork, Timing, step_ms


def work(prefill: int = 0, decodes: int = 0, context: int = 0, active: int = 0, total: int = 1000) -> StepWork:
    return StepWork(prefill, decodes, context, active, total)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        # 4.209989e-07 n^2 + 1.518344e-02 n + 16.50142
        (1, 16.5166038609989),
        (1000, 0.4209989 + 15.18344 + 16.50142),
        (8192, 28.25275792 + 124.38274048 + 16.50142),
    ],
)
def test_polynomial_prefill_is_the_mockers(tokens: int, expected: float) -> None:
    assert step_ms(PolynomialTiming(), work(prefill=tokens)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("active", "expected"),
    [(0, 5.74), (500, -6.435 + 27.005 + 5.74), (1000, -25.74 + 54.01 + 5.74), (2000, -25.74 + 54.01 + 5.74)],
)
def test_polynomial_decode_depends_on_cache_use_alone(active: int, expected: float) -> None:
    model = PolynomialTiming()
    assert step_ms(model, work(decodes=1, active=active)) == pytest.approx(expected)
    assert step_ms(model, work(decodes=200, active=active)) == pytest.approx(expected)


def test_polynomial_decode_has_a_floor_of_one_millisecond() -> None:
    assert step_ms(PolynomialTiming(decode_base=0.25), work(decodes=1)) == 1.0


def test_a_step_with_nothing_to_prefill_pays_no_prefill_base() -> None:
    assert step_ms(PolynomialTiming(), work()) == 0.0


def test_a_mixed_step_takes_the_sum_of_both() -> None:
    model = PolynomialTiming()
    both = step_ms(model, work(prefill=100, decodes=3, active=400))
    assert both == pytest.approx(step_ms(model, work(prefill=100)) + step_ms(model, work(decodes=3, active=400)))


def test_fixed_timing_counts_only_what_the_step_does() -> None:
    model = FixedTiming(prefill_ms=30, decode_ms=7)
    assert [step_ms(model, work(5)), step_ms(model, work(0, 2)), step_ms(model, work(5, 2))] == [30, 7, 37]


def test_batch_decode_grows_with_sequences_and_context() -> None:
    model = BatchTiming(decode_base=5, decode_seq=0.1, decode_token=0.001)
    assert step_ms(model, work(decodes=10, context=2000)) == pytest.approx(5 + 1 + 2)


def test_speedup_divides_and_slow_multiplies() -> None:
    timing = Timing(FixedTiming(decode_ms=20), speedup=4, slow=3)
    assert timing.step_seconds(work(decodes=1)) == pytest.approx(0.015)


def test_speedup_zero_is_no_delay() -> None:
    assert Timing(FixedTiming(), speedup=0).step_seconds(work(5, 5)) == 0.0


def test_a_negative_scale_is_refused() -> None:
    with pytest.raises(ValueError, match="speedup"):
        Timing(FixedTiming(), speedup=-1)
