"""Two other parsers' reading of the same bytes: h11, and llhttp by way of httptools."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import h11
import httptools

_LARGEST = 16 << 20
_ABSOLUTE = re.compile(rb"https?://[^/?#]+", re.IGNORECASE)


@dataclass(frozen=True)
class Message:
    """`first`: (method, target) of a request, (status,) of a response."""

    first: tuple[object, ...]
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


@dataclass
class Reading:
    """The messages found; `refused`: the parser found something that is none; `partial`: more bytes are awaited."""

    messages: list[Message]
    refused: bool = False
    partial: bool = False


def _fields(pairs: list[tuple[bytes, bytes]]) -> tuple[tuple[bytes, bytes], ...]:
    return tuple((bytes(name).lower(), bytes(value).strip(b" \t")) for name, value in pairs)


def origin(target: bytes) -> bytes:
    """A target without scheme and host."""
    match = _ABSOLUTE.match(target)
    if match is None:
        return target
    rest = target[match.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest


def h11_requests(raw: bytes) -> Reading:
    """A server's reading of a connection on which every request is answered."""
    reading = Reading([])
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_LARGEST)
    try:
        connection.receive_data(raw)
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                reading.partial = connection.trailing_data[0] != b""
                return reading
            assert isinstance(event, h11.Request)
            body = bytearray()
            while not isinstance(part := connection.next_event(), h11.EndOfMessage):
                if part is h11.NEED_DATA:
                    reading.partial = True
                    return reading
                assert isinstance(part, h11.Data)
                body += part.data
            target = origin(event.target)
            reading.messages.append(Message((event.method, target), _fields(event.headers.raw_items()), bytes(body)))
            connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            connection.send(h11.EndOfMessage())
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                return reading
            connection.start_next_cycle()
    except h11.RemoteProtocolError:
        reading.refused = True
    return reading


def h11_response(raw: bytes, method: str, *, eof: bool) -> Reading:
    """A client's reading of the answer to one request. What follows the answer counts as refused."""
    reading = Reading([])
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_LARGEST)
    connection.send(h11.Request(method=method, target="/", headers=[("host", "a")]))
    connection.send(h11.EndOfMessage())
    try:
        connection.receive_data(raw)
        if eof:
            connection.receive_data(b"")
        while isinstance(event := connection.next_event(), h11.InformationalResponse):
            pass
        if not isinstance(event, h11.Response):
            reading.partial = event is h11.NEED_DATA
            reading.refused = not reading.partial
            return reading
        body = bytearray()
        while not isinstance(part := connection.next_event(), h11.EndOfMessage):
            if part is h11.NEED_DATA:
                reading.partial = True
                return reading
            assert isinstance(part, h11.Data)
            body += part.data
        reading.messages.append(Message((event.status_code,), _fields(event.headers.raw_items()), bytes(body)))
        reading.refused = connection.trailing_data[0] != b""
    except h11.RemoteProtocolError:
        reading.refused = True
    return reading


class _Collector:
    """Receives llhttp's callbacks."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.first: Callable[[], tuple[object, ...]] = tuple
        self._clear()
        self.open = False

    def _clear(self) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""

    def on_message_begin(self) -> None:
        self._clear()
        self.open = True

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.open = False
        self.messages.append(Message(self.first(), _fields(self.headers), self.body))


def llhttp_requests(raw: bytes) -> Reading:
    collector = _Collector()
    parser = httptools.HttpRequestParser(collector)
    collector.first = lambda: (parser.get_method(), origin(collector.url))
    reading = Reading(collector.messages)
    try:
        parser.feed_data(raw)
        reading.partial = collector.open
    except httptools.HttpParserUpgrade:
        # It would speak another protocol from here on. Whoever does not take the offer reads on.
        collector.messages.pop()
        reading.refused = True
    except httptools.HttpParserError:
        reading.refused = True
    return reading


def llhttp_response(raw: bytes) -> Reading:
    """The last answer is the final one; those before it have to be interim ones. Knows nothing of HEAD, and nothing
    of an end of the connection."""
    collector = _Collector()
    parser = httptools.HttpResponseParser(collector)
    collector.first = lambda: (parser.get_status_code(),)
    reading = Reading(collector.messages)
    try:
        parser.feed_data(raw)
        reading.partial = collector.open
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        reading.refused = True
    return reading
