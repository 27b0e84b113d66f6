"""The decomposition of the TTFT difference: on data made by the model itself every part is known beforehand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.explain.columns import BlockColumns, ahead
from bench.explain.ttft import EFFECTS, FEWEST, Decomposition, Side, decompose

COUNT = 60


def made(
    seed: int,
    uncached: float,
    *,
    fixed: float = 20.0,
    per_token: float = 0.02,
    per_request: float = 0.0,
    workers: int = 2,
    one_worker: bool = False,
    gap: float = 1.0,
    length: float = 0.5,
    late: float = 0.0,
    decide: float = 0.0,
    round_: int = 0,
) -> BlockColumns:
    """TTFT = `fixed` + `per_token` * own uncached + `per_request` * in flight, milliseconds, and nothing else."""
    rng = np.random.default_rng(seed)
    sched = np.arange(COUNT) * gap
    send = sched + late / 1000
    work = np.round(uncached * rng.uniform(0.5, 1.5, COUNT))
    work += round(uncached - work.mean())
    worker = np.zeros(COUNT, np.int64) if one_worker else np.arange(COUNT) % workers
    names = [f"r{i}" for i in range(COUNT)]
    block = BlockColumns(
        round_, names, names, np.ones(COUNT, np.bool_), sched, send, send, send + length, worker,
        np.full(COUNT, 2000.0), 2000.0 - work, np.full(COUNT, np.nan), np.full(COUNT, decide),
    )  # fmt: skip
    front = ahead(block, workers)
    ttft = fixed + decide + per_token * work + per_request * np.nan_to_num(front.requests)
    return replace(block, first=send + ttft / 1000)


def split(other: BlockColumns, base: BlockColumns, workers: int = 2) -> dict[str, float | None]:
    found = decompose(Side("kv", [other], workers), Side("random", [base], workers), np.random.default_rng(0), 50)
    return {effect.name: effect.ms for effect in found.effects}


def total(found: Decomposition) -> float:
    return sum(effect.ms or 0.0 for effect in found.effects)


def test_fewer_uncached_tokens_are_hits() -> None:
    parts = split(made(1, 500), made(1, 1500))
    assert parts["hits"] == pytest.approx(-1000 * 0.02, rel=0.01)
    assert parts["queueing"] == pytest.approx(0, abs=0.01)
    assert parts["unexplained"] == pytest.approx(0, abs=0.1)


def test_a_fuller_fleet_is_queueing() -> None:
    """Answers of 2.5 s in place of 0.5 s, one request a second, one worker: two in flight instead of none."""
    kv = made(1, 1000, per_request=5.0, workers=1, length=2.5)
    base = made(2, 1000, per_request=5.0, workers=1, length=0.5)
    parts = split(kv, base, workers=1)
    in_front = 2 - 3 / COUNT  # the first request has none, the second one
    assert parts["queueing"] == pytest.approx(5.0 * in_front, rel=0.05)
    assert parts["imbalance"] == pytest.approx(0, abs=0.01)


def test_all_on_one_of_two_workers_is_imbalance() -> None:
    """Two in flight on average either way: on one worker all are ahead, in turn on two a half."""
    kv = made(1, 1000, per_request=5.0, length=4.5, one_worker=True)
    base = made(2, 1000, per_request=5.0, length=4.5)
    parts = split(kv, base)
    assert parts["imbalance"] == pytest.approx(5.0 * (4 - 2), rel=0.05)
    assert parts["queueing"] == pytest.approx(0, abs=0.05)


def test_a_constant_that_no_term_explains_stays_unexplained() -> None:
    parts = split(made(1, 1000, fixed=27.0), made(1, 1000, fixed=20.0))
    assert parts["unexplained"] == pytest.approx(7.0, abs=0.1)
    assert parts["hits"] == pytest.approx(0, abs=0.1)


def test_decision_time_and_late_sends_are_taken_as_they_are() -> None:
    parts = split(made(1, 1000, decide=1.5, late=3.0), made(1, 1000, decide=0.5))
    assert parts["decision"] == pytest.approx(1.0)
    assert parts["sent late"] == pytest.approx(3.0)
    assert parts["unexplained"] == pytest.approx(0, abs=0.1)


def test_the_parts_add_up_to_the_difference_also_where_the_model_is_wrong() -> None:
    rng = np.random.default_rng(5)
    sides = []
    for seed, name in ((1, "kv"), (2, "random")):
        block = made(seed, 700 if name == "kv" else 1500, per_request=3.0, length=3.0)
        noisy = block.first + rng.exponential(0.05, COUNT)
        sides.append(Side(name, [replace(block, first=noisy)], 2))
    found = decompose(sides[0], sides[1], rng, 50)
    assert [effect.name for effect in found.effects] == list(EFFECTS)
    assert total(found) == pytest.approx(found.difference_ms)


def test_slopes_are_those_of_the_data() -> None:
    sides = [
        Side(name, [made(seed, 1000, per_request=4.0, length=3.0)], 2) for seed, name in ((1, "kv"), (2, "random"))
    ]
    found = decompose(sides[0], sides[1], np.random.default_rng(0), 50)
    assert found.slopes is not None
    assert found.slopes.per_1k_uncached == pytest.approx(20.0, rel=0.02)
    assert found.slopes.per_request == pytest.approx(4.0, rel=0.1)
    assert found.r2 == (pytest.approx(1.0, abs=0.01), pytest.approx(1.0, abs=0.01))


def test_without_names_of_workers_there_is_no_imbalance_and_the_rest_still_adds_up() -> None:
    sides = [
        Side(name, [replace(made(seed, tokens), worker=np.full(COUNT, -1))], 2)
        for seed, name, tokens in ((1, "kv", 500.0), (2, "random", 1500.0))
    ]
    found = decompose(sides[0], sides[1], np.random.default_rng(0), 50)
    parts = {effect.name: effect.ms for effect in found.effects}
    assert parts["imbalance"] is None
    assert parts["hits"] == pytest.approx(-20.0, rel=0.01)
    assert total(found) == pytest.approx(found.difference_ms)


def test_decision_times_of_one_arm_alone_are_no_difference() -> None:
    kv = made(1, 1000, decide=1.0)
    base = replace(made(1, 1000), decide_ms=np.full(COUNT, np.nan))
    parts = split(kv, base)
    assert parts["decision"] is None
    assert parts["unexplained"] == pytest.approx(1.0, abs=0.1)


def test_intervals_need_two_rounds_and_hold_the_value() -> None:
    def side(name: str, tokens: float, first_seed: int) -> Side:
        return Side(name, [made(first_seed + r, tokens, round_=r) for r in range(4)], 2)

    found = decompose(side("kv", 500, 1), side("random", 1500, 11), np.random.default_rng(0), 200)
    hits = found.effects[0]
    assert hits.ci95 is not None
    assert hits.ms is not None
    assert hits.ci95[0] <= hits.ms <= hits.ci95[1]
    one = decompose(Side("kv", [made(1, 500)], 2), Side("random", [made(2, 1500)], 2), np.random.default_rng(0), 200)
    assert all(effect.ci95 is None for effect in one.effects)


def test_a_request_that_failed_in_one_arm_is_in_neither() -> None:
    kv, base = made(1, 1000), made(1, 1000)
    kv.ok[0] = False
    found = decompose(Side("kv", [kv], 2), Side("random", [base], 2), np.random.default_rng(0), 50)
    assert found.pairs == COUNT - 1


def test_too_few_pairs_give_the_difference_and_the_reason() -> None:
    kv, base = made(1, 500), made(1, 1500)
    kv.ok[FEWEST - 1 :] = False
    found = decompose(Side("kv", [kv], 2), Side("random", [base], 2), np.random.default_rng(0), 50)
    assert found.effects == ()
    assert found.difference_ms is not None
    assert "too few" in found.reason


def test_no_pair_at_all_has_a_reason() -> None:
    found = decompose(Side("kv", [], 2), Side("random", [made(1, 1)], 2), np.random.default_rng(0), 50)
    assert found.difference_ms is None
    assert found.reason
