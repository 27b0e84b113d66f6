"""The built-in workloads: each shows what it says, follows from its seed, and refuses what it cannot be."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from bench.workload.catalogue import ENTRIES, find
from bench.workload.describe import PrefixKeys, describe
from bench.workload.model import Deed, Workload, WorkloadError, chains
from bench.workload.prefixes import ranks
from bench.workload.source import Wish, make

NAMES = [entry.name for entry in ENTRIES]


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_bytes_and_another_one_does_not(name: str) -> None:
    first, again, other = (make(Wish(name, slices=2, requests=40, seed=seed)).sha256 for seed in (3, 3, 4))
    assert first == again != other


@pytest.mark.parametrize("name", NAMES)
def test_slices_hold_as_many_requests_as_asked_for_in_the_order_of_time(name: str) -> None:
    workload = make(Wish(name, slices=3, requests=50))
    assert [len(workload.of_slice(i)) for i in range(3)] == [17, 17, 16]
    for index in range(3):
        part = workload.of_slice(index)
        assert part[0].at == 0
        assert [r.at for r in part] == sorted(r.at for r in part)
        chains(part)


@pytest.mark.parametrize("name", NAMES)
def test_speedup_divides_all_times(name: str) -> None:
    slow, fast = (make(Wish(name, requests=40, speedup=speedup)) for speedup in (1.0, 4.0))
    assert [r.at * 4 for r in fast.requests] == pytest.approx([r.at for r in slow.requests])


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("multi-turn", "no-sharing", "burst")])
def test_the_rate_is_met_exactly(name: str) -> None:
    part = make(Wish(name, requests=80, rate=5.0)).requests
    assert part[-1].at == pytest.approx(79 / 5.0)


@pytest.mark.parametrize("name", NAMES)
def test_prompts_of_ids_keep_the_block_grid(name: str) -> None:
    """A prompt's ids are as many as planned, and its blocks are those of its ids."""
    workload = make(Wish(name, requests=20))
    keys = PrefixKeys(workload.vocabulary)
    for request in workload.requests:
        assert len(workload.tokens(request)) == request.prompt_len
        assert len(keys.of(request)) == request.prompt_len // 16


@pytest.mark.parametrize("name", NAMES)
def test_every_workload_says_what_it_is_for_and_what_can_be_set(name: str) -> None:
    entry = find(name)[0]
    assert len(entry.purpose) > 20
    assert all(one.help and one.wanted for one in entry.parameters)


@pytest.mark.parametrize("name", NAMES)
def test_every_default_can_be_written(name: str) -> None:
    entry, spec = find(name)
    assert find(f"{name}:" + ",".join(f"{one.name}={one.default}" for one in entry.parameters)) == (entry, spec)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(WorkloadError, match="unknown workload 'chess': one of multi-turn, no-sharing, zipf"):
        find("chess:level=3")


def test_strata_give_each_rank_its_share_rounded() -> None:
    drawn = Counter(ranks(1000, 3, 1.0, random.Random(1)))
    wanted = [1000 / n / (1 + 1 / 2 + 1 / 3) for n in (1, 2, 3)]
    assert all(abs(drawn[rank] - wanted[rank]) <= 1 for rank in range(3))


def test_ranks_come_in_random_order() -> None:
    assert ranks(50, 5, 1.0, random.Random(1)) != ranks(50, 5, 1.0, random.Random(2))


@pytest.mark.parametrize("seed", range(5))
def test_the_hot_group_of_zipf_is_more_than_twice_one_engines_fair_share_in_every_slice(seed: int) -> None:
    workload = make(Wish("zipf", slices=3, seed=seed, workers=8))
    for index in range(3):
        part = workload.of_slice(index)
        assert Counter(r.group for r in part).most_common(1)[0][1] > 2 * len(part) / 8


def test_all_hot_spot_requests_begin_alike_and_then_differ_by_document() -> None:
    workload = make(Wish("hot-spot:prefix=256", requests=72))
    assert len({r.pieces[0] for r in workload.requests}) == 1
    assert workload.requests[0].pieces[0].length == 256
    assert len({r.pieces[1] for r in workload.requests}) == 24


