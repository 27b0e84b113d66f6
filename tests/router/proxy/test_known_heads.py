"""Request heads that are looked up are the ones that would be read."""

from __future__ import annotations

import pytest

from router.proxy import heads
from router.proxy.errors import BadRequest

FIELDS = ("verb", "method", "target", "path", "headers", "lines", "http11", "keep_alive", "length", "expects")
HEADS = [
    b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\nX-One: 1\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 13\r\nX-One: 1\r\n\r\n",
    b"GET /v1/models?x=1 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nX-A: 1\r\nX-A: 2\r\nConnection: close, X-A\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nX-Long: " + b"x" * 5000 + b"\r\n\r\n",
]


@pytest.mark.parametrize("raw", HEADS)
def test_a_head_looked_up_equals_the_head_read(raw: bytes) -> None:
    plain = heads.read_request(raw, 100)
    for _ in range(2):
        known = heads.known_request(bytes(bytearray(raw)), 100)
        assert [getattr(known, name) for name in FIELDS] == [getattr(plain, name) for name in FIELDS]


def test_the_same_bytes_are_read_once() -> None:
    assert heads.known_request(HEADS[0], 100) is heads.known_request(bytes(bytearray(HEADS[0])), 100)


def test_a_very_long_head_is_not_kept() -> None:
    assert heads.known_request(HEADS[-1], 100) is not heads.known_request(HEADS[-1], 100)


def test_a_head_with_too_many_headers_is_refused_however_often_it_comes() -> None:
    raw = HEADS[4]
    heads.known_request(raw, 100)
    for _ in range(2):
        with pytest.raises(BadRequest, match="more than 2 headers"):
            heads.known_request(raw, 2)


def test_a_bad_head_is_refused_however_often_it_comes() -> None:
    raw = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"
    for _ in range(2):
        with pytest.raises(BadRequest):
            heads.known_request(raw, 100)
