"""Popular prefixes must not sink one worker: the busiest takes at most 1.5 times the mean, several hold the prefix."""

from __future__ import annotations

import random

from tests.torture.system import all_good, gained, peak_to_mean, system, text

BOUND = 1.5


def test_one_prefix_that_all_requests_share() -> None:
    with system(speedup=5) as found:
        prefix, served, hits = text(700), found.served(), found.hits()
        all_good(found.ask_all([f"{prefix} {text(20)}" for _ in range(240)], at_once=32))
        assert peak_to_mean(gained(served, found.served())) <= BOUND
        assert sum(each > 0 for each in gained(hits, found.hits())) >= 3


def test_groups_of_which_few_are_very_popular() -> None:
    """Zipf with exponent 1.1 over 20 groups: the first has about a third of all requests."""
    chance = random.Random(4)
    weights = [1 / rank**1.1 for rank in range(1, 21)]
    groups = [text(400) for _ in weights]
    with system(speedup=5) as found:
        served = found.served()
        picks = chance.choices(groups, weights, k=300)
        all_good(found.ask_all([f"{group} {text(20)}" for group in picks], at_once=32))
        assert peak_to_mean(gained(served, found.served())) <= BOUND


def test_bursts_of_siblings_at_one_instant() -> None:
    with system(speedup=5) as found:
        served = found.served()
        for _ in range(4):
            prefix = text(600)
            all_good(found.ask_all([f"{prefix} {text(10)}" for _ in range(48)], at_once=48))
        assert peak_to_mean(gained(served, found.served())) <= BOUND


def test_a_group_that_is_larger_than_one_workers_cache() -> None:
    """12 documents of about 1,000 tokens with a beginning of their own, caches of 6,400: one cannot hold them."""
    with system(speedup=5, num_blocks=400, max_model_len=4096) as found:
        served, hits = found.served(), found.hits()
        shared = text(300)
        documents = [f"{shared} {text(500)}" for _ in range(12)]
        chance = random.Random(5)
        prompts = [f"{chance.choice(documents)} {text(10)}" for _ in range(240)]
        all_good(found.ask_all(prompts, at_once=16))
        assert peak_to_mean(gained(served, found.served())) <= BOUND
        assert sum(gained(hits, found.hits())) > 0
