"""Request and response heads: what is refused, what is read, and that both parsers agree."""

from __future__ import annotations

import httptools
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from router.proxy.errors import BadRequest, BadResponse
from router.proxy.heads import CHUNKED, UNTIL_CLOSE, RequestHead, read_request, read_response


def request(*lines: bytes, first: bytes = b"GET / HTTP/1.1") -> bytes:
    return b"\r\n".join([first, b"Host: a", *lines, b"", b""])


def refused(raw: bytes) -> tuple[int, str]:
    with pytest.raises(BadRequest) as caught:
        read_request(raw, 100)
    return caught.value.status, caught.value.code


@pytest.mark.parametrize(
    "lines",
    [
        [b"Content-Length: 5", b"Content-Length: 5"],
        [b"Content-Length: 5", b"Content-Length: 6"],
        [b"Content-Length: 5, 5"],
        [b"Content-Length: +5"],
        [b"Content-Length: -5"],
        [b"Content-Length: 0x5"],
        [b"Content-Length: 5 5"],
        [b"Content-Length: 1_0"],
        [b"Content-Length:"],
        [b"Content-Length: 99999999999999999999"],
        [b"Content-Length: 5", b"Transfer-Encoding: chunked"],
        [b"Transfer-Encoding: chunked", b"Content-Length: 5"],
        [b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"],
        [b"Transfer-Encoding: chunked, chunked"],
        [b"Transfer-Encoding: gzip, chunked"],
        [b"Transfer-Encoding: chunked, identity"],
        [b"Transfer-Encoding: identity"],
        [b"Transfer-Encoding: xchunked"],
        [b'Transfer-Encoding: "chunked"'],
        [b"Transfer-Encoding: chunked;q=1"],
        [b"Transfer-Encoding: \x0bchunked"],
        [b"Transfer-Encoding : chunked"],
        [b"Transfer-Encoding\t: chunked"],
        [b" Transfer-Encoding: chunked"],
        [b"Transfer-Encoding:\r\n chunked"],
        [b"Transfer-Encoding:"],
        [b"X: a\r\n folded"],
        [b"X: a\r\n\tfolded"],
        [b"X: a\nContent-Length: 5"],
        [b"X: a\rContent-Length: 5"],
        [b"X: a\0b"],
        [b"X\0: a"],
        [b": nameless"],
        [b"no colon"],
        [b"X Y: a"],
        [b"X: a\x01"],
        [b"Host: b"],
    ],
    ids=repr,
)
def test_ambiguous_or_malformed_headers_are_refused(lines: list[bytes]) -> None:
    assert refused(request(*lines))[0] == 400


@pytest.mark.parametrize(
    ("first", "status"),
    [
        (b"GET  / HTTP/1.1", 400),
        (b"GET /  HTTP/1.1", 400),
        (b"GET / HTTP/1.1 ", 400),
        (b"GET /a b HTTP/1.1", 400),
        (b"GET /\xff HTTP/1.1", 400),
        (b"GET /#x HTTP/1.1", 400),
        (b"GET * HTTP/1.1", 400),
        (b"GET a HTTP/1.1", 400),
        (b"GET ftp://a/ HTTP/1.1", 400),
        (b"get / HTTP/1.1", 400),
        (b"NONSENSE / HTTP/1.1", 400),
        (b"GET / HTTP/2.0", 505),
        (b"GET / HTTP/0.9", 505),
        (b"GET / HTTP/1.2", 400),
        (b"GET / ICE/1.0", 400),
        (b"GET /", 505),
        (b"CONNECT a:1 HTTP/1.1", 405),
        (b"TRACE / HTTP/1.1", 405),
    ],
)
def test_request_lines_that_are_refused(first: bytes, status: int) -> None:
    assert refused(request(first=first))[0] == status


def test_missing_host_is_refused_in_http11() -> None:
    assert refused(b"GET / HTTP/1.1\r\n\r\n") == (400, "bad_host")


def test_missing_host_is_taken_in_http10() -> None:
    assert read_request(b"GET / HTTP/1.0\r\n\r\n", 100).http11 is False


def test_chunked_is_refused_in_http10() -> None:
    assert refused(request(b"Transfer-Encoding: chunked", first=b"POST / HTTP/1.0")) == (400, "bad_framing")


def test_header_count_at_the_limit_is_taken() -> None:
    assert len(read_request(request(*[b"X: y"] * 99), 100).headers) == 100


def test_header_count_past_the_limit_is_refused() -> None:
    assert refused(request(*[b"X: y"] * 100)) == (431, "too_many_headers")


@pytest.mark.parametrize(
    ("value", "keep"), [(b"close", False), (b"x, CLOSE", False), (b"keep-alive", True), (b"x", True), (b"", True)]
)
def test_connection_header_decides_about_keep_alive(value: bytes, keep: bool) -> None:
    assert read_request(request(b"Connection: " + value), 100).keep_alive is keep


@pytest.mark.parametrize(
    ("target", "left"),
    [
        (b"http://h", b"/"),
        (b"http://h:1/a?b", b"/a?b"),
        (b"HTTPS://h/a", b"/a"),
        (b"http://h?x", b"/?x"),
        (b"//double/a", b"//double/a"),
    ],
)
def test_absolute_target_loses_scheme_and_host(target: bytes, left: bytes) -> None:
    assert read_request(request(first=b"GET " + target + b" HTTP/1.1"), 100).target == left


_TOKEN = st.text("abcXYZ-_.!09", min_size=1, max_size=8).map(str.encode)
_VALUE = st.binary(max_size=12)
_NAMES = st.sampled_from([b"Content-Length", b"Transfer-Encoding", b"Connection", b"Host", b"Expect", b"TE"])
_KNOWN = st.sampled_from([b"5", b"chunked", b"close", b"a", b"100-continue", b"5, 5", b"chunked ", b"\tx"])
_SEPARATOR = st.sampled_from([b": ", b":", b" : ", b":\t", b"\r\n ", b"\n", b"\0"])
_EOL = st.sampled_from([b"\r\n"] * 8 + [b"\n", b"\r", b"\r\r\n", b"\n\r\n"])
_HEADER = st.tuples(_TOKEN | _NAMES, _SEPARATOR, _VALUE | _KNOWN, _EOL).map(b"".join)
_FIRST = st.sampled_from([b"POST /a HTTP/1.1\r\n", b"GET http://h/ HTTP/1.1\r\n", b"POST / HTTP/1.0\r\n", b"GET /\n"])


@settings(max_examples=150, deadline=None)
@given(_FIRST, st.lists(_HEADER, max_size=5))
@example(b"POST /a HTTP/1.1\r\n", [b"Host: a\r\n", b"Content-Length: 5\r\n"])
@example(b"POST /a HTTP/1.1\r\n", [b"Host: a\r\n", b"Connection: x-a, close\r\n", b"x-a: 1\r\n"])
def test_what_is_sent_upstream_is_read_there_as_it_was_read_here(first: bytes, lines: list[bytes]) -> None:
    raw = first + b"".join(lines) + b"\r\n"
    if raw.find(b"\r\n\r\n") + 4 != len(raw):
        return
    try:
        head = read_request(raw, 100)
    except BadRequest:
        return
    length = max(head.length, 0)
    sent = b"%b %b HTTP/1.1\r\nhost: e\r\n%bcontent-length: %d\r\n\r\n" % (head.verb, head.target, head.lines, length)
    seen = _Seen()
    parser = httptools.HttpRequestParser(seen)
    parser.feed_data(sent + b"x" * length)
    assert (seen.url, seen.complete, seen.body) == (head.target, 1, length)
    assert seen.headers == [(b"host", b"e"), *_end_to_end(head), (b"content-length", b"%d" % length)]


def _end_to_end(head: RequestHead) -> list[tuple[bytes, bytes]]:
    """A plain statement of what has to arrive."""
    gone = {b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings"}
    gone |= {b"host", b"content-length", b"expect"}
    for name, value in head.headers:
        if name == b"connection":
            gone |= {token.strip(b" \t").lower() for token in value.split(b",")}
    return [pair for pair in head.headers if pair[0] not in gone and not pair[0].startswith(b"proxy-")]


class _Seen:
    """What an engine's parser makes of a request."""

    def __init__(self) -> None:
        self.url, self.complete, self.body = b"", 0, 0
        self.headers: list[tuple[bytes, bytes]] = []

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self.body += len(body)

    def on_message_complete(self) -> None:
        self.complete += 1


# Responses.


def response(*lines: bytes, first: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return b"\r\n".join([first, *lines, b"", b""])


@pytest.mark.parametrize(
    ("raw", "length", "keep"),
    [
        (response(b"Content-Length: 5"), 5, True),
        (response(b"Transfer-Encoding: Chunked"), CHUNKED, True),
        (response(), UNTIL_CLOSE, False),
        (response(b"Connection: close", b"Content-Length: 5"), 5, False),
        (response(b"Content-Length: 5", first=b"HTTP/1.0 200 OK"), 5, False),
        (response(b"Content-Length: 5", b"Connection: Keep-Alive", first=b"HTTP/1.0 200 OK"), 5, True),
        (response(first=b"HTTP/1.1 204 No Content"), 0, True),
        (response(b"Content-Length: 5", first=b"HTTP/1.1 304 Not Modified"), 0, True),
        (response(b"Content-Length: 0", first=b"HTTP/1.1 200"), 0, True),
    ],
)
def test_response_head_says_where_the_body_ends(raw: bytes, length: int, keep: bool) -> None:
    head = read_response(raw, bodiless=False)
    assert (head.length, head.keep_alive) == (length, keep)


def test_response_to_head_has_no_body() -> None:
    assert read_response(response(b"Content-Length: 5"), bodiless=True).length == 0


@pytest.mark.parametrize(
    "raw",
    [
        response(first=b"HTTP/2 200 OK"),
        response(first=b"HTTP/1.1 99 x"),
        response(first=b"HTTP/1.1 0200 x"),
        response(first=b"HTTP/1.1  200 x"),
        response(first=b"ICY 200 OK"),
        response(b"X: a\nb"),
        response(b"X : a"),
        response(b" folded"),
        response(b"X: \0"),
        response(b"Content-Length: 5", b"Content-Length: 5"),
        response(b"Content-Length: five"),
        response(b"Content-Length: 5", b"Transfer-Encoding: chunked"),
        response(b"Transfer-Encoding: gzip"),
        response(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
        response(b"Transfer-Encoding: chunked", first=b"HTTP/1.0 200 OK"),
    ],
    ids=repr,
)
def test_response_heads_that_are_refused(raw: bytes) -> None:
    with pytest.raises(BadResponse):
        read_response(raw, bodiless=False)


@pytest.mark.parametrize(
    ("value", "encoded"), [(b"gzip", True), (b"identity", False), (b"", False), (b"br, gzip", True)]
)
def test_content_coding_is_noticed(value: bytes, encoded: bool) -> None:
    assert read_response(response(b"Content-Encoding: " + value), bodiless=False).encoded is encoded


@settings(max_examples=100, deadline=None)
@given(st.lists(_HEADER, max_size=5))
def test_response_head_that_is_read_is_one_for_llhttp_too(lines: list[bytes]) -> None:
    raw = b"HTTP/1.1 200 OK\r\n" + b"".join(lines) + b"\r\n"
    if raw.find(b"\r\n\r\n") + 4 != len(raw):
        return
    try:
        head = read_response(raw, bodiless=False)
    except BadResponse:
        return
    seen = _Seen()
    httptools.HttpResponseParser(seen).feed_data(raw + b"x" * max(head.length, 0))
    assert seen.complete == (head.length >= 0)


def test_a_status_line_is_no_header_that_connection_could_name() -> None:
    raw = b"HTTP/1.1 200 OK\r\nConnection: HTTP/1.1 200 OK, x-a\r\nX-A: 1\r\ncontent-length: 0\r\n\r\n"
    assert read_response(raw, False).lines == b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n"


def test_an_engine_does_not_speak_for_the_router() -> None:
    raw = b"HTTP/1.1 200 OK\r\nX-Kvctl-Worker: fake\r\nx-other: 1\r\ncontent-length: 0\r\n\r\n"
    assert read_response(raw, False).lines == b"HTTP/1.1 200 OK\r\nx-other: 1\r\ncontent-length: 0\r\n"
