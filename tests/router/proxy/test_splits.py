"""However the bytes of a message are split, and whatever follows it, the result is the same."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.mutate import REQUESTS, RESPONSES
from tests.router.proxy.scripted import chunks
from tests.router.proxy.wireless import requests, response

_TOKEN = st.text("abcXYZ-_09", min_size=1, max_size=10).map(lambda text: b"x-" + text.encode())
_VALUE = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20).map(str.encode)
_HEADERS = st.lists(st.tuples(_TOKEN, _VALUE), max_size=5).map(
    lambda pairs: b"".join(b"%b: %b\r\n" % pair for pair in pairs)
)
_BODY = st.binary(max_size=60)
_CUTS = st.lists(st.integers(0, 100_000), max_size=10)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in cuts)})
    return [data[a:b] for a, b in pairwise(places)]


@st.composite
def framed(draw: st.DrawFn, first: bytes) -> tuple[bytes, bytes]:
    """(a message, its body)"""
    head, body = first + draw(_HEADERS), draw(_BODY)
    if draw(st.booleans()):
        return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body), body
    half = draw(st.integers(0, len(body)))
    parts = [part for part in (body[:half], body[half:]) if part]
    return b"%bTransfer-Encoding: chunked\r\n\r\n%b" % (head, chunks(*parts)), body


_REQUEST = framed(b"POST /v1/completions?a=b HTTP/1.1\r\nHost: a\r\n")
_RESPONSE = framed(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n")


@settings(max_examples=200, deadline=None)
@given(st.lists(_REQUEST, min_size=1, max_size=4), _CUTS, st.booleans())
def test_pipelined_requests_are_the_same_at_any_split(
    several: list[tuple[bytes, bytes]], cuts: list[int], at_once: bool
) -> None:
    found = requests(cut(b"".join(raw for raw, _ in several), cuts), at_once=at_once)
    assert [inbound.body for inbound in found.inbounds] == [body for _, body in several]
    assert all(sent.endswith(inbound.body) for sent, inbound in zip(found.sent, found.inbounds, strict=True))
    assert (found.back.count(b" 200 OK"), found.refused, found.ended) == (len(several), False, False)


@pytest.mark.parametrize("raw", REQUESTS, ids=lambda raw: raw[:30].decode())
def test_request_is_the_same_split_at_every_byte(raw: bytes) -> None:
    whole = requests([raw]).facts
    for at in range(1, len(raw)):
        assert requests([raw[:at], raw[at:]]).facts == whole
    assert requests([raw[at : at + 1] for at in range(len(raw))]).facts == whole


@pytest.mark.parametrize("raw", [b"\r\n\r\nget / HTTP/1.1", b"\r\n\r\n\r\n", b"\r\n\r\n\n", b"\r\nGET / HTTP/1.1\n\n"])
def test_what_cannot_become_a_request_is_refused_at_any_split(raw: bytes) -> None:
    for at in range(len(raw)):
        found = requests([raw[:at], raw[at:]])
        assert (found.refused, found.ended) == (True, True), at


@settings(max_examples=200, deadline=None)
@given(_RESPONSE, _CUTS, st.sampled_from([b"1.0", b"1.1"]))
def test_answer_is_the_same_at_any_split(answer: tuple[bytes, bytes], cuts: list[int], version: bytes) -> None:
    raw, body = answer
    ask = b"GET / HTTP/%b\r\nHost: a\r\n\r\n" % version
    found = response(cut(raw, cuts), ask, eof=False)
    assert found.facts == response([raw], ask, eof=False).facts
    assert (found.outcomes, found.kept) == (["ok"], True)
    head, _, rest = found.back.partition(b"\r\n\r\n")
    assert rest == (body if b"transfer-encoding: chunked" not in head else raw.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize("eof", [False, True])
@pytest.mark.parametrize("raw", RESPONSES, ids=lambda raw: raw[:30].decode())
def test_answer_is_the_same_split_at_every_byte(raw: bytes, eof: bool) -> None:
    ask = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    whole = response([raw], ask, eof=eof).facts
    for at in range(1, len(raw)):
        assert response([raw[:at], raw[at:]], ask, eof=eof).facts == whole
    assert response([raw[at : at + 1] for at in range(len(raw))], ask, eof=eof).facts == whole


@settings(max_examples=100, deadline=None)
@given(_RESPONSE, st.binary(min_size=1, max_size=30), _CUTS)
def test_what_an_engine_says_behind_its_answer_is_nobodys(
    answer: tuple[bytes, bytes], behind: bytes, cuts: list[int]
) -> None:
    raw, _ = answer
    ask = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    found = response(cut(raw + behind, cuts), ask, eof=False)
    assert found.back == response([raw], ask, eof=False).back
