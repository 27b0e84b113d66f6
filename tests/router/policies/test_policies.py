"""Each mode's exact rule, and the worked vectors of the cost and the softmax."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from router.model import BadRequest, Reason
from router.policies.choice import LoadBound, softmax_probabilities
from router.policies.kv import Kv, KvWeights
from router.policies.registry import MODES, UnknownMode, make_policy, mode_name
from router.policies.settings import PolicySettings
from tests.router.policies.build import fleet, request, rng


def test_kv_cost_reproduces_the_worked_vectors() -> None:
    decision = Kv().decide(request(100), fleet(3, device=[2, 5, 8], decode_blocks=[10, 5, 9]), rng())
    assert decision.cost.tolist() == [18.0, 10.0, 11.0]
    assert (decision.worker, decision.reason) == ("w1", Reason.LOWEST_COST)


def test_kv_terms_add_up_to_the_cost_and_carry_their_unit() -> None:
    candidates = fleet(2, block_size=16, device=[8, 0], decode_blocks=[0, 3], new_blocks=[10, 10])
    decision = Kv().decide(request(160), candidates, rng())
    assert [(term.name, term.unit, term.values.tolist()) for term in decision.terms] == [
        ("prefill", "blocks", [2.0, 10.0]),
        ("decode", "blocks", [10.0, 13.0]),
    ]
    assert decision.cost.tolist() == [12.0, 23.0]


def test_kv_counts_the_prefill_already_queued_on_a_worker() -> None:
    decision = Kv().decide(request(100), fleet(2, prefill_tokens=[55, 0], device=[3, 0]), rng())
    assert decision.cost.tolist() == [pytest.approx(12.5), pytest.approx(10.0)]


def test_kv_decay_of_one_halves_the_credit_at_one_request_of_excess() -> None:
    policy = Kv(KvWeights(overlap_score_credit_decay=1.0))
    decision = policy.decide(request(100), fleet(2, device=[8, 0], prefill_tokens=[100, 0]), rng())
    assert decision.cost.tolist() == [pytest.approx(20.0 - 4.0), pytest.approx(10.0)]


def test_kv_lower_tiers_count_with_their_weights() -> None:
    candidates = fleet(4, device=[1, 1, 1, 1], host=[0, 4, 0, 0], disk=[0, 0, 4, 0], shared=[0, 0, 0, 4])
    decision = Kv().decide(request(100), candidates, rng())
    assert decision.cost.tolist() == [9.0, 6.0, 8.0, 7.0]


def test_kv_credit_never_makes_the_prefill_term_negative() -> None:
    policy = Kv(KvWeights(overlap_score_credit=2.5))
    assert policy.decide(request(100), fleet(2, device=[10, 0]), rng()).cost.tolist() == [0.0, 10.0]


def test_kv_active_request_weight_adds_a_term_of_its_own() -> None:
    policy = Kv(KvWeights(decode_active_request_weight=2.0))
    decision = policy.decide(request(100), fleet(2, active_requests=[3, 0]), rng())
    assert decision.cost.tolist() == [16.0, 10.0]
    assert decision.terms[2].values.tolist() == [6.0, 0.0]


def test_kv_prefill_load_scale_multiplies_only_the_prefill_term() -> None:
    policy = Kv(KvWeights(prefill_load_scale=4.0))
    decision = policy.decide(request(100), fleet(2, device=[5, 0], decode_blocks=[7, 0]), rng())
    assert decision.cost.tolist() == [27.0, 40.0]


@pytest.mark.parametrize(
    "bad",
    [
        {"overlap_score_credit": -1.0},
        {"prefill_load_scale": math.nan},
        {"host_cache_hit_weight": 1.5},
        {"router_temperature": math.inf},
        {"overlap_score_credit": 1.1e12},
    ],
)
def test_a_weight_out_of_range_is_refused_by_name(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        KvWeights(**bad)


def test_softmax_of_costs_zero_and_one_at_temperature_one() -> None:
    assert softmax_probabilities(np.array([0.0, 1.0]), 1.0) == pytest.approx([0.7310586, 0.2689414], abs=1e-6)


def test_softmax_is_scale_free() -> None:
    near = softmax_probabilities(np.array([10.0, 10.01]), 0.5)
    far = softmax_probabilities(np.array([10.0, 1000.0]), 0.5)
    assert near == pytest.approx(far)
    assert near[1] / near[0] == pytest.approx(math.exp(-2.0))


def test_softmax_of_equal_costs_is_uniform() -> None:
    assert softmax_probabilities(np.array([4.0, 4.0, 4.0]), 0.1) == pytest.approx([1 / 3] * 3)


def test_softmax_survives_a_range_that_overflows() -> None:
    chances = softmax_probabilities(np.array([-1.7e308, 1.7e308]), 1.0)
    assert chances == pytest.approx([0.7310586, 0.2689414], abs=1e-6)


def test_temperature_draws_rows_as_often_as_the_softmax_says() -> None:
    policy = Kv(KvWeights(router_temperature=1.0))
    chance = rng(7)
    candidates = fleet(2, decode_blocks=[0, 1])
    won = Counter(policy.decide(request(100), candidates, chance).winner for _ in range(4000))
    assert won[0] / 4000 == pytest.approx(0.731, abs=0.03)


def test_a_tie_in_kv_mode_is_broken_evenly_and_named() -> None:
    chance = rng(3)
    decisions = [Kv().decide(request(100), fleet(4), chance) for _ in range(4000)]
    won = Counter(decision.winner for decision in decisions)
    chi_square = sum((count - 1000) ** 2 / 1000 for count in won.values())
    assert set(won) == {0, 1, 2, 3}
    assert chi_square < 16.27  # 0.1 % level, 3 degrees of freedom
    assert {decision.reason for decision in decisions} == {Reason.TIE}


def test_the_same_seed_breaks_ties_the_same_way() -> None:
    def winners(seed: int) -> list[int]:
        chance = rng(seed)
        return [Kv().decide(request(100), fleet(8), chance).winner for _ in range(50)]

    assert winners(5) == winners(5)
    assert winners(5) != winners(6)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "direct"])
def test_no_mode_ever_takes_an_ineligible_row(mode: str) -> None:
    policy = make_policy(mode, PolicySettings())
    candidates = fleet(5, eligible=[0, 1, 0, 1, 0], decode_blocks=[0, 9, 0, 9, 0], active_requests=[0, 9, 0, 9, 0])
    chance = rng()
    assert {policy.decide(request(), candidates, chance).winner for _ in range(200)} == {1, 3}


def test_round_robin_takes_the_rows_in_turn() -> None:
    policy = make_policy("round-robin", PolicySettings())
    assert [policy.decide(request(), fleet(3), rng()).winner for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_round_robin_counts_over_the_eligible_rows_only() -> None:
    policy = make_policy("round-robin", PolicySettings())
    candidates = fleet(4, eligible=[0, 1, 1, 0])
    assert [policy.decide(request(), candidates, rng()).winner for _ in range(4)] == [1, 2, 1, 2]


def test_random_takes_each_row_about_as_often() -> None:
    policy = make_policy("random", PolicySettings())
    chance = rng(1)
    won = Counter(policy.decide(request(), fleet(4), chance).winner for _ in range(4000))
    assert all(abs(count - 1000) < 120 for count in won.values())


def test_power_of_two_never_takes_the_busiest_of_all() -> None:
    policy = make_policy("power-of-two", PolicySettings())
    chance = rng(2)
    won = {policy.decide(request(), fleet(4, active_requests=[3, 1, 2, 0]), chance).winner for _ in range(500)}
    assert won == {1, 2, 3}


def test_power_of_two_with_one_worker_takes_it() -> None:
    decision = make_policy("power-of-two", PolicySettings()).decide(request(), fleet(3, eligible=[0, 1, 0]), rng())
    assert (decision.winner, decision.reason) == (1, Reason.ONLY_CANDIDATE)


def test_power_of_two_lets_the_first_drawn_win_a_tie() -> None:
    policy = make_policy("power-of-two", PolicySettings())
    chance = rng(4)
    won = Counter(policy.decide(request(), fleet(2), chance).winner for _ in range(2000))
    assert abs(won[0] - 1000) < 120


def test_least_loaded_takes_the_exact_minimum() -> None:
    decision = make_policy("least-loaded", PolicySettings()).decide(
        request(), fleet(4, active_requests=[5, 2, 1, 3]), rng()
    )
    assert (decision.winner, decision.reason) == (2, Reason.LEAST_LOADED)


def test_direct_without_a_pin_says_which_header_is_missing() -> None:
    with pytest.raises(BadRequest, match="x-kvctl-worker"):
        make_policy("direct", PolicySettings()).decide(request(), fleet(2), rng())


def test_direct_takes_the_pinned_row() -> None:
    decision = make_policy("direct", PolicySettings()).decide(
        request(pin_worker="w1"), fleet(3, eligible=[0, 1, 0]), rng()
    )
    assert (decision.worker, decision.reason) == ("w1", Reason.PINNED)


@pytest.mark.parametrize(
    ("spelling", "mode"),
    [("roundrobin", "round-robin"), ("round_robin", "round-robin"), ("KV", "kv"), ("Power-Of-Two", "power-of-two")],
)
def test_a_mode_may_be_spelled_with_underscores_or_joined(spelling: str, mode: str) -> None:
    assert mode_name(spelling) == mode


def test_an_unknown_mode_names_itself_and_the_modes() -> None:
    with pytest.raises(UnknownMode, match=r"'fastest'.*kv, random, round-robin"):
        mode_name("fastest")


def test_kv_leaves_out_queued_prefill_that_is_the_requests_own_prefix() -> None:
    candidates = fleet(
        2, prefill_tokens=[90, 0], own_prefill_tokens=[80, 0], device=[8, 0], decode_blocks=[9, 0], new_blocks=[1, 10]
    )
    decision = Kv().decide(request(100), candidates, rng())
    assert decision.cost.tolist() == [3.0 + 10.0, 10.0 + 10.0]


def test_preferred_taints_multiply_the_cost_by_exp_of_minus_tanh() -> None:
    candidates = fleet(2, decode_blocks=[10, 10])
    candidates.taint_factor = np.array([math.exp(-math.tanh(1.0)), 1.0])
    decision = Kv().decide(request(0), candidates, rng())
    assert decision.cost.tolist() == pytest.approx([4.669, 10.0], abs=0.001)
    assert decision.terms[-1].name == "preferred_taints"
    assert sum(term.values for term in decision.terms).tolist() == pytest.approx(decision.cost.tolist())


def test_a_requests_own_weights_beat_the_policys() -> None:
    candidates = fleet(2, device=[5, 0], decode_blocks=[2, 0])
    assert Kv().decide(request(100), candidates, rng()).worker == "w0"
    own = request(100, weights={"overlap_score_credit": 0.0})
    assert Kv().decide(own, candidates, rng()).worker == "w1"


def test_a_row_at_the_load_bound_is_passed_over_for_the_cheapest_below_it() -> None:
    """11 in flight on 4 rows: the bound is ceil(1.25 * 12 / 4) = 4."""
    policy = Kv(bound=LoadBound(1.25, floor=3))
    at_bound = fleet(4, device=[9, 2, 1, 0], active_requests=[4, 3, 2, 2])
    decision = policy.decide(request(100), at_bound, rng())
    assert (decision.worker, decision.reason) == ("w1", Reason.LOAD_BOUND)
    below = fleet(4, device=[9, 2, 1, 0], active_requests=[3, 3, 3, 2])
    assert policy.decide(request(100), below, rng()).worker == "w0"


def test_the_load_bound_leaves_a_few_requests_alone() -> None:
    decision = Kv(bound=LoadBound(1.25, floor=3)).decide(
        request(100), fleet(8, device=[9] + [0] * 7, active_requests=[2] + [0] * 7), rng()
    )
    assert (decision.worker, decision.reason) == ("w0", Reason.LOWEST_COST)


def test_a_burst_of_siblings_fills_no_worker_beyond_the_bound() -> None:
    """One after the other, 64 requests that all share 90 of 100 blocks, on 4 workers: 20 at most on one."""
    policy = Kv(bound=LoadBound())
    active, held = [0, 0, 0, 0], [0, 0, 0, 0]
    for _ in range(64):
        decode = [100 + 10 * n if n else 0 for n in active]
        rows = fleet(
            4, device=held, active_requests=active, decode_blocks=decode, new_blocks=[10 if h else 100 for h in held]
        )
        winner = policy.decide(request(1000), rows, rng()).winner
        active[winner] += 1
        held[winner] = 90
    assert max(active) <= 21
    assert min(held) == 90


def test_without_tracked_prefill_only_decode_counts() -> None:
    rows = fleet(2, prefill_tokens=[900, 0], device=[0, 5], decode_blocks=[1, 2])
    decision = Kv(KvWeights(track_prefill_tokens=False)).decide(request(100), rows, rng())
    assert decision.cost.tolist() == [1.0, 2.0]


def test_the_largest_weights_leave_every_cost_a_number() -> None:
    weights = KvWeights(
        overlap_score_credit=1e12,
        overlap_score_credit_decay=1e12,
        prefill_load_scale=1e12,
        decode_active_request_weight=1e12,
    )
    rows = fleet(3, device=[5, 0, 9], prefill_tokens=[0, 10**9, 10**9], active_requests=[0, 10**6, 3])
    assert np.isfinite(Kv(weights).decide(request(100), rows, rng()).cost).all()


def test_softmax_at_a_temperature_next_to_zero_takes_the_cheapest() -> None:
    assert softmax_probabilities(np.array([3.0, 1.0, 2.0]), 1e-320).tolist() == [0.0, 1.0, 0.0]
