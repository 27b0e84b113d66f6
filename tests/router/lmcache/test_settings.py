"""`--lmcache-controller` and the options beside it."""

from __future__ import annotations

import pytest

from router.lmcache.chunks import Algorithm, Form, Scheme
from router.lmcache.settings import controller_settings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1", ("127.0.0.1", 9000, 9001, 9002)),
        ("0.0.0.0:9100", ("0.0.0.0", 9100, 9101, 9102)),
        ("*:9100,reply=7,heartbeat=8", ("0.0.0.0", 9100, 7, 8)),
        ("localhost:0", ("localhost", 0, 0, 0)),
        ("[::1]:9000", ("::1", 9000, 9001, 9002)),
    ],
)
def test_ports_follow_the_pull_port_unless_told(text: str, expected: tuple[str, int, int, int]) -> None:
    found = controller_settings(text)
    assert (found.host, found.pull, found.reply, found.heartbeat) == expected


def test_an_advertised_host_is_taken() -> None:
    assert controller_settings("0.0.0.0,advertise=router.local").advertise == "router.local"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not HOST or HOST:PORT"),
        ("tcp://h:1", "is not HOST or HOST:PORT"),
        ("h:99999", "must be a port"),
        ("h,reply=x", "reply must be a port"),
        ("h:65535", "must differ and be below 65536"),
        ("h:1,reply=1", "must differ"),
        ("h,answer=1", "is none of reply=PORT"),
        ("h,advertise=a b", "is none of reply=PORT"),
    ],
)
def test_a_part_that_is_not_understood_is_named(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        controller_settings(text)
    assert "\n" not in str(caught.value)


def test_the_hash_options_are_checked() -> None:
    with pytest.raises(ValueError, match="--lmcache-hash must be one of builtin"):
        controller_settings("h", algorithm="md5")
    with pytest.raises(ValueError, match="--lmcache-none-hash must be an integer of 64 bits"):
        controller_settings("h", none_hash=2**64)


def test_a_none_hash_as_workers_log_it_is_the_root_by_pythons_hash() -> None:
    found = controller_settings("h", none_hash=-6197052367682486848, chunk_size=64)
    assert found.scheme == Scheme(Form(Algorithm.BUILTIN, 64), hash(-6197052367682486848) % 2**64)
