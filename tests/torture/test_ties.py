"""Equal workers get equal shares, and a seeded router repeats itself."""

from __future__ import annotations

import pytest

from tests.torture.system import FOREIGN, all_good, gained, system, text

CHI_SQUARE_3_DF_P_0001 = 16.27


def test_short_prompts_on_an_idle_fleet_spread_evenly() -> None:
    with system(speedup=50) as found:
        served = found.served()
        all_good([found.ask(text(3), max_tokens=1) for _ in range(240)])
        counts = gained(served, found.served())
        expected = sum(counts) / len(counts)
        assert sum((count - expected) ** 2 / expected for count in counts) < CHI_SQUARE_3_DF_P_0001


@pytest.mark.skipif(FOREIGN, reason="other routers have no seed")
def test_the_same_seed_breaks_ties_alike() -> None:
    orders = []
    for _ in range(2):
        with system(speedup=50) as found:
            answers = [found.ask(f"short {number}", max_tokens=1) for number in range(24)]
            orders.append([answer.headers["x-kvctl-worker"] for answer in answers])
    assert orders[0] == orders[1]
