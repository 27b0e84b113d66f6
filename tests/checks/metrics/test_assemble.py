"""Answers of a Prometheus put together: spellings, scrapes counted once, targets, the interval."""

from __future__ import annotations

import pytest

from checks.metrics.aliases import Aliases
from checks.metrics.assemble import Assembly, Row, interval_of, rows_of, targets_of
from checks.metrics.scope import Scope
from checks.metrics.view import Sample, ScrapeTarget

ALIASES = Aliases.load()
SCOPE = Scope(("pod",), "", {("w-0",): "prod/w-0", ("w-1",): "prod/w-1"})
HITS, OLD_HITS = "vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"


def row(value: float | str, pod: str = "w-0", **labels: str) -> Row:
    return Row({"pod": pod, **labels}, (1785578400.0, str(value)))


def samples(*added: tuple[str, list[Row], bool], restarted: set[str] | None = None) -> tuple[Sample, ...]:
    """Of the canonical name of the first spelling; each entry is spelling, rows, and whether they are growth."""
    assembly = Assembly(SCOPE)
    for spelled, rows, increase in added:
        assembly.add(spelled, ALIASES.by_spelling[spelled], rows, increase=increase)
    return assembly.samples(restarted or ()).get(ALIASES.by_spelling[added[0][0]].canonical, ())


def test_value_and_growth_of_a_series_come_together() -> None:
    (one,) = samples((HITS, [row(7, engine="0")], False), (HITS, [row(3, engine="0")], True))
    assert one == Sample("prefix_cache_hits", "prod/w-0", {"engine": "0"}, 7.0, 3.0, spelled=HITS)


def test_series_with_different_labels_stay_apart() -> None:
    assert len(samples((HITS, [row(1, engine="0"), row(2, engine="1")], False))) == 2


def test_strangers_are_left_out() -> None:
    assert samples((HITS, [row(1, "other")], False)) == ()


def test_of_two_spellings_of_a_member_the_better_counts() -> None:
    found = samples((HITS, [row(5)], False), (OLD_HITS, [row(5), row(9, "w-1")], False))
    assert {one.member: (one.spelled, one.value) for one in found} == {
        "prod/w-0": (HITS, 5.0),
        "prod/w-1": (OLD_HITS, 9.0),
    }


def test_of_two_jobs_with_the_same_page_one_counts() -> None:
    found = samples((HITS, [row(5, job="b"), row(5, job="a")], False))
    assert [one.value for one in found] == [5]


def test_of_two_jobs_the_one_with_more_series_counts() -> None:
    found = samples((HITS, [row(1, job="a"), row(2, job="b", engine="0"), row(3, job="b", engine="1")], False))
    assert sorted(one.value for one in found) == [2, 3]


def test_a_pair_of_servers_counts_once() -> None:
    found = samples((HITS, [row(5, prometheus_replica="p-0"), row(5, prometheus_replica="p-1")], False))
    assert [one.value for one in found] == [5]


def test_a_series_that_is_gone_has_its_growth_and_the_value_zero() -> None:
    (one,) = samples((HITS, [row(3)], True))
    assert (one.value, one.increase) == (0.0, 3.0)


def test_a_series_without_growth_has_none() -> None:
    (one,) = samples((HITS, [row(3)], False))
    assert one.increase is None


@pytest.mark.parametrize("value", ["NaN", "+Inf", "x"])
def test_values_that_are_no_numbers_are_no_samples(value: str) -> None:
    assert samples((HITS, [row(value)], False)) == ()


def test_growth_of_a_member_that_began_anew_is_marked() -> None:
    found = samples(
        (HITS, [row(1), row(1, "w-1")], False), (HITS, [row(1), row(1, "w-1")], True), restarted={"prod/w-1"}
    )
    assert {one.member: one.reset for one in found} == {"prod/w-0": False, "prod/w-1": True}


def test_control_characters_of_labels_never_come_through() -> None:
    (one,) = samples((HITS, [row(1, model_name="x\x1b[31m")], False))
    assert one.labels == {"model_name": "x"}


def test_where_members_cannot_be_told_apart_all_series_are_the_fleets() -> None:
    assembly = Assembly(Scope())
    assembly.add(HITS, ALIASES.by_spelling[HITS], [row(1, "a"), row(2, "b")], increase=False)
    assert sorted((one.member, one.value) for one in assembly.samples()["prefix_cache_hits"]) == [("", 1), ("", 2)]


def test_a_member_with_samples_is_up_although_another_port_of_it_is_not() -> None:
    ups = [row(0, instance="a"), row(1, instance="b")]
    assert targets_of(SCOPE, ups, [row(2)], []) == {"prod/w-0": ScrapeTarget("prod/w-0", 1.0, 2.0)}


def test_a_member_without_samples_is_down_if_a_target_is() -> None:
    ups = [row(0, instance="a"), row(1, instance="b")]
    assert targets_of(SCOPE, ups, [], [])["prod/w-0"].up == 0.0


def test_the_youngest_sample_tells_the_age_and_it_is_never_below_zero() -> None:
    ages = [row(9), row(4), row(-0.5, "w-1")]
    found = targets_of(SCOPE, [], ages, [])
    assert {key: one.age_s for key, one in found.items()} == {"prod/w-0": 4.0, "prod/w-1": 0.0}


def test_a_member_without_a_target_is_not_listed() -> None:
    assert "prod/w-1" not in targets_of(SCOPE, [row(1)], [], [])


def test_the_interval_is_the_usual_distance() -> None:
    assert interval_of([Row({}, None, [(at, "1") for at in (0, 15, 30, 75, 90)])]) == 15


@pytest.mark.parametrize("rows", [[], [Row({}, None, [(0, "1")])], [Row({}, (0, "1"))]])
def test_fewer_than_two_samples_have_no_interval(rows: list[Row]) -> None:
    assert interval_of(rows) is None


@pytest.mark.parametrize("text", ["", "{}", '[{"metric": 1}]', '[{"metric": {}, "value": "x"}]', "[1]"])
def test_what_is_no_result_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        rows_of(text)
