"""What engines are told of the client: nothing of ours, an addition, or only what the router saw."""

from __future__ import annotations

import pytest

from router.proxy.forwarded import ForwardedMode, Forwarding, forwarding
from router.proxy.interface import Inbound
from tests.router.proxy.scripted import OK, post, serving, stage

CAME = (
    b"X-Forwarded-For: 10.0.0.1",
    b"X-Forwarded-Proto: https",
    b"X-Forwarded-Host: shown.example",
    b"Forwarded: for=10.0.0.1",
    b"X-Forwarded-Port: 443",
    b"X-Real-IP: 10.0.0.1",
    b"X-Other: 1",
)
NAMES = (b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"forwarded")


async def told(mode: ForwardedMode, *lines: bytes, tls: bool = False) -> dict[bytes, list[bytes]]:
    """What the engine heard, by name."""
    async with stage(serving(OK), forwarding=forwarding(mode, tls=tls)) as scene:
        await scene.ask(post(b"{}", *lines))
        (request,) = scene.engines[0].requests
    return {name: request.all(name) for name in {name for name, _ in request.headers}}


async def test_off_adds_nothing() -> None:
    heard = await told(ForwardedMode.OFF)
    assert not {*NAMES} & heard.keys()


async def test_off_passes_on_what_came() -> None:
    heard = await told(ForwardedMode.OFF, *CAME)
    assert [heard[name] for name in NAMES] == [[b"10.0.0.1"], [b"https"], [b"shown.example"], [b"for=10.0.0.1"]]


async def test_append_adds_the_client_to_the_lists_and_keeps_the_rest() -> None:
    heard = await told(ForwardedMode.APPEND, *CAME)
    assert heard[b"x-forwarded-for"] == [b"10.0.0.1, 127.0.0.1"]
    assert heard[b"forwarded"] == [b'for=10.0.0.1, for=127.0.0.1;proto=http;host="router"']
    assert (heard[b"x-forwarded-proto"], heard[b"x-forwarded-host"]) == ([b"https"], [b"shown.example"])
    assert (heard[b"x-real-ip"], heard[b"x-other"]) == ([b"10.0.0.1"], [b"1"])


async def test_append_joins_lists_that_came_in_parts() -> None:
    heard = await told(ForwardedMode.APPEND, b"X-Forwarded-For: 10.0.0.1", b"x-forwarded-for: 10.0.0.2")
    assert heard[b"x-forwarded-for"] == [b"10.0.0.1, 10.0.0.2, 127.0.0.1"]


async def test_append_says_what_nobody_has_said() -> None:
    heard = await told(ForwardedMode.APPEND, tls=True)
    assert [heard[name] for name in NAMES] == [
        [b"127.0.0.1"],
        [b"https"],
        [b"router"],
        [b'for=127.0.0.1;proto=https;host="router"'],
    ]


async def test_replace_believes_nothing_that_came() -> None:
    heard = await told(ForwardedMode.REPLACE, *CAME)
    assert [heard[name] for name in NAMES] == [
        [b"127.0.0.1"],
        [b"http"],
        [b"router"],
        [b'for=127.0.0.1;proto=http;host="router"'],
    ]
    assert heard[b"x-other"] == [b"1"]
    assert not {b"x-forwarded-port", b"x-real-ip"} & heard.keys()


async def test_names_in_connection_take_away_what_came_and_not_what_is_added() -> None:
    heard = await told(ForwardedMode.APPEND, b"Connection: x-forwarded-for", b"X-Forwarded-For: 10.0.0.1")
    assert heard[b"x-forwarded-for"] == [b"127.0.0.1"]


def rewritten(client: str, host: bytes) -> bytes:
    inbound = Inbound("GET", b"/", "/", [(b"host", host)], b"", True, 0.0, client)
    return Forwarding(replace=True, tls=False).rewrite(inbound, b"")


def test_address_of_ipv6_is_quoted_where_the_grammar_asks_for_it() -> None:
    lines = rewritten("fe80::1%eth0", b"[::1]:80").splitlines()
    assert b"x-forwarded-for: fe80::1" in lines
    assert b'forwarded: for="[fe80::1]";proto=http;host="[::1]:80"' in lines


@pytest.mark.parametrize("host", [b'a";for=evil', b"a, b", b"a b", b"", b"a:x", b"a" * 300, b"\xff"])
def test_host_that_is_none_is_not_passed_on(host: bytes) -> None:
    assert b"host" not in rewritten("1.2.3.4", host)
