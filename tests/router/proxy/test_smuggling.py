"""Requests made to be read in two ways: refused on the wire, and nothing of them or behind them reaches an engine."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from router.proxy.interface import Limits
from tests.fuzz.reference import h11_requests, llhttp_requests
from tests.router.proxy.scripted import OK, PATIENT, post, serving, stage, until
from tests.router.proxy.wireless import requests

BEHIND = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"


def head(*lines: bytes, first: bytes = b"POST /v1/completions HTTP/1.1", host: bytes = b"Host: a\r\n") -> bytes:
    return first + b"\r\n" + host + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


CL5, TE = b"Content-Length: 5", b"Transfer-Encoding: chunked"
FRAMING = {
    "two lengths that differ": head(CL5, b"Content-Length: 6") + b"hello",
    "two lengths that agree": head(CL5, CL5) + b"hello",
    "list of lengths": head(b"Content-Length: 5, 5") + b"hello",
    "length with a sign": head(b"Content-Length: +5") + b"hello",
    "negative length": head(b"Content-Length: -5") + b"hello",
    "hexadecimal length": head(b"Content-Length: 0x5") + b"hello",
    "length with an underscore": head(b"Content-Length: 1_0") + b"hello",
    "length of other digits": head(b"Content-Length: \xd9\xa5") + b"hello",
    "length and coding": head(CL5, TE) + b"0\r\n\r\n",
    "coding and length": head(TE, CL5) + b"0\r\n\r\n",
    "coding twice": head(TE, TE) + b"0\r\n\r\n",
    "coding twice in one": head(b"Transfer-Encoding: chunked, chunked") + b"0\r\n\r\n",
    "coding that is not the last": head(b"Transfer-Encoding: chunked, identity") + b"0\r\n\r\n",
    "identity": head(b"Transfer-Encoding: identity", CL5) + b"hello",
    "identity alone": head(b"Transfer-Encoding: identity") + b"hello",
    "nearly chunked": head(b"Transfer-Encoding: xchunked") + b"0\r\n\r\n",
    "chunked with a vertical tab": head(b"Transfer-Encoding: \x0bchunked") + b"0\r\n\r\n",
    "quoted coding": head(b'Transfer-Encoding: "chunked"') + b"0\r\n\r\n",
    "space before the colon": head(b"Transfer-Encoding : chunked") + b"0\r\n\r\n",
    "tab before the colon": head(b"Content-Length\t: 5") + b"hello",
    "folded coding": head(b"Transfer-Encoding:\r\n chunked") + b"0\r\n\r\n",
    "folded with a tab": head(b"X: a\r\n\tTransfer-Encoding: chunked") + b"0\r\n\r\n",
    "header line with a space before it": head(b" Transfer-Encoding: chunked") + b"0\r\n\r\n",
    "first header with a space before it": b"POST / HTTP/1.1\r\n Host: a\r\nHost: a\r\n\r\n",
    "bare line feed in the head": head(b"X: a\nTransfer-Encoding: chunked") + b"0\r\n\r\n",
    "bare line feeds all along": b"POST / HTTP/1.1\nHost: a\nContent-Length: 5\n\nhello",
    "bare carriage return": head(b"X: a\rTransfer-Encoding: chunked") + b"0\r\n\r\n",
    "NUL in a value": head(b"X: a\0b"),
    "NUL in a name": head(b"Transfer-Encoding\0: chunked") + b"0\r\n\r\n",
    "NUL before the coding": head(b"Transfer-Encoding: \0chunked") + b"0\r\n\r\n",
    "chunked in HTTP/1.0": head(TE, first=b"POST / HTTP/1.0") + b"0\r\n\r\n",
    "no host": head(host=b""),
    "two hosts": head(b"Host: b"),
    "two hosts that agree": head(b"Host: a"),
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "CONNECT": head(first=b"CONNECT a:443 HTTP/1.1"),
    "white space before the method": b" " + head(),
    "empty lines without end": b"\r\n" * 3 + head(),
}
CHUNKS = {
    "size with a space": b"5 \r\nhello\r\n0\r\n\r\n",
    "size with a sign": b"+5\r\nhello\r\n0\r\n\r\n",
    "size with 0x": b"0x5\r\nhello\r\n0\r\n\r\n",
    "size that wraps around": b"10000000000000005\r\nhello\r\n0\r\n\r\n",
    "size of 16 digits that wraps to 5": b"ffffffffffffffff5\r\nhello\r\n0\r\n\r\n",
    "size line with a bare line feed": b"5\nhello\r\n0\r\n\r\n",
    "size line with a bare carriage return": b"5\rhello\r\n0\r\n\r\n",
    "data without an end of line": b"5\r\nhelloX0\r\n\r\n",
    "data that ends in a bare line feed": b"5\r\nhello\n0\r\n\r\n",
    "extension in quotes with a line break": b'5;a="\r\nx"\r\nhello\r\n0\r\n\r\n',
    "extension in quotes": b'5;a="b"\r\nhello\r\n0\r\n\r\n',
    "extension with a bare line feed": b"5;\nhello\r\n0\r\n\r\n",
    "extension with a NUL": b"5;a=\0\r\nhello\r\n0\r\n\r\n",
    "empty size": b"\r\nhello\r\n0\r\n\r\n",
    "trailer that is folded": b"0\r\nX: a\r\n b\r\n\r\n",
    "trailer without a colon": b"0\r\nX\r\n\r\n",
    "trailer that is a length": b"5\r\nhello\r\n0\r\nContent-Length: 9\r\n\r\n",
    "trailer that is a coding": b"0\r\nA: b\r\ntransfer-ENCODING: identity\r\n\r\n",
    "trailer with a bare line feed": b"0\r\nX: a\n\r\n",
}
REFUSED = FRAMING | {name: head(TE) + body for name, body in CHUNKS.items()}


@pytest.mark.parametrize("name", REFUSED)
async def test_it_is_refused_and_the_request_behind_it_is_not_read(name: str) -> None:
    async with stage(serving(OK), timeouts=PATIENT) as scene:
        wire = await scene.client()
        await wire.send(REFUSED[name] + BEHIND)
        answer = await wire.message()
        assert answer.status in (400, 405, 505), answer.first
        assert json.loads(answer.body)["error"]["type"] == (
            "server_error" if answer.status == 505 else "invalid_request_error"
        )
        assert await wire.gone()
        assert (scene.placing.inbounds, scene.engines[0].requests) == ([], [])


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_byte_by_byte_too(name: str) -> None:
    raw = REFUSED[name] + BEHIND
    found = requests([raw[at : at + 1] for at in range(len(raw))])
    assert (found.refused, found.ended, found.inbounds) == (True, True, [])


TAKEN = {
    "tab before the coding": head(b"Transfer-Encoding:\tchunked") + b"5\r\nhello\r\n0\r\n\r\n",
    "coding in capitals": head(b"TRANSFER-ENCODING: CHUNKED") + b"5\r\nhello\r\n0\r\n\r\n",
    "zeros before a size": head(TE) + b"00005\r\nhello\r\n000\r\n\r\n",
    "size in capitals": head(TE) + b"A\r\n0123456789\r\n0\r\n\r\n",
    "extensions": head(TE) + b"5;a;b=c\r\nhello\r\n0;d\r\n\r\n",
    "trailers": head(TE, b"Trailer: X-Sum") + b"5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n",
    "zeros before a length": head(b"Content-Length: 0005") + b"hello",
    "spaces around a length": head(b"Content-Length:  5 \t") + b"hello",
    "length of a GET": head(CL5, first=b"GET /v1/models HTTP/1.1") + b"hello",
    "chunked DELETE": head(TE, first=b"DELETE /v1/x HTTP/1.1") + b"0\r\n\r\n",
    "underscores for hyphens": head(b"Transfer_Encoding: chunked", b"Content_Length: 9", CL5) + b"hello",
    "framing named as hop-by-hop": head(b"Connection: content-length, host, transfer-encoding", CL5) + b"hello",
    "offer of a web socket": head(b"Connection: Upgrade", b"Upgrade: websocket", CL5) + b"hello",
    "offer of h2c": head(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk", CL5)
    + b"hello",
    "absolute target with another host": head(first=b"GET http://evil:1/a?b HTTP/1.1"),
    "target that looks like a request line": head(first=b"GET /a%20HTTP/1.1%0d%0aX:y HTTP/1.1"),
    "one empty line before it": b"\r\n" + head(),
    "HTTP/1.0": head(CL5, first=b"POST / HTTP/1.0", host=b"") + b"hello",
    "bytes beyond ASCII in a value": head(b"X-Name: caf\xc3\xa9"),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_an_engine_gets_is_one_request_to_two_other_parsers(name: str) -> None:
    found = requests([TAKEN[name]])
    (inbound,), (sent,) = found.inbounds, found.sent
    for reading in (h11_requests(sent), llhttp_requests(sent)):
        assert not reading.refused and not reading.partial
        (message,) = reading.messages
        assert message.first == (inbound.method.encode(), inbound.target)
        assert message.body == inbound.body
        names = [header for header, _ in message.headers]
        assert names.count(b"host") == 1
        assert not {b"transfer-encoding", b"upgrade", b"connection", b"trailer", b"expect"} & set(names)


@pytest.mark.parametrize("name", TAKEN)
def test_the_request_behind_one_that_is_taken_is_read(name: str) -> None:
    raw = TAKEN[name]
    if b"HTTP/1.0" in raw:
        raw = raw.replace(b"\r\n", b"\r\nConnection: keep-alive\r\n", 1)
    assert [inbound.path for inbound in requests([raw + BEHIND]).inbounds][1:] == ["/smuggled"]


def test_trailers_do_not_become_headers() -> None:
    (inbound,) = requests([TAKEN["trailers"]]).inbounds
    assert (b"x-sum", b"1") not in inbound.headers
    assert inbound.body == b"hello"


# Limits that hold before all is read.


async def test_chunked_body_past_the_limit_is_refused_while_it_still_comes() -> None:
    async with stage(serving(OK), limits=Limits(max_body=1000)) as scene:
        wire = await scene.client()
        await wire.send(head(TE) + b"7d0\r\n" + b"x" * 1001)
        answer = await wire.message()
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (413, "body_too_large")


async def test_chunked_body_is_refused_by_what_it_carries_and_not_by_what_it_promises() -> None:
    async with stage(serving(OK), limits=Limits(max_body=1000)) as scene:
        wire = await scene.client()
        await wire.send(head(TE) + b"ffffff\r\n" + b"x" * 1000)
        await asyncio.sleep(0.05)
        assert scene.stats.bad_requests == 0
        await wire.send(b"x")
        assert (await wire.message()).status == 413


async def test_head_past_the_limit_is_refused_while_it_still_comes() -> None:
    async with stage(limits=Limits(max_head=1000)) as scene:
        wire = await scene.client()
        for _ in range(11):
            await wire.send(b"GET / HTTP/1.1\r\nX: " if not _ else b"x" * 100)
        assert (await wire.message()).status == 431


async def test_empty_lines_do_not_keep_a_connection_open() -> None:
    async with stage(serving(OK)) as scene:
        wire = await scene.client()
        await wire.send(b"\r\n" * 50_000)
        assert (await wire.message()).status == 400


async def test_a_kept_connection_with_an_empty_line_on_it_is_closed_without_a_word() -> None:
    async with stage(serving(OK), timeouts=replace(PATIENT, keepalive=0.05)) as scene:
        wire = await scene.client()
        assert (await wire.ask(post())).body == b"ok"
        await wire.send(b"\r\n")
        assert await wire.rest() == b""


async def test_an_empty_line_does_not_put_off_the_end_of_an_unused_connection() -> None:
    async with stage(serving(OK)) as scene:
        wire = await scene.client()
        await until(lambda: scene.stats.connections)
        (client,) = scene.plane._clients
        due = client.deadline
        for piece in (b"\r\n", b"\r", b"\n"):
            await wire.send(piece)
            await asyncio.sleep(0.02)
        assert client.deadline == due
        assert (await wire.ask(post())).body == b"ok"
