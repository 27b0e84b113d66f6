"""The search for a capacity: it ends, brackets the truth, outvotes an unlucky probe, says what it does not know."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from bench.capacity import Capacity, Outcome, Search, most_probes


def run(search: Search, probe: Callable[[float, int], Outcome]) -> Capacity:
    """`probe`: (rate, how often it was probed before) -> outcome."""
    for _ in range(200):
        rate = search.next_rate()
        if rate is None:
            return search.result()
        search.tell(rate, probe(rate, len(search.votes.get(rate, []))))
    raise AssertionError("the search does not end")


def limit(at: float) -> Callable[[float, int], Outcome]:
    return lambda rate, _: Outcome.MET if rate <= at else Outcome.MISSED


@pytest.mark.parametrize("truth", [1.0, 7.3, 14.0, 30.0, 55.5, 300.0])
def test_the_capacity_lies_in_a_bracket_of_the_precision_asked_for(truth: float) -> None:
    found = run(Search(14.0, precision=0.05, most=40), limit(truth))
    assert found.rate is not None
    assert found.upper is not None
    assert found.rate <= truth < found.upper
    assert found.upper / found.rate <= 1.05
    assert (found.precise, found.confirmed, found.reason) == (True, True, "")


def test_the_probes_given_are_enough_from_a_start_within_a_factor_of_eight() -> None:
    for truth in (2.0, 5.0, 14.0, 50.0, 100.0):
        found = run(Search(14.0, precision=0.05, most=most_probes(0.05)), limit(truth))
        assert found.precise, truth


def test_both_edges_are_probed_twice() -> None:
    found = run(Search(10.0, most=30), limit(13.0))
    outcomes = dict(found.probes)
    assert found.rate is not None
    assert found.upper is not None
    assert outcomes[found.rate] == (Outcome.MET, Outcome.MET)
    assert outcomes[found.upper] == (Outcome.MISSED, Outcome.MISSED)


def test_one_unlucky_probe_at_the_start_is_outvoted() -> None:
    def probe(rate: float, before: int) -> Outcome:
        return Outcome.MISSED if rate == 10.0 and before == 0 else limit(13.0)(rate, before)

    found = run(Search(10.0, most=60), probe)
    assert found.rate is not None
    assert found.rate <= 13.0 < (found.upper or 0)


def test_noisy_probes_near_the_edge_still_end_near_it() -> None:
    """A probe within 5 % of the truth is a coin flip; 40 searches all end within 15 %."""
    for seed in range(40):
        rng = random.Random(seed)

        def probe(rate: float, _: int, rng: random.Random = rng) -> Outcome:
            if abs(rate / 20.0 - 1) < 0.05:
                return rng.choice([Outcome.MET, Outcome.MISSED])
            return Outcome.MET if rate < 20.0 else Outcome.MISSED

        found = run(Search(14.0, most=60), probe)
        assert found.rate is not None
        assert 17.0 <= found.rate <= 23.0
        rates = [rate for rate, _ in found.probes]
        assert rates == sorted(rates)


def test_objectives_never_met_give_no_capacity_and_say_so() -> None:
    found = run(Search(1.0, lowest=0.1, most=40), limit(0.0))
    assert found.rate is None
    assert "not met at 0.125" in found.reason
    assert found.bracket == (0.0, 0.125)


def test_objectives_always_met_give_a_lower_bound() -> None:
    found = run(Search(1.0, highest=100, most=40), limit(1e9))
    assert (found.rate, found.upper) == (64.0, None)
    assert "highest rate tried" in found.reason
    assert found.bracket == (64.0, float("inf"))


def test_a_client_that_cannot_send_gives_a_lower_bound() -> None:
    found = run(Search(10.0, most=60), lambda rate, _: Outcome.MET if rate <= 50 else Outcome.VOID)
    assert found.rate is not None
    assert 45 < found.rate <= 50
    assert found.upper is None
    assert "client could not send" in found.reason


def test_a_void_probe_is_repeated_and_does_not_vote() -> None:
    def probe(rate: float, before: int) -> Outcome:
        return Outcome.VOID if before == 0 else limit(13.0)(rate, before)

    found = run(Search(10.0, most=80), probe)
    assert found.precise
    assert found.rate is not None
    assert found.rate <= 13.0 < (found.upper or 0)


def test_a_search_without_enough_probes_keeps_what_it_has() -> None:
    found = run(Search(10.0, most=3), limit(13.0))
    assert found.bracket == (10.0, pytest.approx(14.14, abs=0.01))
    assert found.reason == "3 probes were not enough"
    assert not found.precise


def test_a_search_that_was_stopped_says_by_what() -> None:
    search = Search(10.0)
    search.tell(10.0, Outcome.MET)
    assert search.result("interrupted").reason == "interrupted"
    assert search.result("interrupted").rate == 10.0
