"""Bodies end where they end, at any split of the bytes; llhttp is the reference for the chunked coding."""

from __future__ import annotations

from itertools import pairwise

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.proxy.bodies import ChunkedBody, ChunkScanner, LengthBody
from router.proxy.errors import BadChunk, BodyTooLarge
from tests.router.proxy.scripted import chunks

_REQUEST = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


class Reference:
    """The same body as llhttp reads it."""

    def __init__(self) -> None:
        self.body = b""
        self.done = False
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(_REQUEST)

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.done = True

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """`data`, cut at those places."""
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(places)]


_CUTS = st.lists(st.integers(0, 10_000), max_size=12)
_EXTENSION = st.sampled_from([b"", b";a", b";a=b", b";a=b;c"])
_CHUNK = st.tuples(st.binary(min_size=1, max_size=40), _EXTENSION, st.booleans())
_TRAILERS = st.sampled_from([b"", b"X-Sum: 1\r\n", b"A:\r\nB: c d\r\n"])


def coded(parts: list[tuple[bytes, bytes, bool]], trailers: bytes) -> bytes:
    body = b""
    for data, extension, upper in parts:
        size = b"%X" % len(data) if upper else b"%04x" % len(data)
        body += size + extension + b"\r\n" + data + b"\r\n"
    return body + b"0\r\n" + trailers + b"\r\n"


@settings(max_examples=200, deadline=None)
@given(st.lists(_CHUNK, max_size=6), _TRAILERS, _CUTS, st.binary(max_size=20))
def test_chunked_body_is_found_at_any_split(
    parts: list[tuple[bytes, bytes, bool]], trailers: bytes, cuts: list[int], behind: bytes
) -> None:
    body = coded(parts, trailers)
    scanner, reference = ChunkScanner(), Reference()
    payload: list[bytes] = []
    rest = b""
    for piece in pieces(body + behind, cuts):
        if scanner.done:
            rest += piece
        else:
            rest += piece[scanner.feed(piece, payload) :]
    reference.feed(body)
    assert (b"".join(payload), scanner.done, rest) == (reference.body, reference.done, behind)


@settings(max_examples=200, deadline=None)
@given(st.lists(_CHUNK, max_size=3), st.integers(0, 10_000), st.binary(max_size=3), st.integers(0, 3), _CUTS)
def test_damaged_body_that_is_taken_is_read_by_llhttp_in_the_same_way(
    parts: list[tuple[bytes, bytes, bool]], place: int, junk: bytes, lost: int, cuts: list[int]
) -> None:
    body = coded(parts, b"")
    place %= len(body)
    body = body[:place] + junk + body[place + lost :]
    scanner, reference = ChunkScanner(), Reference()
    payload: list[bytes] = []
    end = 0
    try:
        for piece in pieces(body, cuts):
            end += scanner.feed(piece, payload)
            if scanner.done:
                break
    except BadChunk:
        return
    if scanner.done:
        reference.feed(body[:end])
        assert (b"".join(payload), True) == (reference.body, reference.done)


@pytest.mark.parametrize(
    "body",
    [
        b"5 \r\nhello\r\n",
        b" 5\r\nhello\r\n",
        b"0x5\r\nhello\r\n",
        b"+5\r\nhello\r\n",
        b"1_0\r\n",
        b"-1\r\n",
        b"\r\n",
        b"5\nhello\n",
        b"5\r\r\nhello\r\n",
        b"5\rX",
        b"5\r\nhelloX\r\n",
        b"5\r\nhello\n",
        b"5\r\nhello\rX",
        b"5;\r\nhello\r\n",
        b"5;a b\r\nhello\r\n",
        b"ffffffffffffffffff\r\n",
        b"0\r\nno colon\r\n\r\n",
        b"0\r\n folded: x\r\n\r\n",
        b"0\r\nX: \0\r\n\r\n",
        b"0\r\nX: y\r\nTransfer-Encoding: identity\r\n\r\n",
        b"0\r\ncontent-length: 1\r\n\r\n",
        b"5" * 2000,
        b"0\r\n" + b"X: y\r\n" * 2000,
    ],
    ids=lambda body: repr(body[:20]),
)
@pytest.mark.parametrize("step", [1, 7, 100_000])
def test_broken_chunked_coding_is_refused(body: bytes, step: int) -> None:
    scanner = ChunkScanner()
    with pytest.raises(BadChunk):
        for at in range(0, len(body), step):
            scanner.feed(body[at : at + step], None)


@given(st.binary(max_size=60), st.binary(max_size=10), _CUTS)
def test_body_of_known_length_is_found_at_any_split(body: bytes, behind: bytes, cuts: list[int]) -> None:
    collector = LengthBody(len(body))
    rest: bytes | None = None
    after = b""
    for piece in pieces(body + behind, cuts) or [b""]:
        if rest is None:
            rest = collector.feed(piece)
        else:
            after += piece
    assert rest is not None
    assert (collector.value(), rest + after) == (body, behind)


def test_chunked_body_at_the_limit_is_taken() -> None:
    body = ChunkedBody(10)
    assert body.feed(chunks(b"x" * 6, b"x" * 4) + b"next") == b"next"
    assert body.value() == b"x" * 10


def test_chunked_body_past_the_limit_is_refused_at_once() -> None:
    with pytest.raises(BodyTooLarge):
        ChunkedBody(10).feed(b"ffff\r\n" + b"x" * 11)
