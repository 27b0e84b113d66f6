"""Questions to `Metrics`: sums, missing values, one common span, one rank."""

from __future__ import annotations

import pytest

from checks.metrics.view import Metrics, Sample, window_text
from checks.model import Reason
from tests.checks.build import sample


def metrics(*samples: Sample, source: str = "prometheus", missing: Reason | None = None) -> Metrics:
    grouped: dict[str, tuple[Sample, ...]] = {}
    for one in samples:
        grouped[one.name] = (*grouped.get(one.name, ()), one)
    return Metrics(grouped, window="15m", source=source, missing=missing)


TWO = metrics(sample("a", 3, "w-0", 1, engine="0"), sample("a", 5, "w-1", 2, engine="1"))


@pytest.mark.parametrize(("how", "value"), [("sum", 8), ("min", 3), ("max", 5)])
def test_the_newest_values_are_put_together_as_asked(how: str, value: float) -> None:
    assert TWO.now("a", how=how).value == value


def test_a_question_may_name_member_and_labels() -> None:
    assert (TWO.now("a", "w-1").value, TWO.now("a", engine="0").value) == (5, 3)


def test_growth_is_summed() -> None:
    assert TWO.increase("a").value == 3


def test_what_is_not_there_says_why() -> None:
    assert metrics().now("a").missing is Reason.NO_DATA
    assert metrics(missing=Reason.RBAC).increase("a").missing is Reason.RBAC


def test_a_missing_reading_is_false_and_zero_is_not() -> None:
    assert not metrics().now("a")
    assert metrics(sample("a", 0)).now("a")


def test_evidence_tells_name_number_and_window() -> None:
    assert TWO.increase("a", "w-0").evidence().text == "a = 1 (15m)"
    assert metrics().now("a").evidence().text == "a = no sample (now)"


def test_with_prometheus_a_still_window_stays_the_window() -> None:
    still = metrics(sample("hits", 30, increase=0), sample("asked", 90, increase=0))
    assert [one.window for one in still.grown(("hits", "asked"))] == ["15m", "15m"]


def test_with_scrapes_a_still_window_becomes_the_lifetime_for_all() -> None:
    still = metrics(sample("hits", 30, increase=2), sample("asked", 90, increase=0), source="scrape")
    assert [(one.value, one.lifetime) for one in still.grown(("hits", "asked"))] == [(30, True), (90, True)]


def test_one_rank_is_asked_for_where_there_are_ranks() -> None:
    ranks = metrics(sample("a", 1, worker_id="0"), sample("a", 1, worker_id="1"))
    assert (ranks.one_rank("a"), TWO.one_rank("a")) == ({"worker_id": "0"}, {})


@pytest.mark.parametrize(("seconds", "text"), [(900, "15m"), (60, "1m"), (14.2, "14s"), (90, "90s"), (0.1, "1s")])
def test_a_window_is_written_as_promql_writes_it(seconds: float, text: str) -> None:
    assert window_text(seconds) == text
