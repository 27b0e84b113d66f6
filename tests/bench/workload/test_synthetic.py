"""The built-in conversations: they grow, they share what they should, they follow from the seed."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from bench.workload.describe import describe
from bench.workload.model import Request, Role, Workload, WorkloadError
from bench.workload.source import Wish, make
from bench.workload.synthetic import Conversations


def build(name: str, **wish: Any) -> Workload:
    return make(Wish(name, **wish))


@pytest.fixture(scope="module")
def chat() -> Workload:
    return build("multi-turn", slices=4, requests=402, seed=7)


def conversations(workload: Workload) -> dict[tuple[int, str], list[Request]]:
    found: dict[tuple[int, str], list[Request]] = {}
    for request in workload.requests:
        found.setdefault((request.slice, request.session), []).append(request)
    return found


def test_requests_are_divided_over_the_slices(chat: Workload) -> None:
    assert [len(chat.of_slice(i)) for i in range(4)] == [101, 101, 100, 100]


def test_ids_are_unique(chat: Workload) -> None:
    assert len({r.id for r in chat.requests}) == 402


def test_each_turn_begins_with_the_whole_turn_before_it(chat: Workload) -> None:
    for turns in conversations(chat).values():
        for before, after in pairwise(turns):
            assert after.turn == before.turn + 1
            assert after.pieces[: len(before.pieces)] == before.pieces
            assert len(after.pieces) == len(before.pieces) + 2


def test_the_answer_in_the_history_is_as_long_as_the_one_asked_for(chat: Workload) -> None:
    for turns in conversations(chat).values():
        for before, after in pairwise(turns):
            assert after.pieces[len(before.pieces)].length == before.output_len


def test_turns_are_a_think_time_apart(chat: Workload) -> None:
    low, high = Conversations().think
    for turns in conversations(chat).values():
        for before, after in pairwise(turns):
            assert low <= after.at - before.at <= high


def test_a_slice_is_in_the_order_of_time_and_starts_at_zero(chat: Workload) -> None:
    for index in range(4):
        times = [r.at for r in chat.of_slice(index)]
        assert times == sorted(times)
        assert times[0] == 0


def test_one_group_has_one_system_prompt(chat: Workload) -> None:
    first: dict[str, set[object]] = {}
    for r in chat.requests:
        first.setdefault(r.group, set()).add(r.pieces[0])
    assert all(len(pieces) == 1 for pieces in first.values())


def test_the_first_system_prompts_are_the_popular_ones(chat: Workload) -> None:
    counts = Counter(turns[0].group for turns in conversations(chat).values())
    assert counts["system-0"] > counts["system-15"]


def test_sessions_of_two_slices_share_nothing_but_system_prompts(chat: Workload) -> None:
    own = [{p for r in chat.of_slice(i) for p in r.pieces[1:]} for i in range(4)]
    assert not own[0] & own[1]


def test_the_seed_decides(chat: Workload) -> None:
    assert build("multi-turn", slices=4, requests=402, seed=7).sha256 == chat.sha256
    assert build("multi-turn", slices=4, requests=402, seed=8).sha256 != chat.sha256


def test_the_rate_is_the_one_asked_for() -> None:
    assert describe(build("multi-turn", slices=2, requests=800, seed=0, rate=20)).rate == pytest.approx(20, rel=0.1)


def test_speedup_divides_all_times(chat: Workload) -> None:
    fast = build("multi-turn", slices=4, requests=402, seed=7, speedup=2)
    assert [r.at * 2 for r in fast.requests] == pytest.approx([r.at for r in chat.requests])


def test_conversations_share_most_of_their_tokens(chat: Workload) -> None:
    assert describe(chat).bound > 0.5


def test_the_longest_conversation_fits_a_small_context() -> None:
    spec = Conversations()
    longest = spec.system[1] + spec.turns[1] * (spec.user[1] + spec.answer[1])
    assert longest <= 8192


def test_the_control_shares_nothing() -> None:
    assert describe(build("no-sharing", slices=2, requests=100, seed=0)).bound == 0


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(WorkloadError, match="multi-turn, no-sharing"):
        build("chess", slices=1, requests=10, seed=0)


def test_too_few_requests_for_the_blocks_are_refused() -> None:
    with pytest.raises(WorkloadError, match="--requests 8 or more"):
        build("multi-turn", slices=8, requests=7, seed=0)


def test_with_wait_each_turn_waits_for_the_one_before_it_for_its_think_time() -> None:
    chat = build("multi-turn:wait=yes", slices=2, requests=80, seed=7)
    low, high = Conversations().think
    for turns in conversations(chat).values():
        assert turns[0].after is None
        for before, after in pairwise(turns):
            assert after.after == before.id
            assert low <= after.think <= high


def test_waiting_changes_no_prompt() -> None:
    plain, waiting = (build(f"multi-turn:wait={w}", slices=2, requests=80, seed=7) for w in ("no", "yes"))
    assert [r.pieces for r in plain.requests] == [r.pieces for r in waiting.requests]


def test_system_user_and_answer_pieces_have_their_roles(chat: Workload) -> None:
    for request in chat.requests:
        assert [role.value for role in request.roles[:2]] == ["system", "user"]
        assert request.roles[-1].value == "user"
        assert list(request.roles).count(Role.ASSISTANT) == request.turn
