"""Message heads: a client's request head and an engine's response head, checked, read and made ready to pass on.

Pure: bytes in, a head or an exception out. llhttp (httptools) reads the request; what it would forgive is looked for
in the raw bytes first. The engine never sees the client's bytes of a head: it gets lines that we write ourselves from
what was parsed, so that both sides agree where a message ends (RFC 9112, sections 6.3 and 11.2).

Response heads are read line by line: their lines are passed on as they are, and a response parser that frames bodies
by itself cannot know that HEAD was asked. Cost: 4 to 6 us a request head, 2 us a response head.
"""

from __future__ import annotations

import re

import httptools

from router.proxy.errors import BadRequest, BadResponse

CHUNKED = -1
UNTIL_CLOSE = -2

# ... and every name that begins with `proxy-`.
HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings")
)
_NOT_FOR_ENGINE = HOP_BY_HOP | {b"host", b"content-length", b"expect"}
_METHODS = {name.encode(): name for name in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")}
_ABSOLUTE = re.compile(rb"https?://[^/?#]+", re.IGNORECASE)
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2}(?: [\t -~\x80-\xff]*)?)")
_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\t -~\x80-\xff]*)")
_LONGEST_LENGTH = 18


class RequestHead:
    """What a request head said. `length` is that of the body, or CHUNKED. `lines` go to the engine as they are."""

    __slots__ = ("expects", "headers", "http11", "keep_alive", "length", "lines", "method", "path", "target", "verb")

    verb: bytes
    method: str
    target: bytes
    path: str
    headers: list[tuple[bytes, bytes]]
    lines: bytes
    http11: bool
    keep_alive: bool
    length: int
    expects: bool


class _Collector:
    """Receives what llhttp finds."""

    __slots__ = ("headers", "url")

    def __init__(self) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value.rstrip(b" \t")))


def read_request(raw: bytes, max_headers: int) -> RequestHead:
    """Read a whole request head, from the first byte of its method to its empty line.

    Raises:
        BadRequest: it is malformed, ambiguous, or asks for what a proxy of this kind does not do.
    """
    breaks = raw.count(b"\r\n")
    if raw.count(b"\n") != breaks or raw.count(b"\r") != breaks:
        raise BadRequest(400, "bad_request_head", "A line of the request head does not end in CRLF.")
    if b"\0" in raw:
        raise BadRequest(400, "bad_request_head", "The request head contains a NUL byte.")
    if b"\r\n " in raw or b"\r\n\t" in raw:
        raise BadRequest(400, "bad_request_head", "The request head contains a folded line.")
    if breaks - 2 > max_headers:
        raise BadRequest(431, "too_many_headers", f"The request has more than {max_headers} headers.")
    found = _Collector()
    parser = httptools.HttpRequestParser(found)
    try:
        parser.feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # the offer to speak another protocol is not taken; the request itself is complete
    except httptools.HttpParserError as error:
        raise BadRequest(400, "bad_request_head", f"The request head is malformed: {error}.") from None

    head = RequestHead()
    line = raw[: raw.index(b"\r\n")]
    if line.endswith(b" HTTP/1.1"):
        head.http11 = True
    elif line.endswith(b" HTTP/1.0"):
        head.http11 = False
    else:
        raise BadRequest(505, "http_version", "Only HTTP/1.1 and HTTP/1.0 are spoken here.")
    head.verb = parser.get_method()
    head.method = _METHODS.get(head.verb) or head.verb.decode("latin-1")
    if line != b"%b %b %b" % (head.verb, found.url, line[-8:]):
        raise BadRequest(400, "bad_request_head", "The request line is malformed.")
    _set_target(head, found.url)
    head.headers = found.headers
    _read_headers(head)
    return head


def _set_target(head: RequestHead, target: bytes) -> None:
    if head.method in ("CONNECT", "TRACE"):
        raise BadRequest(405, "method_not_allowed", f"{head.method} is not served here.")
    if not target.startswith(b"/"):
        match = _ABSOLUTE.match(target)
        if match is not None:
            target = target[match.end() :]
            if not target.startswith(b"/"):
                target = b"/" + target
        elif target != b"*" or head.method != "OPTIONS":
            raise BadRequest(400, "bad_target", "The request target is neither a path nor a URL.")
    if b"#" in target:
        raise BadRequest(400, "bad_target", "The request target has a fragment.")
    head.target = target
    head.path = target.partition(b"?")[0].decode("latin-1")


