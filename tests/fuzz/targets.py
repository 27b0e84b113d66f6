"""What must hold for any bytes of a client, and for any bytes of an engine.

Each target raises AssertionError for a finding. What it guards against is disagreement: the router taking a message
that another parser on the way would find to end elsewhere.
"""

from __future__ import annotations

from random import Random

from tests.fuzz.mutate import REQUESTS, RESPONSES, mutated, pieces
from tests.fuzz.reference import Reading, h11_requests, h11_response, llhttp_requests, llhttp_response
from tests.router.proxy.wireless import Understood, requests, response

_HOP_BY_HOP = {b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings"}
_REPLACED = {b"host", b"content-length", b"expect"}
ASKS = [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n"]


def request_target(raw: bytes, random: Random) -> int:
    """Returns how many requests were taken."""
    whole = requests([raw])
    assert not whole.faults, "an exception"
    for at_once in (True, False):
        split = requests(pieces(random, raw), at_once=at_once)
        assert split.facts == whole.facts, f"the split matters: {split.facts} != {whole.facts}"
    for reading in (h11_requests(raw), llhttp_requests(raw)):
        _same_as_read_before(whole, reading)
    for inbound, sent in zip(whole.inbounds, whole.sent, strict=True):
        for reading in (h11_requests(sent), llhttp_requests(sent)):
            assert not reading.refused and not reading.partial, f"an engine may not understand {sent!r}"
            (message,) = reading.messages
            assert (message.first, message.body) == ((inbound.method.encode(), inbound.target), inbound.body)
            assert list(message.headers) == _expected(inbound.headers, message.headers)
    return len(whole.inbounds)


def _same_as_read_before(whole: Understood, reading: Reading) -> None:
    """What stands before us and reads the same bytes must find the same requests in them."""
    ours = [((inbound.method.encode(), inbound.target), inbound.body) for inbound in whole.inbounds]
    theirs = [(message.first, message.body) for message in reading.messages]
    both = min(len(ours), len(theirs))
    assert ours[:both] == theirs[:both], f"{ours} != {theirs}"
    if len(ours) > len(theirs):
        assert reading.refused or not reading.partial, f"{ours[both:]} is not complete elsewhere"
    if len(theirs) > len(ours):
        assert whole.ended, f"{theirs[both:]} is complete elsewhere, and awaited here"


def _expected(came: list[tuple[bytes, bytes]], seen: tuple[tuple[bytes, bytes], ...]) -> list[tuple[bytes, bytes]]:
    """The headers an engine should see, said without the code under test."""
    gone = _HOP_BY_HOP | _REPLACED
    for name, value in came:
        if name == b"connection":
            gone |= {token.strip(b" \t").lower() for token in value.split(b",")}
    passed = [(n, v.strip(b" \t")) for n, v in came if n not in gone and not n.startswith(b"proxy-")]
    length = [pair for pair in seen if pair[0] == b"content-length"]
    assert len(length) <= 1
    return [(b"host", b"e:1"), *passed, *length]


def response_target(raw: bytes, random: Random) -> int:
    """Returns 1 if the answer was passed on as a whole."""
    ask = random.choice(ASKS)
    method = ask.split(b" ", 1)[0].decode()
    eof = random.random() < 0.5
    whole = response([raw], ask, eof=eof)
    assert not whole.faults, "an exception"
    assert len(whole.outcomes) == 1 or (not whole.outcomes and not eof), "a request without an end"
    assert whole.back or whole.closed or not whole.outcomes, "a client without an answer"
    split = response(pieces(random, raw), ask, eof=eof)
    if whole.outcomes == split.outcomes == ["ok"]:
        # Bytes behind an answer are seen only if they come with it: the connection may be kept without them.
        assert (split.back, split.closed) == (whole.back, whole.closed), f"{split.back!r} != {whole.back!r}"
    else:
        assert _decided(split.outcomes) == _decided(whole.outcomes), f"{split.outcomes} != {whole.outcomes}"
    before = h11_response(raw, method, eof=eof)
    if whole.kept:
        assert before.messages or before.refused, "kept, and elsewhere the answer goes on"
        assert not before.messages or not before.refused, "kept, and elsewhere something follows the answer"
        if method != "HEAD":
            other = llhttp_response(raw)
            assert not other.partial, "kept, and for llhttp the answer goes on"
    if not whole.back:
        return 0
    after = h11_response(whole.back, method, eof=whole.closed)
    if whole.outcomes and whole.outcomes[0] in ("ok", "engine_error"):
        assert after.messages and not after.refused, f"the client does not understand {whole.back!r}"
        if before.messages:
            assert after.messages[0].first == before.messages[0].first
            assert after.messages[0].body == before.messages[0].body
        return 1
    return 0


def _decided(outcomes: list[str]) -> list[bool]:
    return [outcome in ("ok", "engine_error") for outcome in outcomes]


TARGETS = {"request": (request_target, REQUESTS), "response": (response_target, RESPONSES)}


def run(name: str, first: int, count: int) -> int:
    """Try the messages number `first` to `first + count - 1`. Returns how many were taken.

    Raises:
        AssertionError: a finding; names the number and the bytes, with which it can be had again.
    """
    target, seeds = TARGETS[name]
    taken = 0
    for number in range(first, first + count):
        random = Random(number)
        raw = mutated(random, seeds)
        try:
            taken += target(raw, random) > 0
        except Exception as error:
            raise AssertionError(f"{name} {number}: {raw!r}: {type(error).__name__}: {error}") from error
    return taken
