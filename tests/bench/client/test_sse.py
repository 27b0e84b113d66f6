"""Events come out whole and in order, however the bytes are cut and whatever line ends the server uses."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.client.sse import SseParser

PAYLOADS = [b'{"a":1}', b'{"b":"x y"}', b"[DONE]"]


def fed(parts: list[bytes]) -> list[bytes]:
    parser = SseParser()
    events: list[bytes] = []
    for part in parts:
        events += parser.feed(part)
    return events + parser.finish()


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("field", [b"data: ", b"data:"])
def test_line_ends_and_the_space_after_the_colon_do_not_matter(end: bytes, field: bytes) -> None:
    wire = b"".join(field + payload + end + end for payload in PAYLOADS)
    assert fed([wire]) == PAYLOADS


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_events_split_at_every_byte_come_out_whole(end: bytes) -> None:
    wire = b"".join(b"data: " + payload + end + end for payload in PAYLOADS)
    assert fed([wire[i : i + 1] for i in range(len(wire))]) == PAYLOADS


@given(st.lists(st.integers(0, 60)), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_any_cut_gives_the_same_events(cuts: list[int], end: bytes) -> None:
    wire = b": ping" + end + b"".join(b"data: " + payload + end + end for payload in PAYLOADS)
    places = sorted({0, len(wire), *(cut for cut in cuts if cut < len(wire))})
    assert fed([wire[a:b] for a, b in pairwise(places)]) == PAYLOADS


def test_several_events_in_one_read_are_several_events() -> None:
    assert SseParser().feed(b"data: 1\n\ndata: 2\n\n") == [b"1", b"2"]


def test_an_event_is_given_out_by_the_read_that_completes_it() -> None:
    parser = SseParser()
    assert parser.feed(b"data: 1\n") == []
    assert parser.feed(b"\n") == [b"1"]


def test_comments_are_counted_and_are_no_events() -> None:
    parser = SseParser()
    assert parser.feed(b": keep-alive\n\n: again\n\ndata: 1\n\n") == [b"1"]
    assert parser.comments == 2


def test_data_lines_of_one_event_are_joined_by_newlines() -> None:
    assert SseParser().feed(b"data: a\ndata: b\n\n") == [b"a\nb"]


def test_other_fields_are_skipped() -> None:
    assert SseParser().feed(b"event: message\nid: 7\nretry: 10\ndata: 1\n\n") == [b"1"]


def test_an_event_without_its_blank_line_counts_at_the_end_of_the_body() -> None:
    parser = SseParser()
    assert parser.feed(b"data: [DONE]") == []
    assert parser.finish() == [b"[DONE]"]


def test_only_one_space_after_the_colon_is_dropped() -> None:
    assert SseParser().feed(b"data:  x\n\n") == [b" x"]