def _read_headers(head: RequestHead) -> None:
    """Fill in what the headers decide, and the lines that the engine gets."""
    length: bytes | None = None
    coding: bytes | None = None
    connection = b""
    hosts = 0
    head.expects = False
    forward: list[bytes] = []
    for name, value in head.headers:
        if name not in _NOT_FOR_ENGINE:
            if not name.startswith(b"proxy-"):
                forward += (name, b": ", value, b"\r\n")
        elif name == b"host":
            hosts += 1
        elif name == b"content-length":
            if length is not None:
                raise BadRequest(400, "bad_framing", "Content-Length is repeated.")
            length = value
        elif name == b"transfer-encoding":
            if coding is not None:
                raise BadRequest(400, "bad_framing", "Transfer-Encoding is repeated.")
            coding = value
        elif name == b"connection":
            connection = connection + b"," + value.lower() if connection else value.lower()
        elif name == b"expect":
            if value.lower() != b"100-continue":
                raise BadRequest(417, "expectation_failed", "Only 100-continue can be expected.")
            head.expects = head.http11
    if hosts > 1 or (hosts == 0 and head.http11):
        raise BadRequest(400, "bad_host", "A request needs exactly one Host header.")
    head.length = _body_length(length, coding, head.http11)
    if connection in (b"", b"keep-alive"):
        head.keep_alive = head.http11 or connection != b""
        head.lines = b"".join(forward)
        return
    named = {token.strip(b" \t") for token in connection.split(b",")}
    head.keep_alive = b"close" not in named and (head.http11 or b"keep-alive" in named)
    named -= _NOT_FOR_ENGINE
    head.lines = b"".join(
        b"%b: %b\r\n" % (name, value)
        for name, value in head.headers
        if name not in _NOT_FOR_ENGINE and name not in named and not name.startswith(b"proxy-")
    )


def _body_length(length: bytes | None, coding: bytes | None, http11: bool) -> int:
    if coding is not None:
        if length is not None:
            raise BadRequest(400, "bad_framing", "Transfer-Encoding and Content-Length exclude each other.")
        if coding.lower() != b"chunked" or not http11:
            raise BadRequest(400, "bad_framing", "The only Transfer-Encoding taken is chunked, in HTTP/1.1.")
        return CHUNKED
    if length is None:
        return 0
    if not length.isdigit() or len(length) > _LONGEST_LENGTH:
        raise BadRequest(400, "bad_framing", "Content-Length is not a number.")
    return int(length)


class ResponseHead:
    """What a response head said. `length` is that of the body, CHUNKED or UNTIL_CLOSE.

    `status_line` is ours (always HTTP/1.1); `lines` are the engine's header lines less the hop-by-hop ones, of which
    Transfer-Encoding has to be added again where the body is passed on chunked.
    """

    __slots__ = ("content_type", "encoded", "keep_alive", "length", "lines", "request_id", "status", "status_line")

    status: int
    status_line: bytes
    lines: list[bytes]
    length: int
    keep_alive: bool
    content_type: bytes
    encoded: bool
    request_id: bytes


def read_response(raw: bytes, bodiless: bool) -> ResponseHead:
    """Read a whole response head with its empty line. `bodiless`: HEAD was asked, so no body follows.

    `request_id` is the line of the engine's x-request-id, which is not among `lines`; empty if it sent none.

    Raises:
        BadResponse: it is not HTTP/1.x, or says two things about where its body ends.
    """
    breaks = raw.count(b"\r\n")
    if raw.count(b"\n") != breaks or raw.count(b"\r") != breaks:
        raise BadResponse("a line of the response head does not end in CRLF")
    first, *rest = raw[:-4].split(b"\r\n")
    match = _STATUS_LINE.fullmatch(first)
    if match is None:
        raise BadResponse("the status line is malformed")
    head = ResponseHead()
    head.status_line = b"HTTP/1.1 " + match[2]
    head.status = int(match[2][:3])
    http11 = match[1] == b"1"
    length: bytes | None = None
    coding: bytes | None = None
    connection = b""
    head.content_type = b""
    head.encoded = False
    head.request_id = b""
    lines: list[bytes] = []
    for line in rest:
        field = _LINE.fullmatch(line)
        if field is None:
            raise BadResponse("a header line is malformed")
        name = field[1].lower()
        if name in HOP_BY_HOP or name.startswith(b"proxy-"):
            if name == b"connection":
                connection += b"," + field[2].lower()
            elif name == b"transfer-encoding":
                if coding is not None:
                    raise BadResponse("Transfer-Encoding is repeated")
                coding = field[2].strip(b" \t").lower()
            continue
        if name == b"content-length":
            if length is not None:
                raise BadResponse("Content-Length is repeated")
            length = field[2].strip(b" \t")
        elif name == b"content-type":
            head.content_type = field[2].lower()
        elif name == b"content-encoding":
            head.encoded = field[2].strip(b" \t").lower() not in (b"", b"identity")
        elif name == b"x-request-id":
            head.request_id = line
            continue
        lines.append(line)
    head.keep_alive = http11
    if connection:
        named = {token.strip(b" \t") for token in connection.split(b",")}
        head.keep_alive = b"close" not in named and (http11 or b"keep-alive" in named)
        extra = named - HOP_BY_HOP - {b"close", b"", b"content-length", b"content-type"}
        if extra:
            lines = [line for line in lines if line.partition(b":")[0].lower() not in extra]
    head.lines = lines
    head.length = _answer_length(head, length, coding, http11, bodiless)
    return head


def _answer_length(head: ResponseHead, length: bytes | None, coding: bytes | None, http11: bool, bodiless: bool) -> int:
    if coding is not None and (length is not None or coding != b"chunked" or not http11):
        raise BadResponse("the framing of the body is ambiguous")
    if length is not None and (not length.isdigit() or len(length) > _LONGEST_LENGTH):
        raise BadResponse("Content-Length is not a number")
    if bodiless or head.status in (204, 304) or head.status < 200:
        return 0
    if coding is not None:
        return CHUNKED
    if length is not None:
        return int(length)
    head.keep_alive = False
    return UNTIL_CLOSE
