"""Messages that are nearly right: seeds, and what is done to them. The same seed number gives the same messages."""

from __future__ import annotations

from random import Random

REQUESTS = [
    b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Type: application/json\r\n\r\nhello",
    b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3;x=y\r\nabc\r\n0\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: S\r\n\r\n1\r\nx\r\n0\r\nS: 1\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nhi",
    b"HEAD /v1/models HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET http://h:80/a?b=c HTTP/1.1\r\nHost: h\r\nConnection: x-hop, keep-alive\r\nX-Hop: 1\r\n\r\n",
    b"POST / HTTP/1.0\r\nContent-Length: 3\r\nConnection: keep-alive\r\n\r\nabc",
    b"POST /a HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\nabc",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]
RESPONSES = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3;x=y\r\nabc\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: a\r\n\r\n1\r\nx\r\n0\r\na: 1\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end",
    b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nok",
    b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
    b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: x-hop\r\nX-Hop: 1\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n",
]
_WORDS = [
    b"\r\n", b"\n", b"\r", b"\0", b"\t", b" ", b":", b";", b",", b'"', b"\x0b", b"\x0c", b"\x7f", b"\x80", b"\xff",
    b"\r\n\r\n", b"\r\n ", b"\r\n\t", b"\n\n", b"0", b"5", b"+5", b"-1", b"0x5", b"5, 5", b"ffffffffffffffff",
    b"100000000000000005", b"0000000000000000005", b"5;a=b", b'5;a="b\r\nc"', b"5 ", b"0\r\n\r\n", b"1_0",
    b"Content-Length: 5\r\n", b"Content-Length: 6\r\n", b"content-length:5\r\n", b"Content-Length : 5\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: identity\r\n", b"Transfer-Encoding: xchunked\r\n",
    b"Transfer-Encoding:\tchunked\r\n", b"Transfer-Encoding: chunked, chunked\r\n", b"transfer-encoding: CHUNKED\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n", b"Transfer_Encoding: chunked\r\n", b"Transfer-Encoding\r\n: chunked\r\n",
    b"Connection: close\r\n", b"Connection: keep-alive\r\n", b"Connection: content-length\r\n", b"Host: b\r\n",
    b"Connection: transfer-encoding, host\r\n", b"Upgrade: websocket\r\nConnection: upgrade\r\n", b"Expect: x\r\n",
    b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"CONNECT", b"TRACE", b"HEAD", b"GET /smuggled HTTP/1.1\r\n",
]  # fmt: skip


def mutated(random: Random, seeds: list[bytes]) -> bytes:
    """One to three seeds behind each other, with up to five mistakes."""
    data = bytearray(b"".join(random.choice(seeds) for _ in range(random.choice((1, 1, 1, 2, 3)))))
    for _ in range(random.randrange(6)):
        place = random.randrange(len(data) + 1)
        match random.randrange(7):
            case 0:
                data[place:place] = random.choice(_WORDS)
            case 1:
                data[place : place + random.randrange(1, 8)] = random.choice(_WORDS)
            case 2:
                del data[place : place + random.randrange(1, 12)]
            case 3:
                data[place:place] = data[place : place + random.randrange(1, 40)]
            case 4 if place < len(data):
                data[place] ^= 1 << random.randrange(8)
            case 5:
                line = data.find(b"\r\n", place) + 2
                if line > 1:
                    data[line:line] = random.choice(_WORDS)
            case _:
                colon = data.find(b": ", place) + 2
                if colon > 1:
                    data[colon:colon] = random.choice(_WORDS)
    return bytes(data)


def pieces(random: Random, data: bytes) -> list[bytes]:
    """The data, cut anywhere; now and then into single bytes."""
    if random.random() < 0.1:
        return [data[at : at + 1] for at in range(len(data))]
    places = sorted(random.randrange(len(data) + 1) for _ in range(random.randrange(5)))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
