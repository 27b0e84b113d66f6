"""Message heads: a client's request head and an engine's response head, checked, read and made ready to pass on.

Pure: bytes in, a head or an exception out. llhttp (httptools) reads the request; what it would forgive is looked for
in the raw bytes first. The engine never sees the client's bytes of a head: it gets lines that we write ourselves from
what was parsed, so that both sides agree where a message ends (RFC 9112, sections 6.3 and 11.2).

Response heads are read line by line: their lines are passed on as they are, and a response parser that frames bodies
by itself cannot know that HEAD was asked. Cost: 5 to 9 us a new request head, 2 us a new response head; clients and
engines repeat theirs, so the last ones are remembered, and one that comes again costs less than half a microsecond.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

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
_NO_CONTROLS = bytes(set(range(256)) - set(b"\r\n\0"))
_LONGEST_LENGTH = 18
BAD_LINES = "The request head has a NUL, or a line that does not end in CRLF."
_REMEMBERED = 256
_LONGEST_REMEMBERED = 4096


class RequestHead:
    """What a request head said; shared, not to be changed. `length` is that of the body, or CHUNKED. `lines` go to the
    engine as they are."""

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
    """Receives what llhttp finds. Its callbacks are C functions, which is a quarter of the cost of a head.

    A dict keeps one value a name; a head in which one comes twice is read again (`_repeats`).
    """

    __slots__ = ("fields", "on_header", "on_url", "url")

    def __init__(self) -> None:
        self.url: list[bytes] = []
        self.fields: dict[bytes, bytes] = {}
        self.on_url = self.url.append
        self.on_header = self.fields.setdefault


def read_request(raw: bytes, max_headers: int) -> RequestHead:
    """Read a whole request head, from the first byte of its method to its empty line.

    Raises:
        BadRequest: it is malformed, ambiguous, or asks for what a proxy of this kind does not do.
    """
    controls = raw.translate(None, _NO_CONTROLS)
    breaks = len(controls) // 2
    if controls != b"\r\n" * breaks:
        raise BadRequest(400, "bad_request_head", BAD_LINES)
    count = breaks - 2
    if count > max_headers:
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
    (target,) = found.url or (b"",)
    if line[:-9] != head.verb + b" " + target:
        raise BadRequest(400, "bad_request_head", "The request line is malformed.")
    _set_target(head, target)
    fields: Iterable[tuple[bytes, bytes]] = found.fields.items()
    if len(found.fields) != count:
        fields = _repeats(raw)
    _read_headers(head, fields)
    return head


_known_request = lru_cache(_REMEMBERED)(read_request)


def known_request(raw: bytes, max_headers: int) -> RequestHead:
    """`read_request`, looked up where the same bytes have lately been read. A megabyte of heads is kept at most."""
    return (_known_request if len(raw) <= _LONGEST_REMEMBERED else read_request)(raw, max_headers)


def _repeats(raw: bytes) -> list[tuple[bytes, bytes]]:
    """The headers of a head that llhttp has found to be good, with repeated names."""
    lines = raw[:-4].split(b"\r\n")[1:]
    if any(line[:1] in (b" ", b"\t") for line in lines):
        raise BadRequest(400, "bad_request_head", "The request head contains a folded line.")
    pairs = (line.partition(b":") for line in lines)
    return [(name, value.lstrip(b" \t")) for name, _, value in pairs]


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


def _read_headers(head: RequestHead, fields: Iterable[tuple[bytes, bytes]]) -> None:
    """Fill in the headers, what they decide, and the lines that the engine gets."""
    length: bytes | None = None
    coding: bytes | None = None
    connection = b""
    hosts = 0
    head.expects = False
    headers = head.headers = []
    forward: list[bytes] = []
    for original, value in fields:
        name = original.lower()
        headers.append((name, value))
        if name not in _NOT_FOR_ENGINE:
            forward += (name, b": ", value, b"\r\n")
        elif name == b"host":
            hosts += 1
        elif name == b"content-length":
            if length is not None:
                raise BadRequest(400, "bad_framing", "Content-Length is repeated.")
            length = value.rstrip(b" \t")
        elif name == b"transfer-encoding":
            if coding is not None:
                raise BadRequest(400, "bad_framing", "Transfer-Encoding is repeated.")
            coding = value.rstrip(b" \t")
        elif name == b"connection":
            connection = connection + b"," + value.lower() if connection else value.lower()
        elif name == b"expect":
            if value.rstrip(b" \t").lower() != b"100-continue":
                raise BadRequest(417, "expectation_failed", "Only 100-continue can be expected.")
            head.expects = head.http11
    if hosts > 1 or (hosts == 0 and head.http11):
        raise BadRequest(400, "bad_host", "A request needs exactly one Host header.")
    head.length = _body_length(length, coding, head.http11)
    lines = b"".join(forward)
    if connection in (b"", b"keep-alive"):
        head.keep_alive = head.http11 or connection != b""
        named: set[bytes] = set()
    else:
        named = {token.strip(b" \t") for token in connection.split(b",")}
        head.keep_alive = b"close" not in named and (head.http11 or b"keep-alive" in named)
        named -= {b"close", b""}
    if not named.issubset(_NOT_FOR_ENGINE) or b"proxy-" in lines:
        lines = b"".join(b"%b: %b\r\n" % pair for pair in headers if _end_to_end(pair[0], named))
    head.lines = lines


@lru_cache(_REMEMBERED)
def without_headers(lines: bytes, names: tuple[bytes, ...]) -> bytes:
    """Lines for the engine (names in lower case) less the headers of those names."""
    dropped = tuple(name + b":" for name in names)
    return b"".join(line for line in lines.splitlines(keepends=True) if not line.startswith(dropped))


def _end_to_end(name: bytes, named: set[bytes]) -> bool:
    return name not in _NOT_FOR_ENGINE and name not in named and not name.startswith(b"proxy-")


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
    """What a response head said; shared, not to be changed. `length` is that of the body, CHUNKED or UNTIL_CLOSE.

    `lines` are the status line (always HTTP/1.1) and the engine's header lines, each ending in CRLF, less the
    hop-by-hop ones (of which Transfer-Encoding has to be added where the body is passed on chunked), less what only
    we may say (x-kvctl-...), and less its x-request-id, which is `request_id`, empty if there was none.
    """

    __slots__ = ("content_type", "encoded", "keep_alive", "length", "lines", "request_id", "status")

    status: int
    lines: bytes
    length: int
    keep_alive: bool
    content_type: bytes
    encoded: bool
    request_id: bytes


@lru_cache(_REMEMBERED)
def read_response(raw: bytes, bodiless: bool) -> ResponseHead:
    """Read a whole response head with its empty line. `bodiless`: HEAD was asked, so no body follows.

    The last ones are remembered: within a second, an engine's heads mostly differ in nothing, or in the length.

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
    head.status = int(match[2][:3])
    http11 = match[1] == b"1"
    length: bytes | None = None
    coding: bytes | None = None
    connection = b""
    head.content_type = b""
    head.encoded = False
    head.request_id = b""
    lines = [b"HTTP/1.1 " + match[2]]
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
            head.request_id += line + b"\r\n"
            continue
        elif name.startswith(b"x-kvctl-"):
            continue
        lines.append(line)
    head.keep_alive = http11
    if connection:
        named = {token.strip(b" \t") for token in connection.split(b",")}
        head.keep_alive = b"close" not in named and (http11 or b"keep-alive" in named)
        extra = named - HOP_BY_HOP - {b"close", b"", b"content-length", b"content-type"}
        if extra:
            lines[1:] = [line for line in lines[1:] if line.partition(b":")[0].lower() not in extra]
    head.lines = b"\r\n".join(lines) + b"\r\n"
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
