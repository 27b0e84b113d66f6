"""What is sent to prime a block: the prefix that several sessions share, and nothing of theirs alone."""

from __future__ import annotations

from bench.prime import common_prefix, prime_requests
from bench.workload.model import Request
from bench.workload.tokens import Piece


def request(number: int, session: str, group: str, *pieces: Piece) -> Request:
    return Request(f"r{number}", session, 0, group, 0, 0.1 * number, 9, pieces)


SYSTEM = Piece(1, 100)


def test_a_group_is_primed_with_what_its_sessions_share() -> None:
    made = prime_requests(
        [
            request(0, "a", "g", SYSTEM, Piece(2, 10)),
            request(1, "b", "g", SYSTEM, Piece(3, 10)),
            request(2, "a", "g", SYSTEM, Piece(2, 10), Piece(4, 10)),
        ]
    )
    assert [(one.pieces, one.output_len, one.at) for one in made] == [((SYSTEM,), 1, 0.0)]


def test_a_session_alone_in_its_group_is_not_primed() -> None:
    assert prime_requests([request(0, "a", "g", SYSTEM), request(1, "a", "g", SYSTEM, Piece(2, 5))]) == []


def test_sessions_that_share_nothing_are_not_primed() -> None:
    assert prime_requests([request(0, "a", "g", Piece(2, 5)), request(1, "b", "g", Piece(3, 5))]) == []


def test_the_largest_group_goes_first() -> None:
    small = [request(i, f"s{i}", "small", Piece(7, 50)) for i in range(2)]
    large = [request(10 + i, f"l{i}", "large", Piece(8, 50)) for i in range(3)]
    assert [one.group for one in prime_requests(small + large)] == ["large", "small"]


def test_a_piece_held_to_different_lengths_is_shared_to_the_shortest() -> None:
    assert common_prefix([(Piece(1, 512), Piece(2, 9)), (Piece(1, 300),)]) == (Piece(1, 300),)
    assert common_prefix([(Piece(1, 512), Piece(2, 9)), (Piece(1, 300), Piece(2, 9))]) == (Piece(1, 300),)


def test_prompts_without_a_common_start_share_nothing() -> None:
    assert common_prefix([(Piece(1, 5),), (Piece(2, 5),)]) == ()


def test_each_priming_request_waits_for_the_one_before() -> None:
    made = prime_requests(
        [request(i, f"s{i}", f"g{i % 3}", Piece(10 + i % 3, 50), Piece(100 + i, 5)) for i in range(6)]
    )
    assert [one.after for one in made] == [None, made[0].id, made[1].id]
    assert len({one.session for one in made}) == 3
