from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.prefix.predict import Predictions

from .reference import check_table, u64


def test_an_expectation_counts_until_its_time_is_over() -> None:
    predictions = Predictions(ttl=5.0)
    predictions.add(3, u64([1, 2, 3]), now=100.0)
    assert predictions.match(u64([1, 2, 3, 4]), now=104.9)[3] == 3
    assert predictions.match(u64([1, 2, 3, 4]), now=105.0)[3] == 0
    assert len(predictions) == 0


def test_the_depth_is_contiguous_from_the_root() -> None:
    predictions = Predictions(ttl=5.0)
    predictions.add(0, u64([1, 3]), now=0.0)
    assert predictions.match(u64([1, 2, 3]), now=0.0)[0] == 1


def test_adding_again_refreshes() -> None:
    predictions = Predictions(ttl=5.0)
    predictions.add(0, u64([1, 2]), now=0.0)
    predictions.add(0, u64([1]), now=4.0)
    assert predictions.match(u64([1, 2]), now=8.0)[0] == 1


def test_a_shorter_time_to_live_does_not_shorten_a_longer_one() -> None:
    predictions = Predictions(ttl=5.0)
    predictions.add(0, u64([1]), now=0.0, ttl=120.0)
    predictions.add(0, u64([1]), now=1.0)
    assert predictions.match(u64([1]), now=100.0)[0] == 1


def test_times_to_live_of_slots_are_independent() -> None:
    predictions = Predictions(ttl=5.0)
    predictions.add(0, u64([1]), now=0.0)
    predictions.add(1, u64([1]), now=0.0, ttl=120.0)
    assert predictions.match(u64([1]), now=60.0)[:2].tolist() == [0, 1]


def test_past_the_limit_the_oldest_go_first_and_a_prefix_shrinks_from_its_end() -> None:
    predictions = Predictions(ttl=5.0, limit=5)
    predictions.add(0, u64([1, 2, 3]), now=0.0)
    predictions.add(0, u64([11, 12, 13]), now=1.0)
    assert len(predictions) == 5
    assert predictions.match(u64([1, 2, 3]), now=1.0)[0] == 2
    assert predictions.match(u64([11, 12, 13]), now=1.0)[0] == 3


def test_a_prompt_longer_than_the_limit_keeps_its_first_blocks() -> None:
    predictions = Predictions(ttl=5.0, limit=10)
    predictions.add(0, u64(range(1, 100)), now=0.0)
    assert predictions.match(u64(range(1, 100)), now=0.0)[0] == 10


def test_removed_keys_are_expected_no_longer_and_may_be_again() -> None:
    predictions = Predictions(ttl=5.0)
    predictions.add(0, u64([1, 2, 3]), now=0.0)
    predictions.remove(0, u64([2, 99]))
    assert predictions.match(u64([1, 2, 3]), now=1.0)[0] == 1
    predictions.add(0, u64([2]), now=1.0)
    assert predictions.match(u64([1, 2, 3]), now=1.0)[0] == 3


def test_drop_forgets_a_slot_only() -> None:
    predictions = Predictions(ttl=5.0)
    predictions.add(0, u64([1, 2]), now=0.0)
    predictions.add(1, u64([1, 2]), now=0.0)
    predictions.drop(0)
    assert predictions.match(u64([1, 2]), now=0.0)[:2].tolist() == [0, 2]


def test_clear_forgets_everything() -> None:
    predictions = Predictions(ttl=5.0)
    predictions.add(0, u64([1, 2]), now=0.0)
    predictions.clear()
    assert len(predictions) == 0
    assert not predictions.match(u64([1, 2]), now=0.0).any()


def test_a_seventeenth_time_to_live_is_refused() -> None:
    predictions = Predictions(ttl=5.0)
    with pytest.raises(ValueError, match="times to live"):
        for ttl in range(1, 20):
            predictions.add(0, u64([1]), now=0.0, ttl=float(ttl))


@pytest.mark.parametrize(("ttl", "limit"), [(0.0, 10), (5.0, 0)])
def test_no_time_and_no_room_are_refused(ttl: float, limit: int) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Predictions(ttl=ttl, limit=limit)


step = st.tuples(
    st.sampled_from(["add", "add", "add", "expire", "drop", "remove"]),
    st.integers(0, 2),
    st.integers(0, 3),
    st.integers(1, 6),
    st.sampled_from([1.0, 4.0]),
    st.floats(0.0, 2.0),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(step, max_size=50))
def test_random_steps_give_what_a_dict_of_expiries_gives(steps: list[tuple]) -> None:
    predictions = Predictions(ttl=1.0)
    expires: dict[tuple[int, int], float] = {}
    now = 0.0
    for name, slot, branch, depth, ttl, pause in steps:
        now += pause
        keys = [1, 2, 10 + branch, 20 + branch, 30 + branch, 40 + branch][:depth]
        if name == "add":
            predictions.add(slot, u64(keys), now, ttl)
            expires = {where: until for where, until in expires.items() if until > now}
            for key in keys:
                expires[slot, key] = max(expires.get((slot, key), 0.0), now + ttl)
        elif name == "remove":
            predictions.remove(slot, u64(keys[depth // 2 :]))
            expires = {
                where: until
                for where, until in expires.items()
                if where[0] != slot or where[1] not in keys[depth // 2 :]
            }
        elif name == "drop":
            predictions.drop(slot)
            expires = {where: until for where, until in expires.items() if where[0] != slot}
        else:
            predictions.expire(now)
            expires = {where: until for where, until in expires.items() if until > now}
        assert len(predictions) == len(expires)
    for branch in range(4):
        keys = [1, 2, 10 + branch, 20 + branch, 30 + branch, 40 + branch]
        depths = predictions.match(u64(keys), now)
        for slot in range(3):
            alive = [expires.get((slot, key), -1.0) > now for key in keys]
            assert depths[slot] == ([*alive, False]).index(False)
    check_table(predictions._table)


def test_many_short_lives_do_not_leak() -> None:
    predictions = Predictions(ttl=1.0, limit=1000)
    sizes = []
    for turn in range(200):
        predictions.add(turn % 8, u64(range(turn * 100 + 1, turn * 100 + 61)), now=float(turn) / 8)
        sizes.append(predictions.bytes)
    assert sizes[-1] == sizes[20]
    check_table(predictions._table)
