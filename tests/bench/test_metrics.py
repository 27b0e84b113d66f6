"""An arm's numbers on requests made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.control import DecisionFacts
from bench.metrics import (
    Measured,
    Slo,
    arm_metrics,
    cached_ratio,
    distribution,
    load_cv,
    output_rate,
    paired,
    predicted_ratio,
    values,
)
from tests.bench.results import request, timing


def measured(number: int = 0, **how: object) -> Measured:
    return Measured(request(number), timing(0.1 * number, **how), DecisionFacts(12.0, 50))  # type: ignore[arg-type]


def test_latencies_are_milliseconds() -> None:
    one = measured(ttft=0.2, itl=0.03, lag=0.004)
    assert one.value("ttft_ms") == pytest.approx(200)
    assert one.value("itl_ms") == pytest.approx(30)
    assert one.value("sched_lag_ms") == pytest.approx(4)


def test_a_one_token_answer_has_no_itl_and_is_left_out_of_it() -> None:
    found = values([measured(tokens=1), measured(itl=0.02)], "itl_ms")
    assert found.tolist() == pytest.approx([20])


def test_a_failed_request_is_in_the_percentiles_and_not_in_the_mean() -> None:
    found = distribution(values([measured(ttft=0.1)] * 9 + [measured(error="cut")], "ttft_ms"))
    assert found["mean"] == pytest.approx(100)
    assert found["p50"] == pytest.approx(100)
    assert found["p99"] is None


def test_the_cached_ratio_is_in_tokens() -> None:
    assert cached_ratio([measured(cached=80), measured(cached=0)]) == pytest.approx(0.4)


def test_an_answer_that_leaves_the_field_out_counts_as_nothing_cached() -> None:
    assert cached_ratio([measured(cached=80), measured(cached=None)]) == pytest.approx(0.4)


def test_without_any_report_there_is_no_cached_ratio() -> None:
    assert cached_ratio([measured(cached=None)]) is None


def test_the_predicted_ratio_comes_from_the_routers_decisions() -> None:
    assert predicted_ratio([measured()]) == pytest.approx(0.5)
    assert predicted_ratio([Measured(request(0), timing(0.0))]) is None


def test_pooled_gaps_weigh_long_answers_more() -> None:
    every = [measured(itl=0.01, tokens=11), measured(itl=0.03, tokens=2)]
    found = arm_metrics([every], [], None)
    assert found["itl_ms"]["mean"] == pytest.approx(20)  # type: ignore[index]
    assert found["icl_ms"]["mean"] == pytest.approx((10 * 10 + 30) / 11)  # type: ignore[index]


def test_output_rate_is_good_tokens_over_first_send_to_last_token() -> None:
    """Two blocks: 10 tokens in 0.24 s (schedule 0 and 0.1, last token at 0.1 + 0.1 + 0.04), twice."""
    block = [measured(0), measured(1)]
    assert output_rate([block, block]) == pytest.approx(10 / 0.24)


def test_failed_requests_give_no_tokens() -> None:
    assert math.isnan(output_rate([[measured(error="cut")]]))


def test_load_cv_counts_workers_that_got_nothing() -> None:
    block = [measured(worker="w0"), measured(worker="w0")]
    assert load_cv([block], ["w0", "w1"]) == pytest.approx(1.0)
    assert load_cv([[measured(worker="w0"), measured(worker="w1")]], ["w0", "w1"]) == 0


def test_load_cv_is_unknown_without_worker_names() -> None:
    assert load_cv([[measured(worker=None)]], []) is None


def test_goodput_is_over_all_scheduled_requests() -> None:
    slo = Slo.parse("ttft=150ms,itl=15ms")
    every = [measured(0), measured(1, ttft=0.2), measured(2, itl=0.02), measured(3, error="http_503")]
    found = arm_metrics([every], [], slo)
    assert found["goodput"] == 0.25
    assert found["goodput_req_s"] == pytest.approx(1 / 0.3)


def test_without_an_slo_there_is_no_goodput() -> None:
    assert arm_metrics([[measured()]], [], None)["goodput"] is None


def test_slo_times_may_be_seconds_or_milliseconds() -> None:
    assert Slo.parse("ttft=500ms, e2e=2s") == Slo(ttft_ms=500, e2e_ms=2000)


@pytest.mark.parametrize("text", ["ttft", "speed=5ms", "ttft=soon"])
def test_an_slo_that_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=text.split("=")[0]):
        Slo.parse(text)


def test_pairs_leave_out_what_one_side_does_not_have() -> None:
    found = paired([measured(tokens=1), measured(itl=0.01)], [measured(itl=0.01), measured(itl=0.02)], "itl_ms.mean")
    assert np.isnan(found.base).tolist() == np.isnan(found.other).tolist() == [True, False]


def test_a_failed_request_is_no_part_of_the_cached_pairs() -> None:
    found = paired([measured(error="cut")], [measured(cached=64)], "cached_token_ratio")
    assert np.isnan(found.other).all()
