"""Stop strings across the place where a stream goes on elsewhere, against the plain rule on the whole text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.proxy.seam import StopSeam

TEXT = st.text("ab", max_size=12)


def put_out(seam: StopSeam, pieces: list[str]) -> tuple[str, str | None]:
    """What the client gets of a seam for the pieces of an engine, and the stop string."""
    out, passed = "", False
    for index, piece in enumerate(pieces):
        if passed:
            out += piece
            continue
        text, passed, stop = seam.feed(piece, index == len(pieces) - 1)
        out += text
        if stop is not None:
            return out, stop
    return out, None


def test_text_kept_back_comes_with_the_first_text_behind_it() -> None:
    assert put_out(StopSeam("EN", 0, ("END",), False), ["X rest"]) == ("ENX rest", None)


def test_a_stop_string_across_the_seam_ends_the_answer_before_it() -> None:
    assert put_out(StopSeam("so EN", 0, ("END",), False), ["D more"]) == ("so ", "END")


def test_an_included_stop_string_is_put_out_as_far_as_the_client_has_it_not() -> None:
    assert put_out(StopSeam("EN", 2, ("END",), True), ["D more"]) == ("D", "END")


def test_what_could_become_a_stop_string_is_not_put_out_before_it_is_clear() -> None:
    seam = StopSeam("E", 0, ("ENDE",), False)
    assert seam.feed("N", last=False) == ("", False, None)
    assert seam.feed("DX", last=False) == ("ENDX", True, None)


def test_the_end_of_the_answer_puts_all_of_it_out() -> None:
    assert StopSeam("E", 0, ("ENDE",), False).feed("N", last=True) == ("EN", True, None)


def test_of_two_stop_strings_the_one_that_is_complete_first_counts() -> None:
    assert put_out(StopSeam("ab", 0, ("bcd", "abc"), False), ["cd"]) == ("", "abc")


@given(TEXT, TEXT, st.lists(st.text("ab", min_size=2, max_size=4), min_size=1, max_size=3), st.booleans())
def test_a_seam_finds_what_lies_across_it_and_nothing_else(
    before: str, behind: str, stops: list[str], include: bool
) -> None:
    whole = before + behind
    across = [
        (start + len(stop), start, stop)
        for stop in stops
        for start in range(len(whole))
        if whole.startswith(stop, start) and start < len(before) < start + len(stop)
    ]
    sent = len(before) if include else 0
    out, stop = put_out(StopSeam(before, sent, tuple(stops), include), list(behind) or [""])
    if not across:
        assert (out, stop) == (whole[sent:], None)
        return
    end, start, _stop = min(across)
    assert whole[sent : max(end if include else start, sent)] == out
    assert stop is not None and whole[:end].endswith(stop)