@pytest.mark.parametrize(("factor", "documents"), [(0.5, 64), (1, 128), (4, 512)])
def test_a_working_set_is_as_large_as_its_factor_says(factor: float, documents: int) -> None:
    workload = make(Wish(f"working-set:factor={factor},cache=32768,document=2048", workers=8))
    distinct = {r.pieces[0] for r in workload.requests}
    assert len(distinct) == documents
    assert sum(piece.length for piece in distinct) == factor * 8 * 32768


def test_a_working_set_is_visited_as_often_as_asked_for() -> None:
    workload = make(Wish("working-set:factor=1,passes=4"))
    assert set(Counter(r.group for r in workload.requests).values()) == {4}


def test_a_working_set_gives_simulated_engines_its_cache() -> None:
    assert make(Wish("working-set:cache=8000", requests=10)).engine == {"num_blocks": 500, "block_size": 16}


def test_too_few_requests_for_the_working_set_are_noted() -> None:
    assert "most documents are not seen twice" in make(Wish("working-set", requests=20)).notes[0]


def test_a_burst_comes_at_one_moment_and_the_mean_rate_holds() -> None:
    workload = make(Wish("burst:size=10,rate=5", requests=40))
    assert Counter(r.at for r in workload.requests) == {0.0: 10, 2.0: 10, 4.0: 10, 6.0: 10}


def test_adapters_are_asked_for_by_name_and_share_nothing() -> None:
    workload = make(Wish("lora:adapters=a+b,groups=1,zipf=0", requests=20))
    assert Counter(r.model for r in workload.requests) == {"a": 10, "b": 10}
    keys = PrefixKeys(workload.vocabulary)
    first = {r.model: keys.of(r)[0] for r in workload.requests}
    assert first["a"] != first["b"]
    assert workload.engine == {"lora": ["a", "b"]}


@pytest.mark.parametrize("names", ["a+a", "a+", ""])
def test_adapters_need_different_names(names: str) -> None:
    with pytest.raises(WorkloadError, match="different names joined by"):
        make(Wish(f"lora:adapters={names}"))


def test_one_client_in_ten_hangs_up() -> None:
    workload = make(Wish("aborts", slices=2, requests=100))
    for index in range(2):
        leaving = [r for r in workload.of_slice(index) if r.abort_after is not None]
        assert len(leaving) == 5
        assert all(1 <= (r.abort_after or 0) <= min(8, r.output_len) for r in leaving)


def done(workload: Workload) -> list[tuple[Deed, int]]:
    return [(action.deed, action.worker) for action in workload.actions]


def test_a_lost_worker_dies_and_comes_back_inside_the_block() -> None:
    workload = make(Wish("worker-loss:worker=2,at=0.25,back=0.5", slices=2, requests=82, rate=4.0))
    assert done(workload) == [(Deed.KILL, 2), (Deed.START, 2)]
    assert [action.at for action in workload.actions] == pytest.approx([2.5, 5.0])


def test_a_lost_worker_may_stay_away() -> None:
    assert done(make(Wish("worker-loss:back=0"))) == [(Deed.KILL, 0)]


def test_a_joining_worker_is_missing_from_the_start() -> None:
    workload = make(Wish("worker-join:at=0.5", requests=41, rate=4.0))
    assert done(workload) == [(Deed.KILL, 0), (Deed.START, 0)]
    assert [action.at for action in workload.actions] == pytest.approx([0.0, 5.0])


def test_actions_are_part_of_the_sha256() -> None:
    loss, stays = (make(Wish(f"worker-loss:back={back}", requests=20)) for back in (0.6, 0))
    assert loss.requests == stays.requests
    assert loss.sha256 != stays.sha256


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (Wish("worker-loss:worker=8"), "a fleet of 8"),
        (Wish("worker-loss", workers=1), "another engine that stays"),
        (Wish("worker-loss:at=0.5,back=0.4"), "must be later"),
        (Wish("zipf", slices=5, requests=4), "--requests 5 or more"),
        (Wish("zipf", requests=10**8), "more than the"),
        (Wish("zipf:groups=0"), "from 1"),
    ],
)
def test_what_cannot_be_is_refused(wish: Wish, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        make(wish)


def test_the_control_shares_nothing_and_zipf_much() -> None:
    assert describe(make(Wish("no-sharing", requests=50))).bound == 0
    assert describe(make(Wish("zipf", requests=72))).bound > 0.5
