"""Quantiles and corrected hit rates; the expected values are worked out by hand beside each case."""

from __future__ import annotations

import math

import pytest

from checks.metrics.histogram import buckets_of, hit_rates, mean, quantile
from checks.metrics.view import Metrics, Sample
from checks.model import Reason
from tests.checks.build import sample

INF = math.inf
HIT_RATE = "lmcache_request_cache_hit_rate"
ZEROS = "lmcache_lookup_0_hit_requests"


def metrics(*samples: Sample, source: str = "prometheus") -> Metrics:
    grouped: dict[str, tuple[Sample, ...]] = {}
    for one in samples:
        grouped[one.name] = (*grouped.get(one.name, ()), one)
    return Metrics(grouped, window="15m", source=source)


def histogram(
    counts: dict[str, float], total: float, *, grown: bool = True, member: str = "prod/w-0", **labels: str
) -> list[Sample]:
    """Cumulative counts by `le`; `grown`: all of it in the window."""
    every = counts["+Inf"]
    made = [sample(f"{HIT_RATE}_bucket", c, member, c if grown else 0.0, le=le, **labels) for le, c in counts.items()]
    made.append(sample(f"{HIT_RATE}_sum", total, member, total if grown else 0.0, **labels))
    made.append(sample(f"{HIT_RATE}_count", every, member, every if grown else 0.0, **labels))
    return made


def test_a_quantile_is_interpolated_in_its_bucket() -> None:
    # 10 observations: 4 in (0, 1], 4 in (1, 2], 2 in (2, 4]. Rank of 0.5 is 5: 1 of 4 into (1, 2].
    assert quantile([(1, 4), (2, 8), (4, 10), (INF, 10)], 0.5) == 1.25


def test_the_lowest_bucket_begins_at_zero() -> None:
    # Rank of 0.2 is 2: half of the 4 in (0, 1].
    assert quantile([(1, 4), (2, 8), (INF, 10)], 0.2) == 0.5


def test_in_the_last_bucket_the_highest_finite_bound_is_told() -> None:
    assert quantile([(1, 4), (2, 8), (INF, 10)], 0.95) == 2


def test_the_highest_quantile_is_the_bound_of_the_last_bucket_with_observations() -> None:
    assert quantile([(1, 4), (2, 8), (4, 8), (INF, 8)], 1.0) == 2


@pytest.mark.parametrize("buckets", [[], [(INF, 5)], [(1, 0), (INF, 0)], [(1, 2), (2, 3)]])
def test_without_observations_or_an_infinite_bucket_there_is_no_quantile(buckets: list[tuple[float, float]]) -> None:
    assert quantile(buckets, 0.5) is None


def test_a_quantile_beyond_one_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        quantile([(1, 1), (INF, 1)], 1.5)


def test_buckets_of_several_members_are_summed_by_bound() -> None:
    found = metrics(*histogram({"0.5": 1, "+Inf": 2}, 1.0), *histogram({"0.50": 3, "+Inf": 4}, 1.0, member="prod/w-1"))
    assert list(buckets_of(found, HIT_RATE)) == [(0.5, 4), (INF, 6)]


def test_torn_buckets_are_made_monotone() -> None:
    assert list(buckets_of(metrics(*histogram({"0.1": 5, "0.5": 4, "+Inf": 6}, 1.0)), HIT_RATE)) == [
        (0.1, 5),
        (0.5, 5),
        (INF, 6),
    ]


def test_a_bound_that_is_no_number_is_passed_over() -> None:
    found = metrics(sample(f"{HIT_RATE}_bucket", 1, increase=1, le="x"), sample(f"{HIT_RATE}_bucket", 1, increase=1))
    assert list(buckets_of(found, HIT_RATE)) == []


def test_only_one_rank_of_a_tensor_parallel_engine_counts() -> None:
    found = metrics(
        *histogram({"0.5": 2, "+Inf": 2}, 1.0, worker_id="0"), *histogram({"0.5": 2, "+Inf": 2}, 1.0, worker_id="1")
    )
    assert list(buckets_of(found, HIT_RATE)) == [(0.5, 2), (INF, 2)]


def test_the_mean_is_sum_over_count() -> None:
    read = mean(metrics(*histogram({"0.5": 4, "+Inf": 8}, 4.0)), HIT_RATE)
    assert (read.value, read.window) == (0.5, "15m")


def test_the_mean_of_nothing_says_why_it_is_missing() -> None:
    assert mean(metrics(), HIT_RATE).missing is Reason.NO_DATA


def test_requests_without_a_hit_are_put_back() -> None:
    # 30 requests without a hit, 10 with hit rates that sum to 6: 30/40 zeros, mean 6/40; naive mean 0.6.
    found = metrics(sample(ZEROS, 30, increase=30), *histogram({"0.5": 5, "1.0": 10, "+Inf": 10}, 6.0))
    rates = hit_rates(found)
    assert rates is not None
    assert (rates.requests, rates.zero_share, rates.mean) == (40, 0.75, 0.15)


@pytest.mark.parametrize(
    ("q", "expected"),
    [
        (0.5, 0.0),  # rank 20 of 40: among the 30 zeros
        (0.75, 0.0),  # rank 30: the last zero
        (0.8, 0.2),  # rank 32: 2 of the 5 in (0, 0.5]
        (0.875, 0.5),  # rank 35: the end of (0, 0.5]
        (0.95, 0.8),  # rank 38: 3 of the 5 in (0.5, 1]
    ],
)
def test_quantiles_of_hit_rates_count_the_zeros(q: float, expected: float) -> None:
    found = metrics(sample(ZEROS, 30, increase=30), *histogram({"0.5": 5, "1.0": 10, "+Inf": 10}, 6.0))
    rates = hit_rates(found)
    assert rates is not None
    assert rates.quantile(q) == pytest.approx(expected)


def test_a_cache_that_never_hits_has_no_samples_and_a_zero_share_of_one() -> None:
    rates = hit_rates(metrics(sample(ZEROS, 50, increase=50)))
    assert rates is not None
    assert (rates.zero_share, rates.mean, rates.quantile(0.99)) == (1.0, 0.0, 0.0)


def test_no_requests_have_no_share_and_no_quantile() -> None:
    rates = hit_rates(metrics(sample(ZEROS, 0, increase=0), *histogram({"1.0": 0, "+Inf": 0}, 0.0)))
    assert rates is not None
    assert (rates.zero_share, rates.mean, rates.quantile(0.5)) == (None, None, None)


def test_without_either_metric_there_are_no_hit_rates() -> None:
    assert hit_rates(metrics()) is None


def test_direct_scrapes_without_traffic_fall_back_on_the_lifetime() -> None:
    found = metrics(sample(ZEROS, 9, increase=0), *histogram({"0.5": 1, "+Inf": 1}, 0.5, grown=False), source="scrape")
    rates = hit_rates(found)
    assert rates is not None
    assert (rates.window, rates.zero_share, rates.mean) == ("lifetime", 0.9, 0.05)
    assert list(rates.buckets) == [(0.5, 1), (INF, 1)]


def test_direct_scrapes_with_less_traffic_than_the_floor_fall_back_on_the_lifetime() -> None:
    found = metrics(sample(ZEROS, 9, increase=3), *histogram({"0.5": 1, "+Inf": 1}, 0.5, grown=False), source="scrape")
    few, enough = hit_rates(found, floor=4), hit_rates(found, floor=3)
    assert few is not None and enough is not None
    assert (few.window, few.requests, enough.requests) == ("lifetime", 10, 3)
